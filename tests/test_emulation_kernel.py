"""The kernel as the data plane, as root in a sandbox: planned paths, read-back, a run, nothing left on the host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests_root import REPOSITORY, in_sandbox, needs_root

pytestmark = [pytest.mark.root, needs_root]

from host_state import settled, snapshot  # noqa: E402

from results.reader import RunFolder  # noqa: E402

SMALL = """
name: small
fabric: {gpus: 16, asic_ports: 8, gpus_per_switch: 4, switch: linux}
scale: {rate_factor: 2.0e-5, dilation: 4.0}
workload: {kind: coding_agent, requests: 8, warmup_requests: 2, utilisation: 0.6}
"""


def walked(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = in_sandbox(tmp_path, "tests/emulated_kernel.py", *arguments)
    return found


@pytest.mark.parametrize(
    ("fabric", "queue_pairs", "nic_ports"),
    [
        ("zcube:gpus=8,asic_ports=4", 8 * 7 * 2, 16),
        ("zcube:gpus=8,asic_ports=4,bundle=trunk", 8 * 7 * 2, 16),
        ("zcube:gpus=8,asic_ports=4,bundle=hashed", 8 * 7 * 2, 16),
        ("roft:gpus=16,asic_ports=4,gpus_per_server=2,tiers=3", 16 * 15, 16),
    ],
)
def test_every_gpu_pair_takes_exactly_the_planned_path(
    tmp_path: Path, fabric: str, queue_pairs: int, nic_ports: int
) -> None:
    assert walked(tmp_path, fabric) == {
        "checked": queue_pairs,
        "wrong": [],
        "pings_lost": 0,
        "listeners": nic_ports,
        "differing": {},
        "unshaped": {},
        "dropped": 0,
        "sysctls": {"net/ipv4/ip_forward": "1", "net/ipv4/fib_multipath_hash_policy": "1"},
        "controllers": 0,
    }


def test_a_route_that_leads_elsewhere_is_read_back_and_seen(tmp_path: Path) -> None:
    # On odd1 the address of gpu1's port leaves by a port that leads to another GPU.
    found = walked(tmp_path, "zcube:gpus=8,asic_ports=4", "route replace 198.18.0.1/32 nhid 2")
    assert set(found["differing"]) == {"odd1"} and found["wrong"]


def start(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    file = folder / "scenario.yaml"
    file.write_text(text)
    command = [sys.executable, "-m", "cli.main", "run", str(file), "--out", str(folder / "out"), "--json"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.alone
def test_a_run_says_what_forwarded_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = snapshot()
    done = start(tmp_path, SMALL)
    assert done.returncode in (0, 1), done.stderr  # 1: measured, and INVALID on a machine that is too busy
    assert settled(before) == {}
    run = RunFolder(tmp_path / "out")
    meta = run.meta()
    assert meta["data_plane"] == "linux" and meta["controller"] is None and meta["ovs_version"] is None
    assert meta["cabling"]["verified"] is True and "iflink" in meta["cabling"]["how"]
    assert run.summary()["failed"] == 0
    files = {path.name for path in run.path.iterdir()}
    assert "routes.json" in files and not files & {"rules.json", "controller.log", "of_ports.parquet"}
    routes = json.loads((run.path / "routes.json").read_text())
    assert [one["name"] for one in routes["switches"]] == [one["name"] for one in run.fabric()["switches"]]
    lost = next(check for check in run.fidelity()["checks"] if check["name"] == "packets_lost")
    assert "0 by the switches' kernel" in lost["text"]


def test_a_swapped_cable_is_found_before_traffic(tmp_path: Path) -> None:
    swap = "faults: {miscable: [{kind: swap, a: odd1-eth5, b: odd3-eth5}]}\n"
    done = start(tmp_path, SMALL + swap)
    assert done.returncode == 1 and "not cabled as planned" in " ".join(done.stderr.split()), done.stderr
    assert (tmp_path / "out" / "cabling.json").exists() and not (tmp_path / "out" / "routes.json").exists()
