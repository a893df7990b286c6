"""The scenario's section for the flow-level simulation: what fluid flows leave out and is added as constants."""

from __future__ import annotations

from pydantic import Field

from scenario.section import Section

#: Said wherever a simulated run is shown: console, meta.json, report, diagnosis.
NO_QUEUES = (
    "Simulated: flows share links by max-min fairness. Queues do not exist in this model, nor do packets and losses."
)


class SimulationSection(Section):
    """Constants of the simulation (`zcube simulate`); an emulated run has the real thing."""

    nic_latency_us: float = Field(
        2.0, ge=0, le=1e6, description="added to each transfer between servers, for both NICs together"
    )
    hop_latency_us: float = Field(1.0, ge=0, le=1e6, description="the same for each switch on the path, its cable too")
    headers: bool = Field(True, description="take the share of headers in a full frame (scale.frame_bytes) off rates")
    repair_ms: float = Field(
        100.0, ge=0, le=1e6,
        description="from a cable or switch that goes down, or comes back, until flows move; emulated runs of 32 to 64"
        " GPUs took 20 to 105",
    )  # fmt: skip
