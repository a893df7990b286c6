"""The path function: the blog's drawn paths, and what ECMP must and must not do."""

from __future__ import annotations

from collections import Counter

import pytest

from topologies.fabric import End, FabricError
from topologies.paths import (
    TCP,
    UDP,
    QueuePair,
    destination_member,
    five_tuple,
    flow_path,
    path,
    queue_pairs,
    reversed_flow,
    source_port,
    walk_all_pairs,
)
from topologies.roft import roft
from topologies.zcube import zcube


@pytest.mark.parametrize(
    ("src", "dst", "switches"),
    [
        ("gpu1", "gpu11", [("odd1", "even4"), ("even2", "odd5")]),  # blog figure 8
        ("gpu5", "gpu18", [("odd1", "even6"), ("even2", "odd3")]),  # blog figure 8
        ("gpu1", "gpu5", [("odd1", "even2"), ("even2", "odd1")]),  # share both switches: crosswise all the same
        ("gpu1", "gpu9", [("odd1", "even4"), ("even2", "odd1")]),  # share the odd switch
    ],
)
def test_zcube_paths_are_crosswise(src: str, dst: str, switches: list[tuple[str, ...]]) -> None:
    fabric = zcube(32, 8)
    found = [path(fabric, qp) for qp in queue_pairs(fabric, src, dst)]
    assert [p.switches for p in found] == switches
    assert not set(found[0].links) & set(found[1].links)


def test_two_switches_always_and_42_percent_share_one() -> None:
    fabric = zcube(32, 8)
    assert {len(path(fabric, qp).switches) for qp in walk_all_pairs(fabric)} == {2}
    homes = {g.name: {fabric.attachment[g.name, p.number].node for p in g.ports} for g in fabric.gpus}
    pairs = [(a, b) for a in homes for b in homes if a != b]
    assert sum(bool(homes[a] & homes[b]) for a, b in pairs) / len(pairs) == pytest.approx(13 / 31)


def test_bundle_members_by_destination_are_used_alike() -> None:
    fabric = zcube(32, 8)
    used = Counter(link for qp in walk_all_pairs(fabric) for link in path(fabric, qp).links if "gpu" not in link)
    assert len(used) == 32
    assert max(used.values()) - min(used.values()) <= 16  # a member carries 4 destinations from 8 sources
    assert destination_member("198.19.1.6", 4) == 2


def test_hashed_members_depend_on_queue_pair_and_seed() -> None:
    fabric = zcube(32, 8, bundle="hashed")
    pairs = queue_pairs(fabric, "gpu1", "gpu11", per_port_pair=8)
    assert len({path(fabric, qp, seed=1) for qp in pairs if qp.src.port == 1}) == 2
    assert [path(fabric, qp, seed=1) for qp in pairs] != [path(fabric, qp, seed=2) for qp in pairs]


def test_roft_climbs_only_when_it_must() -> None:
    fabric = roft(32, 8)
    same, rail, cross = (path(fabric, queue_pairs(fabric, "gpu1", dst)[0]) for dst in ("gpu5", "gpu17", "gpu2"))
    assert same.switches == ("leaf1",)
    assert (rail.switches[0], rail.switches[2]) == ("leaf1", "leaf5")
    assert len(cross.switches) == 3  # another rail of the same server: over a spine


def test_ecmp_is_uniform_and_seeded() -> None:
    fabric = roft(32, 8)
    spines = Counter(
        p.switches[1] for qp in walk_all_pairs(fabric, 8) if len((p := path(fabric, qp, seed=3)).switches) == 3
    )
    mean = sum(spines.values()) / 4
    assert len(spines) == 4 and all(abs(count - mean) < 0.05 * mean for count in spines.values())
    pairs = list(walk_all_pairs(fabric))
    assert [path(fabric, qp, 1) for qp in pairs] != [path(fabric, qp, 2) for qp in pairs]
    assert [path(fabric, qp, 1) for qp in pairs] == [path(fabric, qp, 1) for qp in pairs]


def test_tcp_and_udp_hash_apart() -> None:
    fabric = roft(32, 8)
    pairs = [qp for qp in walk_all_pairs(fabric) if len(path(fabric, qp).switches) == 3]
    assert [path(fabric, qp, 1, TCP) for qp in pairs] != [path(fabric, qp, 1, UDP) for qp in pairs]


def test_acknowledgements_have_a_path_of_their_own() -> None:
    fabric = roft(32, 8)
    qp = queue_pairs(fabric, "gpu1", "gpu18")[0]
    data = five_tuple(fabric, qp)
    assert reversed_flow(reversed_flow(data)) == data
    back = flow_path(fabric, qp.dst, qp.src, reversed_flow(data), seed=1)
    assert (back.switches[0], back.switches[-1]) == path(fabric, qp, 1).switches[::-2]


def test_planned_source_ports_are_distinct_per_source() -> None:
    fabric = zcube(32, 8)
    ports = Counter((qp.src, source_port(qp, 32)) for qp in walk_all_pairs(fabric, 4))
    assert set(ports.values()) == {1}
    assert all(20_000 <= port < 61_000 for _, port in ports)


@pytest.mark.parametrize("gpus", [16, 1000, 1024, 1025, 16384])
def test_the_indices_of_a_destination_run_through_all_source_ports(gpus: int) -> None:
    found = [source_port(QueuePair(End("gpu1", 1), End("gpu2", 1), index), gpus) for index in range(41_000)]
    assert sorted(found) == list(range(20_000, 61_000)) and found[0] == 20_002


@pytest.mark.parametrize(("gpus", "indices"), [(32, 16), (1000, 16), (1280, 16), (16384, 1)])
def test_source_ports_of_all_destinations_are_distinct_as_long_as_they_fit(gpus: int, indices: int) -> None:
    found = {
        source_port(QueuePair(End("gpu1", 1), End(f"gpu{number}", port), index), gpus)
        for number in range(1, gpus + 1)
        for port in (1, 2)
        for index in range(indices)
    }
    assert len(found) == 2 * gpus * indices


@pytest.mark.parametrize(
    ("qp", "why"),
    [
        (QueuePair(End("gpu1", 1), End("gpu1", 2), 0), "must differ"),
        (QueuePair(End("gpu1", 1), End("gpu2", 1), 0), "crosswise"),
    ],
)
def test_pairs_without_a_path_are_refused(qp: QueuePair, why: str) -> None:
    with pytest.raises(FabricError, match=why):
        path(zcube(32, 8), qp)
