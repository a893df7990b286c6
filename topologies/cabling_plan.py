"""The cables of a fabric as a list that can be bought, printed on labels and plugged.

One row a cable: both ends (rack, device, port), medium, stock length, label. The length comes from the rack layout
(`topologies.cabling_room`) and is rounded up to what is sold: DAC of 1, 2, 3 m, fibre of 5 to 100 m.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from topologies.cabling_room import Layout, Room, lay_out
from topologies.fabric import End, Fabric, FabricError

SCHEMA_VERSION = 1
DAC, FIBRE = "DAC", "fibre"
#: Stock lengths, m.
STOCK_M: Mapping[str, tuple[float, ...]] = {DAC: (1, 2, 3), FIBRE: (5, 10, 15, 30, 50, 100)}

COLUMNS = (
    "id", "tier",
    "a_rack", "a_u", "a_chassis", "a_device", "a_port",
    "b_rack", "b_u", "b_chassis", "b_device", "b_port",
    "medium", "length_m", "class_m", "gbps", "label",
)  # fmt: skip


@dataclass(frozen=True)
class CableEnd:
    """Where one end is plugged: `device` as LLDP names it (a GPU, a switch), `chassis` the box that holds it."""

    rack: str
    u: int
    chassis: str
    device: str
    port: int


@dataclass(frozen=True)
class PlannedCable:
    """One cable; `length_m` is what geometry asks for, `class_m` what is bought, gbps per direction."""

    id: str
    tier: str
    a: CableEnd
    b: CableEnd
    medium: str
    length_m: float
    class_m: float
    gbps: float

    @property
    def label(self) -> str:
        """Text for the flags at both ends; unique, since the id is in it."""
        return f"{self.id} {_short(self.a)} / {_short(self.b)}"

    def row(self) -> dict[str, object]:
        """The columns of `COLUMNS`."""
        ends = {f"{side}_{key}": value for side in "ab" for key, value in asdict(getattr(self, side)).items()}
        rest = ("id", "tier", "medium", "length_m", "class_m", "gbps", "label")
        values: dict[str, object] = {**ends, **{key: getattr(self, key) for key in rest}}
        return {column: values[column] for column in COLUMNS}


@dataclass(frozen=True)
class BeyondReach:
    """A home switch that copper cannot join to all of its GPUs."""

    switch: str
    rack: str
    cables: int
    beyond: int
    farthest_rack: str
    farthest_m: float


@dataclass(frozen=True)
class CablingPlan:
    """All cables of a fabric in the order of its links, and where everything stands."""

    kind: str
    parameters: Mapping[str, object]
    layout: Layout
    cables: tuple[PlannedCable, ...]

    def totals(self) -> list[dict[str, object]]:
        """Cables per medium, stock length and rate."""
        found = Counter((cable.medium, cable.class_m, cable.gbps) for cable in self.cables)
        return [
            {"medium": medium, "class_m": class_m, "gbps": gbps, "cables": found[medium, class_m, gbps]}
            for medium, class_m, gbps in sorted(found)
        ]

    def beyond_reach(self) -> list[BeyondReach]:
        """Home switches with GPUs out of copper's reach, and the farthest rack of each."""
        behind: dict[str, list[PlannedCable]] = {}
        for cable in self.cables:
            if cable.tier == "access" and cable.b.device in self.layout.home_switches:
                behind.setdefault(cable.b.device, []).append(cable)
        found = []
        for switch, cables in behind.items():
            beyond = [cable for cable in cables if cable.medium != DAC]
            if beyond:
                far = max(beyond, key=lambda cable: cable.length_m)
                found.append(BeyondReach(switch, far.b.rack, len(cables), len(beyond), far.a.rack, far.length_m))
        return found

    def to_csv(self) -> str:
        """The plan as CSV with a header."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(cable.row() for cable in self.cables)
        return text.getvalue()

    def to_json(self) -> dict[str, object]:
        """The plan with the room, the places and the totals."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "parameters": dict(self.parameters),
            "room": asdict(self.layout.room),
            "places": [
                {"chassis": name, "rack": place.rack, "u": place.u, "height_u": place.height_u}
                for name, place in self.layout.places.items()
            ],
            "totals": self.totals(),
            "beyond_reach": [asdict(found) for found in self.beyond_reach()],
            "cables": [cable.row() for cable in self.cables],
        }


def plan_cabling(fabric: Fabric, room: Room | None = None) -> CablingPlan:
    """The plan of a fabric. Raises FabricError for a trunk bundle and for a hall that stock cables do not span."""
    check_physical(fabric)
    layout = lay_out(fabric, room)
    return CablingPlan(fabric.kind, fabric.parameters, layout, tuple(cables_of(fabric, layout)))


def check_physical(fabric: Fabric) -> None:
    """Raises FabricError where one link of the fabric stands for several cables."""
    if fabric.bundle == "trunk" and fabric.parameters.get("links_per_pair", 1) != 1:
        raise FabricError("bundle", "trunk", "makes m cables one link; for cables use bundle = destination")


def cables_of(fabric: Fabric, layout: Layout, optical: Iterable[str] = ()) -> Iterable[PlannedCable]:
    """Cables of a fabric whose devices stand as `layout` says; links with an id in `optical` are fibre anyway."""
    forced = frozenset(optical)
    width = len(str(len(fabric.links)))
    for number, link in enumerate(fabric.links, 1):
        a, b = layout.place_of(link.a.node), layout.place_of(link.b.node)
        length = layout.length_m(a, b)
        copper = link.id not in forced and layout.copper(a, b)
        medium = DAC if copper and length <= STOCK_M[DAC][-1] else FIBRE
        yield PlannedCable(
            id=f"C{number:0{width}d}",
            tier=link.tier,
            a=_end(layout, link.a),
            b=_end(layout, link.b),
            medium=medium,
            length_m=length,
            class_m=stock_length_m(medium, length),
            gbps=link.gbps,
        )


def stock_length_m(medium: str, length_m: float) -> float:
    """The shortest stock cable that is long enough, m. Raises FabricError when none is."""
    for class_m in STOCK_M[medium]:
        if length_m <= class_m:
            return class_m
    longest = STOCK_M[medium][-1]
    raise FabricError(
        "room", f"{length_m} m", f"is longer than the longest {medium} in stock ({longest:g} m): use more racks per row"
    )


def _end(layout: Layout, end: End) -> CableEnd:
    place = layout.place_of(end.node)
    return CableEnd(place.rack, place.u, layout.chassis[end.node], end.node, end.port)


def _short(end: CableEnd) -> str:
    return f"{end.rack} U{end.u} {end.device}:{end.port}"
