"""The command `zcube`: one module a verb, no logic."""

from __future__ import annotations

import sys
from importlib import import_module

from cli.app import app
from cli.app import run as main

VERBS = (
    "compare", "run", "simulate", "failover", "report", "diagnose", "fabric", "cabling", "cost", "kv", "calibrate",
    "trace", "schema", "controller", "doctor",
)  # fmt: skip

# A verb that is named is imported alone: all of them together take seconds.
for verb in (sys.argv[1],) if sys.argv[1:] and sys.argv[1] in VERBS else VERBS:
    import_module(f"cli.{verb}").register(app)

__all__ = ["app", "main"]

if __name__ == "__main__":
    main()
