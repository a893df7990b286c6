"""Workloads without serving: collectives and traffic matrices, played as flows (docs/collectives.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from scenario.section import Section

Operation = Literal[
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "incast",
    "permutation",
    "cross_rail",
    "rail_aligned",
    "g_to_one",
    "worst",
]
#: Operations that choose their GPUs themselves, over the whole fabric.
WHOLE_FABRIC = ("permutation", "cross_rail", "rail_aligned", "g_to_one", "worst")
InServer = Literal["nvlink", "fabric"]
_IN_SERVER = "between GPUs of one server: over NVLink (serving.nvlink_gbps, not on the fabric), or by their NICs"


class FlowWorkload(Section):
    """What every workload without serving has."""

    in_server: InServer = Field("nvlink", description=_IN_SERVER)
    repeats: int = Field(1, ge=1, le=10_000, description="how often, one after the other")
    warmup_repeats: int = Field(0, ge=0, le=1000, description="before them, not measured")
    timeout_s: float = Field(600.0, gt=0, le=1e6, description="a message that has not ended by then has failed")

    @property
    def requests(self) -> int:
        """Measured repeats."""
        return self.repeats


class CollectiveWorkload(FlowWorkload):
    """A collective operation, or a pattern of messages, played without serving."""

    kind: Literal["collective"] = "collective"
    operation: Operation = Field("all_reduce", description="which; docs/collectives.md has the formula of each")
    size_mb: float = Field(
        100.0,
        ge=0.001,
        le=1e6,
        description="the buffer of a GPU, as nccl-tests' size (10^6 bytes); of a message in patterns and incast",
    )
    among: Literal["all", "server", "rail"] = Field(
        "all", description="all: one collective; server, rail: one in each at the same time"
    )
    gpus: tuple[str, ...] = Field((), max_length=16384, description="GPUs that take part, such as gpu1 or gpu1-gpu8")
    fan_in: int | None = Field(None, ge=1, le=16384, description="incast: senders; default: all others")

    @model_validator(mode="after")
    def _fits(self) -> CollectiveWorkload:
        if self.operation in WHOLE_FABRIC and (self.gpus or self.among != "all"):
            raise ValueError(f"{self.operation} chooses its GPUs over the whole fabric: leave out gpus and among")
        if self.fan_in is not None and self.operation != "incast":
            raise ValueError(f"fan_in is for incast; {self.operation} has none")
        return self


class MatrixWorkload(FlowWorkload):
    """Replay of a traffic matrix (NIXL kvbench) or of a connection matrix (htsim), without serving."""

    kind: Literal["matrix"] = "matrix"
    path: Path = Field(description="matrix of sizes, kvbench's .tp or metadata.yaml, or htsim's .cm")
    numbering: Literal["rank", "export"] = Field(
        "rank",
        description="rank: rank or node i is gpu i+1; export: htsim nodes as `zcube fabric export` numbers NIC ports",
    )
