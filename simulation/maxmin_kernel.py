"""Max-min fair rates that are kept up to date as flows come and go: the compiled part of `simulation.network`.

Why compiled: at 16,384 GPUs there are tens of thousands of flows and millions of events, and each event walks over the
flows of a few dozen ports. numba turns plain loops over arrays into machine code and is kept by the NumPy community; a
linear-programming or graph library would have to be given the whole network again at every event.

Why only a part is solved anew: rates are max-min fair if and only if every flow has a bottleneck, a full port on which
no flow is faster (Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2). After a change nearly all flows still
have theirs. So `change` starts with the flows that came and the ports that were touched, fills what the others leave,
and then looks at every port that it touched: a flow outside that is faster than those that are held back there, or that
has lost its bottleneck, joins, and it fills again, until nothing joins. Then every flow has a bottleneck, so the rates
are those of the whole network; the set is at most the connected component of the change.

Ports are resources by number; each has a linked list of the flows that cross it. A *pool* is what flows draw from
together (`topologies.fluid`): bytes left, and a place in a heap by the time at which it will be empty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

#: Rates and loads that differ by less than this part are equal: it only absorbs rounding.
EQUAL = 1e-9
#: A rate that changes by less than this part stays as it was, so that finish times do not drift.
SAME = 1e-12

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class State(NamedTuple):
    """All arrays. Flows [F], resources [R], pools [P]; a flow crosses at most `width` resources."""

    route: Ints  # [F, width] resources, -1 behind the last
    rate: Floats  # [F] bytes per second
    held: Ints  # [F] resource that is its bottleneck
    pool_of: Ints  # [F]
    carried: Floats  # [F] bytes until `since`
    since: Floats  # [F] seconds
    in_set: Longs  # [F] number of the last change whose set it was in
    new_rate: Floats  # [F] within a change; negative: not yet found
    next_node: Ints  # [F * width] list of a resource; node = flow * width + place in its route
    previous_node: Ints  # [F * width]
    first_node: Ints  # [R]
    capacity: Floats  # [R] bytes per second
    touched: Longs  # [R] number of the last change that touched it
    left: Floats  # [R] what the set may still fill
    rising: Ints  # [R] flows of the set that still rise
    level: Floats  # [R] rate of those that it stopped; negative: none
    load: Floats  # [R] after a filling
    fastest: Floats  # [R]
    heap_share: Floats  # [R]
    heap_resource: Ints  # [R]
    touched_list: Ints  # [R]
    set_list: Ints  # [F]
    speed: Floats  # [P] sum of its flows' rates
    flows_of: Ints  # [P] how many
    bytes_left: Floats  # [P] at `pool_since`
    pool_since: Floats  # [P]
    finish: Floats  # [P]
    place: Ints  # [P] in the heap; -1: not there
    heap: Ints  # [P]
    dirty: Ints  # [P] pools whose speed has changed
    is_dirty: Ints  # [P]
    counts: Longs  # [0] pools in the heap, [1] changes, [2] flows solved, [3] most in one change, [4] fillings


@njit(cache=True)
def _link(s: State, flow: int) -> None:
    width = s.route.shape[1]
    for place in range(width):
        resource = s.route[flow, place]
        if resource < 0:
            break
        node = flow * width + place
        first = s.first_node[resource]
        s.next_node[node], s.previous_node[node] = first, -1
        if first >= 0:
            s.previous_node[first] = node
        s.first_node[resource] = node


@njit(cache=True)
def _unlink(s: State, flow: int) -> None:
    width = s.route.shape[1]
    for place in range(width):
        resource = s.route[flow, place]
        if resource < 0:
            break
        node = flow * width + place
        before, after = s.previous_node[node], s.next_node[node]
        if before >= 0:
            s.next_node[before] = after
        else:
            s.first_node[resource] = after
        if after >= 0:
            s.previous_node[after] = before


@njit(cache=True)
def _sift_up(s: State, at: int) -> None:
    pool = s.heap[at]
    finish = s.finish[pool]
    while at > 0:
        above = (at - 1) >> 1
        other = s.heap[above]
        if s.finish[other] < finish or (s.finish[other] == finish and other < pool):
            break
        s.heap[at] = other
        s.place[other] = at
        at = above
    s.heap[at] = pool
    s.place[pool] = at


@njit(cache=True)
def _sift_down(s: State, at: int) -> None:
    pool = s.heap[at]
    finish = s.finish[pool]
    size = s.counts[0]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and s.finish[s.heap[below + 1]] < s.finish[s.heap[below]]:
            below += 1
        other = s.heap[below]
        if s.finish[other] >= finish:
            break
        s.heap[at] = other
        s.place[other] = at
        at = below
    s.heap[at] = pool
    s.place[pool] = at


@njit(cache=True)
def _schedule(s: State, pool: int) -> None:
    """Bring its place in the heap up to date."""
    at = s.place[pool]
    if s.flows_of[pool] == 0 or s.speed[pool] <= 0.0:
        if at >= 0:
            s.counts[0] -= 1
            last = s.heap[s.counts[0]]
            s.place[pool] = -1
            if last != pool:
                s.heap[at] = last
                s.place[last] = at
                _sift_up(s, at)
                _sift_down(s, s.place[last])
        return
    s.finish[pool] = s.pool_since[pool] + s.bytes_left[pool] / s.speed[pool]
    if at < 0:
        at = s.counts[0]
        s.heap[at] = pool
        s.place[pool] = at
        s.counts[0] += 1
    _sift_up(s, at)
    _sift_down(s, s.place[pool])


@njit(cache=True)
def _settle(s: State, pool: int, now: float) -> None:
    """Book what a pool has sent until now."""
    elapsed = now - s.pool_since[pool]
    if elapsed > 0.0:
        s.bytes_left[pool] = max(0.0, s.bytes_left[pool] - s.speed[pool] * elapsed)
        s.pool_since[pool] = now


@njit(cache=True)
def _set_rate(s: State, flow: int, rate: float, now: float, dirty: int) -> int:
    """A flow's new rate; its pool goes to the list of those to schedule, whose length is returned."""
    pool = s.pool_of[flow]
    _settle(s, pool, now)
    elapsed = now - s.since[flow]
    if elapsed > 0.0:
        s.carried[flow] += s.rate[flow] * elapsed
    s.since[flow] = now
    s.speed[pool] += rate - s.rate[flow]
    s.rate[flow] = rate
    if s.is_dirty[pool] == 0:
        s.is_dirty[pool] = 1
        s.dirty[dirty] = pool
        dirty += 1
    return dirty


@njit(cache=True)
def _touch(s: State, resource: int, number: int, size: int) -> int:
    if s.touched[resource] != number:
        s.touched[resource] = number
        s.touched_list[size] = resource
        size += 1
    return size


@njit(cache=True)
def _push(s: State, size: int, share: float, resource: int) -> int:
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if s.heap_share[above] <= share:
            break
        s.heap_share[at], s.heap_resource[at] = s.heap_share[above], s.heap_resource[above]
        at = above
    s.heap_share[at], s.heap_resource[at] = share, resource
    return size + 1


@njit(cache=True)
def _drop_first(s: State, size: int) -> int:
    size -= 1
    share, resource = s.heap_share[size], s.heap_resource[size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and s.heap_share[below + 1] < s.heap_share[below]:
            below += 1
        if s.heap_share[below] >= share:
            break
        s.heap_share[at], s.heap_resource[at] = s.heap_share[below], s.heap_resource[below]
        at = below
    if size > 0:
        s.heap_share[at], s.heap_resource[at] = share, resource
    return size


@njit(cache=True)
def _fill(s: State, number: int, ports: int) -> None:
    """Progressive filling of the set's flows, the others as they are."""
    width = s.route.shape[1]
    size = 0
    for n in range(ports):
        resource = s.touched_list[n]
        left, rising = s.capacity[resource], 0
        node = s.first_node[resource]
        while node >= 0:
            flow = node // width
            if s.in_set[flow] == number:
                rising += 1
                s.new_rate[flow] = -1.0
            else:
                left -= s.rate[flow]
            node = s.next_node[node]
        s.left[resource], s.rising[resource], s.level[resource] = max(0.0, left), rising, -1.0
        if rising:
            size = _push(s, size, s.left[resource] / rising, resource)
    while size:
        stored, resource = s.heap_share[0], s.heap_resource[0]
        size = _drop_first(s, size)
        if s.rising[resource] == 0:
            continue
        share = max(0.0, s.left[resource]) / s.rising[resource]
        if share > stored * (1.0 + SAME):
            size = _push(s, size, share, resource)
            continue
        s.level[resource] = share
        node = s.first_node[resource]
        while node >= 0:
            flow = node // width
            if s.in_set[flow] == number and s.new_rate[flow] < 0.0:
                s.new_rate[flow] = share
                s.held[flow] = resource
                for place in range(width):
                    crossed = s.route[flow, place]
                    if crossed < 0:
                        break
                    s.left[crossed] -= share
                    s.rising[crossed] -= 1
            node = s.next_node[node]


@njit(cache=True)
def _weigh(s: State, resource: int, number: int) -> None:
    """Load and fastest rate of a resource, the set's flows with their new rates."""
    width = s.route.shape[1]
    load, fastest = 0.0, 0.0
    node = s.first_node[resource]
    while node >= 0:
        flow = node // width
        rate = s.new_rate[flow] if s.in_set[flow] == number else s.rate[flow]
        load += rate
        fastest = max(fastest, rate)
        node = s.next_node[node]
    s.load[resource], s.fastest[resource] = load, fastest


@njit(cache=True)
def _holds(s: State, resource: int, rate: float) -> bool:
    """Whether a resource, weighed, is the bottleneck of a flow with that rate."""
    return s.load[resource] >= s.capacity[resource] * (1.0 - EQUAL) and rate >= s.fastest[resource] * (1.0 - EQUAL)


@njit(cache=True)
def _fair_level(s: State, resource: int, number: int) -> float:
    """Level at which a resource would be full if the set's flows took what they can and the others at most what they
    have: what of the others is faster must give way."""
    width = s.route.shape[1]
    level = 0.0
    while True:
        left, above = s.capacity[resource], 0
        node = s.first_node[resource]
        while node >= 0:
            flow = node // width
            if s.in_set[flow] != number and s.rate[flow] < level:
                left -= s.rate[flow]
            else:
                above += 1
            node = s.next_node[node]
        if above == 0 or left / above <= level * (1.0 + SAME):
            return level
        level = left / above


@njit(cache=True)
def _join(s: State, flow: int, number: int, flows: int) -> int:
    s.in_set[flow] = number
    s.new_rate[flow] = s.rate[flow]  # until the next filling
    s.set_list[flows] = flow
    return flows + 1


@njit(cache=True)
def _joiners(s: State, number: int, ports: int, flows: int) -> int:
    """Flows that the filling does not suit join the set; how many it has then."""
    width = s.route.shape[1]
    for n in range(ports):
        _weigh(s, s.touched_list[n], number)
    for n in range(ports):
        resource = s.touched_list[n]
        level = s.level[resource]
        if level >= 0.0 and s.fastest[resource] > level * (1.0 + EQUAL):
            fair = _fair_level(s, resource, number) * (1.0 + EQUAL)
            node = s.first_node[resource]
            while node >= 0:
                flow = node // width
                if s.in_set[flow] != number and s.rate[flow] > fair:
                    flows = _join(s, flow, number, flows)
                node = s.next_node[node]
        node = s.first_node[resource]
        while node >= 0:
            flow = node // width
            node = s.next_node[node]
            if s.in_set[flow] == number or s.held[flow] != resource or _holds(s, resource, s.rate[flow]):
                continue
            found = False
            for place in range(width):
                other = s.route[flow, place]
                if other < 0:
                    break
                if other == resource:
                    continue
                if s.touched[other] != number:
                    _weigh(s, other, number)
                if _holds(s, other, s.rate[flow]):
                    s.held[flow] = other
                    found = True
                    break
            if not found:
                flows = _join(s, flow, number, flows)
    return flows


@njit(cache=True)
def change(s: State, gone: Ints, came: Ints, now: float) -> int:
    """Flows that go, and flows that come with route and pool set; new rates of all. Returns the size of the set."""
    width = s.route.shape[1]
    s.counts[1] += 1
    number = s.counts[1]
    ports, flows, dirty = 0, 0, 0
    for flow in gone:
        dirty = _set_rate(s, flow, 0.0, now, dirty)
        s.flows_of[s.pool_of[flow]] -= 1
        _unlink(s, flow)
        for place in range(width):
            if s.route[flow, place] < 0:
                break
            ports = _touch(s, s.route[flow, place], number, ports)
    for flow in came:
        s.rate[flow], s.carried[flow], s.since[flow] = 0.0, 0.0, now
        pool = s.pool_of[flow]
        _settle(s, pool, now)
        s.flows_of[pool] += 1
        _link(s, flow)
        flows = _join(s, flow, number, flows)
    known = 0
    while True:
        for n in range(known, flows):
            for place in range(width):
                resource = s.route[s.set_list[n], place]
                if resource < 0:
                    break
                ports = _touch(s, resource, number, ports)
        known = flows
        s.counts[4] += 1
        _fill(s, number, ports)
        flows = _joiners(s, number, ports, flows)
        if flows == known:
            break
    for n in range(flows):
        flow = s.set_list[n]
        new = s.new_rate[flow]
        if abs(new - s.rate[flow]) > SAME * s.rate[flow]:
            dirty = _set_rate(s, flow, new, now, dirty)
    for n in range(dirty):
        pool = s.dirty[n]
        s.is_dirty[pool] = 0
        if s.flows_of[pool] == 0:
            s.speed[pool] = 0.0
        _schedule(s, pool)
    s.counts[2] += flows
    s.counts[3] = max(s.counts[3], flows)
    return flows


@njit(cache=True)
def ended(s: State, until: float, found: Ints) -> int:
    """Take the pools that are empty by `until` off the heap; their numbers go to `found`. How many."""
    size = 0
    while s.counts[0] > 0 and s.finish[s.heap[0]] <= until:
        pool = s.heap[0]
        found[size] = pool
        size += 1
        s.counts[0] -= 1
        last = s.heap[s.counts[0]]
        s.place[pool] = -1
        if last != pool:
            s.heap[0] = last
            s.place[last] = 0
            _sift_down(s, 0)
    return size


@njit(cache=True)
def component(s: State, start: int, seen: Ints) -> int:
    """How many flows hang together with a flow by ports that they share; `seen` [F] is zero and is marked."""
    width = s.route.shape[1]
    ports = np.zeros(s.capacity.shape[0], dtype=np.int32)
    todo = np.empty(seen.shape[0], dtype=np.int32)
    todo[0], size, done = start, 1, 0
    seen[start] = 1
    while done < size:
        flow = todo[done]
        done += 1
        for place in range(width):
            resource = s.route[flow, place]
            if resource < 0:
                break
            if ports[resource]:
                continue
            ports[resource] = 1
            node = s.first_node[resource]
            while node >= 0:
                other = node // width
                if seen[other] == 0:
                    seen[other] = 1
                    todo[size] = other
                    size += 1
                node = s.next_node[node]
    return size
