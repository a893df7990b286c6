"""How long a run will serve, and which of its fault events may come too late."""

from __future__ import annotations

from cli.app import err
from scenario.models import Scenario
from simulation.run import simulate


def warn_of_late_faults(scenario: Scenario) -> None:
    """Say on standard error how long serving is expected to last, and which of its faults lie beyond.

    The estimate is the simulation's on an infinite core: a real fabric takes a little longer, so an event shortly after
    it may still be reached.
    """
    events = scenario.faults.events
    if not events:
        return
    end_s = simulate(scenario, infinite_core=True).end_s
    dilation = scenario.scale.dilation or 1.0
    err.print(
        f"{scenario.name}: serving is expected to last some {end_s:.1f} model s ({end_s * dilation:.0f} s here);"
        f" {len(events)} fault {'event' if len(events) == 1 else 'events'}, the last at"
        f" {max(event.at_s for event in events):g} s.",
        highlight=False,
    )
    for place, event in enumerate(events):
        if event.at_s > end_s:
            err.print(
                f"[yellow]faults.events[{place}].at_s = {event.at_s:g} lies beyond that: it will not be reached, unless"
                " serving takes longer. Choose an earlier time, or more --requests.[/]",
                highlight=False,
            )
