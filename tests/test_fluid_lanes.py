"""Lanes and capacities of real fabrics, and of the infinite core."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from topologies.fabric import Fabric
from topologies.fluid import (
    FluidNetwork,
    Lane,
    Transfer,
    capacities,
    core_capacities,
    core_lanes,
    handoff_lanes,
    isolated_s,
    lanes,
    paced,
    replay,
)
from topologies.maxmin import bottlenecks, max_min_rates
from topologies.paths import path
from topologies.roft import roft
from topologies.routing import Routing
from topologies.zcube import zcube

ZCUBE, TRUNK, ROFT = zcube(32, 8), zcube(32, 8, bundle="trunk"), roft(32, 8)
GB = 1e9


def test_zcube_lanes_are_crosswise_over_directed_links() -> None:
    """GPU 1 to GPU 32: odd1 to even8, even2 to odd7. Each resource is the egress end of the cable beside it."""
    first, second = lanes(ZCUBE, "gpu1", "gpu32")
    assert (first.qp.src.port, first.qp.dst.port, second.qp.src.port, second.qp.dst.port) == (1, 2, 2, 1)
    assert [name.split("-")[0] for name in first.resources] == ["gpu1", "odd1", "even8"]
    assert [name.split("-")[0] for name in second.resources] == ["gpu1", "even2", "odd7"]
    for lane in (first, second):
        assert all(resource in link.split("--") for resource, link in zip(lane.resources, lane.links, strict=True))
        assert lane.links == path(ZCUBE, lane.qp).links


def test_there_and_back_share_nothing() -> None:
    there = {name for lane in lanes(ZCUBE, "gpu1", "gpu32") for name in lane.resources}
    back = {name for lane in lanes(ZCUBE, "gpu32", "gpu1") for name in lane.resources}
    assert not there & back


@pytest.mark.parametrize(("fabric", "ports"), [(ZCUBE, 2), (ROFT, 1)])
def test_queue_pairs_multiply_lanes(fabric: Fabric, ports: int) -> None:
    found = lanes(fabric, "gpu3", "gpu20", Routing(per_port_pair=3, seed=5))
    assert len(found) == 3 * ports
    assert len({lane.qp for lane in found}) == len(found)


def test_seed_decides_the_spine() -> None:
    pairs = [(f"gpu{a}", f"gpu{b}") for a in range(1, 9) for b in range(17, 25)]
    first, second = ([lanes(ROFT, *pair, Routing(seed=seed)) for pair in pairs] for seed in (1, 2))
    assert first != second
    assert first == [lanes(ROFT, *pair, Routing(seed=1)) for pair in pairs]


def test_capacity_is_bytes_per_second_of_each_direction() -> None:
    found = capacities(ZCUBE)
    assert len(found) == 2 * len(ZCUBE.links)
    assert set(found.values()) == {25 * GB}  # 200 Gb/s
    assert set(capacities(TRUNK).values()) == {25 * GB, 50 * GB}
    assert set(capacities(ROFT).values()) == {50 * GB}


def test_every_fabric_moves_a_lone_handoff_at_the_full_nic_rate() -> None:
    for fabric in (ZCUBE, TRUNK, ROFT):
        for striping in ("adaptive", "static"):
            handoff = Transfer(1, 100 * GB, lanes(fabric, "gpu2", "gpu31", Routing(per_port_pair=2)), striping)
            assert isolated_s(capacities(fabric), handoff) == pytest.approx(2.0, rel=1e-12)


def test_infinite_core_is_one_nic_of_the_full_rate_each_way() -> None:
    for fabric in (ZCUBE, TRUNK, ROFT):
        found = core_capacities(fabric)
        assert len(found) == 64
        assert set(found.values()) == {50 * GB}
    to_one = [(Transfer(n, 100 * GB, core_lanes(f"gpu{n}", "gpu32")), 0.0) for n in (1, 2)]
    assert replay(core_capacities(ZCUBE), to_one) == {1: 4.0, 2: 4.0}
    both_ways = [
        (Transfer(1, 100 * GB, core_lanes("gpu1", "gpu2")), 0.0),
        (Transfer(2, 100 * GB, core_lanes("gpu2", "gpu1")), 0.0),
    ]
    assert replay(core_capacities(ZCUBE), both_ways) == {1: 2.0, 2: 2.0}


def test_round_robin_takes_one_queue_pair_of_each_port_in_turn() -> None:
    every = lanes(ZCUBE, "gpu1", "gpu32", Routing(per_port_pair=3))
    for nth in range(7):
        chosen = handoff_lanes(every, "round_robin", nth)
        assert [(lane.qp.src.port, lane.qp.index) for lane in chosen] == [(1, nth % 3), (2, nth % 3)]
    assert handoff_lanes(every, "split", 5) == every


def test_core_has_the_queue_pairs_of_the_fabric() -> None:
    assert [lane.qp.index for lane in core_lanes("gpu1", "gpu2", 4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("fabric", [ZCUBE, TRUNK, ROFT])
def test_rates_of_a_busy_fabric_are_max_min_fair(fabric: Fabric) -> None:
    rng = random.Random(3)
    net, found, running = FluidNetwork(capacities(fabric)), dict[int, tuple[Lane, ...]](), set[tuple[str, str]]()
    for number in range(60):
        src, dst = (f"gpu{i}" for i in rng.sample(range(1, 33), 2))
        if (src, dst) not in running:  # each pair once, so that nothing waits
            running.add((src, dst))
            found[number] = lanes(fabric, src, dst, Routing(per_port_pair=2, seed=7))
            net.start(Transfer(number, 1e9, found[number]), 0.0)
    flows = {lane.qp: lane.resources for ways in found.values() for lane in ways}
    rates = net.rates()
    assert rates == max_min_rates(flows, capacities(fabric))
    assert all(bottlenecks(flows, capacities(fabric), rates).values())


def test_a_paced_queue_pair_has_its_rate_and_no_more() -> None:
    """ZCube, 200 Gb/s ports: two queue pairs paced to 100 Gb/s each, of handoffs to one GPU and to two."""
    fabric = zcube(gpus=32, gpus_per_server=4, gpu_gbps=400, gpus_per_switch=8)
    rates = capacities(fabric)
    pace = 100e9 / 8
    some, other = (paced(lanes(fabric, "gpu1", dst), rates, pace) for dst in ("gpu11", "gpu12"))
    alone = replay(rates, [(Transfer(0, 1e9, some), 0.0)])
    assert alone[0] == pytest.approx(1e9 / (2 * pace))
    both = replay(rates, [(Transfer(0, 1e9, some), 0.0), (Transfer(1, 1e9, other), 0.0)])
    assert both[0] == pytest.approx(both[1]) == pytest.approx(1e9 / (2 * pace))  # a port carries two such
    assert paced(some, rates, None) == some


def test_standard_library_only() -> None:
    """The distribution's Python loads topologies/ for stock Mininet, without this environment's packages."""
    root = Path(__file__).resolve().parent.parent
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import topologies.fluid, topologies.maxmin"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)
