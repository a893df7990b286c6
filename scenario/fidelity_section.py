"""The scenario's fidelity limits: beyond any of them a run is INVALID. docs/fidelity.md gives the reason of each."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scenario.scale import MIN_RESOLUTION_FRAMES
from scenario.section import Section


class FidelitySection(Section):
    """Limits of the fidelity checks. Whoever loosens one is named for it in every result."""

    link_check: Literal["auto", "all"] = Field(
        "auto",
        description="links measured before a run: auto is all of them up to 32 GPUs, and above a sample that touches"
        " every switch (--thorough: all)",
    )
    link_rate_pct: float = Field(3.0, gt=0, le=100, description="largest deviation of a link from its configured rate")
    lone_transfer_pct: float = Field(
        5.0, gt=0, le=100, description="largest deviation, either way, of a handoff alone from its time at line rate"
    )
    resolution_frames_min: int = Field(
        MIN_RESOLUTION_FRAMES, ge=1, le=1000, description="fewest frames per connection of the median handoff"
    )
    budget_pct: float = Field(
        100.0, gt=0, le=1000,
        description="most that all senders at line rate may ask for, of what the machine forwards when saturated",
    )  # fmt: skip
    maxmin_median_min: float = Field(
        0.95, gt=0, le=1, description="least median of actual durations over those in the max-min replay"
    )
    maxmin_median_max: float = Field(1.25, ge=1, le=100, description="largest median of the same")
    maxmin_p95_max: float = Field(2.0, ge=1, le=100, description="largest 95th percentile of the same")
    engine_lag_lone_pct: float = Field(
        5.0, gt=0, le=100, description="largest P99 of the engine's lag, of the time of a lone median handoff"
    )
    engine_lag_wall_ms: float = Field(10.0, ge=0, le=1000, description="lag that is allowed however short handoffs are")
    cpu_pct: float = Field(
        95.0, gt=0, le=100, description="most of all cores that may be busy, where the machine gives a run no priority"
    )
    switch_wait_frames_max: float = Field(
        1.5, gt=0, le=100,
        description="longest mean wait of a switch for a core, in frame times of a NIC at full rate",
    )  # fmt: skip
    upcalls_lost_max: int = Field(0, ge=0, le=10**9, description="most packets that switches dropped unexplained")
    sampler_gap_pct: float = Field(
        5.0, gt=0, le=100, description="most of the serving time in which a switch's queues went unseen"
    )

    def loosened(self) -> tuple[str, ...]:
        """Each limit that allows more than its default: "cpu_pct 95 -> 99". Empty when there is none."""
        found = []
        for name, field in type(self).model_fields.items():
            own, default = getattr(self, name), field.default
            if name == "link_check":
                continue
            looser = own < default if name.endswith("_min") else own > default
            if looser:
                found.append(f"{name} {default:g} -> {own:g}")
        return tuple(found)
