"""The parts of the emulation that need no network: qdisc lines, link-check rounds, host commands, verdicts."""

from __future__ import annotations

import time
from itertools import count
from typing import Any, cast

import pytest

pytest.importorskip("mininet.net", reason="Mininet comes with the distribution: bash vagrant/setup.sh")

from emulation.agent_processes import by_process
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


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda f: f"{f.kind}-{len(f.gpus)}-{f.bundle}")
def test_a_sample_of_links_has_one_out_of_every_switch_at_least(fabric: Fabric) -> None:
    rounds = plan_rounds(fabric, 1, qp_index=1, switch_hop_gbps_per_round=400.0 * 3 * 6, sample=True)
    judged = {end for one in rounds for end in one.judged}
    assert {switch.name for switch in fabric.switches} <= {end.node for end in judged}
    for one in rounds:
        load: dict[End, float] = {}
        for qp in one.flows:
            for end in path(fabric, qp, 1).egress:
                load[end] = load.get(end, 0.0) + fabric.port(qp.src.node, qp.src.port).gbps
        for end, gbps in load.items():
            assert gbps <= fabric.port(end.node, end.port).gbps + 1e-9
        for end in one.judged:
            assert load[end] == pytest.approx(fabric.port(end.node, end.port).gbps)


def test_a_sample_of_a_large_fabric_is_a_part_of_its_links() -> None:
    fabric = zcube(64, 8)
    rounds = plan_rounds(fabric, 1, qp_index=1, switch_hop_gbps_per_round=400.0 * 3 * 24, sample=True)
    assert len(rounds) <= 4
    assert len({end for one in rounds for end in one.judged}) < 2 * len(fabric.links)


def test_routes_of_a_two_port_gpu_are_crosswise() -> None:
    fabric = zcube(16, 4)
    lines = host_commands(fabric, fabric.gpus[0]).splitlines()
    assert "route add 198.19.0.0/16 dev gpu1-eth1 src 198.18.0.1" in lines
    assert "route add 198.18.0.0/16 dev gpu1-eth2 src 198.19.0.1" in lines


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


@pytest.mark.parametrize(("servers", "cores"), [(8, 2), (8, 4), (5, 5), (3, 64), (1, 2), (4, 1)])
def test_agents_are_one_process_for_two_cores_and_at_most_one_a_server(servers: int, cores: int) -> None:
    by_server = [[f"gpu{4 * n + k}" for k in range(4)] for n in range(servers)]
    processes = by_process(by_server, cores)
    assert len(processes) == min(servers, max(1, cores // 2))
    assert sorted(gpu for gpus in processes for gpu in gpus) == sorted(gpu for gpus in by_server for gpu in gpus)
    sizes = [len(gpus) // 4 for gpus in processes]
    assert max(sizes) - min(sizes) <= 1
    for gpus in processes:  # a server is in one process, as a whole
        assert all(set(server) <= set(gpus) or not set(server) & set(gpus) for server in by_server)
