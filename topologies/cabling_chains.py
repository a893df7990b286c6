"""Chains and rings of planned and observed cables, and the fewest plugs to touch (see `topologies.cabling_verify`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from topologies.cabling_model import Fault, Plug, Repair, natural

#: Plugs of a rotation that are written out in words; all are in the machine-readable repair.
_NAMED = 12

Move = tuple[Plug, Plug]


def explained(planned: Mapping[Plug, Plug], wiring: Mapping[Plug, Plug], id_of: Mapping[Plug, str]) -> Iterator[Fault]:
    """Faults that lead from `planned` to `wiring` (both: plug -> plug at the other end)."""
    differing = [plug for plug in {**planned, **wiring} if planned.get(plug) != wiring.get(plug)]
    differing.sort(key=natural)
    done: set[Plug] = set()
    for plug in differing:  # chains begin where a port has a planned or an observed cable, not both
        if plug not in done and not (plug in planned and plug in wiring):
            yield from _chain(_walk(plug, planned, wiring, done), planned, wiring, id_of)
    for plug in differing:
        if plug not in done:
            yield _ring(_walk(plug, planned, wiring, done), id_of)


def _walk(start: Plug, planned: Mapping[Plug, Plug], wiring: Mapping[Plug, Plug], done: set[Plug]) -> list[Plug]:
    """Plugs from `start` on, by planned and observed cables in turn (a ring: the planned one first)."""
    found, here, by_plan = [start], start, start in planned
    done.add(start)
    while True:
        there = (planned if by_plan else wiring).get(here)
        if there is None or there == start:
            return found
        found.append(there)
        done.add(there)
        here, by_plan = there, not by_plan


def _away(move: Move) -> int:
    """1 for a move between devices, 0 for one on the same device: what is kept small."""
    return int(move[0].device != move[1].device)


def _ring(ring: Sequence[Plug], id_of: Mapping[Plug, str]) -> Fault:
    """Planned cables join ring[0]-ring[1], ring[2]-ring[3], ...; observed ones ring[1]-ring[2] to ring[-1]-ring[0]."""
    size = len(ring)
    # Each observed cable keeps one end: the plug at its other end moves to where the plan has it.
    even = [(ring[(i + 1) % size], ring[i - 1]) for i in range(1, size, 2)]
    odd = [(ring[i], ring[(i + 2) % size]) for i in range(1, size, 2)]
    moves = min(
        (even, odd),
        key=lambda moves: (
            sum(map(_away, moves)),
            len({plug.device for plug, _ in moves}),
            min(natural(plug) for plug, _ in moves),
        ),
    )
    first = min(range(len(moves)), key=lambda i: natural(moves[i][0]))
    moves = moves[first:] + moves[:first]
    follow = dict(moves)
    order = [moves[0][0]]
    while (there := follow[order[-1]]) != order[0]:
        order.append(there)
    cables = tuple(sorted({id_of[plug] for plug in ring}))
    wrong = sorted(((ring[i], ring[(i + 1) % size]) for i in range(1, size, 2)), key=lambda pair: natural(pair[0]))
    seen = _listed([f"{a} is joined to {b}" for a, b in wrong], "; ", 4)
    if len(order) == 2:
        a, b = order
        fix = f"exchange the plugs in {a} and {b}"
        return Fault("swapped", cables, tuple(order), seen, fix, Repair(moves=tuple(moves)))
    way = _listed([f"{plug}" for plug in order], " -> ", _NAMED)
    fix = f"take {len(order)} plugs out and put each into the next port of the ring: {way} -> {order[0]}"
    return Fault("rotated", cables, tuple(order), seen, fix, Repair(moves=tuple(moves)))


def _listed(texts: Sequence[str], between: str, most: int) -> str:
    if len(texts) <= most:
        return between.join(texts)
    return between.join([*texts[:most], f"... ({len(texts)} in all)"])


def _chain(
    chain: Sequence[Plug], planned: Mapping[Plug, Plug], wiring: Mapping[Plug, Plug], id_of: Mapping[Plug, str]
) -> Iterator[Fault]:
    """Faults of one chain, in an order in which each target port is free when its turn comes.

    From the left, the observed cable between chain[i] and chain[i+1] keeps its end at i, and its plug goes from i+1
    to i-1; from the right it keeps i+1, and its plug goes from i to i+2. One cable too few or too many is put where
    the fewest plugs then move between devices.
    """
    if chain[0] not in planned and chain[-1] in planned:
        chain = chain[::-1]
    begins_planned, ends_planned = chain[0] in planned, chain[-1] in planned
    last = len(chain) - 1
    observed = range(1 if begins_planned else 0, last, 2)
    if begins_planned and not ends_planned:
        for i in observed:
            yield _moved(chain[i], chain[i + 1], chain[i - 1], id_of)
        return
    left = {i: (chain[i + 1], chain[i - 1]) for i in observed if i >= 1}
    right = {i: (chain[i], chain[i + 2]) for i in observed if i + 2 <= last}
    odd_one = _cheapest(last, left, right)
    here, there = chain[odd_one], chain[odd_one + 1]
    if not begins_planned:
        yield Fault(
            "extra", (), (here, there), f"{here} is joined to {there}, which is not in the plan",
            f"take out the cable from {here} to {there}", Repair(remove=((here, there),)),
        )  # fmt: skip
        from_left = [i for i in observed if i > odd_one]
        from_right = [i for i in reversed(observed) if i < odd_one]
    else:
        from_left = [i for i in observed if i < odd_one]
        from_right = [i for i in reversed(observed) if i > odd_one]
    for i in from_left:
        yield _moved(chain[i], *left[i], id_of)
    for i in from_right:
        yield _moved(chain[i + 1], *right[i], id_of)
    if begins_planned:
        what = f"no cable joins {here} and {there}"
        fix = f"plug cable {id_of[here]} into {here} and {there}"
        yield Fault("missing", (id_of[here],), (here, there), what, fix, Repair(add=((here, there),)))


def _cheapest(last: int, left: Mapping[int, Move], right: Mapping[int, Move]) -> int:
    """Index of the cable too few (planned, even) or too many (observed, even): fewest moves between devices.

    A missing cable at j: observed cables before j move from the left, those after it from the right. An extra one at
    j: the other way round.
    """
    missing = 1 in left
    before, after = (left, right) if missing else (right, left)
    places = range(0, last, 2)
    step = 1 if missing else 2
    costs_before = [0, *accumulate(_away(before[j + 2 - step]) for j in places[:-1])]
    costs_after = [0, *accumulate(_away(after[j - 2 + step]) for j in reversed(places[1:]))][::-1]
    return min(places, key=lambda j: (costs_before[j // 2] + costs_after[j // 2], j))


def _moved(keeps: Plug, now: Plug, wanted: Plug, id_of: Mapping[Plug, str]) -> Fault:
    seen = f"the cable from {keeps} is in {now}"
    fix = f"move the plug in {now} to {wanted}"
    return Fault("wrong_port", (id_of[wanted],), (now, wanted), seen, fix, Repair(moves=((now, wanted),)))
