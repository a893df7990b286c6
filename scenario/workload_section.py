"""What the scenario's serving system is asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scenario.flow_workloads import CollectiveWorkload, FlowWorkload, MatrixWorkload
from scenario.section import Section
from scenario.synthetic_workloads import (
    BurstWorkload,
    GammaArrivals,
    LogNormalLengths,
    PoissonArrivals,
    QuantileLengths,
    SampledLengths,
    ServeGenArrivals,
    SyntheticWorkload,
)
from scenario.trace_workloads import (
    AzureWorkload,
    BurstGptWorkload,
    MooncakeWorkload,
    QwenWorkload,
    RoutingWorkload,
    SessionsWorkload,
    TableWorkload,
    TraceWorkload,
    TransfersWorkload,
)


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


Workload = Annotated[
    CodingAgentWorkload
    | AzureWorkload
    | MooncakeWorkload
    | SessionsWorkload
    | BurstGptWorkload
    | QwenWorkload
    | TableWorkload
    | TransfersWorkload
    | RoutingWorkload
    | SyntheticWorkload
    | BurstWorkload
    | CollectiveWorkload
    | MatrixWorkload,
    Field(discriminator="kind"),
]


def without_serving(workload: Workload) -> bool:
    """Whether a workload is played as flows: no gateway, no prefill and decode timers, no tokens."""
    return isinstance(workload, FlowWorkload) or (isinstance(workload, TransfersWorkload) and workload.direct)


#: Kinds that replay a file: what `--trace-format` offers, by name.
REPLAYS: dict[str, type[TraceWorkload] | type[SessionsWorkload]] = {
    "azure": AzureWorkload,
    "mooncake": MooncakeWorkload,
    "sessions": SessionsWorkload,
    "burstgpt": BurstGptWorkload,
    "qwen": QwenWorkload,
    "table": TableWorkload,
    "transfers": TransfersWorkload,
    "routing": RoutingWorkload,
}
#: Every value of a `kind` within `workload`, with its model.
TAGS: dict[str, type[Section]] = {
    "coding_agent": CodingAgentWorkload,
    **REPLAYS,
    "synthetic": SyntheticWorkload,
    "burst": BurstWorkload,
    "collective": CollectiveWorkload,
    "matrix": MatrixWorkload,
    "poisson": PoissonArrivals,
    "gamma": GammaArrivals,
    "servegen": ServeGenArrivals,
    "lognormal": LogNormalLengths,
    "quantiles": QuantileLengths,
    "sampled": SampledLengths,
}
