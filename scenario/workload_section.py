"""What the scenario's serving system is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from scenario.section import Section


class CodingAgentWorkload(Section):
    """Closed loop of synthetic coding-agent sessions (statistics: traffic/coding_agent.py names each source)."""

    kind: Literal["coding_agent"] = "coding_agent"
    utilisation: float = Field(
        0.8, ge=0.001, le=1.5, description="offered prefill load as a share of prefill compute; sets the session count"
    )
    requests: int = Field(300, ge=1, le=1_000_000, description="measured requests")
    warmup_requests: int = Field(40, ge=0, le=1_000_000, description="served before them, not measured")
    max_input_tokens: int = Field(202_752, ge=1, description="context limit of the model; longer prompts are cut")
    think_scale: float = Field(1.0, ge=0.001, le=1000, description="multiplies every think time")


class AzureWorkload(Section):
    """Open-loop replay of a window of an Azure LLM inference trace (TIMESTAMP,ContextTokens,GeneratedTokens)."""

    kind: Literal["azure"] = "azure"
    path: Path = Field(description="CSV file")
    skip: int = Field(0, ge=0, description="rows to leave out at the start")
    requests: int = Field(300, ge=1, le=1_000_000, description="measured requests")
    warmup_requests: int = Field(0, ge=0, le=1_000_000, description="replayed before them, not measured")
    speedup: float = Field(1.0, ge=1e-6, le=1e6, description="divides every gap between arrivals")


Workload = Annotated[CodingAgentWorkload | AzureWorkload, Field(discriminator="kind")]
