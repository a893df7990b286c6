"""Congested intervals, their class and what they cost: cases made by hand on a real fabric's graph."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.congestion import (
    Congestion,
    Stretch,
    classified,
    congestion,
    held_stretches,
    measured_stretches,
    request_losses,
)
from analysis.handoff_flows import Flows, egress_ports, flows_from
from results.reader import RunFolder
from results.schema import STAGES
from scenario.load import check_scenario
from simulation.run import simulate, write_run
from topologies.build import build
from topologies.fabric import Fabric
from topologies.held_back import account

GB = 1_000_000_000
#: 16 GPUs, leaves of 4 with 4 uplinks of 400 Gb/s (50 GB/s); `path` below chooses the spine by hand.
ROFT: Fabric = build(check_scenario({"fabric": {"kind": "roft", "gpus": 16, "asic_ports": 8}}).fabric)


def path(src: str, dst: str, spine: int) -> list[str]:
    """Cables from GPU to GPU over `spine<spine>`."""
    leaf, far = (ROFT.attachment[gpu, 1].node for gpu in (src, dst))
    up, down = (
        next(link.id for link in ROFT.links if {link.a.node, link.b.node} == {node, f"spine{spine}"})
        for node in (leaf, far)
    )
    access = {gpu: ROFT.link_at[gpu, 1].id for gpu in (src, dst)}
    return [access[src], up, down, access[dst]]


def rows(*transfers: tuple[str, str, int, float, float, float]) -> pd.DataFrame:
    """(source, destination, spine, GB, submitted, done) -> a transfers table; request ids count from 1."""
    return pd.DataFrame(
        [
            {
                "transfer_id": 100 + number, "request_id": number, "src_gpu": src, "src_port": 1, "dst_gpu": dst,
                "dst_port": 1, "qp": 0, "path": path(src, dst, spine), "bytes": round(size * GB), "t_submit_s": start,
                "t_done_s": done, "kind": "kv", "piece": 0, "attempt": 1, "status": "ok",
            }
            for number, (src, dst, spine, size, start, done) in enumerate(transfers, 1)
        ]
    )  # fmt: skip


def flows(*transfers: tuple[str, str, int, float, float, float]) -> Flows:
    return flows_from(rows(*transfers), ROFT.to_json(), payload_share=1.0)


def served(*kv: tuple[float, float]) -> pd.DataFrame:
    """Completed requests, ids from 1, whose handoff was exposed from the first to the second instant."""
    found = []
    for number, (begins, ends) in enumerate(kv, 1):
        instants = dict.fromkeys(STAGES, begins) | dict.fromkeys(STAGES[5:], ends)
        found.append({"request_id": number, **{f"t_{stage}_s": value for stage, value in instants.items()}})
    return pd.DataFrame(found)


def judged(found: Flows, requests: pd.DataFrame) -> tuple[Any, pd.DataFrame]:
    accounts = {item.transfer.transfer_id: item for item in account(found.capacities, found.starts)}
    losses, exposed = request_losses(requests, found, accounts)
    tiers = dict.fromkeys((port for port in found.capacities if not port.startswith("gpu")), "some tier")
    stretches = held_stretches(accounts.values(), tiers)
    pads = dict.fromkeys(tiers, 0.0)
    return classified(stretches, tiers, found.flows, accounts.values(), exposed, pads), losses


def leaf_port(gpu: str) -> str:
    end = ROFT.attachment[gpu, 1]
    return f"{end.node}-eth{end.port}"


def test_ports_of_a_path_are_egress_ports_from_the_source_on() -> None:
    ends = {link.id: (link.a, link.b) for link in ROFT.links}
    found = egress_ports("gpu1", path("gpu1", "gpu6", 2), ends)
    assert found[0] == "gpu1-eth1"
    assert found[-1] == leaf_port("gpu6")
    assert [name.split("-")[0] for name in found[1:-1]] == [ROFT.attachment["gpu1", 1].node, "spine2"]
    with pytest.raises(ValueError, match="does not start at gpu2"):
        egress_ports("gpu2", path("gpu1", "gpu6", 2), ends)


def test_incast_is_named_with_its_flows_and_its_price() -> None:
    """gpu1 and gpu2 send 50 GB each to gpu6 at 50 GB/s from 0 s: 2 s instead of 1, so each request loses 1 s."""
    found = flows(("gpu1", "gpu6", 1, 50, 0.0, 2.0), ("gpu2", "gpu6", 2, 50, 0.0, 2.0))
    (interval,), losses = judged(found, served((0.0, 2.0), (0.0, 2.0)))
    assert (interval.kind, interval.port, interval.final_ports) == ("incast", leaf_port("gpu6"), (leaf_port("gpu6"),))
    assert (interval.start_s, interval.end_s) == (0.0, 2.0)
    assert interval.requests == (1, 2)
    assert interval.lost_s == {"sender": 0, "incast": pytest.approx(2), "avoidable": 0}
    assert interval.ttft_lost_ms == pytest.approx(2000)
    assert list(losses["incast_ms"]) == [pytest.approx(1000)] * 2
    assert list(losses["isolated_ms"]) == [pytest.approx(1000)] * 2
    assert list(losses["transport_ms"]) == [pytest.approx(0)] * 2


def two_on_one_uplink(first: str, second: str) -> list[str]:
    """Two GPUs on one leaf."""
    return [gpu.name for gpu in ROFT.gpus if ROFT.attachment[gpu.name, 1].node == ROFT.attachment[first, 1].node][:2]


def test_flows_that_part_later_are_avoidable() -> None:
    """Two GPUs of one leaf over the same spine to two destinations on different leaves: the uplink is shared."""
    a, b = two_on_one_uplink("gpu1", "gpu1")
    others = [gpu.name for gpu in ROFT.gpus if ROFT.attachment[gpu.name, 1].node != ROFT.attachment[a, 1].node]
    c = others[0]
    d = next(gpu for gpu in others if ROFT.attachment[gpu, 1].node != ROFT.attachment[c, 1].node)
    found = flows((a, c, 1, 50, 0.0, 2.0), (b, d, 1, 50, 0.0, 2.0))
    (interval,), losses = judged(found, served((0.0, 2.0), (0.0, 2.0)))
    assert (interval.kind, len(interval.final_ports)) == ("avoidable", 2)
    assert interval.port.startswith(ROFT.attachment[a, 1].node)
    assert interval.lost_s == {"sender": 0, "incast": 0, "avoidable": pytest.approx(2)}
    assert list(losses["avoidable_ms"]) == [pytest.approx(1000)] * 2


def test_only_the_exposed_part_of_a_loss_is_ttft() -> None:
    """The same incast, but prefill of request 1 ends at 1.5 s: half a second of its handoff is exposed, a half of it
    loss; request 2 was done before prefill ended."""
    found = flows(("gpu1", "gpu6", 1, 50, 0.0, 2.0), ("gpu2", "gpu6", 2, 50, 0.0, 2.0))
    (interval,), losses = judged(found, served((1.5, 2.0), (2.5, 2.5)))
    assert losses.loc[1, "incast_ms"] == pytest.approx(250)
    assert losses.loc[1, "exposed_ms"] == pytest.approx(500)
    assert losses.loc[2, ["exposed_ms", "incast_ms", "isolated_ms"]].tolist() == [0, 0, 0]
    assert interval.ttft_lost_ms == pytest.approx(250)


def test_what_took_longer_than_the_replay_is_transport() -> None:
    found = flows(("gpu1", "gpu6", 1, 50, 0.0, 1.25))
    intervals, losses = judged(found, served((0.0, 1.25)))
    assert intervals == ()
    assert losses.loc[1, "transport_ms"] == pytest.approx(250)
    assert losses.loc[1, "isolated_ms"] == pytest.approx(1000)


def test_one_flow_over_a_full_port_is_neither() -> None:
    stretch = Stretch(leaf_port("gpu6"), 0.2, 0.8, 20.0)
    found = flows(("gpu1", "gpu6", 1, 50, 0.0, 1.0), ("gpu2", "gpu6", 1, 50, 1.0, 2.0))
    tiers, pads = {leaf_port("gpu6"): "leaf to gpu"}, {leaf_port("gpu6"): 0.0}
    (interval,) = classified([stretch], tiers, found.flows, [], {}, pads)
    assert (interval.kind, interval.transfers, interval.peak_frames) == ("one flow", (101,), 20.0)


def test_parts_sum_to_the_exposed_time() -> None:
    first, second = ("gpu1", "gpu6", 1, 50, 0.0, 2.3), ("gpu2", "gpu6", 1, 20, 0.1, 1.4)
    exposed = served((0.0, 2.3), (0.1, 1.4), (0.2, 1.1))
    _, losses = judged(flows(first, second, ("gpu3", "gpu7", 1, 30, 0.2, 1.1)), exposed)
    parts = losses[["isolated_ms", "sender_ms", "incast_ms", "avoidable_ms", "transport_ms"]].sum(axis=1)
    assert parts.tolist() == pytest.approx(losses["exposed_ms"].tolist())


def samples(*frames: float, node: str = "leaf1", port: int = 5) -> pd.DataFrame:
    """A sample each 10 ms of frames of 1,000 B."""
    return pd.DataFrame(
        {
            "t_s": [0.01 * at for at in range(len(frames))],
            "node": pd.Categorical([node] * len(frames)),
            "port": port,
            "backlog_bytes_raw": [round(1000 * each) for each in frames],
        }
    )


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ((0, 0, 0), []),
        ((0, 16, 20, 3, 0), [(0.01, 0.03, 20.0)]),
        ((0, 15.9, 0), []),
        ((16, 0, 16, 0, 0, 0, 0), [(0.0, 0.03, 16.0)]),  # a pause of one sample is within two frame times
        ((16, 0, 0, 0, 0, 17, 0), [(0.0, 0.01, 16.0), (0.05, 0.06, 17.0)]),
        ((0, 16, 16), [(0.01, 0.02, 16.0)]),  # nothing is known past the last sample
    ],
)
def test_stretches_over_the_threshold(frames: tuple[float, ...], expected: list[tuple[float, float, float]]) -> None:
    found = measured_stretches(samples(*frames), 1000, 16, {"leaf1-eth5": 0.01})
    assert [(round(s.start_s, 6), round(s.end_s, 6), s.peak_frames) for s in found] == expected


def test_ports_that_are_not_the_fabrics_are_left_out() -> None:
    table = pd.concat([samples(0, 20, 0), samples(0, 30, 0, node="gpu1", port=1)], ignore_index=True)
    table["node"] = table["node"].astype("category")
    assert [s.port for s in measured_stretches(table, 1000, 16, {"leaf1-eth5": 0.01})] == ["leaf1-eth5"]


def bursts(tmp_path: Path, name: str, **serving: Any) -> Congestion:
    """Bursts of handoffs from every prefill GPU to few decode GPUs over ECMP, simulated."""
    scenario = check_scenario(
        {
            "name": name,
            "seed": 3,
            "fabric": {"kind": "roft", "gpus": 16, "asic_ports": 8, "gpus_per_server": 1},
            "routing": {"policy": "ecmp"},
            "serving": {"shape": "A", "decode_placement": "random", "prefill_base_ms": 0, **serving},
            "workload": {"kind": "burst", "handoffs": 8, "tokens": [50_000], "window_ms": 1, "repeats": 40},
        }
    )
    write_run(tmp_path / name, simulate(scenario))
    return congestion(RunFolder(tmp_path / name))


def test_max_inbound_shrinks_incast_and_leaves_what_is_avoidable(tmp_path: Path) -> None:
    """One handoff at a time into each target: hardly any incast is left, while flows to different targets meet on
    uplinks as before (not to the last second: they start at other times)."""
    free, limited = bursts(tmp_path, "free"), bursts(tmp_path, "limited", max_inbound=1)
    before, after = (
        {cause: found.ports.loc[found.ports["cause"] == cause, "lost_s"].sum() for cause in ("incast", "avoidable")}
        for found in (free, limited)
    )
    assert before["incast"] > 5
    assert after["incast"] < 0.02 * before["incast"]
    assert after["avoidable"] == pytest.approx(before["avoidable"], rel=0.25)
    kinds = {item.kind for item in limited.intervals}
    assert kinds == {"avoidable"}


def test_a_simulated_run_is_accounted_to_the_last_millisecond(tmp_path: Path) -> None:
    found = bursts(tmp_path, "free")
    assert found.requests["transport_ms"].abs().max() == pytest.approx(0, abs=1e-3)
    assert not found.measured
    assert all(math.isnan(item.peak_frames) for item in found.intervals)
    alone = [found.accounts[flow.transfer.transfer_id].alone_s for flow in found.flows.flows]
    assert found.requests["isolated_ms"].mean() == pytest.approx(1e3 * sum(alone) / len(alone))


