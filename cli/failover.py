"""`zcube failover`: a cable fails under load, on ZCube and on ROFT: the timeline of the repair, what handoffs felt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from analysis.failover import Failover, failover
from analysis.failover_console import faults_of_run
from analysis.fidelity import why_invalid
from analysis.metrics import summarise
from cli import options
from cli.app import err, out, print_json
from cli.fault_times import warn_of_late_faults
from cli.progress import RunProgress
from emulation.launch import MACHINE_CHECK, interrupted, require_new_folder
from emulation.launch import run as run_emulation
from emulation.machine import measure
from emulation.sandbox import require_machine
from emulation.scaling import TYPICAL_BUDGET_HOPS_PER_S, resolve
from results.reader import RunFolder
from results.writer import create_folder, write_json
from scenario.arms import arms
from scenario.errors import InputError
from scenario.load import with_changes
from scenario.models import Scenario
from simulation.run import simulate
from topologies.build import build
from topologies.fabric import FabricError
from topologies.routes import Failures
from traffic.shapes import planned_pairs

ARMS = ("ROFT", "ZCube")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "failover",
        help="A cable between switches fails under load and comes back: timeline of the repair, and what handoffs"
        " felt.\n\nExample: sudo .venv/bin/zcube failover --out runs/failover",
    )(run)


def run(
    scenario: Annotated[Path | None, typer.Argument(help="scenario file", show_default="failover")] = None,
    out_folder: options.Out = None,
    seed: options.Seed = None,
    requests: options.Requests = None,
    cable: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ARM=]NAME",
            help="cable or switch to fail: on every arm, or, given again, on each its own; else the busiest cable",
            show_default=False,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Run both arms; exit code 1 when a handoff was lost or a run is INVALID."""
    base = options.scenario_with_options(
        scenario or options.EXPERIMENTS / "failover.yaml", seed=seed, requests=requests
    )
    if cable and base.faults.events:
        raise InputError("--cable", cable[0], "the scenario has faults.events of its own", "leave one of the two out")
    sides = arms(base, ARMS)
    chosen = cables_of_arms(sides, cable or [])
    plans = {label: _with_fault(arm, chosen.get(label)) for label, arm in sides.items()}
    resolve(plans, TYPICAL_BUDGET_HOPS_PER_S)
    require_machine()
    folder = out_folder or Path("runs") / f"failover-{datetime.now():%Y%m%d-%H%M%S}"
    require_new_folder(folder)
    with RunProgress("this machine") as progress:
        budget = measure(base.scale.frame_bytes, folder / MACHINE_CHECK, progress).budget_hops_per_s
    create_folder(folder)
    found: dict[str, tuple[Failover, bool, Path]] = {}
    for label, arm in resolve(plans, budget).items():
        place = folder / label.lower()
        warn_of_late_faults(arm)
        with RunProgress(label) as progress:
            ended = run_emulation(place, arm, budget, progress)
        if ended.exit_code:
            err.print(interrupted(place), highlight=False)
            raise typer.Exit(ended.exit_code)
        write_json(place / "summary.json", summarise(RunFolder(place)))
        found[label] = failover(place), RunFolder(place).fidelity().get("valid") is not True, place
    if json:
        print_json({label: {"valid": not failed, **one.to_json()} for label, (one, failed, _) in found.items()})
    else:
        for label, (one, failed, place) in found.items():
            _print(label, one, failed, place)
        out.print(f"Runs are in {folder}", highlight=False)
    raise typer.Exit(int(any(one.lost or failed for one, failed, _ in found.values())))


def cables_of_arms(sides: Mapping[str, Scenario], texts: Sequence[str]) -> dict[str, str]:
    """Arm -> the name that `--cable` gives it. Raises InputError for a name that an arm does not have."""
    by_lower = {label.lower(): label for label in sides}
    found: dict[str, str] = {}
    for text in texts:
        arm, equals, name = text.rpartition("=")
        if equals and arm.strip().lower() not in by_lower:
            raise InputError("--cable", text, f"before the = must be an arm: {' or '.join(sides)}")
        name = name.strip()
        for label in [by_lower[arm.strip().lower()]] if equals else sides:
            if label in found:
                raise InputError(
                    "--cable", text, f"is the second for {label}", "one name for all arms, or ARM=NAME each"
                )
            try:
                Failures.of(build(sides[label].fabric), [name])
            except FabricError:
                hint = f"`zcube fabric show` lists an arm's; ARM=NAME is for one arm, as in --cable {label}=NAME"
                raise InputError("--cable", text, f"{label} has no cable or switch of this name", hint) from None
            found[label] = name
    return found


def _with_fault(scenario: Scenario, cable: str | None) -> Scenario:
    """The scenario with its cable failing at 30 % of the run and back at 60 %, as the simulation expects it to last."""
    if scenario.faults.events:
        return scenario
    name = cable or _busiest(scenario)
    end_s = simulate(scenario, infinite_core=True).end_s
    events = [{"at_s": round(0.3 * end_s, 2), "down": [name]}, {"at_s": round(0.6 * end_s, 2), "up": [name]}]
    return with_changes(scenario, {"faults": {"events": events}})


def _busiest(scenario: Scenario) -> str:
    """The cable between switches that most planned queue pairs cross; of several the first in the fabric's order."""
    fabric = build(scenario.fabric)
    crossing: Counter[str] = Counter()
    for src, dst in planned_pairs(scenario):
        for qp in scenario.paths.queue_pairs(fabric, src, dst):
            crossing.update(scenario.paths.path(fabric, qp).links)
    between = [link.id for link in fabric.links if link.tier != "access"]
    return max(between, key=lambda link: crossing[link])


def _print(label: str, one: Failover, failed: bool, place: Path) -> None:
    out.rule(f"{label}: INVALID" if failed else label)
    out.print(faults_of_run(one))
    if failed:
        out.print(
            Text.assemble(
                ("INVALID", "bold red"),
                f". {why_invalid(RunFolder(place).fidelity())}\nAll checks: {place.resolve() / 'fidelity.json'}",
            )
        )
