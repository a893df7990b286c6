"""How long emulated runs will take, said before they start."""

from __future__ import annotations

from collections.abc import Mapping

from scenario.models import Scenario
from scenario.scale import HEADER_BYTES
from simulation.run import Model, SimulationResult, simulate

#: What a run takes besides serving, roughly: bring-up, link check, writing.
AROUND_WALL_S = 25.0
#: A longer wait comes with advice on how to shorten it.
LONG_MINUTES = 8.0


def fabric_free(scenario: Scenario) -> SimulationResult:
    """The scenario on an infinite core, at the rate that headers leave: about as long as serving will take."""
    payload_share = (scenario.scale.frame_bytes - HEADER_BYTES) / scenario.scale.frame_bytes
    return simulate(scenario, infinite_core=True, model=Model(payload_share))


def wall_minutes(end_s: float, dilation: float | None, runs: int = 1) -> float:
    """Wall-clock minutes of `runs` emulated runs whose serving ends at model second `end_s`."""
    return runs * (AROUND_WALL_S + end_s * (dilation or 1.0)) / 60


def length_note(name: str, resolved: Mapping[str, Scenario], end_s: float) -> str:
    """One line for a person: how long these runs (scale resolved, the same for all) take, and what shortens them."""
    some = next(iter(resolved.values()))
    minutes = wall_minutes(end_s, some.scale.dilation, len(resolved))
    runs = "1 run" if len(resolved) == 1 else f"{len(resolved)} runs"
    return (
        f"{name}: {runs}, about {max(1, minutes):.0f} min in all; one model second takes"
        f" {some.scale.dilation or 1.0:g} s (a = {some.scale.rate_factor:g})."
        + (" Shorter: fewer --requests, larger --speedup, smaller --resolution." if minutes > LONG_MINUTES else "")
    )
