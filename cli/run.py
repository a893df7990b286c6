"""`zcube run`: one scenario, emulated, into one run folder."""

from __future__ import annotations

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
from cli.estimate import fabric_free, length_note
from cli.fault_times import warn_of_late_faults
from cli.find_rate import find_rate as find_serviceable
from cli.progress import RunProgress
from emulation.capture import check_ports
from emulation.launch import MACHINE_CHECK, interrupted, require_new_folder
from emulation.launch import run as run_emulation
from emulation.machine import measure
from emulation.mooncake_extra import require_transport
from emulation.sandbox import require_machine
from emulation.scaling import TYPICAL_BUDGET_HOPS_PER_S, resolve
from results.reader import RunFolder
from results.writer import write_json
from scenario.load import with_changes
from topologies.build import build
from traffic.compute_range import outside_range
from traffic.offered import offered
from traffic.sources import make_source


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "run",
        help="Run one scenario on emulated switches.\n\n"
        "Example: sudo .venv/bin/zcube run experiments/coding-agent.yaml --out runs/zcube",
    )(run)


def run(
    scenario: Annotated[Path, typer.Argument(help="scenario file")],
    out_folder: options.Out = None,
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
    switch: options.Switch = None,
    pcap: Annotated[
        list[str] | None,
        typer.Option(help="capture headers at this port while serving, e.g. leaf1-eth5; may be repeated"),
    ] = None,
    find_rate: Annotated[
        bool, typer.Option("--find-rate", help="look for the highest load that meets the objectives")
    ] = False,
    slo_ttft_ms: Annotated[
        float | None, typer.Option(help="promised time to first token", show_default="the scenario's")
    ] = None,
    attainment: Annotated[float, typer.Option(help="share that must meet them, for --find-rate")] = 0.9,
    json: options.Json = False,
) -> None:
    """Run it; exit code 1 when the run is INVALID."""
    settings = options.scenario_with_options(
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
        switch=switch,
    )
    if slo_ttft_ms is not None:
        settings = with_changes(settings, {"serving": {"slo_ttft_ms": slo_ttft_ms}})
    resolve({settings.name: settings}, TYPICAL_BUDGET_HOPS_PER_S)
    check_ports(build(settings.fabric), pcap or [])
    require_machine()
    require_transport(settings)
    folder = out_folder or Path("runs") / f"{settings.name}-{datetime.now():%Y%m%d-%H%M%S}"
    require_new_folder(folder)
    if find_rate:
        raise typer.Exit(find_serviceable(settings, folder, attainment, json))
    source = make_source(settings)
    taken = source_notes(getattr(source, "summary", {}))
    for note in (*taken, offered(settings, source).sentence(), outside_range(settings, source)):
        if note:
            err.print(f"Note: {note}", highlight=False, markup=False)
    with RunProgress("this machine") as progress:
        budget = measure(
            settings.scale.frame_bytes, folder / MACHINE_CHECK, progress, settings.fabric.switch
        ).budget_hops_per_s
    resolved = resolve({settings.name: settings}, budget)[settings.name]
    note = length_note(settings.name, {settings.name: resolved}, fabric_free(resolved).end_s)
    err.print(note, highlight=False)
    warn_of_late_faults(resolved)
    with RunProgress(settings.name) as progress:
        ended = run_emulation(folder, resolved, budget, progress, pcap or [])
    if ended.exit_code:
        err.print(interrupted(folder), highlight=False)
        raise typer.Exit(ended.exit_code)
    write_json(folder / "summary.json", summarise(RunFolder(folder)))
    comparison = compare_arms([Arm(settings.name, folder)])
    report = write_report(comparison, folder / "report.html")
    if json:
        print_json(comparison.to_json())
    else:
        print_comparison(comparison, out, report)
    raise typer.Exit(comparison.exit_code)
