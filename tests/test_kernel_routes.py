"""Kernel routes, walked in memory: every GPU pair and port pair, there and back, against the path function."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from controller.rules import rules
from emulation.kernel_routes import Route, SwitchRoutes, kernel_routes, routes_json
from scenario.fabric_spec import section_from_text
from topologies.build import build
from topologies.fabric import End, Fabric
from topologies.paths import TCP, UDP, FiveTuple, five_tuple, flow_path, reversed_flow, shares, walk_all_pairs
from topologies.routing import Routing

FABRICS = [
    "zcube:gpus=32",
    "zcube:gpus=32,bundle=trunk",
    "zcube:gpus=16,asic_ports=8,bundle=hashed",
    "zcube:gpus=12,gpus_per_switch=6,links_per_pair=3,gpus_per_server=2",
    "zcube:gpus=64,asic_ports=8,gpus_per_server=8",
    "roft:gpus=32",
    "roft:gpus=32,equal_cost=true",
    "roft:gpus=16,asic_ports=4,tiers=3,gpus_per_server=2",
    "rail_only:gpus=32",
    "hpn:gpus=32",
    "clos:gpus=32",
    "fat_tree:gpus=16,asic_ports=4",
]


def walked(routes: dict[str, SwitchRoutes], fabric: Fabric, src: End, flow: FiveTuple) -> list[tuple[End, ...]]:
    """Every way that a packet can take from a GPU's port: one, where no hash decides."""
    ways, done = [(src,)], []
    while ways:
        way = ways.pop()
        there = fabric.far_end(way[-1].node, way[-1].port)
        if there.node in fabric.gpu_by_name:
            done.append(way)
            continue
        assert len(way) < 8, f"loops: {way}"
        ways += [(*way, End(there.node, port)) for port in routes[there.node].candidates(flow)]
    return done


def planned_routes(fabric: Fabric, seed: int = 3, protocol: int = TCP, planned: bool = True) -> dict[str, SwitchRoutes]:
    pairs = list(walk_all_pairs(fabric)) if planned else []
    return kernel_routes(fabric, rules(fabric, seed=seed, planned=pairs, protocols=(protocol,)))


@pytest.mark.parametrize("text", FABRICS)
@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_planned_flows_take_the_planned_path_there_and_back(text: str, protocol: int) -> None:
    fabric = build(section_from_text(text))
    routes = planned_routes(fabric, protocol=protocol)
    for qp in walk_all_pairs(fabric):
        flow = five_tuple(fabric, qp, protocol)
        assert walked(routes, fabric, qp.src, flow) == [flow_path(fabric, qp.src, qp.dst, flow, 3).egress]
        back = reversed_flow(flow)
        assert walked(routes, fabric, qp.dst, back) == [flow_path(fabric, qp.dst, qp.src, back, 3).egress]


@pytest.mark.parametrize("text", ["zcube:gpus=32", "zcube:gpus=32,bundle=trunk"])
def test_shortest_needs_no_other_routes(text: str) -> None:
    fabric = build(section_from_text(text))
    routes = planned_routes(fabric, planned=False)
    shortest = Routing("shortest")
    for src in fabric.gpus:
        for dst in fabric.gpus:
            for qp in shortest.queue_pairs(fabric, src.name, dst.name) if src is not dst else ():
                assert walked(routes, fabric, qp.src, five_tuple(fabric, qp)) == [shortest.path(fabric, qp).egress]


@pytest.mark.parametrize("text", ["roft:gpus=32", "hpn:gpus=32", "clos:gpus=32", "fat_tree:gpus=16,asic_ports=4"])
def test_flows_that_nobody_planned_can_take_every_equal_path_and_no_other(text: str) -> None:
    fabric = build(section_from_text(text))
    routes = planned_routes(fabric)
    for qp in walk_all_pairs(fabric):
        flow = replace(five_tuple(fabric, qp), src_port=1234)
        ways = walked(routes, fabric, qp.src, flow)
        assert {end for way in ways for end in way} == set(shares(fabric, qp.src, qp.dst))
        assert {way[-1] for way in ways} == {fabric.attachment[qp.dst.node, qp.dst.port]}


def test_every_path_of_a_sprayed_pair_is_planned() -> None:
    fabric = build(section_from_text("roft:gpus=32"))
    spray = Routing("spray", seed=5)
    pairs = spray.queue_pairs(fabric, "gpu1", "gpu6")
    routes = kernel_routes(fabric, rules(fabric, seed=5, planned=pairs))
    ways = [walked(routes, fabric, qp.src, five_tuple(fabric, qp)) for qp in pairs]
    assert all(len(way) == 1 for way in ways) and len({way[0] for way in ways}) == len(pairs) == 4


def test_the_longest_prefix_wins_and_the_rest_is_dropped() -> None:
    route = [Route(IPv4Network(text), (port,)) for text, port in (("198.18.0.0/16", 1), ("198.18.4.0/24", 2))]
    one = SwitchRoutes("odd1", {}, (*route, Route(IPv4Network("198.18.4.7/32"), (3,))), (), 1)
    found = {ip: one.candidates(FiveTuple("1.1.1.1", ip, 6, 1, 2)) for ip in ("198.18.9.7", "198.18.4.8", "198.18.4.7")}
    assert found == {"198.18.9.7": (1,), "198.18.4.8": (2,), "198.18.4.7": (3,)}
    assert one.candidates(FiveTuple("1.1.1.1", "198.19.4.7", 6, 1, 2)) == ()


def test_batch_lines_of_a_leaf() -> None:
    fabric = build(section_from_text("roft:gpus=32"))
    leaf = planned_routes(fabric)["leaf1"]
    lines = leaf.batch().splitlines()
    assert "nexthop add id 1 via 169.254.0.1 dev leaf1-eth1 onlink" in lines
    assert "nexthop add id 10001 group 5/6/7/8" in lines
    assert "route add 198.18.0.1/32 nhid 1" in lines and "route add blackhole default" in lines
    assert "route add 198.18.4.0/22 nhid 10001" in lines
    planned = [line for line in lines if line.startswith("rule add")]
    # 4 GPUs to 28 others and back: data and acknowledgements, both upwards from here.
    assert len(planned) == len(leaf.flows) == 2 * 4 * 28
    assert lines.index("route add default nhid 5 table 1005") < lines.index(planned[0])


def test_a_switch_draws_its_own_hash_seed_and_the_json_has_all() -> None:
    fabric = build(section_from_text("roft:gpus=32"))
    routes = planned_routes(fabric)
    assert len({one.hash_seed for one in routes.values()}) == len(routes)
    assert all(0 < one.hash_seed < 1 << 32 for one in routes.values())
    document = routes_json(routes, 3)
    assert document["route_count"] == sum(len(one.routes) for one in routes.values())
    assert document["flow_rule_count"] == sum(len(one.flows) for one in routes.values()) > 0
