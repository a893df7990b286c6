"""Bytes on their way over each cable: what a topology-aware gateway would have to know.

A handoff counts on every egress port of its planned paths, evenly over its queue pairs, from its submission until its
last byte has arrived. The score of a path is the seconds that its fullest port needs for what is ahead.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from scenario.models import Scenario
from topologies.build import build
from topologies.fabric import Fabric
from topologies.fluid import BYTES_PER_S_PER_GBPS, Lane, lanes


class PathLoad:
    """The load of the scenario's fabric."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._bytes: defaultdict[str, float] = defaultdict(float)
        self._lanes: dict[tuple[str, str], tuple[Lane, ...]] = {}
        self._rates: dict[str, float] = {}

    @cached_property
    def _fabric(self) -> Fabric:
        fabric = build(self._scenario.fabric)
        self._rates = {port.name: port.gbps * BYTES_PER_S_PER_GBPS for owner in fabric.nodes for port in owner.ports}
        return fabric

    def _of(self, src: str, dst: str) -> tuple[Lane, ...]:
        if (src, dst) not in self._lanes:
            self._lanes[src, dst] = lanes(self._fabric, src, dst, self._scenario.paths)
        return self._lanes[src, dst]

    def add(self, src: str, dst: str, size: float) -> None:
        """Bytes that are submitted; with a minus sign: that have arrived."""
        found = self._of(src, dst)
        for lane in found:
            for port in lane.resources:
                self._bytes[port] += size / len(found)

    def seconds_ahead(self, src: str, dst: str) -> float:
        """Seconds of bytes on the fullest port between two GPUs; 0 inside a server that has no path."""
        found = self._of(src, dst)
        return max((self._bytes[port] / self._rates[port] for lane in found for port in lane.resources), default=0.0)
