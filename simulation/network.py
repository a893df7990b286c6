"""The network in virtual time at thousands of GPUs: what `topologies.fluid.FluidNetwork` does, with the same methods.

`FluidNetwork` is the reference: short, and it solves the whole network anew at each change. This one keeps arrays and
solves the part that a change can affect, in compiled code (`simulation.maxmin_kernel`). `tests/test_flow_network.py`
holds them against each other. Importing it loads numba; the first call on a machine compiles for some ten seconds.

Units: bytes, seconds, bytes per second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from simulation.maxmin_kernel import Floats, Ints, Longs, State, change, component, ended
from topologies.fluid import INSTANT, Completion, Lane, Transfer
from topologies.paths import QueuePair

#: Most ports on a path, a sender's pacing included.
WIDTH = 16
#: Changes between two looks at the connected components, which take as long as some hundred changes.
COMPONENTS_EVERY = 10_000


class _Pool:
    """Bytes that lanes draw from (see `topologies.fluid`), its number in the arrays, and the flows of its lanes."""

    __slots__ = ("carried", "done_s", "flows", "lanes", "number", "size", "transfer")

    def __init__(self, transfer: Transfer, lanes: tuple[Lane, ...], size: float) -> None:
        self.transfer, self.lanes, self.size = transfer, lanes, size
        self.number = -1
        self.flows: dict[QueuePair, int] = {}  # lanes that it is the first on -> flow
        self.carried: list[float] = []
        self.done_s: float | None = None


@dataclass(frozen=True)
class Work:
    """What the solver has done: events that changed rates, flows solved for them in all and at most, fillings; and the
    largest connected component, looked for every COMPONENTS_EVERY changes, and how many flows there were then."""

    changes: int
    flows: int
    most_flows: int
    fillings: int
    largest_component: int = 0
    component_flows: int = 0

    @property
    def mean_flows(self) -> float:
        """Flows that were solved a change."""
        return self.flows / self.changes if self.changes else 0.0


class FlowNetwork:
    """Time only goes forward; completions are collected with `advance`."""

    def __init__(self, capacities: Mapping[str, float]) -> None:
        """`capacities`: resource -> bytes per second. One that is not there yet is looked up when a lane needs it.

        Raises ValueError for a capacity that is not positive.
        """
        self._capacities = capacities
        self._resource: dict[str, int] = {}
        self._t_s = float("-inf")
        self._queues: dict[QueuePair, deque[_Pool]] = {}
        self._transfers: dict[int, list[_Pool]] = {}
        self._pool: dict[int, _Pool] = {}  # by number
        self._free_flows: list[int] = []
        self._free_pools: list[int] = []
        self._flows = self._pools = 0  # numbers that were ever given
        self._gone: list[int] = []
        self._came: list[int] = []
        self._component = 0, 0  # the largest seen, and of how many flows
        self._s = _arrays(1024, max(1024, len(capacities)), 1024)
        for name in capacities:
            self._index(name)

    @property
    def active(self) -> tuple[int, ...]:
        """Ids of the transfers that have started and not ended, queued ones included."""
        return tuple(self._transfers)

    @property
    def work(self) -> Work:
        """What the solver has done so far."""
        changes, flows, most, fillings = (int(count) for count in self._s.counts[1:5])
        return Work(changes, flows, most, fillings, *self._component)

    def start(self, transfer: Transfer, t_s: float) -> None:
        """Queue a transfer on its lanes. Raises ValueError for time that went back or skipped a completion, and for a
        transfer under way."""
        if transfer.transfer_id in self._transfers:
            raise ValueError(f"transfer {transfer.transfer_id} is under way already")
        self._move_to(t_s)
        if transfer.striping == "static":
            share = transfer.bytes / len(transfer.lanes)
            pools = [_Pool(transfer, (lane,), share) for lane in transfer.lanes]
        else:
            pools = [_Pool(transfer, transfer.lanes, transfer.bytes)]
        routes = {lane.qp: [self._index(name) for name in lane.resources] for lane in transfer.lanes}
        for qp, route in routes.items():
            if not 0 < len(set(route)) == len(route) <= WIDTH:
                raise ValueError(f"{qp} crosses {len(route)} resources: 1 to {WIDTH}, each once")
        self._transfers[transfer.transfer_id] = pools
        for pool in pools:
            self._number(pool)
            for lane in pool.lanes:
                queue = self._queues.get(lane.qp)
                if queue is None:
                    self._queues[lane.qp] = deque((pool,))
                    self._send(pool, lane.qp, routes[lane.qp])
                else:
                    queue.append(pool)

    def cancel(self, transfer_id: int, t_s: float) -> Completion:
        """Drop a transfer and report what it carried until `t_s`. Raises KeyError if it is not under way."""
        pools = self._transfers[transfer_id]  # an unknown id must not move the clock
        self._move_to(t_s)
        self._refresh()
        self._stop([pool for pool in pools if pool.done_s is None], t_s, whole=False)
        return self._report(transfer_id, t_s)

    def next_completion(self) -> float | None:
        """Next instant at which a lane or a transfer ends; None when idle.

        Under static striping a lane may end before its transfer: `advance` to it then returns nothing.
        """
        self._refresh()
        return float(self._s.finish[self._s.heap[0]]) if self._s.counts[0] else None

    def advance(self, t_s: float) -> list[Completion]:
        """Move to `t_s` and return what ended until then (included), by (time, transfer_id)."""
        if t_s < self._t_s:
            raise ValueError(f"time went back from {self._t_s} s to {t_s} s")
        done: list[Completion] = []
        while (event_s := self.next_completion()) is not None and event_s <= t_s:
            found = self._s.dirty  # not in use between changes
            count = ended(self._s, event_s + INSTANT * max(1.0, abs(event_s)), found)
            pools = [self._pool[int(number)] for number in found[:count]]
            self._t_s = max(self._t_s, event_s)
            self._stop(pools, event_s, whole=True)
            for transfer_id in dict.fromkeys(pool.transfer.transfer_id for pool in pools):
                if all(pool.done_s is not None for pool in self._transfers[transfer_id]):
                    done.append(self._report(transfer_id, event_s))
        self._t_s = max(self._t_s, t_s)
        return sorted(done, key=lambda end: (end.done_s, end.transfer.transfer_id))

    def rates(self) -> dict[QueuePair, float]:
        """Current rate of each lane that sends, in bytes per second."""
        self._refresh()
        return {qp: float(self._s.rate[flow]) for pool in self._pool.values() for qp, flow in pool.flows.items()}

    def component_sizes(self) -> list[int]:
        """Flows in each connected component, largest first: what a solver that knows no more must solve anew."""
        self._refresh()
        seen = np.zeros(len(self._s.rate), dtype=np.int32)
        flows = [flow for pool in self._pool.values() for flow in pool.flows.values()]
        return sorted((component(self._s, flow, seen) for flow in flows if not seen[flow]), reverse=True)

    def _move_to(self, t_s: float) -> None:
        """Set the clock for a change. Completions before it must have been collected."""
        if t_s < self._t_s:
            raise ValueError(f"time went back from {self._t_s} s to {t_s} s")
        due = self.next_completion() if t_s > self._t_s else None
        if due is not None and due < t_s:
            raise ValueError(f"advance to {due} s first: something ends there, before {t_s} s")
        self._t_s = t_s

    def _index(self, name: str) -> int:
        number = self._resource.get(name)
        if number is None:
            capacity = self._capacities[name]
            if not capacity > 0:
                raise ValueError(f"capacity of {name!r} = {capacity!r}: must be positive")
            number = self._resource[name] = len(self._resource)
            if number >= len(self._s.capacity):
                self._s = _grown(self._s, resources=2 * number)
            self._s.capacity[number] = capacity
        return number

    def _number(self, pool: _Pool) -> None:
        if self._free_pools:
            number = self._free_pools.pop()
        else:
            number = self._pools
            self._pools += 1
            if number >= len(self._s.speed):
                self._s = _grown(self._s, pools=2 * number)
        pool.number = number
        self._pool[number] = pool
        s = self._s
        s.speed[number] = s.flows_of[number] = 0
        s.bytes_left[number], s.pool_since[number] = pool.size, self._t_s

    def _send(self, pool: _Pool, qp: QueuePair, route: Iterable[int]) -> None:
        """A pool is the first on a lane: the lane becomes a flow."""
        if self._free_flows:
            flow = self._free_flows.pop()
        else:
            flow = self._flows
            self._flows += 1
            if flow >= len(self._s.rate):
                self._s = _grown(self._s, flows=2 * flow)
        row = self._s.route[flow]
        row.fill(-1)
        for place, resource in enumerate(route):
            row[place] = resource
        self._s.pool_of[flow] = pool.number
        pool.flows[qp] = flow
        self._came.append(flow)

    def _stop(self, pools: Iterable[_Pool], t_s: float, *, whole: bool) -> None:
        """Pools are empty (`whole`), or cancelled. What waited behind them moves on when all are off their lanes: one
        of them may have waited behind another."""
        free: list[QueuePair] = []
        for pool in pools:
            pool.carried, pool.done_s = self._carried(pool, t_s, whole=whole), t_s
            self._gone += pool.flows.values()
            for lane in pool.lanes:
                queue = self._queues[lane.qp]
                queue.remove(pool)
                if not queue:
                    del self._queues[lane.qp]
            free += pool.flows
            if not pool.flows:  # it never sent
                self._forget(pool.number)
            pool.flows = {}
        for qp in free:
            if waiting := self._queues.get(qp):
                follower = waiting[0]
                lane = next(lane for lane in follower.lanes if lane.qp == qp)
                self._send(follower, qp, [self._index(name) for name in lane.resources])

    def _carried(self, pool: _Pool, t_s: float, *, whole: bool) -> list[float]:
        """Bytes that each lane has carried; of a pool that is empty they sum to its size: what rounding left goes to
        the lanes by what they carried."""
        s, carried = self._s, [0.0] * len(pool.lanes)
        for at, lane in enumerate(pool.lanes):
            flow = pool.flows.get(lane.qp)
            if flow is not None:
                carried[at] = float(s.carried[flow] + s.rate[flow] * (t_s - s.since[flow]))
        drawn = sum(carried)
        if not whole:
            return carried
        return [sent * pool.size / drawn for sent in carried] if drawn else [pool.size / len(carried)] * len(carried)

    def _report(self, transfer_id: int, t_s: float) -> Completion:
        pools = self._transfers.pop(transfer_id)
        return Completion(
            pools[0].transfer,
            t_s,
            tuple(sent for pool in pools for sent in pool.carried),
            tuple(pool.done_s if pool.done_s is not None else t_s for pool in pools for _ in pool.lanes),
        )

    def _refresh(self) -> None:
        """New rates after changes. Lazily, so that many changes at one instant cost one computation."""
        if not self._gone and not self._came:
            return
        gone, came = self._gone, self._came
        self._gone, self._came = [], []
        change(self._s, np.array(gone, dtype=np.int32), np.array(came, dtype=np.int32), self._t_s)
        self._free_flows += gone
        # The pools of what went are free when none of their flows is in the arrays any more.
        for number in {int(self._s.pool_of[flow]) for flow in gone}:
            if self._pool[number].done_s is not None:
                self._forget(number)
        if self._s.counts[1] % COMPONENTS_EVERY == 0:
            sizes = self.component_sizes()
            self._component = max(self._component, (sizes[0], sum(sizes)) if sizes else (0, 0))

    def _forget(self, number: int) -> None:
        del self._pool[number]
        self._free_pools.append(number)


def _arrays(flows: int, resources: int, pools: int) -> State:
    """Empty arrays of these sizes."""

    def ints(size: int, value: int = 0) -> Ints:
        return np.full(size, value, dtype=np.int32)

    def longs(size: int) -> Longs:
        return np.zeros(size, dtype=np.int64)

    def floats(size: int) -> Floats:
        return np.zeros(size)

    return State(
        route=np.full((flows, WIDTH), -1, dtype=np.int32),
        rate=floats(flows), held=ints(flows, -1), pool_of=ints(flows, -1), carried=floats(flows), since=floats(flows),
        in_set=longs(flows), new_rate=floats(flows),
        next_node=ints(flows * WIDTH, -1), previous_node=ints(flows * WIDTH, -1),
        first_node=ints(resources, -1), capacity=floats(resources), touched=longs(resources), left=floats(resources),
        rising=ints(resources), level=floats(resources), load=floats(resources), fastest=floats(resources),
        heap_share=floats(resources), heap_resource=ints(resources), touched_list=ints(resources), set_list=ints(flows),
        speed=floats(pools), flows_of=ints(pools), bytes_left=floats(pools), pool_since=floats(pools),
        finish=floats(pools), place=ints(pools, -1), heap=ints(pools), dirty=ints(pools), is_dirty=ints(pools),
        counts=longs(5),
    )  # fmt: skip


def _grown(old: State, *, flows: int = 0, resources: int = 0, pools: int = 0) -> State:
    """The same with room for more."""
    new = _arrays(max(flows, len(old.rate)), max(resources, len(old.capacity)), max(pools, len(old.speed)))
    for name in State._fields:
        before = getattr(old, name)
        getattr(new, name)[: len(before)] = before
    return new
