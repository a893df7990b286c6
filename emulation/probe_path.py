"""What a probe packet did, from the places where it was seen: pure.

A probe is seen leaving a node (`out`) and entering the next (`in`), at interfaces of the fabric. Following the cables
from the source's NIC gives its path; what does not fit a single path is said rather than guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from topologies.fabric import End, Fabric

Way = Literal["in", "out"]
Seen = tuple[End, Way]


@dataclass(frozen=True)
class Sighting:
    """One copy of a probe at a port; `eth_dst` is its destination MAC there."""

    end: End
    way: Way
    eth_dst: str = ""


@dataclass(frozen=True)
class Observed:
    """Egress ends in order, the GPU's NIC port first, as in `topologies.paths.Path`; `problem` is empty when the
    packet arrived, once, at the destination's NIC with its MAC."""

    egress: tuple[End, ...]
    problem: str = ""


def follow(fabric: Fabric, src: End, dst: End, sightings: Sequence[Sighting]) -> Observed:
    """The path of one packet from `src` to `dst`."""
    seen: Counter[Seen] = Counter((s.end, s.way) for s in sightings)
    macs = {s.end: s.eth_dst for s in sightings if s.way == "in"}
    egress: list[End] = []
    here = src
    while True:
        if seen[here, "out"] == 0:
            return Observed(tuple(egress), f"was not sent by {_named(here)}")
        egress.append(here)
        seen[here, "out"] -= 1
        there = fabric.far_end(here.node, here.port)
        if seen[there, "in"] == 0:
            return Observed(tuple(egress), f"left {_named(here)} and did not arrive at {_named(there)}")
        seen[there, "in"] -= 1
        if there.node in fabric.gpu_by_name:
            return Observed(tuple(egress), _at_the_end(fabric, there, dst, macs[there], +seen))
        onward = [end for end, way in +seen if way == "out" and end.node == there.node]
        if not onward:
            return Observed(tuple(egress), f"was dropped by {there.node}")
        # Of two copies follow one that went on; the other shows at the end.
        here = min(onward, key=lambda end: (seen[fabric.far_end(end.node, end.port), "in"] == 0, end.port))


def _at_the_end(fabric: Fabric, there: End, dst: End, mac: str, left: Counter[Seen]) -> str:
    if there != dst:
        return f"arrived at {_named(there)} instead of {_named(dst)}"
    wanted = fabric.port(dst.node, dst.port).mac
    if mac != wanted:
        return f"arrived with destination MAC {mac} instead of {wanted}"
    if left:
        places = ", ".join(sorted(f"{_named(end)} ({way})" for end, way in left))
        return f"was also seen at {places}"
    return ""


def _named(end: End) -> str:
    return f"{end.node} port {end.port}"
