"""The command `zcube`: one module a verb, no logic."""

from __future__ import annotations

from cli import cabling, compare, controller, cost, doctor, fabric, report, run, schema
from cli.app import app
from cli.app import run as main

for verb in (compare, run, report, fabric, cabling, cost, schema, controller, doctor):
    verb.register(app)

__all__ = ["main"]

if __name__ == "__main__":
    main()
