"""`zcube simulate`: a scenario in virtual time, on one fabric or several, without root and without switches."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from analysis.arms import Arm
from analysis.compare import compare as compare_arms
from analysis.console import print_comparison
from analysis.metrics import summarise
from analysis.notes import source_notes
from analysis.report import write_report
from cli import options
from cli.app import err, out, print_json
from cli.progress import RunProgress
from emulation.launch import require_new_folder
from results.reader import RunFolder
from results.writer import write_json
from scenario.arms import PAIR, arms, slug
from scenario.errors import InputError
from scenario.fabric_spec import section_from_text
from scenario.load import with_changes
from scenario.models import Scenario
from simulation.refusals import check_simulated
from simulation.run import LARGE_GPUS, Model, simulate, simulate_into, write_run
from topologies.build import build
from traffic.compute_range import outside_range
from traffic.offered import offered
from traffic.player import Player
from traffic.sources import make_source

#: Wall seconds between two looks at how far it is.
LOOK_EVERY_S = 0.5
NO_QUEUES = "Simulated: flows share links by max-min fairness. Queues, packets and losses do not exist in this model."


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "simulate",
        help="Serve a scenario in virtual time, as flows with max-min fair rates: no root, any size, no queues.\n\n"
        "Examples:\n\n"
        "  .venv/bin/zcube simulate experiments/coding-agent.yaml --arm ROFT --arm ZCube\n\n"
        "  .venv/bin/zcube simulate --gpus 1024 --arm roft:asic_ports=64 --arm zcube:asic_ports=64 --requests 5000",
    )(run)


def run(
    scenario: Annotated[Path | None, typer.Argument(help="scenario file", show_default="coding-agent")] = None,
    out_folder: options.Out = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(PAIR)}, or a fabric such as hpn:gpus=64; may be repeated", show_default="the scenario's"
        ),
    ] = None,
    seed: options.Seed = None,
    gpus: options.Gpus = None,
    requests: options.Requests = None,
    placement: options.Placement = None,
    trace: options.Trace = None,
    trace_format: options.TraceFormat = "auto",
    skip: options.Skip = 0,
    speedup: options.Speedup = 1.0,
    skip_bad_rows: options.SkipBadRows = False,
    json: options.Json = False,
) -> None:
    """Simulate, summarise, compare."""
    base = options.scenario_with_options(
        scenario,
        seed=seed,
        gpus=gpus,
        requests=requests,
        placement=placement,
        trace=trace,
        trace_format=trace_format,
        skip=skip,
        speedup=speedup,
        skip_bad_rows=skip_bad_rows,
    )
    plan = _plan(base, arm or [])
    for each in plan.values():
        check_simulated(each)
        build(each.fabric)  # whatever does not fit is said before anything starts
    source = make_source(base)
    taken = source_notes(getattr(source, "summary", {}))
    for note in (*taken, offered(base, source).sentence(), outside_range(base, source)):
        if note:
            err.print(f"Note: {note}", highlight=False, markup=False)
    folder = out_folder or Path("runs") / f"{base.name}-simulated-{datetime.now():%Y%m%d-%H%M%S}"
    require_new_folder(folder)
    err.print(NO_QUEUES, highlight=False)
    found = [Arm(label, _simulated(label, each, _place(folder, label, plan))) for label, each in plan.items()]
    if len(found) > 1:
        bound = folder / "bound"
        some = next(iter(plan.values()))
        write_run(bound, simulate(some, infinite_core=True, model=Model(Model.of(some).goodput_share)))
        write_json(bound / "summary.json", summarise(RunFolder(bound)))
        found.append(Arm("infinite core", bound, "bound"))
    large = [label for label, each in plan.items() if each.fabric.gpus >= LARGE_GPUS]
    comparison = compare_arms(found, diagnosed=not large)
    if large:
        err.print(f"Not diagnosed at this size; `zcube diagnose {found[0].path}` does, in minutes.", highlight=False)
    report = write_report(comparison, folder / "report.html")
    if json:
        print_json(comparison.to_json())
    else:
        print_comparison(comparison, out, report)
    raise typer.Exit(comparison.exit_code)


def _plan(base: Scenario, labels: list[str]) -> dict[str, Scenario]:
    """Label -> scenario. Raises InputError for an arm that is neither a label nor a fabric."""
    if not labels:
        return {base.name: base}
    found: dict[str, Scenario] = {}
    for label in labels:
        if label in found:
            raise InputError("--arm", label, "is there twice")
        if label in PAIR:
            found.update(arms(base, (label,)))
        else:
            # What the text does not say is as in the scenario, so that --gpus holds for every arm.
            section = section_from_text(label if ":" in label else f"{label}:gpus={base.fabric.gpus}")
            changes = section.model_dump(exclude_unset=True)
            found[label] = with_changes(base, {"name": f"{base.name}-{_short(label)}", "fabric": changes})
    return found


def _short(label: str) -> str:
    """A label as a part of a file's name."""
    return "".join(c if c.isalnum() else "-" for c in slug(label))[:40].strip("-")


def _place(folder: Path, label: str, plan: dict[str, Scenario]) -> Path:
    return folder / _short(label) if len(plan) > 1 else folder


def _simulated(label: str, scenario: Scenario, folder: Path) -> Path:
    """One arm, with progress, into its folder."""
    looked = began = time.monotonic()
    handoffs = 0
    with RunProgress(label) as progress:

        def watch(_: Player, now_s: float) -> None:
            nonlocal looked, handoffs
            handoffs += 1
            if time.monotonic() - looked >= LOOK_EVERY_S:
                looked = time.monotonic()
                progress({"phase": f"simulated to {now_s:,.1f} s", "done": handoffs})

        result = simulate_into(folder, scenario, Model.of(scenario), watch)
    seconds = time.monotonic() - began
    err.print(
        f"{label}: {handoffs:,} handoffs, {result.events:,} events of the engine in {seconds:,.1f} s; served"
        f" {result.end_s:,.1f} s of model time",
        highlight=False,
    )
    write_json(folder / "summary.json", summarise(RunFolder(folder)))
    return folder
