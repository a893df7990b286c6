"""`zcube compare`: the same requests on each fabric, one after the other, then one comparison."""

from __future__ import annotations

import time
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
from cli.estimate import fabric_free, length_note
from cli.fault_times import warn_of_late_faults
from cli.progress import RunProgress
from cli.two_scenarios import print_summary, second
from emulation.capability import require_flow_control
from emulation.launch import MACHINE_CHECK, require_new_folder
from emulation.launch import run as run_emulation
from emulation.machine import PLANES, Machine, measure_all
from emulation.mooncake_extra import require_transport
from emulation.red import check_thresholds
from emulation.sandbox import require_machine
from emulation.scaling import TYPICAL_BUDGET_HOPS_PER_S, resolve
from results.reader import RunFolder
from results.writer import create_folder, write_json
from scenario.arms import PAIR, arms, slug
from scenario.errors import InputError
from scenario.fabric_section import SWITCHES
from scenario.models import Scenario
from simulation.run import write_run
from topologies.build import build
from traffic.offered import offered
from traffic.sources import make_source


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "compare",
        help="Serve the same requests on ROFT and on ZCube, emulated, and compare TTFT.\n\n"
        "Examples:\n\n"
        "  sudo .venv/bin/zcube compare --out runs/first\n\n"
        "  sudo .venv/bin/zcube compare --trace code.csv --requests 300 --skip 1000 --speedup 20",
    )(compare)


def compare(
    scenario: Annotated[
        Path | None, typer.Argument(help="scenario file; each arm replaces its fabric", show_default="coding-agent")
    ] = None,
    out_folder: options.Out = None,
    arm: Annotated[list[str] | None, typer.Option(help=f"one of: {', '.join(PAIR)}", show_default="all")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="add a short run of shape A, which suits ROFT")] = False,
    seed: options.Seed = None,
    gpus: options.Gpus = None,
    requests: options.Requests = None,
    placement: options.Placement = None,
    trace: options.Trace = None,
    trace_format: options.TraceFormat = "auto",
    skip: options.Skip = 0,
    speedup: options.Speedup = 1.0,
    skip_bad_rows: options.SkipBadRows = False,
    rate_factor: options.RateFactor = None,
    dilation: options.Dilation = None,
    resolution: options.Resolution = None,
    thorough: options.Thorough = False,
    switch: Annotated[
        str | None,
        typer.Option(help=f"data plane: {', '.join(SWITCHES)}; both: each arm on each", show_default="the scenario's"),
    ] = None,
    json: options.Json = False,
) -> None:
    """Run and compare; exit code 1 when an arm is INVALID."""
    if switch not in (None, *SWITCHES, "both"):
        raise InputError("--switch", switch, f"allowed: {', '.join(SWITCHES)}, both")
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
        rate_factor=rate_factor,
        dilation=dilation,
        resolution=resolution,
        thorough=thorough,
        switch=None if switch == "both" else switch,
    )
    switches = SWITCHES if switch == "both" else (base.fabric.switch,)
    labels = tuple(arm or PAIR)
    for label in labels:
        if label not in PAIR:
            raise InputError("--arm", label, f"allowed: {', '.join(PAIR)}")
    plans = [arms(base, labels, switches)]
    if demo:
        plans.append(arms(second(seed=seed, thorough=thorough), labels[:2], switches))
    for plan in plans:
        resolve(plan, TYPICAL_BUDGET_HOPS_PER_S)  # whatever does not fit is said before anything starts
        for each in plan.values():
            check_thresholds(each, build(each.fabric))
    require_machine()
    require_transport(base)
    require_flow_control(base)
    source = make_source(base)
    for note in (*source_notes(getattr(source, "summary", {})), offered(base, source).sentence()):
        if note:
            err.print(f"Note: {note}", highlight=False, markup=False)
    folder = out_folder or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    require_new_folder(folder)
    began = time.monotonic()
    with RunProgress("this machine") as progress:
        machines = measure_all(base.scale.frame_bytes, folder / MACHINE_CHECK, progress, switches)
    for plane, machine in machines.items():
        by = "" if switches == SWITCHES[:1] else f", {PLANES[plane]} forwarding"
        err.print(
            f"This machine forwards {machine.hops_per_s:,.0f} switch-hops/s at saturation{by};"
            f" runs use at most {machine.budget_hops_per_s:,.0f}.",
            highlight=False,
        )
    comparisons = []
    for plan in plans:
        comparison = _run_plan(plan, folder / _base_name(plan), machines)
        comparisons.append(comparison)
        report = write_report(comparison, folder / _base_name(plan) / "report.html")
        write_json(report.with_name("comparison.json"), comparison.to_json())
        if not json:
            print_comparison(comparison, out, report)
    if json:
        documents = [comparison.to_json() for comparison in comparisons]
        print_json(documents if demo else documents[0])
    elif len(comparisons) > 1:
        print_summary(comparisons)
    err.print(f"All done in {time.monotonic() - began:.0f} s. Results are in {folder}", highlight=False)
    raise typer.Exit(max(comparison.exit_code for comparison in comparisons))


def _base_name(plan: dict[str, Scenario]) -> str:
    label, scenario = next(iter(plan.items()))
    return scenario.name.removesuffix("-" + slug(label))


def _run_plan(plan: dict[str, Scenario], folder: Path, machines: dict[str, Machine]) -> Comparison:
    # One scale for all arms: what the slower data plane can carry.
    budget_hops_per_s = {plane: machine.budget_hops_per_s for plane, machine in machines.items()}
    resolved = resolve(plan, min(budget_hops_per_s.values()))
    create_folder(folder)
    some = next(iter(resolved.values()))
    ideal = fabric_free(some)
    err.print(length_note(folder.name, resolved, ideal.end_s), highlight=False)
    found: list[Arm] = []
    for label, scenario in resolved.items():
        path = folder / slug(label)
        warn_of_late_faults(scenario)
        with RunProgress(f"{label} ({list(resolved).index(label) + 1} of {len(resolved)})") as progress:
            ended = run_emulation(path, scenario, budget_hops_per_s[scenario.fabric.switch], progress)
        if ended.exit_code:
            complete = ", ".join(arm.label for arm in found) or "none yet"
            part = f"; what {label} measured so far is in {path}" if (path / "meta.json").exists() else ""
            err.print(f"Interrupted. Complete runs: {complete}, in {folder}{part}", highlight=False)
            raise typer.Exit(ended.exit_code)
        write_json(path / "summary.json", summarise(RunFolder(path)))
        found.append(Arm(label, path))
    bound = folder / "bound"
    write_run(bound, ideal)
    write_json(bound / "summary.json", summarise(RunFolder(bound)))
    return compare_arms([*found, Arm("infinite core", bound, "bound")])
