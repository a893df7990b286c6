"""Transfers as fluid in virtual time: FIFO queue pairs, max-min fair rates, exact completion times.

Between two changes of what is active, each lane (a queue pair on its path) flows at its max-min rate; so the
next completion is a division, and nothing is sampled. This is the ideal that the emulated transfers are
compared with (fidelity) and the network of the simulation. There are no queues, losses, headers or latency in
it: a constant latency or the share of headers is the caller's to add to times or bytes.

Units: bytes, seconds, bytes per second. Standard library only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Literal

from topologies.fabric import End, Fabric, port_name
from topologies.maxmin import max_min_rates
from topologies.paths import Path, QueuePair
from topologies.routes import NONE, Failures
from topologies.routing import Routing

Striping = Literal["adaptive", "static"]
QpPolicy = Literal["split", "round_robin"]

BYTES_PER_S_PER_GBPS = 1e9 / 8
#: Port number of a GPU's whole NIC in the infinite core, where it has no ports 1 and 2.
WHOLE_NIC = 0

#: Completions closer than this part of the time (of one second at least) are one instant: absorbs rounding.
INSTANT = 1e-12


@dataclass(frozen=True)
class Lane:
    """A queue pair on its path: names of the egress ports it crosses (`resources`), ids of the cables."""

    qp: QueuePair
    resources: tuple[str, ...]
    links: tuple[str, ...] = ()

    @property
    def ports(self) -> tuple[str, ...]:
        """Egress ports, source NIC first; a sender's pacing, a resource of its own before them, is none."""
        return self.resources[-len(self.links) :] if self.links else self.resources


@dataclass(frozen=True)
class Transfer:
    """A handoff of `bytes` over `lanes`.

    adaptive: one pool that all lanes draw from, done when it is empty; static: an equal share per lane, done
    when the last lane is.
    """

    transfer_id: int
    bytes: float
    lanes: tuple[Lane, ...]
    striping: Striping = "adaptive"

    def __post_init__(self) -> None:
        if not self.lanes:
            raise ValueError(f"transfer {self.transfer_id} has no lane")
        if not self.bytes >= 0:
            raise ValueError(f"transfer {self.transfer_id}: bytes = {self.bytes}, must not be negative")


@dataclass(frozen=True)
class Completion:
    """A transfer that ended at `done_s`, and what each lane carried (in the order of `transfer.lanes`).

    `lane_done_s` is when each lane sent its last byte; a cancelled transfer's lanes end when it does.
    """

    transfer: Transfer
    done_s: float
    lane_bytes: tuple[float, ...]
    lane_done_s: tuple[float, ...]


def _by_time_and_id(end: Completion) -> tuple[float, int]:
    """Order of reports. Ends at one instant may be found one after the other: what waited has nothing to send."""
    return end.done_s, end.transfer.transfer_id


class _Pool:
    """Bytes that lanes draw from: a whole transfer under adaptive striping, one lane's share under static."""

    __slots__ = ("carried", "finish_s", "id", "lanes", "left", "routes", "since_s", "speeds", "total")

    def __init__(
        self, transfer_id: int, size: float, lanes: tuple[int, ...], routes: tuple[tuple[str, ...], ...]
    ) -> None:
        self.id = transfer_id
        self.total = self.left = size
        self.lanes = lanes
        self.routes = routes
        self.speeds: tuple[float, ...] = (0.0,) * len(lanes)
        self.carried = [0.0] * len(lanes)
        self.since_s = 0.0
        self.finish_s = float("inf")

    def settle(self, t_s: float) -> None:
        """Book what flowed since the last change of speed."""
        elapsed = t_s - self.since_s
        self.since_s = t_s
        if elapsed > 0:
            pairs = zip(self.carried, self.speeds, strict=True)
            self.carried = [done + speed * elapsed for done, speed in pairs]
            self.left = max(0.0, self.left - sum(self.speeds) * elapsed)

    def set_speeds(self, speeds: tuple[float, ...], t_s: float) -> None:
        """Change the lanes' rates. If they stay, nothing is touched: finish times must not drift by rounding."""
        if speeds == self.speeds and self.finish_s != float("inf"):
            return
        self.settle(t_s)
        self.speeds = speeds
        rate = sum(speeds)
        self.finish_s = t_s + self.left / rate if rate else float("inf")

    def empty(self, t_s: float) -> None:
        """End it: what rounding left goes to the lanes by what they carried, so that bytes are conserved."""
        self.settle(t_s)
        drawn = sum(self.carried)
        if drawn:
            self.carried = [share * self.total / drawn for share in self.carried]
        else:
            self.carried = [self.total / len(self.lanes)] * len(self.lanes)
        self.left = 0.0
        self.finish_s = t_s


class FluidNetwork:
    """The network in virtual time. Time only goes forward; completions are collected with `advance`.

    `capacities` maps each egress port to bytes per second. A queue pair serves its transfers one after the
    other, in the order of the calls to `start`; it moves on as soon as what it draws from is empty.
    """

    def __init__(self, capacities: Mapping[str, float]) -> None:
        self._capacities = capacities
        self._t_s = float("-inf")
        # Queue pairs by number inside: hashing their names would cost more than all the arithmetic.
        self._number: dict[QueuePair, int] = {}
        self._queues: dict[int, deque[_Pool]] = {}
        self._transfers: dict[int, Transfer] = {}
        self._pools: dict[int, list[_Pool]] = {}
        # What the last `_refresh` found: the pools that send, each once, and the next instant at which one ends.
        self._heads: list[_Pool] = []
        self._next_s: float | None = None
        self._stale = False

    @property
    def active(self) -> tuple[int, ...]:
        """Ids of the transfers that have started and not ended, queued ones included."""
        return tuple(self._transfers)

    def start(self, transfer: Transfer, t_s: float) -> None:
        """Queue a transfer on its lanes. Raises ValueError for time that went back or skipped a completion."""
        if transfer.transfer_id in self._transfers:
            raise ValueError(f"transfer {transfer.transfer_id} is under way already")
        self._move_to(t_s)
        lanes = tuple(self._number.setdefault(lane.qp, len(self._number)) for lane in transfer.lanes)
        routes = tuple(lane.resources for lane in transfer.lanes)
        if transfer.striping == "static":
            share = transfer.bytes / len(lanes)
            pools = [
                _Pool(transfer.transfer_id, share, (lane,), (route,)) for lane, route in zip(lanes, routes, strict=True)
            ]
        else:
            pools = [_Pool(transfer.transfer_id, transfer.bytes, lanes, routes)]
        self._transfers[transfer.transfer_id] = transfer
        self._pools[transfer.transfer_id] = pools
        for pool in pools:
            for lane in pool.lanes:
                self._queues.setdefault(lane, deque()).append(pool)
        self._stale = True

    def cancel(self, transfer_id: int, t_s: float) -> Completion:
        """Drop a transfer and report what it carried until `t_s`. Raises KeyError if it is not under way."""
        self._transfers[transfer_id]  # an unknown id must not move the clock
        self._move_to(t_s)
        for pool in self._pools[transfer_id]:
            if self._queued(pool):
                pool.settle(t_s)
                self._unqueue(pool)
                pool.finish_s = t_s
        self._stale = True
        return self._report(transfer_id, t_s)

    def next_completion(self) -> float | None:
        """Next instant at which a lane or a transfer ends; None when idle.

        Under static striping a lane may end before its transfer: `advance` to it then returns nothing.
        """
        self._refresh()
        return self._next_s

    def advance(self, t_s: float) -> list[Completion]:
        """Move to `t_s` and return what ended until then (included), by (time, transfer_id)."""
        if t_s < self._t_s:
            raise ValueError(f"time went back from {self._t_s} s to {t_s} s")
        done: list[Completion] = []
        while (event_s := self.next_completion()) is not None and event_s <= t_s:
            instant = event_s + INSTANT * max(1.0, abs(event_s))
            ended: set[int] = set()
            for pool in self._heads:
                if pool.finish_s <= instant:
                    pool.empty(event_s)
                    self._unqueue(pool)
                    ended.add(pool.id)
            self._t_s, self._stale = max(self._t_s, event_s), True
            for transfer_id in ended:
                if not any(self._queued(pool) for pool in self._pools[transfer_id]):
                    done.append(self._report(transfer_id, event_s))
        self._t_s = max(self._t_s, t_s)
        return sorted(done, key=_by_time_and_id)

    def rates(self) -> dict[QueuePair, float]:
        """Current rate of each lane that sends, in bytes per second."""
        return {qp: speed for qp, (_, speed) in self.sending().items()}

    def sending(self) -> dict[QueuePair, tuple[int, float]]:
        """Queue pair -> (id of the transfer that it sends now, bytes per second); idle ones are left out."""
        self._refresh()
        names = {number: qp for qp, number in self._number.items()}
        return {
            names[lane]: (pool.id, speed)
            for pool in self._heads
            for lane, speed in zip(pool.lanes, pool.speeds, strict=True)
            if speed
        }

    def _move_to(self, t_s: float) -> None:
        """Set the clock for a change. Completions before it must have been collected."""
        if t_s < self._t_s:
            raise ValueError(f"time went back from {self._t_s} s to {t_s} s")
        due = self.next_completion() if t_s > self._t_s else None
        if due is not None and due < t_s:
            raise ValueError(f"advance to {due} s first: something ends there, before {t_s} s")
        self._t_s = t_s

    def _queued(self, pool: _Pool) -> bool:
        return any(pool in self._queues.get(lane, ()) for lane in pool.lanes)

    def _unqueue(self, pool: _Pool) -> None:
        """Take a pool off all its lanes, also those on which it waited behind another transfer."""
        for lane in pool.lanes:
            queue = self._queues[lane]
            queue.remove(pool)
            if not queue:
                del self._queues[lane]

    def _report(self, transfer_id: int, t_s: float) -> Completion:
        transfer, pools = self._transfers.pop(transfer_id), self._pools.pop(transfer_id)
        return Completion(
            transfer,
            t_s,
            tuple(carried for pool in pools for carried in pool.carried),
            tuple(pool.finish_s for pool in pools for _ in pool.lanes),
        )

    def _refresh(self) -> None:
        """New rates after a change. Lazily, so that many starts at one instant cost one computation."""
        if not self._stale:
            return
        self._stale = False
        flows: dict[int, tuple[str, ...]] = {}
        heads: dict[_Pool, list[int]] = {}
        for lane, queue in self._queues.items():
            heads.setdefault(queue[0], []).append(lane)
        for pool, sending in heads.items():
            if len(sending) == len(pool.lanes):
                flows.update(zip(pool.lanes, pool.routes, strict=True))
            else:
                flows.update(
                    {lane: route for lane, route in zip(pool.lanes, pool.routes, strict=True) if lane in sending}
                )
        rates = max_min_rates(flows, self._capacities)
        for pool in heads:
            # A lane on which it waits behind another has that one's rate: it is not this pool's.
            mine = rates if len(heads[pool]) == len(pool.lanes) else {lane: rates[lane] for lane in heads[pool]}
            pool.set_speeds(tuple([mine.get(lane, 0.0) for lane in pool.lanes]), self._t_s)
        self._heads = list(heads)
        self._next_s = min((pool.finish_s for pool in self._heads), default=None)


def replay_completions(capacities: Mapping[str, float], starts: Iterable[tuple[Transfer, float]]) -> list[Completion]:
    """Every transfer's end, by (time, id), given the times they start; equal times start by transfer id."""
    network = FluidNetwork(capacities)
    done: list[Completion] = []
    for transfer, start_s in sorted(starts, key=lambda item: (item[1], item[0].transfer_id)):
        done += network.advance(start_s)
        network.start(transfer, start_s)
    while (event_s := network.next_completion()) is not None:
        done += network.advance(event_s)
    return sorted(done, key=_by_time_and_id)


def replay(capacities: Mapping[str, float], starts: Iterable[tuple[Transfer, float]]) -> dict[int, float]:
    """transfer_id -> when it is done, in seconds on the clock of the start times."""
    return {end.transfer.transfer_id: end.done_s for end in replay_completions(capacities, starts)}


def isolated_s(capacities: Mapping[str, float], transfer: Transfer) -> float:
    """Duration of a transfer that has the whole fabric to itself, in seconds."""
    return replay(capacities, [(transfer, 0.0)])[transfer.transfer_id]


def lanes(
    fabric: Fabric,
    src_gpu: str,
    dst_gpu: str,
    routing: Routing = Routing(),  # noqa: B008  frozen
    ways: Mapping[QueuePair, Path] | None = None,
    failures: Failures = NONE,
) -> tuple[Lane, ...]:
    """Every lane of a GPU pair. `ways` holds paths that were observed, which count instead of the planned ones."""

    def lane(qp: QueuePair) -> Lane:
        way = (ways or {}).get(qp) or routing.path(fabric, qp, failures)
        return Lane(qp, tuple(port_name(end) for end in way.egress), way.links)

    return tuple(lane(qp) for qp in routing.queue_pairs(fabric, src_gpu, dst_gpu, failures))


def paced(
    some: tuple[Lane, ...], capacities: MutableMapping[str, float], bytes_per_s: float | None
) -> tuple[Lane, ...]:
    """The lanes, each of which a sender paces to `bytes_per_s` (None: not at all): a resource of the queue pair's own,
    which is added to `capacities`."""
    if bytes_per_s is None:
        return some
    found = []
    for lane in some:
        qp = lane.qp
        name = f"pacing of {qp.src.node} port {qp.src.port} to {qp.dst.node} port {qp.dst.port}, {qp.index}"
        capacities[name] = bytes_per_s
        found.append(replace(lane, resources=(name, *lane.resources)))
    return tuple(found)


def handoff_lanes(all_lanes: tuple[Lane, ...], qp_policy: QpPolicy, nth: int) -> tuple[Lane, ...]:
    """Lanes of a GPU pair's n-th handoff (from 0): all, or with round_robin queue pair n mod q of each port."""
    if qp_policy == "split":
        return all_lanes
    index = nth % (1 + max(lane.qp.index for lane in all_lanes))
    return tuple(lane for lane in all_lanes if lane.qp.index == index)


def capacities(fabric: Fabric) -> dict[str, float]:
    """Bytes per second of every egress port: each cable is two resources, one per direction."""
    return {port_name(end): link.gbps * BYTES_PER_S_PER_GBPS for link in fabric.links for end in (link.a, link.b)}


def slowed(rates: Mapping[str, float], share_by_port: Mapping[str, float]) -> dict[str, float]:
    """`rates` by egress port, where some have only a share of theirs left."""
    return {port: rate * share_by_port.get(port, 1.0) for port, rate in rates.items()}


def core_lanes(src_gpu: str, dst_gpu: str, queue_pairs: int = 1) -> tuple[Lane, ...]:
    """Lanes of a GPU pair over an infinite core: one NIC of the full rate at each end, nothing in between."""
    src, dst = End(src_gpu, WHOLE_NIC), End(dst_gpu, WHOLE_NIC)
    route = (f"{src_gpu}-out", f"{dst_gpu}-in")
    return tuple(Lane(QueuePair(src, dst, q), route) for q in range(queue_pairs))


def core_capacities(fabric: Fabric) -> dict[str, float]:
    """Bytes per second of each GPU's whole NIC, out and in: what no topology can exceed."""
    return {
        f"{gpu.name}-{way}": sum(port.gbps for port in gpu.ports) * BYTES_PER_S_PER_GBPS
        for gpu in fabric.gpus
        for way in ("out", "in")
    }
