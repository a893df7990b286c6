"""Plugs, cables, what LLDP sees of them, and what a check says about them. Data only.

Devices and ports are names: a port may be "3" or "Ethernet1/3". Nothing here knows files or fabrics, so that a plan
can be held against a discovered map of a running fabric as well as against a file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from topologies.fabric import Fabric, FabricError


class Plug(NamedTuple):
    """A port of a device, and the plug in it."""

    device: str
    port: str

    def __str__(self) -> str:
        return f"{self.device} port {self.port}"


@lru_cache(maxsize=1 << 18)
def natural(plug: Plug) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    """Sort key under which port 9 comes before port 10."""
    return tuple(
        tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part)
        for text in plug
    )


class Cable(NamedTuple):
    """A planned cable."""

    id: str
    a: Plug
    b: Plug


class Sighting(NamedTuple):
    """What one port says about the port at the other end; None: it says that nobody is there."""

    local: Plug
    remote: Plug | None


Kind = Literal["missing", "extra", "swapped", "rotated", "wrong_port", "one_sided", "contradictory", "loop"]
#: In the order in which totals are told.
KINDS: tuple[Kind, ...] = (
    "missing", "extra", "swapped", "rotated", "wrong_port", "one_sided", "contradictory", "loop",
)  # fmt: skip


@dataclass(frozen=True)
class Repair:
    """Machine-readable fix, done in this order: unplug cables, move plugs (all out, then all in), lay cables.

    `replace` are cables that stay where they are and are cleaned or replaced by good ones.
    """

    remove: tuple[tuple[Plug, Plug], ...] = ()
    moves: tuple[tuple[Plug, Plug], ...] = ()
    add: tuple[tuple[Plug, Plug], ...] = ()
    replace: tuple[tuple[Plug, Plug], ...] = ()


@dataclass(frozen=True)
class Fault:
    """One fault: `cables` are the ids of planned cables, `seen` what is the case, `fix` what to do, in words."""

    kind: Kind
    cables: tuple[str, ...]
    plugs: tuple[Plug, ...]
    seen: str
    fix: str
    repair: Repair = Repair()

    def to_json(self) -> dict[str, object]:
        """Plain data."""

        def pairs(found: Iterable[tuple[Plug, Plug]]) -> list[list[list[str]]]:
            return [[list(a), list(b)] for a, b in found]

        return {
            "kind": self.kind,
            "cables": list(self.cables),
            "plugs": [list(plug) for plug in self.plugs],
            "seen": self.seen,
            "fix": self.fix,
            "repair": {name: pairs(getattr(self.repair, name)) for name in ("remove", "moves", "add", "replace")},
        }


@dataclass(frozen=True)
class Report:
    """What a check found. Faults of one group of ports stand in the order in which they can be repaired.

    `notes` are no faults: duplicate rows, silent devices, signs that the plan is that of another fabric.
    """

    planned: int
    observed: int
    agreeing: int
    both_sides: bool
    faults: tuple[Fault, ...]
    unknown_devices: tuple[str, ...] = ()
    unknown_ports: tuple[Plug, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def clean(self) -> bool:
        """Whether the cabling equals the plan."""
        return not self.faults

    def counts(self) -> dict[str, int]:
        """Faults of each kind that occurs."""
        found = Counter(fault.kind for fault in self.faults)
        return {kind: found[kind] for kind in KINDS if found[kind]}

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "clean": self.clean,
            "planned": self.planned,
            "observed": self.observed,
            "agreeing": self.agreeing,
            "both_sides": self.both_sides,
            "counts": self.counts(),
            "faults": [fault.to_json() for fault in self.faults],
            "unknown_devices": list(self.unknown_devices),
            "unknown_ports": [list(plug) for plug in self.unknown_ports],
            "notes": list(self.notes),
        }


def planned_cables(fabric: Fabric) -> tuple[Cable, ...]:
    """The cables of a fabric as `verify` takes them; ids are those of the links."""
    return tuple(
        Cable(link.id, Plug(link.a.node, str(link.a.port)), Plug(link.b.node, str(link.b.port)))
        for link in fabric.links
    )


def repaired(wiring: Mapping[Plug, Plug], faults: Iterable[Fault]) -> dict[Plug, Plug]:
    """The wiring (plug -> plug at the other end) after every repair in order; the given one is left alone.

    Raises FabricError where a repair cannot be done as it is written: no cable there, or a port that is taken.
    """
    after = dict(wiring)

    for fault in faults:
        repair = fault.repair
        for a, b in repair.remove:
            if after.get(a) != b:
                raise FabricError("repair", f"{a} - {b}", "is no cable")
            del after[a], after[b]
        _move(after, repair.moves)
        for a, b in repair.add:
            _join(after, a, b)
        for a, b in repair.replace:
            if after.get(a) != b:
                raise FabricError("repair", f"{a} - {b}", "is no cable")
    return after


def _move(after: dict[Plug, Plug], moves: Iterable[tuple[Plug, Plug]]) -> None:
    """Take all plugs out, then put each into its new port."""
    cables = []
    for plug, wanted in moves:
        if plug not in after:
            raise FabricError("repair", str(plug), "has no plug to move")
        far = after.pop(plug)
        after.pop(far, None)
        cables.append((wanted, far))
    for a, b in cables:
        _join(after, a, b)


def _join(after: dict[Plug, Plug], a: Plug, b: Plug) -> None:
    for plug in (a, b):
        if plug in after:
            raise FabricError("repair", str(plug), "is taken")
    after[a], after[b] = b, a
