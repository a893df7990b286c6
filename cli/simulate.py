"""`zcube simulate`: a scenario in virtual time, on one fabric or several, without root and without switches."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from analysis.arms import Arm
from analysis.compare import Comparison
from analysis.compare import compare as compare_arms
from analysis.console import print_comparison
from analysis.metrics import summarise
from analysis.notes import source_notes
from analysis.report import write_report
from cli import options
from cli.app import err, out, print_json
from cli.progress import RunProgress
from cli.two_scenarios import print_summary, second
from emulation.launch import require_new_folder
from results.reader import RunFolder
from results.writer import write_json
from scenario.arms import PAIR, arms, slug
from scenario.errors import InputError
from scenario.fabric_spec import section_from_text
from scenario.load import with_changes
from scenario.models import Scenario
from scenario.simulation_section import NO_QUEUES
from simulation.executor import VirtualTime
from simulation.refusals import check_simulated
from simulation.run import LARGE_GPUS, Model, not_reached, simulate_into
from topologies.build import build
from traffic.compute_range import outside_range
from traffic.offered import offered
from traffic.sources import make_source

#: Wall seconds between two looks at how far it is.
LOOK_EVERY_S = 0.5


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "simulate",
        help="Serve a scenario in virtual time, as flows with max-min fair rates: no root, any size, no queues.\n\n"
        "Examples:\n\n"
        "  .venv/bin/zcube simulate --demo\n\n"
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
    demo: Annotated[
        bool, typer.Option("--demo", help=f"{', '.join(PAIR)} side by side, and a short run of shape A")
    ] = False,
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
    labels = arm or (list(PAIR) if demo else [])
    bases = [base, second(seed=seed)] if demo else [base]
    plans = [_plan(one, labels[: None if one is base else 2]) for one in bases]
    for each in (each for plan in plans for each in plan.values()):
        check_simulated(each)
        build(each.fabric)  # whatever does not fit is said before anything starts
    sources = [make_source(one) for one in bases]
    source = sources[0]
    taken = source_notes(getattr(source, "summary", {}))
    for note in (*taken, offered(base, source).sentence(), outside_range(base, source)):
        if note:
            err.print(f"Note: {note}", highlight=False, markup=False)
    folder = out_folder or Path("runs") / f"{base.name}-simulated-{datetime.now():%Y%m%d-%H%M%S}"
    require_new_folder(folder)
    err.print(NO_QUEUES, highlight=False)
    began = time.monotonic()
    comparisons = []
    for one, plan, played in zip(bases, plans, sources, strict=True):
        place = folder / one.name if demo else folder
        comparison = _compared(plan, place, played.count)
        comparisons.append(comparison)
        report = write_report(comparison, place / "report.html")
        write_json(place / "comparison.json", comparison.to_json())
        if not json:
            print_comparison(comparison, out, report)
    if json:
        documents = [comparison.to_json() for comparison in comparisons]
        print_json(documents if demo else documents[0])
    elif len(comparisons) > 1:
        print_summary(comparisons)
    err.print(f"{NO_QUEUES}\nAll done in {time.monotonic() - began:.0f} s. Results are in {folder}", highlight=False)
    raise typer.Exit(max(comparison.exit_code for comparison in comparisons))


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Within it Ctrl-C ends the serving, and what there is gets written; a second one ends the command at once."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        err.print("Stopping, and writing what there is; Ctrl-C again ends it at once.", highlight=False)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _compared(plan: dict[str, Scenario], folder: Path, requests: int) -> Comparison:
    """All arms of a plan, and for several of them the fabric-free bound. Raises typer.Exit after Ctrl-C."""
    several = len(plan) > 1
    found: list[Arm] = []
    for label, each in plan.items():
        path = folder / _short(label) if several else folder
        if _simulated(label, each, path, requests):
            complete = ", ".join(done.label for done in found) or "none yet"
            err.print(f"Interrupted. Complete runs: {complete}; what {label} had is in {path}", highlight=False)
            raise typer.Exit(130)
        found.append(Arm(label, path))
    if several:
        bound = folder / "bound"
        some = next(iter(plan.values()))
        model = Model(Model.of(some).goodput_share)
        with _stoppable() as stop:
            ideal = simulate_into(bound, some, model, infinite_core=True, stop=stop)
        if ideal.interrupted:
            err.print(f"Interrupted in the fabric-free bound. The runs are complete: {folder}", highlight=False)
            raise typer.Exit(130)
        write_json(bound / "summary.json", summarise(RunFolder(bound)))
        found.append(Arm("infinite core", bound, "bound"))
    large = any(each.fabric.gpus >= LARGE_GPUS for each in plan.values())
    if large:
        err.print(f"Not diagnosed at this size; `zcube diagnose {found[0].path}` does, in minutes.", highlight=False)
    return compare_arms(found, diagnosed=not large)


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


def _simulated(label: str, scenario: Scenario, folder: Path, requests: int) -> bool:
    """One arm, with progress, into its folder; whether it was interrupted."""
    looked = began = time.monotonic()
    handoffs = 0
    with RunProgress(label) as progress, _stoppable() as stop:

        def watch(now: VirtualTime, now_s: float) -> None:
            nonlocal looked, handoffs
            handoffs += 1
            if time.monotonic() - looked >= LOOK_EVERY_S:
                looked = time.monotonic()
                progress({"phase": f"simulated to {now_s:,.1f} s", "done": now.first_tokens, "of": requests})

        result = simulate_into(folder, scenario, Model.of(scenario), watch, stop=stop)
    seconds = time.monotonic() - began
    err.print(
        f"{label}: {handoffs:,} handoffs, {result.events:,} events of the engine in {seconds:,.1f} s; served"
        f" {result.end_s:,.1f} s of model time",
        highlight=False,
    )
    for missed in not_reached(result):
        err.print(
            f"{label}: the fault event at {missed['at_s']:g} s was not reached. Choose an earlier time, or more"
            " --requests.",
            highlight=False,
            style="yellow",
        )
    if not result.interrupted:
        write_json(folder / "summary.json", summarise(RunFolder(folder)))
    return result.interrupted
