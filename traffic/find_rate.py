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
# What the settings may be (scenario/workload_section.py and the models it names).
MIN_UTILISATION = 0.001
MAX_SPEEDUP = 1e6
MAX_PERIOD_S = 1e6
MOST_USERS = 100_000


@dataclass(frozen=True)
class Reach:
    """The factors of load that can be applied to a scenario, and what bounds them above and below."""

    lowest: float
    highest: float
    bounds: tuple[str, str]
    users: int | None = None

    def applied(self, factor: float) -> float:
        """The factor that a run really gets: within reach, and for users a whole number of them."""
        factor = min(self.highest, max(self.lowest, factor))
        return factor if self.users is None else max(1, round(self.users * factor)) / self.users


def reach(scenario: Scenario, most_users: int = MOST_USERS) -> Reach:
    """How far load can go before the scenario no longer changes or no longer fits, `WIDEST` times at most.

    `most_users`: sessions that the folder of a sessions workload has. Raises InputError where nothing is served.
    """
    workload = scenario.workload
    users = None
    if isinstance(workload, FlowWorkload) or without_serving(workload):
        raise InputError("workload.kind", workload.kind, "serves no requests: there is no rate to find")
    if isinstance(workload, CodingAgentWorkload):
        low, high = MIN_UTILISATION / workload.utilisation, MAX_UTILISATION / workload.utilisation
        bounds = f"workload.utilisation {MIN_UTILISATION:g}", f"workload.utilisation {MAX_UTILISATION:g}"
    elif isinstance(workload, SessionsWorkload):
        most = min(MOST_USERS, most_users)
        users = min(workload.users, most)  # more users than sessions are no more load
        low, high = 1 / users, most / users
        bounds = "workload.users 1", f"workload.users {most}: no more sessions to replay"
    elif isinstance(workload, BurstWorkload):
        low = workload.period_s / MAX_PERIOD_S
        # A little less than all of it: rounding must not make the bursts overlap.
        high = workload.period_s / max(workload.window_ms / 1e3, 1e-300) * (1 - 1e-9)
        bounds = f"workload.period_s {MAX_PERIOD_S:g}", "workload.period_s = window_ms: shorter, and bursts overlap"
    else:
        low, high = 1 / MAX_SPEEDUP / workload.speedup, MAX_SPEEDUP / workload.speedup
        bounds = f"workload.speedup {1 / MAX_SPEEDUP:g}", f"workload.speedup {MAX_SPEEDUP:g}"
    if low < 1 / WIDEST:
        low, bounds = 1 / WIDEST, ("the search goes no lower", bounds[1])
    if high > WIDEST:
        high, bounds = WIDEST, (bounds[0], "the search goes no higher")
    return Reach(min(1.0, low), max(1.0, high), bounds, users)


def loaded(scenario: Scenario, factor: float, most_users: int = MOST_USERS) -> Scenario:
    """The scenario with `factor` times the load, as far as it is in `reach`: arrivals, users or sessions, whichever its
    workload has.

    Raises InputError where that does not fit.
    """
    workload = scenario.workload
    found = reach(scenario, most_users)
    factor = found.applied(factor)
    if isinstance(workload, CodingAgentWorkload):
        wanted = workload.utilisation * factor
        change: dict[str, object] = {"utilisation": min(MAX_UTILISATION, max(MIN_UTILISATION, wanted))}
    elif found.users is not None:
        change = {"users": round(found.users * factor)}
    elif isinstance(workload, BurstWorkload):
        change = {"period_s": min(MAX_PERIOD_S, workload.period_s / factor)}
    else:
        assert not isinstance(workload, FlowWorkload | SessionsWorkload)  # `reach` has refused or named them
        change = {"speedup": min(MAX_SPEEDUP, max(1 / MAX_SPEEDUP, workload.speedup * factor))}
    return with_changes(scenario, {"name": f"{scenario.name[:50]}-x{factor:.3g}", "workload": change})


@dataclass(frozen=True)
class Bracket:
    """The highest load that met the objectives and the lowest that did not (None: none was found in reach)."""

    met: float | None
    missed: float | None


def search(
    meets: Callable[[float], bool],
    *,
    start: float = 1.0,
    ratio: float = 1.1,
    applied: Callable[[float], float] | None = None,
) -> Bracket:
    """Bracket the highest factor that `meets`, to within `ratio`: doubling or halving from `start`, then bisection in
    the logarithm. `meets` should fall from true to false as the factor rises. `applied` is that of the scenario's
    `Reach`: where it no longer changes, the search ends; without it that is `WIDEST` times `start`, each way."""
    apply = applied or (lambda factor: min(start * WIDEST, max(start / WIDEST, factor)))
    low: float | None = None
    high: float | None = None
    at = apply(start)
    while low is None or high is None:
        if meets(at):
            low, following = at, apply(at * 2)
        else:
            high, following = at, apply(at / 2)
        if following in (at, low, high):
            break
        at = following
    if low is None or high is None:
        return Bracket(low, high)
    while high / low > ratio:
        middle = apply((low * high) ** 0.5)
        if middle in (low, high):
            break
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
