"""Whether the extra `mooncake` is installed, and what to do where it is not."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

from scenario.errors import MachineError
from scenario.models import Scenario

PACKAGE = "mooncake-transfer-engine-non-cuda"
REMEDY = "bash vagrant/setup.sh --mooncake"


def problem() -> str | None:
    """Why the engine cannot be used here; None when it can. Tries it in another process."""
    argv = [sys.executable, "-I", "-c", "import mooncake.engine"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def require() -> None:
    """Raises MachineError when the engine, or a library that it needs, is not installed."""
    why = problem()
    if why:
        raise MachineError(
            f"transport.kind: mooncake needs the Python package {PACKAGE} and the Debian package libibverbs1 ({why})",
            f"{REMEDY}    # or transport.kind: tcp, which needs neither",
        )


def version() -> str | None:
    """Of the installed package."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def require_transport(scenario: Scenario) -> None:
    """Raises MachineError when what carries the scenario's handoffs is an extra that is not installed."""
    if scenario.transport.kind == "mooncake":
        require()
