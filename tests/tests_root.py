"""What root tests share."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from emulation.sandbox import Sandbox

REPOSITORY = Path(__file__).resolve().parent.parent

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ovs-vswitchd", path="/usr/sbin:/usr/bin:/sbin:/bin") is None,
    reason="needs root, Mininet and Open vSwitch: sudo make test",
)


def in_sandbox(folder: Path, *argv: str) -> Any:
    """What a script of the tests prints as JSON, run as root in a sandbox of its own; its log is in `folder`."""
    with open(folder / "log", "wb") as log, Sandbox(list(argv), stderr=log) as sandbox:
        assert sandbox.process.stdout is not None
        output = sandbox.process.stdout.read()
        code = sandbox.wait(10)
    assert code == 0, (folder / "log").read_text()[-4000:]
    return json.loads(output)
