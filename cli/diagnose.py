"""`zcube diagnose`: why first tokens of a run are late, and what would help."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from analysis.diagnosis import diagnose as diagnose_run
from analysis.diagnosis_answers import answers
from analysis.diagnosis_console import diagnosis_text
from analysis.diagnosis_page import judged_valid, no_queues, write_page
from analysis.what_if import WhatIf
from cli import options
from cli.app import err, out, print_json
from results.reader import RunFolder
from results.writer import plain
from scenario.errors import InputError, TestbedError
from scenario.load import with_changes
from scenario.models import Scenario
from simulation.run import Model, simulate
from topologies.fabric import FabricError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "diagnose",
        help="Why first tokens of a run are late: KV handoff or not, bandwidth or hot spots, destination or mapping,\n"
        "scheduler, NIC rate. Writes diagnosis.html into the run folder.\n\n"
        "Example: .venv/bin/zcube diagnose runs/first/coding-agent/roft",
    )(diagnose)


def diagnose(
    run: Annotated[Path, typer.Argument(help="folder of a run, emulated or simulated")],
    page: Annotated[
        Path | None, typer.Option(help="where to write the page", show_default="RUN/diagnosis.html")
    ] = None,
    what_if: Annotated[
        bool, typer.Option("--what-if/--no-what-if", help="simulate it at half and double the NIC rate")
    ] = True,
    json: options.Json = False,
) -> None:
    """Exit code 0 whatever is found; 1 when the run is INVALID, since then the emulator may be the cause."""
    folder = RunFolder(run)
    target = page or run / "diagnosis.html"
    _check_page(page, target)
    found = diagnose_run(folder)
    scenario = folder.scenario()
    repeats = repeated(scenario, made_with(folder)) if what_if else None
    answered = answers(found, repeats)
    written = write_page(found, answered, repeats, folder, target)
    valid = judged_valid(folder)
    if json:
        more = {
            "intervals": [item.to_json() for item in found.congestion.intervals],
            "what_if": repeats.to_json() if repeats else None,
            "valid": valid,
            "model": no_queues(folder) or None,
        }
        print_json(plain({**found.to_json(), **more}))
    else:
        if not valid:
            text = "INVALID run: the emulator was outside its envelope and may itself be the cause."
            out.print(text, style="bold red")
        if said := no_queues(folder):
            out.print(said, highlight=False)
        out.print(diagnosis_text(found, answered))
        out.print(f"\nPage: {written}")
    raise typer.Exit(0 if valid else 1)


def _check_page(given: Path | None, page: Path) -> None:
    """Before the work and not after it: whether the page can be written."""
    field = "--page" if given is not None else "run folder"
    if page == Path() or page.is_dir():
        hint = f"give --page {page / 'diagnosis.html'}"
        raise InputError(field, str(page), "is a folder, and the page is a file", hint)
    if not page.parent.is_dir():
        hint = "make it first, or choose another place"
        raise InputError(field, str(page), f"there is no folder {page.parent}", hint)
    if not os.access(page.parent, os.W_OK):
        hint = "choose another place with --page FILE"
        raise InputError(field, str(page), f"{page.parent} cannot be written to", hint)


def made_with(run: RunFolder) -> Model:
    """The model of a simulated run, so that it is repeated as it was: headers, latency, faults. Else plain flows."""
    meta = run.meta()
    if meta.get("executor") != "simulation":
        return Model()
    return Model(float(meta.get("goodput_share", 1.0)), bool(meta.get("latency_and_faults")))


def repeated(scenario: Scenario, model: Model | None = None) -> WhatIf | None:
    """The same scenario simulated at other rates; None, with a note, where it cannot be simulated."""
    rate, model = scenario.fabric.gpu_gbps, model or Model()
    try:
        half, same, double = (
            _ttft_ms(
                with_changes(scenario, {"fabric": {"gpu_gbps": min(6400.0, max(1.0, rate * factor))}}),
                model,
                infinite_core=False,
            )
            for factor in (0.5, 1.0, 2.0)
        )
        return WhatIf(half, same, double, _ttft_ms(scenario, model, infinite_core=True))
    except (TestbedError, FabricError) as error:
        err.print(f"Note: not simulated at other NIC rates: {error}", highlight=False)
        return None


def _ttft_ms(scenario: Scenario, model: Model, *, infinite_core: bool) -> tuple[float, float]:
    values = np.array(list(simulate(scenario, infinite_core=infinite_core, model=model).ttft_s().values())) * 1e3
    if not values.size:
        return float("nan"), float("nan")
    return float(values.mean()), float(np.percentile(values, 95))
