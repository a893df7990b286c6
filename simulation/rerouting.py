"""Cables and switches that fail and come back, around a network in virtual time: the same methods as that.

A failure takes effect at once: what a dead cable carried stands still. Whoever has other queue pairs goes on over
those. `repair_s` later the routes are those of the path function with the failures, and what stood still moves. A
recovery works the same way: the cable can carry at once, and is used `repair_s` later. What had arrived counts, and
nothing is sent twice (a real transport sends again what was under way).

Static striping keeps its fixed shares; one whose queue pair is gone goes over all that is left, as one pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from scenario.models import FaultEvent
from topologies.fabric import Fabric
from topologies.fluid import Completion, Lane, Transfer
from topologies.routes import NONE, Failures


class Network(Protocol):
    """What `topologies.fluid.FluidNetwork`, `simulation.network.FlowNetwork` and `Rerouting` have in common."""

    @property
    def active(self) -> tuple[int, ...]:
        """Ids of what is under way."""

    def start(self, transfer: Transfer, t_s: float) -> None:
        """Queue a transfer on its lanes."""

    def cancel(self, transfer_id: int, t_s: float) -> Completion:
        """Drop it; what it carried."""

    def next_completion(self) -> float | None:
        """Next instant at which something ends or changes."""

    def advance(self, t_s: float) -> list[Completion]:
        """What ended until then."""


#: Lanes of a GPU pair with these failures.
LanesOf = Callable[[str, str, Failures], tuple[Lane, ...]]


@dataclass
class _Part:
    """Bytes of a transfer that draw on the same lanes; `inner` is the transfer that carries them now, if one does."""

    lanes: tuple[Lane, ...]
    left: float
    inner: int | None = None
    done: bool = False


@dataclass
class _Order:
    transfer: Transfer
    parts: list[_Part]
    carried: dict[Lane, tuple[float, float]] = field(default_factory=dict)  # bytes, last byte at

    def book(self, end: Completion) -> float:
        """Count what an inner transfer carried; returns the sum."""
        for lane, size, done_s in zip(end.transfer.lanes, end.lane_bytes, end.lane_done_s, strict=True):
            before, at_s = self.carried.get(lane, (0.0, 0.0))
            self.carried[lane] = before + size, done_s if size else at_s or done_s
        return sum(end.lane_bytes)

    def completion(self, t_s: float) -> Completion:
        """All of it as one: a lane a path, so a queue pair that was moved has two."""
        whole, lanes = self.transfer, tuple(self.carried)
        return Completion(
            Transfer(whole.transfer_id, whole.bytes, lanes or whole.lanes, whole.striping),
            t_s,
            tuple(size for size, _ in self.carried.values()),
            tuple(done_s for _, done_s in self.carried.values()),
        )


@dataclass(frozen=True)
class _Instant:
    t_s: float
    dead: frozenset[str]  # cables
    known: Failures


def played(events: Iterable[FaultEvent], repair_s: float, end_s: float) -> list[dict[str, object]]:
    """What became of the events in a run that served until `end_s`, for events.jsonl, in order; times are model
    seconds. An event after the end of serving was not reached."""
    found: list[tuple[float, dict[str, object]]] = []
    for event in events:
        if event.at_s > end_s:
            missed = {"at_s": event.at_s, "down": list(event.down), "up": list(event.up), "served_s": end_s}
            found.append((event.at_s, {"event": "fault not reached", **missed}))
            continue
        for state, names in (("down", event.down), ("up", event.up)):
            if names:
                found.append((event.at_s, {"event": f"fault {state}", "what": list(names), "t_s": event.at_s}))
        moved_s = event.at_s + repair_s
        if moved_s <= end_s:
            both = [*event.down, *event.up]
            found.append((moved_s, {"event": "flows moved", "what": both, "t_s": moved_s}))
    return [entry for _, entry in sorted(found, key=lambda item: item[0])]


class Rerouting:
    """Plays fault events on a network. Time only goes forward."""

    def __init__(
        self, network: Network, fabric: Fabric, events: Iterable[FaultEvent], repair_s: float, lanes_of: LanesOf
    ) -> None:
        """Raises FabricError for a name that the fabric does not have."""
        self._network, self._lanes_of = network, lanes_of
        self._instants = _instants(fabric, events, repair_s)
        self._dead: frozenset[str] = frozenset()
        self._known: Failures = NONE
        self._orders: dict[int, _Order] = {}  # in the order of their starts
        self._of_inner: dict[int, tuple[_Order, _Part]] = {}
        self._numbers = count()

    @property
    def active(self) -> tuple[int, ...]:
        """Ids of the transfers that have started and not ended."""
        return tuple(self._orders)

    def start(self, transfer: Transfer, t_s: float) -> None:
        """Queue a transfer; its lanes are those of the whole fabric."""
        self.advance(t_s)  # faults that nothing was under way for; what has ended was collected, or this raises below
        lanes = self._routed(transfer)
        if transfer.striping == "static" and lanes:
            parts = [_Part((lane,), transfer.bytes / len(lanes)) for lane in lanes]
        else:
            parts = [_Part(lanes, transfer.bytes)]
        order = self._orders[transfer.transfer_id] = _Order(transfer, parts)
        self._send(order, t_s)

    def cancel(self, transfer_id: int, t_s: float) -> Completion:
        """Drop a transfer and report what it carried. Raises KeyError if it is not under way."""
        order = self._orders[transfer_id]
        self._halt(order, t_s)
        del self._orders[transfer_id]
        return order.completion(t_s)

    def next_completion(self) -> float | None:
        """Next instant at which something ends, or a fault changes something for what is under way."""
        soonest = self._network.next_completion()
        if self._instants and self._orders and (soonest is None or self._instants[0].t_s < soonest):
            return self._instants[0].t_s
        return soonest

    def advance(self, t_s: float) -> list[Completion]:
        """Move to `t_s` and return what ended until then, by (time, transfer_id)."""
        done: list[Completion] = []
        while self._instants and self._instants[0].t_s <= t_s:
            instant = self._instants.pop(0)
            done += self._ended(self._network.advance(instant.t_s))
            self._change(instant)
        done += self._ended(self._network.advance(t_s))
        return sorted(done, key=lambda end: (end.done_s, end.transfer.transfer_id))

    def _ended(self, ends: Iterable[Completion]) -> list[Completion]:
        found = []
        for end in ends:
            order, part = self._of_inner.pop(end.transfer.transfer_id)
            order.book(end)
            part.inner, part.done = None, True
            if all(each.done for each in order.parts):
                del self._orders[order.transfer.transfer_id]
                found.append(order.completion(end.done_s))
        return found

    def _change(self, instant: _Instant) -> None:
        """All that is under way starts again with what is left, in the old order: queue pairs stay first in, first
        out."""
        for order in self._orders.values():
            self._halt(order, instant.t_s)
        self._dead, self._known = instant.dead, instant.known
        for order in self._orders.values():
            routed = self._routed(order.transfer)
            by_pair = {lane.qp: lane for lane in routed}
            for part in order.parts:
                if order.transfer.striping == "adaptive" or not part.lanes or part.lanes[0].qp not in by_pair:
                    part.lanes = routed
                else:
                    part.lanes = (by_pair[part.lanes[0].qp],)
            self._send(order, instant.t_s)

    def _send(self, order: _Order, t_s: float) -> None:
        for part in order.parts:
            lanes = tuple(lane for lane in part.lanes if not self._dead.intersection(lane.links))
            if part.done or not lanes:
                continue
            part.inner = next(self._numbers)
            self._of_inner[part.inner] = order, part
            self._network.start(Transfer(part.inner, part.left, lanes), t_s)

    def _halt(self, order: _Order, t_s: float) -> None:
        for part in order.parts:
            if part.inner is not None:
                part.left = max(0.0, part.left - order.book(self._network.cancel(part.inner, t_s)))
                del self._of_inner[part.inner]
                part.inner = None

    def _routed(self, transfer: Transfer) -> tuple[Lane, ...]:
        """A transfer's lanes by the routes as they are known: those of its queue pairs, and stand-ins."""
        if not self._known:
            return transfer.lanes
        qp = transfer.lanes[0].qp
        found = self._lanes_of(qp.src.node, qp.dst.node, self._known)
        mine = {lane.qp.index for lane in transfer.lanes}
        return tuple(lane for lane in found if lane.qp.index in mine) or found[:1]


def _instants(fabric: Fabric, events: Iterable[FaultEvent], repair_s: float) -> list[_Instant]:
    """When cables die or come back, and when routes follow."""
    moves = sorted(events, key=lambda event: event.at_s)
    times = sorted({event.at_s for event in moves} | {event.at_s + repair_s for event in moves})
    found = []
    for t_s in times:
        dead = _failures(fabric, [event for event in moves if event.at_s <= t_s])
        known = _failures(fabric, [event for event in moves if event.at_s + repair_s <= t_s])
        cables = {link.id for link in fabric.links if {link.a.node, link.b.node} & dead.switches}
        found.append(_Instant(t_s, frozenset(cables | dead.links), known))
    return found


def _failures(fabric: Fabric, events: Iterable[FaultEvent]) -> Failures:
    """What is down after these events, one after the other."""
    down: dict[str, None] = {}
    for event in events:
        down.update(dict.fromkeys(event.down))
        for name in event.up:
            down.pop(name, None)
    return Failures.of(fabric, down)
