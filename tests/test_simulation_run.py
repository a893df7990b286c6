"""Whole simulated runs on the 32-GPU pair: timelines by hand, rows, determinism and the run folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from analysis.metrics import summarise
from results.reader import RunFolder
from scenario.load import with_changes
from scenario.models import Scenario
from simulation.run import Model, SimulationResult, simulate, write_run
from topologies.fluid import capacities
from traffic.kv import model_of

FABRICS: dict[str, dict[str, object]] = {
    "zcube": {"kind": "zcube"},
    "trunk": {"kind": "zcube", "bundle": "trunk"},
    "roft": {"kind": "roft"},
}
SMALL = Scenario.model_validate({"workload": {"kind": "coding_agent", "requests": 60, "warmup_requests": 10}})


def on(fabric: str, base: Scenario = SMALL, **changes: object) -> Scenario:
    return with_changes(base, {"fabric": FABRICS[fabric], **changes})


def replaying(folder: Path, rows: list[tuple[float, int, int]]) -> Scenario:
    """Open loop of (second, prompt tokens, output tokens)."""
    path = folder / "trace.csv"
    lines = [f"2024-05-10 00:{int(t) // 60:02d}:{t % 60:010.7f},{prompt},{out}\n" for t, prompt, out in rows]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(lines))
    return Scenario.model_validate({"workload": {"kind": "azure", "path": path, "requests": len(rows)}})


def stage_s(row: dict[str, Any], stage: str, then: str) -> float:
    return float(row[f"t_{then}_s"]) - float(row[f"t_{stage}_s"])


@pytest.mark.parametrize("shape", ["A", "D"])
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("infinite_core", [False, True])
def test_a_lone_request_by_hand(tmp_path: Path, fabric: str, shape: str, infinite_core: bool) -> None:
    """30 ms + tokens / (4 GPUs x 5,000/s) of prefill; KV over one NIC of 50 GB/s (D) or over four (A)."""
    tokens = 40_000
    scenario = on(fabric, replaying(tmp_path, [(0.0, tokens, 5)]), serving={"shape": shape})
    result = simulate(scenario, infinite_core=infinite_core)
    row = result.requests[0]
    kv_s = model_of(scenario.serving).kv_bytes(tokens) / 50e9 / (4 if shape == "A" else 1)
    assert stage_s(row, "prefill_forward", "decode_alloc") == pytest.approx(0.030 + tokens / 20_000)
    assert stage_s(row, "kv_transfer", "decode_waiting") == pytest.approx(kv_s, rel=1e-6)
    assert result.ttft_s() == {0: pytest.approx(0.030 + tokens / 20_000 + kv_s, rel=1e-6)}
    assert len({r["transfer_id"] for r in result.transfers}) == (4 if shape == "A" else 1)
    assert result.window_s[1] > result.window_s[0]


@pytest.fixture(scope="module")
def results() -> dict[str, SimulationResult]:
    found = {name: simulate(on(name)) for name in FABRICS}
    return found | {"bound": simulate(on("roft"), infinite_core=True)}


@pytest.mark.parametrize("name", [*FABRICS, "bound"])
def test_every_measured_request_is_served(results: dict[str, SimulationResult], name: str) -> None:
    measured = [row for row in results[name].requests if not row["warmup"]]
    assert len(measured) == 60
    assert {row["status"] for row in measured} == {"ok"}
    assert results[name].ttft_s().keys() == {row["request_id"] for row in measured}


@pytest.mark.parametrize("name", FABRICS)
def test_transfers_carry_the_whole_kv_over_real_links(results: dict[str, SimulationResult], name: str) -> None:
    result = results[name]
    model = model_of(result.scenario.serving)
    tokens = {row["request_id"]: row["input_tokens"] for row in result.requests}
    links = {link.id for link in result.fabric.links}
    carried: Counter[int] = Counter()
    done: dict[int, float] = {}
    for row in result.transfers:
        number = int(str(row["request_id"]))
        carried[number] += int(str(row["bytes"]))
        if row["status"] == "ok":
            assert set(map(str, row["path"])) <= links  # type: ignore[call-overload]
            assert float(str(row["ideal_s"])) >= float(str(row["isolated_s"])) * (1 - 1e-9)
            done[number] = max(done.get(number, 0.0), float(str(row["t_done_s"])))
    for number, total in carried.items():
        assert total == model.kv_bytes(tokens[number])
    for row in result.requests:
        if row["status"] == "ok":
            assert row["t_decode_waiting_s"] == done[int(str(row["request_id"]))]


@pytest.mark.parametrize("name", FABRICS)
def test_no_link_carries_more_than_its_rate(results: dict[str, SimulationResult], name: str) -> None:
    """Bytes over a cable (both directions) that ended in the run, against what it could carry until the end."""
    result = results[name]
    carried: Counter[str] = Counter()
    for row in result.transfers:
        if row["status"] == "ok":
            for link in row["path"]:  # type: ignore[attr-defined]
                carried[link] += int(str(row["bytes"]))
    rates = capacities(result.fabric)
    for link, total in carried.items():
        one, other = link.split("--")
        assert total <= (rates[one] + rates[other]) * result.end_s


def test_equal_scenarios_give_equal_runs(results: dict[str, SimulationResult]) -> None:
    again = simulate(on("zcube"))
    assert repr((again.requests, again.transfers, again.gpus)) == repr(
        (results["zcube"].requests, results["zcube"].transfers, results["zcube"].gpus)
    )
    assert simulate(on("zcube", seed=2)).ttft_s() != again.ttft_s()


def test_the_fabric_matters_and_the_bound_does_not_depend_on_it(results: dict[str, SimulationResult]) -> None:
    ttft = {name: result.ttft_s() for name, result in results.items()}
    assert ttft["zcube"] != ttft["roft"] != ttft["bound"]
    assert simulate(on("zcube"), infinite_core=True).ttft_s() == ttft["bound"]


def test_static_striping_halves_each_handoff() -> None:
    result = simulate(on("zcube", routing={"striping": "static"}))
    shares: dict[object, list[int]] = {}
    for row in result.transfers:
        if row["status"] == "ok":
            shares.setdefault(row["transfer_id"], []).append(int(str(row["bytes"])))
    assert shares
    assert all(len(pair) == 2 and abs(pair[0] - pair[1]) <= 1 for pair in shares.values())


def test_round_robin_queue_pairs_take_turns_by_pair() -> None:
    result = simulate(on("zcube", routing={"qp_policy": "round_robin", "queue_pairs": 2}))
    turns: dict[object, list[object]] = {}
    by_submit = sorted((r for r in result.transfers if r["status"] == "ok"), key=lambda r: float(str(r["t_submit_s"])))
    for row in by_submit:
        if row["src_port"] == 1:
            turns.setdefault((row["src_gpu"], row["dst_gpu"]), []).append(row["qp"])
    longest = max(turns.values(), key=len)
    assert len(longest) >= 2
    for seen in turns.values():
        assert seen == [n % 2 for n in range(len(seen))]


def test_headers_take_their_share_of_the_rate(tmp_path: Path) -> None:
    scenario = on("roft", replaying(tmp_path, [(0.0, 40_000, 5)]))
    plain, less = (simulate(scenario, model=Model(share)).requests[0] for share in (1.0, 0.8))
    transfer = [stage_s(row, "kv_transfer", "decode_waiting") for row in (plain, less)]
    assert transfer[1] == pytest.approx(transfer[0] / 0.8)


def test_timed_out_requests_leave_unfinished_transfers(tmp_path: Path) -> None:
    """100,000 tokens: 5.03 s of prefill, and 20 ms are too short for several GB of KV."""
    base = replaying(tmp_path, [(0.0, 100_000, 5)] * 4)
    result = simulate(on("roft", base, serving={"timeout_s": 5.05, "shape": "D"}))
    assert {row["status"] for row in result.requests if not row["warmup"]} == {"timeout"}
    assert {row["status"] for row in result.transfers} == {"unfinished"}
    assert result.ttft_s() == {}


@pytest.mark.parametrize("name", ["zcube", "roft", "bound"])
def test_run_folder(results: dict[str, SimulationResult], name: str, tmp_path: Path) -> None:
    result = results[name]
    write_run(tmp_path / "run", result)
    run = RunFolder(tmp_path / "run")
    assert run.scenario() == result.scenario
    meta = run.meta()
    assert (meta["executor"], meta["infinite_core"], meta["seed"]) == ("simulation", name == "bound", 1)
    assert {"schema_version", "scenario_sha256", "workload_sha256", "window", "scale"} <= meta.keys()
    assert (run.window().t_start_s, run.window().t_end_s) == result.window_s
    assert run.has("fabric.json") == (name != "bound")
    assert not run.has("ports.parquet")
    assert len(run.requests()) == len(result.requests)
    assert len(run.transfers()) == len(result.transfers)
    assert len(run.gpus()) == len(result.gpus)
    summary = summarise(run, resamples=20)
    ttft = result.ttft_s()
    assert summary["completed"] == 60
    assert summary["mean_ttft_ms"] == pytest.approx(1e3 * sum(ttft.values()) / 60)
    assert summary["mean_kv_transfer_slowdown"] >= 1
    assert not list((tmp_path / "run").glob("*.partial"))
