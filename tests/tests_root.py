"""What root tests share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ovs-vswitchd", path="/usr/sbin:/usr/bin:/sbin:/bin") is None,
    reason="needs root, Mininet and Open vSwitch: sudo make test",
)
