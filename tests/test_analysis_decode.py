"""Decode queue, share of KV transfer in TTFT, and hot leaves met by the scheduler, each worked out by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis_runs import Plan, make_run

from analysis import metrics, ports
from analysis.decode_queue import decode_queue, total_steps
from analysis.hot_leaf import Crossing, hot_leaf_rates, hot_leaves, hot_ports, redirected, target_gpus
from results.reader import RunFolder, Scale, Window
from results.schema import REQUESTS, STAGES
from scenario.models import FabricSection, Scenario, ServingSection
from topologies.build import build
from topologies.fabric import Fabric

SCALE = Scale(rate_factor=5e-5, dilation=2.0, frame_bytes=9000, mss_bytes=8942, model_bytes_per_frame=90e6)
WINDOW = Window(0.0, 10.0)
TARGETS = ("gpu17", "gpu18", "gpu19", "gpu20")


def request(number: int, instants: tuple[float, ...], target: str = "gpu17", **more: Any) -> dict[str, Any]:
    """A measured request with these instants, decoded by a GPU of server5."""
    return {
        "request_id": number,
        "session_id": number,
        "turn": 0,
        "warmup": False,
        "phase": "measured",
        "status": "ok",
        "input_tokens": 1000,
        "cached_tokens": 0,
        "output_tokens": 11,
        "prefill_gpu": "gpu1",
        "decode_instance": "server5",
        "decode_gpu": target,
        "candidates": json.dumps({"decode": dict.fromkeys(TARGETS, 0.0)}),
        **dict(zip((f"t_{stage}_s" for stage in STAGES), instants, strict=True)),
    } | more


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(rows).reindex(columns=REQUESTS.names)


def at(alloc: float, transfer: float, there: float, end: float) -> tuple[float, ...]:
    """Instants of a request that asks for decode space, gets it, has all its KV, and ends at these."""
    return (0.0, 0.0, 0.0, alloc, transfer, there, there, there, end)


# --- decode queue


def test_decode_queue_by_hand() -> None:
    """gpu17 has a queue of 1 from 1 to 2 s, of 2 from 2 to 3, of 1 from 3 to 5 s: mean (1 + 2 + 2) / 10."""
    rows = table(
        request(1, at(1, 3, 4, 9)),
        request(2, at(2, 5, 6, 20)),
        request(3, at(0, 0, 0, 1), "gpu18"),
    )
    found = decode_queue(rows, WINDOW, 120.0)["decode_queue"]
    assert found["instances"] == 4  # two of them were never chosen
    gpu17 = found["per_instance"]["gpu17"]
    assert gpu17["waiting"] == {"mean": pytest.approx(0.5), "p95": 2.0, "max": 2.0}
    assert gpu17["receiving"]["mean"] == pytest.approx((1 + 1) / 10)  # 3..4 and 5..6
    assert gpu17["decoding"]["mean"] == pytest.approx((5 + 4) / 10)  # 4..9, and 6..10: the window ends
    assert found["waiting"]["mean"] == pytest.approx(0.5 / 4)
    # 40 instance-seconds: 36 with nobody, 3 with one, 1 with two.
    assert (found["waiting"]["p95"], found["waiting"]["max"]) == (1.0, 2.0)
    assert found["waiting"]["total_mean"] == pytest.approx(0.5)
    assert (found["waiting"]["busiest"], found["waiting"]["busiest_mean"]) == ("gpu17", pytest.approx(0.5))
    assert found["per_instance"]["gpu18"]["decoding"]["mean"] == pytest.approx(0.1)


def test_who_never_got_space_waits_until_its_time_out_or_the_end() -> None:
    never = (0.0, 0.0, 0.0, 4.0, np.nan, np.nan, np.nan, np.nan, np.nan)
    for status, seconds in (("timeout", 3.0), ("unfinished", 6.0), ("cancelled", 0.0)):
        found = decode_queue(table(request(1, never, status=status)), WINDOW, 7.0)["decode_queue"]
        assert found["waiting"]["total_mean"] == pytest.approx(seconds / 10), status
        assert found["receiving"]["max"] == 0


def test_one_leaves_as_another_comes_and_the_queue_does_not_grow() -> None:
    rows = table(request(1, at(1, 3, 3, 3)), request(2, at(3, 4, 4, 4)))
    steps = total_steps(rows, "waiting", WINDOW, 120.0)
    assert list(zip(steps.t_s, steps.count, steps.hold_s, strict=True)) == [(0, 0, 1), (1, 1, 2), (3, 1, 1), (4, 0, 6)]


def test_where_a_server_is_one_target_it_is_named_by_its_server() -> None:
    rows = table(request(1, at(1, 3, 4, 9), candidates=json.dumps({"decode": {"server5": 0, "server6": 0}})))
    assert set(decode_queue(rows, WINDOW, 1.0)["decode_queue"]["per_instance"]) == {"server5", "server6"}


def test_share_of_the_transfer_in_ttft() -> None:
    """First tokens at 4 and 5 s; the exposed transfer takes 1 and 2.5 s of them: 25 % and 50 %."""
    empty = pd.DataFrame(columns=metrics.tr.COLUMNS)
    data = metrics.RunData(table(request(1, at(1, 3, 4, 9)), request(2, at(2, 2.5, 5, 9))), empty, None, SCALE, WINDOW)
    found = metrics.summarise_data(data, 1, 10)
    assert found["mean_kv_transfer_share_of_ttft"] == pytest.approx(0.375)
    assert found["p50_kv_transfer_share_of_ttft"] == pytest.approx(0.375)
    assert found["p99_kv_transfer_share_of_ttft"] == pytest.approx(0.25 + 0.99 * 0.25)
    assert found["hot_leaf_hit_rate"] != found["hot_leaf_hit_rate"]  # NaN, with a reason
    assert "simulation" in found["hot_leaf_reason"]


# --- hot leaves

SCENARIO = Scenario(fabric=FabricSection(kind="roft"), serving=ServingSection(shape="D"))


def queues(fabric: Fabric, waiting: dict[tuple[str, int], list[float]], t: list[float]) -> ports.PortFigures:
    """Samples at `t` of these ports, frames; no other port has any."""
    rows = [
        {"t_s": at_s, "t_wall_s": 2 * at_s, "node": node, "port": port, "tx_bytes_raw": 0, "drops": 0,
         "backlog_bytes_raw": 9000 * frames}
        for (node, port), values in waiting.items()
        for at_s, frames in zip(t, values, strict=True)
    ]  # fmt: skip
    return ports.reduce_ports(pd.DataFrame(rows), ports.port_infos(fabric.to_json()), SCALE, WINDOW, 16)


def transfer(number: int, target: str, start_s: float, size: int, **more: Any) -> dict[str, Any]:
    return {"transfer_id": number, "request_id": number, "src_gpu": "gpu1", "dst_gpu": target, "path": ["x"],
            "bytes": size, "t_submit_s": start_s, "t_done_s": start_s + 1, "isolated_s": 1.0, "attempt": 1,
            "kind": "kv", "piece": 0, "status": "ok"} | more  # fmt: skip


def test_a_leaf_is_hot_while_any_of_its_ports_is() -> None:
    fabric = build(SCENARIO.fabric)
    found = queues(
        fabric,
        {("leaf2", 1): [0, 16, 0, 0, 0], ("leaf2", 2): [0, 0, 40, 0, 0], ("leaf3", 1): [0, 15, 15, 15, 15],
         ("spine1", 1): [99] * 5},
        [0.0, 1.0, 2.0, 3.0, 4.0],
    )  # fmt: skip
    hot = hot_leaves(found, Crossing(SCENARIO, fabric).leaves)
    assert [hot.at(t) for t in (0.5, 1.0, 2.5, 3.0)] == [frozenset(), {"leaf2"}, {"leaf2"}, frozenset()]
    assert hot.start_s["leaf2"].tolist() == [1.0]  # two ports one after the other: one stretch
    assert "spine1" not in hot.start_s


def test_hot_leaf_rates_by_hand() -> None:
    """32-GPU ROFT: leaf r takes GPUs of rank r in its group, so gpu17 to gpu20 hang on four leaves. The leaf of gpu18
    is hot from 2 to 4 s. Four handoffs from gpu1: two of them while it is hot, one of these to gpu18.

    Met: 1 of 4. Drawn evenly: one target in four at two of the four instants: (2 * 1/4) / 4 = 1/8. So twice as often.
    Bytes 10, 20, 30, 40; the one that met it has 20: 20 %. Drawn evenly (20 + 30) / 4 / 100 = 12.5 %.
    """
    fabric = build(SCENARIO.fabric)
    leaf = {gpu: fabric.attachment[gpu, 1] for gpu in ("gpu1", *TARGETS)}
    assert len({end.node for end in leaf.values()}) >= 4 and leaf["gpu18"].node != leaf["gpu1"].node
    end = leaf["gpu18"]
    found = queues(fabric, {(end.node, end.port): [0, 20, 20, 0, 0]}, [0.0, 2.0, 3.0, 4.0, 9.0])
    targets, starts = ("gpu18", "gpu18", "gpu17", "gpu18"), (1.0, 2.5, 3.5, 4.0)
    rows = table(*(request(n, at(1, 2, 3, 4), target) for n, target in enumerate(targets)))
    moved = pd.DataFrame([transfer(n, targets[n], starts[n], 10 * (n + 1)) for n in range(4)])
    rates = hot_leaf_rates(rows, moved, found, SCENARIO)
    assert rates["hot_leaf_handoffs"] == 4
    assert rates["hot_leaf_any_share"] == pytest.approx(0.5)
    assert rates["hot_leaf_hit_rate"] == pytest.approx(1 / 4)
    assert rates["hot_leaf_hit_rate_even"] == pytest.approx(1 / 8)
    assert rates["hot_leaf_amplification"] == pytest.approx(2)
    assert rates["hot_leaf_hit_rate_bytes"] == pytest.approx(0.2)
    assert rates["hot_leaf_hit_rate_even_bytes"] == pytest.approx(0.125)
    assert rates["hot_leaf_amplification_bytes"] == pytest.approx(1.6)
    assert (rates["hot_leaf_scheduler"], rates["hot_leaf_reason"]) == ("round_robin", None)


def test_a_hot_leaf_of_the_sender_cannot_be_avoided() -> None:
    """It is on the way to every target, so the scheduler neither meets it more often nor less: 1."""
    fabric = build(SCENARIO.fabric)
    end = fabric.attachment["gpu1", 1]
    found = queues(fabric, {(end.node, 5): [20, 20]}, [0.0, 9.0])
    rates = hot_leaf_rates(
        table(request(1, at(1, 2, 3, 4), "gpu18")), pd.DataFrame([transfer(1, "gpu18", 2.0, 10)]), found, SCENARIO
    )
    assert (rates["hot_leaf_hit_rate"], rates["hot_leaf_hit_rate_even"], rates["hot_leaf_amplification"]) == (1, 1, 1)


def test_hot_ports_tell_targets_apart_where_every_path_crosses_the_hot_leaf() -> None:
    """ZCube of 8 GPUs, two odd and two even switches: gpu1 reaches gpu5 to gpu8 by even4 and odd1 each.

    Hot are even4's port to gpu7 until 2 s, and odd1's port to even4 that leads to gpu5 and gpu7 from 4 to 6 s; gpu1's
    own NIC all the time, which is no port of the fabric. Handoffs at 1 s to gpu7 (meets it; one target in four would),
    1.5 s to gpu5 (does not; one in four), 5 s to gpu5 (meets it; two in four), 8 s to gpu6 (nothing is hot).
    Ports: 2 of 4; evenly (1/4 + 1/4 + 1/2 + 0) / 4 = 1/4. Leaves: 3 of 4 whatever the target.
    Bytes 10, 20, 30, 40, half by each of two paths, one of which meets it: (5 + 15) / 100; evenly
    (10/8 + 20/8 + 30/4) / 100.
    """
    small = FabricSection(kind="zcube", gpus=8, gpus_per_server=2, asic_ports=4)
    scenario = Scenario(fabric=small, serving=ServingSection(shape="D"))
    fabric = build(small)
    ways = {dst: dict(enumerate(Crossing(scenario, fabric, True).pair("gpu1", dst))) for dst in ("gpu5", "gpu7")}
    assert ways["gpu5"][0][1] == {"odd1-eth8", "even4-eth1"} and ways["gpu7"][0][1] == {"odd1-eth8", "even4-eth3"}
    found = queues(
        fabric,
        {("even4", 3): [20, 0, 0, 0, 0], ("odd1", 8): [0, 0, 16, 0, 0], ("gpu1", 1): [99] * 5},
        [0.0, 2.0, 4.0, 6.0, 10.0],
    )
    assert hot_ports(found).at(1.0) == {"even4-eth3"} and hot_ports(found).at(5.0) == {"odd1-eth8"}
    targets, starts = ("gpu7", "gpu5", "gpu5", "gpu6"), (1.0, 1.5, 5.0, 8.0)
    candidates = json.dumps({"decode": {f"gpu{n}": 0 for n in range(5, 9)}})
    rows = table(*(request(n, at(1, 2, 3, 4), target, candidates=candidates) for n, target in enumerate(targets)))
    moved = pd.DataFrame([transfer(n, targets[n], starts[n], 10 * (n + 1)) for n in range(4)])
    rates = hot_leaf_rates(rows, moved, found, scenario)
    names = ("hit_rate", "hit_rate_even", "amplification")
    assert [rates[f"hot_leaf_{name}"] for name in names] == pytest.approx([0.75, 0.75, 1])
    assert [rates[f"hot_port_{name}"] for name in names] == pytest.approx([0.5, 0.25, 2])
    assert [rates[f"hot_port_{name}_bytes"] for name in names] == pytest.approx([0.2, 0.1125, 0.2 / 0.1125])
    assert rates["hot_port_any_share"] == rates["hot_leaf_any_share"] == pytest.approx(0.75)
    assert rates["hot_port_reason"] is None


def test_what_cannot_be_said_is_null_with_a_reason() -> None:
    fabric = build(SCENARIO.fabric)
    end = fabric.attachment["gpu18", 1]
    found = queues(fabric, {(end.node, end.port): [20, 20]}, [0.0, 9.0])
    moved = pd.DataFrame([transfer(1, "gpu18", 2.0, 10)])
    alone = table(request(1, at(1, 2, 3, 4), "gpu18", candidates=json.dumps({"decode": {"gpu18": 0}})))
    rates = hot_leaf_rates(alone, moved, found, SCENARIO)
    assert rates["hot_leaf_hit_rate"] == 1 and np.isnan(rates["hot_leaf_hit_rate_even"])  # type: ignore[arg-type]
    assert "names no target but the chosen one" in str(rates["hot_leaf_reason"])
    assert rates["hot_port_hit_rate"] == 1 and rates["hot_port_reason"] == rates["hot_leaf_reason"]
    inside = hot_leaf_rates(alone, moved[moved["bytes"] < 0], found, SCENARIO)
    assert inside["hot_leaf_reason"] == "no measured handoff crossed the fabric"


def test_a_target_s_gpus_and_the_pairs_to_another_target() -> None:
    fabric = build(SCENARIO.fabric)
    assert target_gpus(fabric, "gpu18") == ("gpu18",)
    assert target_gpus(fabric, "server5") == TARGETS
    assert target_gpus(fabric, "server5d") == ("gpu19", "gpu20")
    assert target_gpus(fabric, "nobody") == ()
    ranks = (("gpu1", "gpu17"), ("gpu2", "gpu18"))
    server6 = ("gpu21", "gpu22", "gpu23", "gpu24")
    assert redirected(fabric, ranks, TARGETS, server6, True) == (("gpu1", "gpu21"), ("gpu2", "gpu22"))
    assert redirected(fabric, (("gpu1", "gpu18"),), ("gpu18",), ("gpu23",), True) == (("gpu1", "gpu23"),)
    # nic_map first: gpu18's KV came in by the NIC of its server's rank 0
    assert redirected(fabric, (("gpu1", "gpu17"),), ("gpu18",), ("gpu23",), False) == (("gpu1", "gpu21"),)


@pytest.mark.parametrize("kind", ["roft", "zcube"])
def test_planned_crossings_are_those_of_the_recorded_paths(kind: Any, tmp_path: Path) -> None:
    run = RunFolder(make_run(tmp_path / kind, Plan(kind=kind, requests=40, warmup=5)))
    scenario, moved = run.scenario(), run.transfers()
    crossing = Crossing(scenario, build(scenario.fabric))
    node_of = {link.id: {link.a.node, link.b.node} for link in crossing.fabric.links}
    for row in moved.to_dict("records"):
        recorded = set().union(*(node_of[link] for link in row["path"])) & crossing.leaves
        planned = dict(crossing.pair(row["src_gpu"], row["dst_gpu"])) if kind == "roft" else None
        if planned is not None:
            assert planned[row["qp"]] == recorded
        else:  # two port pairs of one index each
            assert recorded in [set(leaves) for _, leaves in crossing.pair(row["src_gpu"], row["dst_gpu"])]
    found = metrics.summarise(run, resamples=10)
    assert 0 < found["hot_leaf_hit_rate"] <= found["hot_leaf_any_share"]
    assert 0 < found["hot_port_hit_rate"] <= found["hot_leaf_hit_rate"] + (kind == "roft")  # a spine has ports too
    assert found["hot_leaf_amplification"] == pytest.approx(
        found["hot_leaf_hit_rate"] / found["hot_leaf_hit_rate_even"]
    )


def test_reading_a_run_keeps_its_scenario(tmp_path: Path) -> None:
    run = RunFolder(make_run(tmp_path / "run", Plan(requests=20, warmup=2)))
    data = metrics.load(run)
    assert data.scenario == run.scenario()
    without = dataclasses.replace(data, ports=None)
    assert metrics.summarise_data(without, 1, 10)["hot_leaf_handoffs"] == 0
