"""`topologies.routing`: which connections a handoff has under each policy."""

from __future__ import annotations

import pytest

from scenario.errors import InputError
from scenario.fabric_spec import section_from_text
from scenario.load import check_scenario
from topologies.build import build
from topologies.fabric import Fabric, FabricError
from topologies.fluid import lanes
from topologies.routes import Failures
from topologies.routing import Routing, count_paths


def fabric_of(text: str) -> Fabric:
    return build(section_from_text(text))


@pytest.mark.parametrize(
    ("text", "dst", "paths"),
    [
        ("roft:gpus=32,asic_ports=8", "gpu18", 4),  # another rail: each of the leaf's four uplinks
        ("roft:gpus=32,asic_ports=8", "gpu5", 1),  # the same rail and leaf
        ("roft:gpus=128,asic_ports=8,tiers=3", "gpu128", 16),  # uplinks of the leaf times those of the aggregation
        ("zcube:gpus=16,asic_ports=8,gpus_per_switch=8,bundle=hashed", "gpu10", 4),
        ("zcube:gpus=16,asic_ports=8,gpus_per_switch=8,bundle=destination", "gpu10", 1),
        ("zcube:gpus=32", "gpu18", 1),
    ],
)
def test_spray_has_a_connection_for_each_equal_path(text: str, dst: str, paths: int) -> None:
    fabric = fabric_of(text)
    routing = Routing("spray", seed=3)
    found = routing.queue_pairs(fabric, "gpu1", dst)
    by_ports: dict[tuple[int, int], list[tuple[str, ...]]] = {}
    for qp in found:
        assert count_paths(fabric, qp) == paths
        by_ports.setdefault((qp.src.port, qp.dst.port), []).append(routing.path(fabric, qp).links)
    for ways in by_ports.values():
        assert len(ways) == len(set(ways)) == paths
    assert len(by_ports) == len(fabric.gpus[0].ports)
    assert routing.queue_pairs(fabric, "gpu1", dst) == found
    assert len(lanes(fabric, "gpu1", dst, routing)) == len(found)


def test_spray_after_a_failure_keeps_its_connections_and_moves_those_hit() -> None:
    fabric = fabric_of("roft:gpus=32,asic_ports=8")
    routing = Routing("spray", seed=3)
    whole = routing.queue_pairs(fabric, "gpu1", "gpu18")
    cut = routing.path(fabric, whole[2]).links[1]
    failures = Failures.of(fabric, [cut])
    assert routing.queue_pairs(fabric, "gpu1", "gpu18", failures) == whole
    assert all(cut not in routing.path(fabric, qp, failures).links for qp in whole)


def test_ecmp_ovs_is_not_planned_and_unique_is_zcubes() -> None:
    assert not Routing("ecmp_ovs").planned
    assert Routing("ecmp").planned and Routing().planned
    with pytest.raises(FabricError, match="ecmp_ovs"):
        Routing("unique").queue_pairs(fabric_of("roft:gpus=32"), "gpu1", "gpu2")


def test_detour_gives_a_cut_off_pair_a_path() -> None:
    fabric = fabric_of("zcube:gpus=32")
    dead = Failures.of(fabric, ["odd1"])
    pairs = [(a.name, b.name) for a in fabric.gpus for b in fabric.gpus if a is not b]
    plain, detour = Routing(), Routing(detour=True)
    cut = [pair for pair in pairs if not plain.queue_pairs(fabric, *pair, dead)]
    assert cut
    for pair in cut:
        (qp,) = detour.queue_pairs(fabric, *pair, dead)
        assert len(detour.path(fabric, qp, dead).switches) == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"fabric": {"kind": "roft"}, "routing": {"policy": "unique"}}, "routing.policy = 'unique': is ZCube's own"),
        ({"routing": {"policy": "spray", "queue_pairs": 2}}, "routing.queue_pairs = 2: cannot be sprayed"),
        ({"routing": {"policy": "spray", "qp_policy": "round_robin"}}, "routing.qp_policy = 'round_robin': cannot be"),
    ],
)
def test_a_policy_that_does_not_fit_is_named(data: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_scenario(data)
    assert message in str(caught.value)
