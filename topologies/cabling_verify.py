"""Planned cables against observed ones: a pure function of two sets.

Both are matchings of ports (a port holds one plug), so what differs falls into chains and rings in which planned and
observed cables alternate. Each is explained by the fewest plugs that have to be touched:

| ring of 2 planned and 2 observed cables  | one swap: exchange two plugs                                  |
| ring of n > 2                            | one rotation of n plugs                                       |
| chain, one observed cable per planned    | plugs in wrong ports                                          |
| chain, a planned cable more              | plugs in wrong ports, and one cable missing (0 wrong: missing)|
| chain, an observed cable more            | plugs in wrong ports, and one cable extra (0 wrong: extra)    |

n observed cables that are not planned need at least n plugs moved (or the cable taken out), and n are: no repair
touches fewer. Which end moved cannot be known from what ports see; where there is a choice, the fix that stays on one
device is given.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from topologies.cabling_chains import explained
from topologies.cabling_model import Cable, Fault, Plug, Repair, Report, Sighting, natural
from topologies.fabric import FabricError

Sides = Literal["auto", "one", "both"]


def verify(plan: Iterable[Cable], observed: Iterable[Sighting], sides: Sides = "auto") -> Report:
    """Hold what was seen against the plan.

    `sides` says whether the map has every cable from both of its ends, so that a cable seen from one end only is a
    fault; `auto` takes it as such when at least half of the cables between devices that report are seen from both.
    Raises FabricError for a plan that uses a port or an id twice.
    """
    planned, id_of = _plan(plan)
    seen = _read(observed)
    winners, contradictions = _settled(seen, planned, id_of)
    wiring = {plug: far for pair in winners for plug, far in (pair, pair[::-1])}
    both = sides == "both" or (sides == "auto" and _from_both_sides(seen, winners))
    expected = {plug.device for plug in seen.plugs} if sides == "both" else _expected_to_report(seen)
    faults = [*seen.loops, *contradictions]
    if both:
        faults += _one_sided(seen, winners, id_of, expected)
    faults += explained(planned, wiring, id_of)
    known = {plug.device for plug in planned}
    agreeing = sum(1 for pair in winners if planned.get(pair[0]) == pair[1])
    strangers = sorted((plug for plug in seen.plugs if plug not in planned), key=natural)
    unknown_devices = tuple(dict.fromkeys(plug.device for plug in strangers if plug.device not in known))
    return Report(
        planned=len(planned) // 2,
        observed=len(winners),
        agreeing=agreeing,
        both_sides=both,
        faults=tuple(faults),
        unknown_devices=unknown_devices,
        unknown_ports=tuple(plug for plug in strangers if plug.device in known),
        notes=tuple(_notes(seen, len(planned) // 2, agreeing, known, unknown_devices, both, expected)),
    )


Pair = tuple[Plug, Plug]


def _pair(a: Plug, b: Plug) -> Pair:
    return (a, b) if a <= b else (b, a)


def _plan(plan: Iterable[Cable]) -> tuple[dict[Plug, Plug], dict[Plug, str]]:
    """Plug -> plug at the other end, and plug -> id of its cable."""
    planned: dict[Plug, Plug] = {}
    id_of: dict[Plug, str] = {}
    ids: set[str] = set()
    for cable in plan:
        if cable.id in ids:
            raise FabricError("plan", cable.id, "this id is given twice")
        if cable.a == cable.b:
            raise FabricError("plan", cable.id, f"joins {cable.a} to itself")
        ids.add(cable.id)
        for plug, far in ((cable.a, cable.b), (cable.b, cable.a)):
            if plug in planned:
                raise FabricError("plan", str(plug), f"is used by {id_of[plug]} and by {cable.id}")
            planned[plug], id_of[plug] = far, cable.id
    return planned, id_of


@dataclass(frozen=True)
class _Seen:
    """What was said: pair -> the ends that said it; ports with several neighbours; who reports at all."""

    pairs: Mapping[Pair, set[Plug]]
    neighbours: Mapping[Plug, set[Plug]]
    reporters: Collection[str]
    plugs: Collection[Plug]
    loops: tuple[Fault, ...]
    duplicates: int


def _read(observed: Iterable[Sighting]) -> _Seen:
    pairs: dict[Pair, set[Plug]] = {}
    neighbours: dict[Plug, set[Plug]] = {}
    reporters: set[str] = set()
    plugs: set[Plug] = set()
    loops: dict[Plug, Fault] = {}
    duplicates = 0
    for local, remote in observed:
        reporters.add(local.device)
        plugs.add(local)
        if remote is None:
            continue
        plugs.add(remote)
        if local == remote:
            seen = f"{local} sees itself"
            loops[local] = Fault("loop", (), (local,), seen, f"take the loopback plug out of {local}")
            continue
        said = pairs.setdefault(_pair(local, remote), set())
        duplicates += local in said
        said.add(local)
        neighbours.setdefault(local, set()).add(remote)
        neighbours.setdefault(remote, set()).add(local)
    ordered = tuple(loops[plug] for plug in sorted(loops, key=natural))
    return _Seen(pairs, neighbours, reporters, plugs, ordered, duplicates)


def _settled(seen: _Seen, planned: Mapping[Plug, Plug], id_of: Mapping[Plug, str]) -> tuple[list[Pair], list[Fault]]:
    """One cable a port. Where ports contradict each other: what both ends say goes before what one says, then the plan.

    Every claim of a contradiction is named, also those that lost.
    """
    doubtful = {plug for plug, far in seen.neighbours.items() if len(far) > 1}
    winners = [pair for pair in seen.pairs if pair[0] not in doubtful and pair[1] not in doubtful]
    contested = sorted(
        (pair for pair in seen.pairs if pair[0] in doubtful or pair[1] in doubtful),
        key=lambda pair: (-len(seen.pairs[pair]), planned.get(pair[0]) != pair[1], natural(pair[0]), natural(pair[1])),
    )
    taken: set[Plug] = set()
    for pair in contested:
        if taken.isdisjoint(pair):
            winners.append(pair)
            taken.update(pair)
    faults = []
    for plug in sorted(doubtful, key=natural):
        claims = []
        for far in sorted(seen.neighbours[plug], key=natural):
            said = seen.pairs[_pair(plug, far)]
            claims.append(f"{plug} sees {far}" if plug in said else f"{far} sees {plug}")
        wanted = f"the plan has {planned[plug]} there" if plug in planned else "the plan has no cable there"
        fix = f"look at {plug}: {wanted}; then collect the neighbours again"
        about = (plug, *sorted(seen.neighbours[plug], key=natural))
        ids = (id_of[plug],) if plug in id_of else ()
        faults.append(Fault("contradictory", ids, about, "; ".join(claims), fix))
    return winners, faults


def _from_both_sides(seen: _Seen, winners: Iterable[Pair]) -> bool:
    both = one = 0
    for pair in winners:
        if pair[0].device in seen.reporters and pair[1].device in seen.reporters:
            if len(seen.pairs[pair]) == 2:
                both += 1
            else:
                one += 1
    return both > 0 and both >= one


def _expected_to_report(seen: _Seen) -> set[str]:
    """Devices whose silence about a cable means something: those that report at all.

    A device with one cable that is silent may have a dead fibre or no LLDP: it counts where half of its like report.
    """
    cables = Counter(plug.device for plug in seen.neighbours)
    single = {device for device, number in cables.items() if number == 1}
    talk = len(single & set(seen.reporters)) * 2 >= len(single)
    return set(seen.reporters) | (single if talk else set())


def _one_sided(
    seen: _Seen, winners: Iterable[Pair], id_of: Mapping[Plug, str], expected: Collection[str]
) -> Iterator[Fault]:
    """Cables that one end sees and the other does not, though its device is expected to report."""
    lone = [pair for pair in winners if len(seen.pairs[pair]) == 1]
    for pair in sorted(lone, key=lambda pair: (natural(pair[0]), natural(pair[1]))):
        (sees,) = seen.pairs[pair]
        blind = pair[1] if sees == pair[0] else pair[0]
        if blind.device not in expected or len(seen.neighbours[blind]) > 1:
            continue
        same = (id_of[sees],) if sees in id_of and id_of[sees] == id_of.get(blind) else ()
        fix = f"clean or replace the fibre from {sees} to {blind} (it carries light from {blind} only)"
        yield Fault(
            "one_sided", same, (sees, blind), f"{sees} sees {blind}, {blind} sees nobody", fix, Repair(replace=(pair,))
        )


def _notes(
    seen: _Seen,
    planned: int,
    agreeing: int,
    known: Collection[str],
    unknown: Collection[str],
    both: bool,
    expected: Collection[str],
) -> Iterator[str]:
    if seen.pairs and agreeing * 2 < min(planned, len(seen.pairs)):
        yield (
            f"only {agreeing} of {planned} planned cables are where the plan has them: is this the plan of this fabric?"
        )
    if seen.duplicates:
        yield f"{seen.duplicates} rows are there twice and were counted once"
    if both:
        quiet = {plug.device for plug in seen.neighbours} & set(known) - set(expected)
        silent = sorted(quiet, key=lambda name: natural(Plug(name, "")))
        if silent:
            some = ", ".join(silent[:5]) + (", ..." if len(silent) > 5 else "")
            yield f"{len(silent)} devices report nothing themselves ({some}): their cables are known from one end only"
    elif seen.pairs:
        yield "the map has most cables from one end only: a cable that carries light one way cannot be found"
    few = len(known) <= 2000  # fuzzy search in more takes seconds
    folded = {name.casefold(): name for name in known}
    for name in list(unknown)[:20]:
        short = name.split(".")[0].casefold()
        near = folded.get(short) or (few and next(iter(difflib.get_close_matches(name, known, 1, 0.8)), None))
        if near:
            yield f"{name} is not in the plan: did you mean {near}?"
