"""The highest load that still meets the objectives: how a scenario is loaded more or less, and the search. Pure.

"Serviceable rate": requests a second at which at least a share `attainment` of the measured requests meets its
objectives (as DistServe's goodput, https://arxiv.org/abs/2401.09670, section 2). Attainment falls with load, but one
run is one draw, so a search ends at a step of load and not at a digit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scenario.errors import InputError
from scenario.flow_workloads import FlowWorkload
from scenario.load import with_changes
from scenario.models import Scenario
from scenario.workload_section import BurstWorkload, CodingAgentWorkload, SessionsWorkload, without_serving

#: How far the search goes from the scenario's own load, each way.
WIDEST = 32.0
#: `utilisation` of closed loops beyond which they are no model of a service that keeps up.
MAX_UTILISATION = 1.5


def loaded(scenario: Scenario, factor: float) -> Scenario:
    """The scenario with `factor` times the load: arrivals, users or sessions, whichever its workload has.

    Raises InputError where that does not fit.
    """
    workload = scenario.workload
    if isinstance(workload, FlowWorkload) or without_serving(workload):
        raise InputError("workload.kind", workload.kind, "serves no requests: there is no rate to find")
    if isinstance(workload, CodingAgentWorkload):
        change: dict[str, object] = {"utilisation": min(MAX_UTILISATION, workload.utilisation * factor)}
    elif isinstance(workload, SessionsWorkload):
        change = {"users": max(1, round(workload.users * factor))}
    elif isinstance(workload, BurstWorkload):
        change = {"period_s": workload.period_s / factor}
    else:
        change = {"speedup": workload.speedup * factor}
    return with_changes(scenario, {"name": f"{scenario.name[:50]}-x{factor:.3g}", "workload": change})


@dataclass(frozen=True)
class Bracket:
    """The highest load that met the objectives and the lowest that did not (None: none was found in reach)."""

    met: float | None
    missed: float | None


def search(meets: Callable[[float], bool], *, start: float = 1.0, ratio: float = 1.1) -> Bracket:
    """Bracket the highest factor that `meets`, to within `ratio`: doubling or halving from `start`, then bisection in
    the logarithm. `meets` should fall from true to false as the factor rises."""
    low: float | None = None
    high: float | None = None
    at = start
    while start / WIDEST <= at <= start * WIDEST and (low is None or high is None):
        if meets(at):
            low = at
            at *= 2
        else:
            high = at
            at /= 2
    if low is None or high is None:
        return Bracket(low, high)
    while high / low > ratio:
        middle = (low * high) ** 0.5
        if meets(middle):
            low = middle
        else:
            high = middle
    return Bracket(low, high)


def require_objectives(scenario: Scenario) -> None:
    """Raise InputError where no request has an objective to meet."""
    serving = scenario.serving
    if not (serving.slo_ttft_ms or serving.slo_tpot_ms or any(t.slo_ttft_ms or t.slo_tpot_ms for t in serving.tenants)):
        raise InputError(
            "--find-rate", True, "needs an objective",
            "--slo-ttft-ms 2000, or serving.slo_ttft_ms, slo_tpot_ms or tenants in the scenario",
        )  # fmt: skip
