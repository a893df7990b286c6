"""The parts of the emulation that need no network: qdisc lines, link-check rounds, host commands, verdicts."""

from __future__ import annotations

import dataclasses
import json
import time
from itertools import count
from typing import Any, cast

import pytest

pytest.importorskip("mininet.net", reason="Mininet comes with the distribution: bash vagrant/setup.sh")

from emulation.fidelity import Measured, judge
from emulation.linkcheck import plan_rounds
from emulation.network import host_commands
from emulation.serve import ServingLoop
from emulation.shaping import PortShape, _difference, port_shape, tc_line
from scenario.errors import RunError
from scenario.scale import Scale
from topologies.fabric import End, Fabric
from topologies.paths import path
from topologies.roft import roft
from topologies.zcube import zcube
from traffic.actions import CancelTransfer, StartTimer, StartTransfer, TimerKey, TimerKind

FABRICS = [zcube(32, 8), zcube(32, 8, bundle="trunk"), zcube(16, 4), roft(32, 8), roft(8, 4)]


def test_qdisc_line() -> None:
    shape = port_shape("odd1-eth9", 10e6, 9000, 512)
    line = "qdisc replace dev odd1-eth9 root handle 1: tbf rate 10000000bit burst 18000b limit 4608000b"
    assert tc_line(shape) == line


@pytest.mark.parametrize(
    ("qdisc", "expected"),
    [
        ({"kind": "tbf", "options": {"rate": 1_250_000}}, ""),
        ({"kind": "tbf", "options": {"rate": 1_300_000}}, "rate is 10400000 bit/s, not 10000000"),
        ({"kind": "noqueue"}, "root qdisc is noqueue, not tbf"),
        (None, "root qdisc is missing"),
    ],
)
def test_read_back_sees_a_port_that_is_not_shaped(qdisc: dict[str, object] | None, expected: str) -> None:
    found = _difference(PortShape("x", 10_000_000, 18_000, 100_000), qdisc)
    assert found.startswith(expected) and bool(found) == bool(expected)


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda f: f"{f.kind}-{len(f.gpus)}-{f.bundle}")
def test_link_check_judges_every_directed_link_and_overloads_none(fabric: Fabric) -> None:
    budget = 400.0 * 3 * 6
    rounds = plan_rounds(fabric, 1, qp_index=1, switch_hop_gbps_per_round=budget)
    judged = [end for one in rounds for end in one.judged]
    assert len(judged) == len(set(judged)) == 2 * len(fabric.links)
    for one in rounds:
        load: dict[End, float] = {}
        cost = 0.0
        for qp in one.flows:
            gbps = fabric.port(qp.src.node, qp.src.port).gbps
            egress = path(fabric, qp, 1).egress
            cost += gbps * (len(egress) - 1)
            for end in egress:
                load[end] = load.get(end, 0.0) + gbps
        assert cost <= budget
        for end, gbps in load.items():
            assert gbps <= fabric.port(end.node, end.port).gbps + 1e-9
        for end in one.judged:
            assert load[end] == pytest.approx(fabric.port(end.node, end.port).gbps)


def test_routes_of_a_two_port_gpu_are_crosswise() -> None:
    fabric = zcube(16, 4)
    lines = host_commands(fabric, fabric.gpus[0]).splitlines()
    assert "route add 198.19.0.0/16 dev gpu1-eth1 src 198.18.0.1" in lines
    assert "route add 198.18.0.0/16 dev gpu1-eth2 src 198.19.0.1" in lines


@dataclasses.dataclass
class _Losses:
    queue_drops: int = 0
    socket_drops: int = 0
    place: str = "switch sockets"
    retransmits: int = 0
    duplicates: int = 0


GOOD = Measured(
    link_deviations=[0.01, -0.02],
    links_total=2,
    rounds_again=0,
    lone_deviations=[0.01, 0.02, 0.3],
    lone_ideal_s=0.3,
    losses=_Losses(),  # type: ignore[arg-type]
    resolution_frames=55,
    budget_used=0.5,
    maxmin_ratios=[1.0, 1.05, 1.2],
    transfers_done=3,
    transfers_verified=3,
    sampler={"cpu_s": 1.0, "wall_s": 10.0, "lag_p99_ms": 1.0, "skipped_ticks": 0, "ticks": 9},
    sampler_period_ms=2.0,
    frame_time_ms=3.0,
    timer_lags_s=[0.001],
    report_lags_s=[0.002],
    cpu_share=0.5,
)


def test_a_good_run_is_valid() -> None:
    verdict = judge(GOOD)
    assert verdict["valid"] is True
    json.dumps(verdict)


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ({"link_deviations": [0.01, -0.031]}, "link_rate_worst_deviation_pct"),
        ({"link_deviations": []}, "link_rate_worst_deviation_pct"),
        ({"lone_deviations": [0.06, 0.07, 0.0]}, "lone_transfer_deviation_pct"),
        ({"lone_deviations": [-0.06, -0.07, 0.0]}, "lone_transfer_deviation_pct"),
        ({"losses": _Losses(retransmits=1)}, "packets_lost"),
        ({"losses": _Losses(retransmits=3, duplicates=2)}, "packets_lost"),
        ({"losses": _Losses(socket_drops=1)}, "packets_lost"),
        ({"resolution_frames": 19.9}, "resolution_frames"),
        ({"budget_used": 1.01}, "packet_budget_used_pct"),
        ({"maxmin_ratios": [1.3] * 9}, "maxmin_ratio_median"),
        ({"maxmin_ratios": [0.9] * 9}, "maxmin_ratio_median"),
        ({"maxmin_ratios": [1.0] * 5 + [3.0]}, "maxmin_ratio_p95"),
        ({"transfers_verified": 2}, "transfers_verified"),
        ({"complaints": ["transfer 7, queue pair gpu1 port 1 to gpu2 port 2"]}, "transfers_verified"),
        ({"report_lags_s": [0.2] * 9}, "engine_lag_p99_ms"),
        ({"cpu_share": 0.99}, "cpu_pct"),
    ],
)
def test_each_fault_alone_makes_a_run_invalid(change: dict[str, object], culprit: str) -> None:
    verdict = judge(dataclasses.replace(GOOD, **change))  # type: ignore[arg-type]
    assert verdict["valid"] is False
    assert [c["name"] for c in verdict["checks"] if c["ok"] is False] == [culprit]  # type: ignore[attr-defined]


def test_what_came_twice_was_not_lost() -> None:
    verdict = judge(dataclasses.replace(GOOD, losses=_Losses(retransmits=3, duplicates=3)))  # type: ignore[arg-type]
    assert verdict["valid"] is True and "3 packets came twice" in json.dumps(verdict)


def test_drops_by_full_queues_explain_retransmissions() -> None:
    verdict = judge(dataclasses.replace(GOOD, losses=_Losses(queue_drops=3, retransmits=3)))  # type: ignore[arg-type]
    assert verdict["valid"] is True


class _NeverFinished:
    """An engine that asks for `actions` once and then waits."""

    finished = False

    def __init__(self, actions: list[object]) -> None:
        self._actions = actions

    def start(self) -> list[object]:
        return self._actions

    def on(self, event: object, t_s: float) -> list[object]:
        return []


class _Silent:
    """Agents that take orders and never report."""

    def send(self, *order: object) -> None: ...

    def drop(self, *order: object) -> None: ...

    def poll(self, wait_s: float) -> list[object]:
        return []


@pytest.mark.parametrize(
    ("actions", "waits"),
    [
        ([], False),
        ([StartTransfer(0, 0, "gpu1", "gpu3", 100)], True),
        ([StartTransfer(0, 0, "gpu1", "gpu3", 100), CancelTransfer(0)], False),
        ([StartTimer(1e6, TimerKey(TimerKind.ARRIVAL, 0))], True),
        ([StartTimer(0.0, TimerKey(TimerKind.ARRIVAL, 0))], False),
    ],
)
def test_an_engine_that_waits_for_nothing_ends_the_run(actions: list[object], waits: bool) -> None:
    loop = ServingLoop(
        cast(Any, _NeverFinished(actions)), cast(Any, _Silent()), Scale(1e-4, 1.0, 9000), time.monotonic_ns()
    )
    turns = count()
    if waits:
        loop.run(lambda: next(turns) > 5, lambda _: None)
        return
    with pytest.raises(RunError, match="waits for no timer and no transfer"):
        loop.run(lambda: next(turns) > 5, lambda _: None)
