"""`zcube run --find-rate`: the highest load that meets the objectives; simulation brackets it, emulation confirms.

What the simulation misses is not emulated, since frames, headers and queues only add to its times. So a load that is
confirmed at once is the answer; otherwise lower ones follow. A run that is INVALID is repeated.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
from rich.table import Table

from analysis.fidelity import why_invalid
from analysis.metrics import summarise
from analysis.service import objectives
from cli.app import err, out, print_json
from cli.estimate import wall_minutes
from cli.progress import RunProgress
from emulation.launch import MACHINE_CHECK
from emulation.launch import run as run_emulation
from emulation.machine import measure
from emulation.scaling import resolve
from results.reader import RunFolder, Window
from results.writer import create_folder, write_json
from scenario.errors import InputError
from scenario.models import Scenario
from scenario.workload_section import SessionsWorkload
from simulation.run import simulate
from traffic.find_rate import MOST_USERS, loaded, reach, require_objectives, search
from traffic.readers.sessions import session_files

#: Emulated runs at most: each takes minutes.
EMULATED_RUNS = 4
#: From one emulated load to the next, lower one.
STEP = 1.15


@dataclass(frozen=True)
class Tried:
    """One load. `rate_per_s`: measured requests a model second of the arrival window; `valid` None in simulation."""

    factor: float
    how: str
    rate_per_s: float
    attainment: float
    valid: bool | None = None


def find_rate(settings: Scenario, folder: Path, attainment: float, json: bool) -> int:
    """Search, print every load that was tried and the answer. Returns 1 when no emulated run confirmed a load."""
    require_objectives(settings)
    if not 0 < attainment <= 1:
        raise InputError("--attainment", attainment, "must be above 0 and at most 1")
    most_users = _most_users(settings)
    within = reach(settings, most_users)
    tried: list[Tried] = []
    took_s: dict[float, float] = {}

    def simulated(factor: float) -> bool:
        found = simulate(loaded(settings, factor, most_users))
        window = Window(*found.window_s)
        took_s[factor] = found.end_s
        figures = objectives(pd.DataFrame(found.requests), window)
        measured = sum(not row["warmup"] for row in found.requests)
        tried.append(Tried(factor, "simulated", measured / window.duration_s, float(figures["slo_attainment"])))
        err.print(f"simulated at {factor:.3g} times the load: {tried[-1].attainment:.0%} met", highlight=False)
        return tried[-1].attainment >= attainment

    bracket = search(simulated, applied=within.applied)
    bound = None
    if bracket.missed is None:
        bound = f"{bracket.met:.3g} times the load is the most that can be applied: {within.bounds[1]}"
    elif bracket.met is None:
        bound = f"{bracket.missed:.3g} times the load is the least that can be applied: {within.bounds[0]}"
    if bound:
        err.print(f"Note: {bound}", highlight=False, markup=False)
    create_folder(folder)
    if bracket.met is None:  # not even an idle system meets them: emulated runs could only take longer to say so
        _finish(tried, None, attainment, bound, folder, json)
        return 1
    with RunProgress("this machine") as progress:
        budget = measure(
            settings.scale.frame_bytes, folder / MACHINE_CHECK, progress, settings.fabric.switch
        ).budget_hops_per_s
    met, factor = None, bracket.met
    dilation = _resolved(loaded(settings, factor, most_users), budget).scale.dilation or 1.0
    minutes = wall_minutes(took_s[factor], dilation)
    err.print(
        f"emulating {factor:.3g} times the load: about {max(1, minutes):.0f} min (a model second lasts {dilation:.3g}"
        f" s), and about as long for each further run that is needed, {EMULATED_RUNS} in all at most; --resolution 20"
        " or fewer --requests are faster",
        highlight=False,
    )
    for number in range(1, EMULATED_RUNS + 1):
        path = folder / f"{number}-x{factor:.3g}"
        one = _emulated(loaded(settings, factor, most_users), factor, path, budget)
        tried.append(one)
        if one.valid is not True:  # that says nothing of the load: again
            continue
        if one.attainment >= attainment:
            met = one
            break
        lower = within.applied(factor / STEP)
        lower = within.applied(factor / 2) if lower == factor else lower  # few users: the next lower number of them
        if lower == factor:
            break
        factor = lower
    _finish(tried, met, attainment, bound, folder, json)
    return 0 if met is not None else 1


def _most_users(settings: Scenario) -> int:
    """Sessions that there are to replay at once."""
    workload = settings.workload
    if not isinstance(workload, SessionsWorkload):
        return MOST_USERS
    return max(1, len(session_files(workload.path)) - workload.skip)


def _resolved(scenario: Scenario, budget_hops_per_s: float) -> Scenario:
    return resolve({scenario.name: scenario}, budget_hops_per_s)[scenario.name]


def _emulated(scenario: Scenario, factor: float, path: Path, budget_hops_per_s: float) -> Tried:
    resolved = _resolved(scenario, budget_hops_per_s)
    with RunProgress(scenario.name) as progress:
        ended = run_emulation(path, resolved, budget_hops_per_s, progress)
    if ended.exit_code:
        raise KeyboardInterrupt
    run = RunFolder(path)
    summary = summarise(run)
    write_json(path / "summary.json", summary)
    rate = summary["requests"] / run.window().duration_s
    valid = run.fidelity()["valid"] is True
    if not valid:
        err.print(f"{path.name} is INVALID. {why_invalid(run.fidelity())}", highlight=False)
    return Tried(factor, "emulated", rate, float(summary["slo_attainment"]), valid)


def _finish(
    tried: list[Tried], met: Tried | None, attainment: float, bound: str | None, folder: Path, json: bool
) -> None:
    """`bound`: why the search went no further, where it did not bracket the answer."""
    found = {"attainment": attainment, "bound": bound, "tried": [asdict(one) for one in tried]}
    write_json(folder / "find-rate.json", found)
    if json:
        answer = None if met is None else asdict(met)
        print_json({"serviceable": answer, **found})
        return
    table = Table("load", "how", "requests a model s", "met their objectives", "run")
    for one in tried:
        verdict = "" if one.valid is None else ("valid" if one.valid else "INVALID")
        table.add_row(f"{one.factor:.3g} x", one.how, f"{one.rate_per_s:.2f}", f"{one.attainment:.1%}", verdict)
    out.print(table)
    if bound:
        out.print(f"In simulation the search ended at a bound: {bound}.", highlight=False, markup=False)
    if met is None:
        out.print(
            f"No load met {attainment:.0%}: the objectives are out of reach of this scenario, or the emulated runs are"
            f" INVALID for the reasons given. Results are in {folder}", highlight=False, markup=False,
        )  # fmt: skip
        return
    out.print(
        f"Serviceable: {met.rate_per_s:.2f} requests a model second ({met.factor:.3g} times the scenario's load), at"
        f" which {met.attainment:.1%} met their objectives (wanted: {attainment:.0%}). One draw. Runs are in {folder}",
        highlight=False, markup=False,
    )  # fmt: skip
