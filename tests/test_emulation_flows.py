"""Workloads without serving on the emulated fabric: every operation, and whole runs of experiments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from emulated_flows import OPERATIONS, SCALE, SIZE_MB
from tests_root import REPOSITORY, in_sandbox, needs_root

from results.reader import RunFolder

pytestmark = [pytest.mark.root, needs_root]

#: Emulated bytes of a GPU's buffer.
BUFFER = SIZE_MB * 1e6 * SCALE.byte_factor


@pytest.mark.parametrize(
    "fabric", ["zcube:gpus=8,gpus_per_server=2,asic_ports=4", "roft:gpus=8,gpus_per_server=2,asic_ports=4"]
)
def test_every_operation_sends_what_its_formula_says(tmp_path: Path, fabric: str) -> None:
    found: dict[str, Any] = in_sandbox(tmp_path, "tests/emulated_flows.py", fabric)
    assert set(found) == set(OPERATIONS)
    for operation, one in found.items():
        assert one["status"] == ["ok"] and one["stages"] == [True] and one["emitted"] == 1, operation
        # In buffers of a GPU (n = 8): a ring's steps, a share to each of the others, or a message from each sender.
        rings = {"all_reduce": 14 / 8, "reduce_scatter": 7 / 8, "all_gather": 7 / 8, "all_to_all": 7 / 8}
        each = rings.get(operation, 1) * BUFFER
        assert list(one["carried"].values()) == pytest.approx([each] * len(one["carried"]), rel=1e-3), operation
        assert len(one["carried"]) == {"incast": 7, "g_to_one": 4}.get(operation, 8) or operation == "worst", operation
        for gpu, size in one["sent"].items():
            payload = one["carried"].get(gpu, 0)
            # Headers come on top; acknowledgements too; and on a busy machine what TCP sends again.
            assert payload <= size < 2 * payload + 0.5 * BUFFER, (operation, gpu)


@pytest.mark.parametrize("name", ["incast", "matrix", "transfers"])
def test_an_experiment_runs_and_says_how_long_it_took(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "cli.main", "run", f"experiments/{name}.yaml", "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, "--json"], cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr  # 1: measured, and INVALID on a machine that is too busy
    document = json.loads(done.stdout)
    run = RunFolder(tmp_path / "out")
    summary = run.summary()
    assert document["arms"][0]["summary"]["makespan_s"] == summary["makespan_s"] > 0
    assert summary["failed"] == 0 and summary["completed"] == run.scenario().workload.requests
    transfers = run.transfers()
    assert set(transfers["kind"]) == {"flow"} and set(transfers["status"]) == {"ok"}
    assert summary["flows"] == transfers["transfer_id"].nunique()
    # A flow is split over queue pairs in whole emulated bytes.
    assert transfers["bytes"].sum() == pytest.approx(summary["flow_bytes"], abs=len(transfers))
    assert summary["mean_fct_slowdown"] > 0.9 and (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_background_beside_serving_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli.main", "run", "experiments/background.yaml", "--requests", "6"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out"), "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr
    run = RunFolder(tmp_path / "out")
    (event,) = [event for event in run.events() if event["event"] == "background"]
    assert event["streams"] == run.meta()["background"]
    by_kind = {kind: [s for s in event["streams"] if s["kind"] == kind] for kind in ("iperf3", "flows")}
    assert all(stream["bytes_sent"] > 0 for stream in event["streams"])
    transfers = run.transfers()
    beside = transfers[(transfers["kind"] == "background") & (transfers["status"] == "ok")]
    arrived = sum(stream["bytes_arrived"] for stream in by_kind["flows"])
    assert beside["bytes"].sum() == pytest.approx(arrived, abs=len(beside))
    assert {tuple(pair) for pair in beside[["src_gpu", "dst_gpu"]].to_numpy()} == {("gpu2", "gpu14"), ("gpu6", "gpu10")}
    checks = {check["name"]: check for check in run.fidelity()["checks"]}
    assert checks["maxmin_ratio_median"]["ok"] is None
    assert "iperf3" in checks["maxmin_ratio_median"]["text"]
