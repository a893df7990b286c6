"""`zcube schema`: the JSON Schema of a scenario file."""

from __future__ import annotations

import typer

from cli.app import print_json
from scenario.models import Scenario


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("schema", help="Print the JSON Schema of a scenario file.\n\nExample: .venv/bin/zcube schema")(schema)


def schema() -> None:
    """Print it."""
    print_json(Scenario.model_json_schema())
