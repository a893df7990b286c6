"""`zcube doctor`: what this machine has, what that costs, and the command that mends it."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from cli import options
from cli.app import out, print_json
from emulation.capability import probe


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor", help="Say what this machine has and lacks.\n\nExample: sudo .venv/bin/zcube doctor")(doctor)


def doctor(json: options.Json = False) -> None:
    """Probe and print; exit code 3 when an emulation cannot run here."""
    found = probe()
    if json:
        print_json([asdict(item) for item in found])
    else:
        table = Table("", "requirement", "found", "effect when missing", "what to do")
        for item in found:
            mark = ("ok", "green") if item.ok else ("missing", "red") if item.needed else ("absent", "yellow")
            table.add_row(
                Text(*mark), item.name, item.found, "" if item.ok else item.effect, "" if item.ok else item.remedy
            )
        out.print(table)
    raise typer.Exit(0 if all(item.ok for item in found if item.needed) else 3)
