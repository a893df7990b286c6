"""`zcube report`: tables and page again, from run folders that exist."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analysis.arms import Arm
from analysis.compare import compare as compare_arms
from analysis.console import print_comparison
from analysis.report import write_report
from cli import options
from cli.app import out, print_json
from results.reader import RunFolder
from scenario.arms import PAIR
from scenario.errors import InputError

#: Folder name -> label, for run folders that `zcube compare` made.
LABELS = {label.lower().replace(" ", "-"): label for label in PAIR} | {"bound": "infinite core"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "report",
        help="Compare run folders that exist and write report.html again.\n\n"
        "Example: .venv/bin/zcube report runs/first/coding-agent/*/",
    )(report)


def report(
    folders: Annotated[list[Path], typer.Argument(help="run folders; the base is ROFT, or else the first")],
    page: Annotated[Path | None, typer.Option(help="where to write the page", show_default="beside the first")] = None,
    json: options.Json = False,
) -> None:
    """Read, compare, print."""
    arms: list[Arm] = []
    for folder in folders:
        bound = RunFolder(folder).meta().get("infinite_core") is True
        arms.append(Arm(LABELS.get(folder.name, folder.name), folder, "bound" if bound else "run"))
    arms.sort(key=lambda arm: list(LABELS.values()).index(arm.label) if arm.label in LABELS.values() else len(LABELS))
    if all(arm.kind == "bound" for arm in arms):
        raise InputError("folders", [str(f) for f in folders], "at least one must be a run on a fabric")
    comparison = compare_arms(arms)
    written = write_report(comparison, page or folders[0].resolve().parent / "report.html")
    if json:
        print_json(comparison.to_json())
    else:
        print_comparison(comparison, out, written)
    raise typer.Exit(comparison.exit_code)
