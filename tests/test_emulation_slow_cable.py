"""A cable that is slow from the start of serving, in a whole emulated run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests_root import REPOSITORY, needs_root

from results.reader import RunFolder

pytestmark = [pytest.mark.root, needs_root]

SHARE = 0.25


def test_a_slow_cable_slows_its_own_flows_and_the_reference_knows(tmp_path: Path) -> None:
    """Messages of a permutation on 8 GPUs of one leaf: those over gpu1's cable take four times as long, both ways. The
    replay has the slow cable in it, so the run is judged as any other; the link check before sees the full rate."""
    scenario = {
        "name": "slow",
        "fabric": {"kind": "roft", "gpus": 8, "asic_ports": 16, "gpus_per_leaf": 8, "gpus_per_server": 1},
        "faults": {"slow": [{"cable": "gpu1-eth1", "share": SHARE}]},
        "workload": {"kind": "collective", "operation": "permutation", "size_mb": 6400},
    }
    (tmp_path / "slow.yaml").write_text(yaml.safe_dump(scenario))
    command = [sys.executable, "-m", "cli.main", "run", str(tmp_path / "slow.yaml"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr  # 1: measured, and INVALID on a machine that is too busy
    run = RunFolder(tmp_path / "out")
    transfers = run.transfers()
    transfers["taken_s"] = transfers["t_done_s"] - transfers["t_submit_s"]
    touched = (transfers["src_gpu"] == "gpu1") | (transfers["dst_gpu"] == "gpu1")
    assert touched.sum() == 2
    usual = transfers.loc[~touched, "taken_s"].median()
    assert transfers.loc[touched, "taken_s"].tolist() == pytest.approx([usual / SHARE] * 2, rel=0.2)
    assert (transfers["taken_s"] / transfers["ideal_s"]).median() == pytest.approx(1, abs=0.25)
    checks = {check["name"]: check for check in run.fidelity()["checks"]}
    assert checks["maxmin_ratio_median"]["ok"] is not None
    rates = {(link["node"], link["port"]): link["measured_bps"] for link in run.fidelity()["links"]}
    assert rates["gpu1", 1] == pytest.approx(rates["gpu2", 1], rel=0.1)
