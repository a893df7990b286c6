"""Mis-wirings made by hand, for tests: what technicians do to a plan, and what LLDP then sees of it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from topologies.cabling_model import Cable, Plug, Sighting, natural

Wiring = dict[Plug, Plug]


def wired(plan: Iterable[Cable]) -> Wiring:
    return {plug: far for cable in plan for plug, far in ((cable.a, cable.b), (cable.b, cable.a))}


def cables_in(wiring: Mapping[Plug, Plug]) -> list[tuple[Plug, Plug]]:
    return sorted((a, b) for a, b in wiring.items() if a < b)


def replug(wiring: Wiring, moves: Mapping[Plug, Plug]) -> None:
    """Take the plugs in the keys out, put each into the value."""
    after = {moves.get(a, a): moves.get(b, b) for a, b in wiring.items()}
    assert len(after) == len(wiring)
    wiring.clear()
    wiring.update(after)


class Vandal:
    """Makes one fault a call on the cables it has not touched yet (or on any), and says which it was."""

    def __init__(self, wiring: Wiring, draw: random.Random, disjoint: bool) -> None:
        self.wiring, self.draw, self.disjoint = wiring, draw, disjoint
        self.touched: set[Plug] = set()
        self.kinds: list[str] = []
        self.plugs = 0  # touched, each counted once per fault
        self._free = 900

    def _ends(self, count: int) -> list[Plug] | None:
        """An end of each of `count` cables, either side."""
        fit = [pair for pair in cables_in(self.wiring) if not (self.disjoint and self.touched.intersection(pair))]
        if len(fit) < count:
            return None
        pairs = self.draw.sample(fit, count)
        self.touched.update(plug for pair in pairs for plug in pair)
        return [self.draw.choice(pair) for pair in pairs]

    def _free_port(self, device: str) -> Plug:
        self._free += 1
        plug = Plug(device, str(self._free))
        self.touched.add(plug)
        return plug

    def _turn(self, ends: list[Plug]) -> None:
        replug(self.wiring, dict(zip(ends, ends[1:] + ends[:1], strict=True)))

    def swap(self) -> None:
        if ends := self._ends(2):
            self._turn(ends)
            self._note("swapped", 2)

    def rotate(self) -> None:
        if ends := self._ends(self.draw.randint(3, 6)):
            self._turn(ends)
            self._note("rotated", len(ends))

    def move(self) -> None:
        if ends := self._ends(1):
            device = self.draw.choice([ends[0].device, "stranger"])
            replug(self.wiring, {ends[0]: self._free_port(device)})
            self._note("wrong_port", 1)

    def unplug(self) -> None:
        if ends := self._ends(1):
            del self.wiring[self.wiring.pop(ends[0])]
            self._note("missing", 1)

    def add_extra(self) -> None:
        devices = sorted({plug.device for plug in self.wiring})
        if len(devices) >= 2:
            a, b = (self._free_port(device) for device in self.draw.sample(devices, 2))
            self.wiring[a], self.wiring[b] = b, a
            self._note("extra", 1)

    def one(self) -> None:
        self.draw.choice([self.swap, self.rotate, self.move, self.unplug, self.add_extra])()

    def _note(self, kind: str, plugs: int) -> None:
        self.kinds.append(kind)
        self.plugs += plugs


def seen_from_one_side(wiring: Mapping[Plug, Plug], draw: random.Random) -> list[Sighting]:
    """Each cable once, from either end, in any order, some rows twice."""
    rows = [Sighting(*draw.choice([(a, b), (b, a)])) for a, b in cables_in(wiring)]
    rows += draw.sample(rows, len(rows) // 10)
    draw.shuffle(rows)
    return rows


def seen_from_both_sides(wiring: Mapping[Plug, Plug], draw: random.Random) -> list[Sighting]:
    rows = [Sighting(a, b) for a, b in sorted(wiring.items())]
    draw.shuffle(rows)
    return rows


def csv_of(sightings: Iterable[Sighting], delimiter: str = ",") -> str:
    rows = ["local device,local port,remote device,remote port".replace(",", delimiter)]
    for local, remote in sorted(sightings, key=lambda s: natural(s.local)):
        rows.append(delimiter.join([*local, *(remote or ("", ""))]))
    return "\n".join(rows) + "\n"
