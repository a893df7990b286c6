"""Max-min fair rates of flows over shared links: the reference that every measured rate is held against.

Progressive filling (Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2): all rates rise together
until a link is full; the flows that cross it keep that rate, the others rise on. The result is the only
allocation in which each flow has a bottleneck: a full link on which no other flow is faster. It is what fair
congestion control aims at.

A resource is one *direction* of a cable, named by the egress end that sends into it. Rates come out in the
unit of the capacities, whatever that is.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

FlowId = TypeVar("FlowId", bound=Hashable)
ResourceId = TypeVar("ResourceId", bound=Hashable)

#: Links whose fair shares differ by less than this part are full in the same round. It only absorbs rounding:
#: shares that are equal on paper differ in the last bits after subtractions.
TIE = 1e-12


def max_min_rates(
    flows: Mapping[FlowId, Sequence[ResourceId]], capacities: Mapping[ResourceId, float]
) -> dict[FlowId, float]:
    """Rate of each flow, in the unit of `capacities`.

    `flows` maps a flow to the resources it crosses, each once. The result does not depend on the order of
    either mapping, to the last bit: a round takes one level from all links that it fills.
    `fractions.Fraction` capacities give exact rates. Raises ValueError for a flow without resources (its rate
    would be infinite), a resource listed twice by a flow and a capacity that is not positive; KeyError for a
    resource without a capacity.
    """
    # Flows over the same links have the same rate (queue pairs of one port pair, for instance): they fill as one.
    alike: dict[tuple[ResourceId, ...], list[FlowId]] = {}
    for flow, resources in flows.items():
        alike.setdefault(tuple(resources), []).append(flow)
    users: dict[ResourceId, list[tuple[ResourceId, ...]]] = {}
    rising: dict[ResourceId, int] = {}
    for route, members in alike.items():
        if not route:
            raise ValueError(f"flow {members[0]!r} crosses no resource: its rate has no limit")
        if len(set(route)) < len(route):
            raise ValueError(f"flow {members[0]!r} crosses a resource twice: {route}")
        for resource in route:
            if resource in users:
                users[resource].append(route)
                rising[resource] += len(members)
            else:
                users[resource] = [route]
                rising[resource] = len(members)
    left = {resource: capacities[resource] for resource in users}
    for resource, capacity in left.items():
        if not capacity > 0:
            raise ValueError(f"capacity of {resource!r} = {capacity!r}: must be positive")

    # A fair share only grows while others stop, so a stored share is a lower bound: it is brought up to date
    # when it comes to the top of the heap, and not before.
    heap = [(left[resource] / count, n, resource) for n, (resource, count) in enumerate(rising.items())]
    heapq.heapify(heap)
    rates: dict[tuple[ResourceId, ...], float] = {}
    while heap:
        level: float | None = None
        full: list[ResourceId] = []
        while heap and (level is None or heap[0][0] <= level * (1 + TIE)):
            stored, n, resource = heapq.heappop(heap)
            if not rising[resource]:
                continue
            share = left[resource] / rising[resource]
            if share > (stored if level is None else level * (1 + TIE)):
                heapq.heappush(heap, (share, n, resource))
                continue
            full.append(resource)
            level = share if level is None else min(level, share)
        if level is None:
            break
        stopped: dict[ResourceId, int] = {}
        for resource in full:
            for route in users[resource]:
                if route not in rates:
                    rates[route] = level
                    together = len(alike[route])
                    for crossed in route:
                        stopped[crossed] = stopped.get(crossed, 0) + together
        for resource, count in stopped.items():
            # One subtraction a round, not one a flow: the sum must not depend on the order of flows.
            left[resource] -= level * count
            rising[resource] -= count
    return {flow: rates[route] for route, members in alike.items() for flow in members}


def bottlenecks(
    flows: Mapping[FlowId, Sequence[ResourceId]],
    capacities: Mapping[ResourceId, float],
    rates: Mapping[FlowId, float],
    tolerance: float = 1e-9,
) -> dict[FlowId, tuple[ResourceId, ...]]:
    """The links that hold each flow back: full, and no flow on them faster, both within a relative tolerance.

    `rates` are max-min fair if and only if every flow has one (Bertsekas & Gallager, same section).
    """
    load: dict[ResourceId, float] = {}
    fastest: dict[ResourceId, float] = {}
    for flow, resources in flows.items():
        for resource in resources:
            load[resource] = load.get(resource, 0) + rates[flow]
            fastest[resource] = max(fastest.get(resource, 0), rates[flow])
    return {
        flow: tuple(
            resource
            for resource in resources
            if load[resource] >= capacities[resource] * (1 - tolerance)
            and rates[flow] >= fastest[resource] * (1 - tolerance)
        )
        for flow, resources in flows.items()
    }
