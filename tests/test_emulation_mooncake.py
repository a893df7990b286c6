"""Handoffs carried by the Mooncake Transfer Engine on the emulated fabric. Runs where the extra is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests_root import REPOSITORY, in_sandbox, needs_root

from emulation.mooncake_extra import REMEDY, problem
from results.reader import RunFolder

WHY = problem()
pytestmark = [
    pytest.mark.root,
    needs_root,
    pytest.mark.skipif(WHY is not None, reason=f"the extra is not installed ({WHY}): {REMEDY}"),
]

ZCUBE, ROFT = (f"{kind}:gpus=8,gpus_per_server=2,asic_ports=4" for kind in ("zcube", "roft"))
#: Four alone, ten together, and one that is larger than a sender's first table.
HANDOFFS = 15


def carried(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = in_sandbox(tmp_path, "tests/emulated_mooncake.py", *arguments)
    return found


@pytest.mark.parametrize(("fabric", "ports"), [(ZCUBE, 2), (ROFT, 1)])
def test_every_byte_arrives_and_crosses_the_observed_ports(tmp_path: Path, fabric: str, ports: int) -> None:
    found = carried(tmp_path, fabric)
    assert found["complaints"] == [] and found["unfinished"] == []
    assert found["verified"] == HANDOFFS
    assert found["processes"] == 7  # the GPUs that send or receive
    # A connection for each pair of ports, of the engine's own choice of ports.
    assert found["connections"] == found["distinct_ports"] == 8 * ports
    for one in found["alone"]:
        assert len(one["parts"]) == ports
        assert one["off_by"] < 0.02
        # Not before its bytes can have been there: the shapers' burst is two frames a port.
        assert one["frame_times"] > 200 - 2 * ports
    if fabric == ZCUBE:
        assert found["as_planned"] == found["connections"]  # routes by address leave no choice
    # The cap is 16 frames. A send buffer takes one more while it is not full; the engine's small messages count too.
    assert 8 <= found["in_flight"] <= 20
    assert "gpu6" in found["after_a_kill"] or "Mooncake" in found["after_a_kill"]


def test_a_byte_that_changed_in_memory_is_found(tmp_path: Path) -> None:
    found = carried(tmp_path, ZCUBE, "3")
    (complaint,) = found["complaints"]
    assert complaint.startswith("transfer 3, queue pair gpu8 port 1 to gpu3 port 2, index 0, offset 70000:")
    assert found["verified"] == HANDOFFS - 1


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["zcube", "roft"])
def test_the_experiment_serves(tmp_path: Path, kind: str) -> None:
    text = (REPOSITORY / "experiments/mooncake.yaml").read_text()
    assert "kind: zcube" in text
    (tmp_path / "scenario.yaml").write_text(text.replace("kind: zcube", f"kind: {kind}"))
    command = [sys.executable, "-m", "cli.main", "run", str(tmp_path / "scenario.yaml"), "--requests", "10"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out"), "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr  # 1: measured, and INVALID on a machine that is too busy
    run = RunFolder(tmp_path / "out")
    checks = {check["name"]: check for check in run.fidelity()["checks"]}
    assert checks["transfers_verified"]["ok"], checks["transfers_verified"]
    assert checks["maxmin_ratio_median"]["value"] > 0.9
    meta = run.meta()
    assert meta["transport"] == "mooncake" and meta["mooncake_version"]
    assert meta["policy"] == {"zcube": "unique", "roft": "ecmp_ovs"}[kind]
    transfers = run.transfers()
    ended = transfers[transfers["status"] == "ok"]
    assert len(ended) == len(transfers) > 0
    # Gpu, leaf or odd and even, and over ROFT's spine where servers are not below one leaf: paths were observed.
    assert set(ended["path"].map(len)) <= ({3} if kind == "zcube" else {2, 4})
