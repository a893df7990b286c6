"""From sightings to a path: every way in which a probe can go wrong is told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emulation.probe_path import Sighting, follow
from scenario.models import FabricSection
from topologies.build import build
from topologies.fabric import End
from topologies.paths import Path, QueuePair, path

FABRIC = build(FabricSection(kind="roft", gpus=16, asic_ports=8))
QP = QueuePair(End("gpu1", 1), End("gpu11", 1), 0)


def sightings(way: Path) -> list[Sighting]:
    """What a packet on that path shows, in no order."""
    mac = FABRIC.port(QP.dst.node, QP.dst.port).mac
    found = []
    for end in way.egress:
        far = FABRIC.far_end(end.node, end.port)
        found += [Sighting(end, "out"), Sighting(far, "in", mac if far == QP.dst else "00:00:00:00:00:00")]
    return found[::-1]


def test_every_path_is_found_again() -> None:
    for seed in range(8):
        way = path(FABRIC, QP, seed)
        observed = follow(FABRIC, QP.src, QP.dst, sightings(way))
        assert (observed.egress, observed.problem) == (way.egress, "")


@pytest.mark.parametrize(
    ("lost", "problem", "hops"),
    [
        (("out", 0), "was not sent by gpu1 port 1", 0),
        (("in", 0), "left gpu1 port 1 and did not arrive at leaf1 port 1", 1),
        (("out", 1), "was dropped by leaf1", 1),
        (("in", 3), "left leaf", 4),
    ],
)
def test_a_packet_that_ends_on_the_way(lost: tuple[str, int], problem: str, hops: int) -> None:
    way = path(FABRIC, QP, 1)
    last = way.egress[lost[1]]
    gone = Sighting(last, "out") if lost[0] == "out" else None
    far = FABRIC.far_end(last.node, last.port)
    kept = [
        s
        for s in sightings(way)
        if not (gone is not None and s.end == last and s.way == "out") and not (gone is None and s.end == far)
    ]
    observed = follow(FABRIC, QP.src, QP.dst, kept)
    assert observed.problem.startswith(problem) and observed.egress == way.egress[:hops]


def test_a_second_copy_and_a_wrong_mac_and_a_wrong_gpu_are_said() -> None:
    way = path(FABRIC, QP, 1)
    seen = sightings(way)
    for other in {5, 6, 7, 8} - {way.egress[1].port}:
        copied = follow(FABRIC, QP.src, QP.dst, [*seen, Sighting(End("leaf1", other), "out")])
        assert copied.problem == f"was also seen at leaf1 port {other} (out)" and copied.egress == way.egress
    wrong_mac = [replace(s, eth_dst="00:00:00:00:00:01") if s.end == QP.dst else s for s in seen]
    assert "destination MAC 00:00:00:00:00:01 instead of" in follow(FABRIC, QP.src, QP.dst, wrong_mac).problem
    observed = follow(FABRIC, QP.src, End("gpu10", 1), seen)
    assert observed.problem == "arrived at gpu11 port 1 instead of gpu10 port 1"
