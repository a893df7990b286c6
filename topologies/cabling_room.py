"""Where servers and switches stand: racks, U positions, and how far it is from one port to another.

A *home switch* is an access switch whose servers stand closest together among the switches of its GPUs: the
contiguous (even) switch of ZCube, the leaves of leaf-spine fabrics. It is racked in the middle of its servers. All
other switches (odd, top, spine, core) reach every block, and stand in network racks in the middle of the hall. The
graph tells which is which; no rule here looks at the fabric's kind.

ZCube's contiguous port within copper reach, everything else on fibre: SIGCOMM'25
(https://doi.org/10.1145/3718958.3750503) section 4.1 (DAC up to 3 m) and appendix L.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from topologies.fabric import Fabric, FabricError

#: Height of one rack unit (EIA-310), m.
U_M = 0.04445


@dataclass(frozen=True)
class Room:
    """The hall and its racks. Lengths in m, heights in rack units (U). Raises FabricError for what cannot be.

    The defaults and why: 42 U is the common rack; an 8-GPU server of the H100 generation is 8 U and some 10 kW, so
    four fill what air can cool; a 51.2T switch is 2 U; 0.6 m is the width of a server rack; 2.4 m is a 1.2 m deep rack
    and half of the aisles before and behind it; 0.5 m of slack is a service loop of a quarter metre at each end.
    """

    rack_u: int = field(default=42, metadata={"least": 1})
    server_u: int = field(default=8, metadata={"least": 1})
    servers_per_rack: int = field(default=4, metadata={"least": 1})
    switch_u: int = field(default=2, metadata={"least": 1})
    #: In a network rack; the rest of its height is for patch panels and cable managers.
    network_switches_per_rack: int = field(default=16, metadata={"least": 1})
    racks_per_row: int = field(default=16, metadata={"least": 1})
    rack_pitch_m: float = field(default=0.6, metadata={"least": 0.1})
    row_pitch_m: float = field(default=2.4, metadata={"least": 0.1})
    #: The tray above the top of the racks; trays cross the rows at every rack position.
    tray_m: float = field(default=0.3, metadata={"least": 0.0})
    #: Both ends of a cable together.
    slack_m: float = field(default=0.5, metadata={"least": 0.0})
    #: Rack walls that a cable may pass without going over the tray; 0 for closed racks.
    open_sides: int = field(default=1, metadata={"least": 0})
    #: Passive copper: 3 m as in the paper; IEEE 802.3ck promises 2 m at 100G a lane.
    dac_reach_m: float = field(default=3.0, metadata={"least": 0.0})

    def __post_init__(self) -> None:
        for item in fields(self):
            value, least = getattr(self, item.name), item.metadata["least"]
            whole = item.type == "int"
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise FabricError(f"room.{item.name}", value, f"must be a {'whole ' if whole else ''}number")
            if not (math.isfinite(value) and least <= value <= 1000):
                raise FabricError(f"room.{item.name}", value, f"must be from {least} to 1000")
        if self.servers_per_rack * self.server_u > self.rack_u:
            fits = self.rack_u // self.server_u
            allowed = f"servers of {self.server_u} U in a rack of {self.rack_u} U: at most {fits}"
            raise FabricError("room.servers_per_rack", self.servers_per_rack, allowed)
        if self.network_switches_per_rack * self.switch_u > self.rack_u:
            fits = self.rack_u // self.switch_u
            allowed = f"switches of {self.switch_u} U in a rack of {self.rack_u} U: at most {fits}"
            raise FabricError("room.network_switches_per_rack", self.network_switches_per_rack, allowed)

    @property
    def switches_between(self) -> int:
        """Switches that fit into a compute rack, between its lower and its upper servers."""
        return (self.rack_u - self.servers_per_rack * self.server_u) // self.switch_u


def room_from_text(text: str | None) -> Room:
    """`name=value,...` -> Room. Raises FabricError naming the setting and what is allowed."""
    room, known = Room(), {item.name: item for item in fields(Room)}
    changes: dict[str, int | float] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in known:
            raise FabricError("room", part, f"must be NAME=VALUE with a name of {', '.join(known)}")
        if name in changes:
            raise FabricError(f"room.{name}", value, "is given twice")
        whole = known[name].type == "int"
        try:
            changes[name] = int(value) if whole else float(value)
        except ValueError:
            raise FabricError(f"room.{name}", value, f"must be a {'whole ' if whole else ''}number") from None
    return replace(room, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Place:
    """Where a server or switch stands; row and position count from 1, `u` is its lowest rack unit."""

    row: int
    position: int
    u: int
    height_u: int

    @property
    def rack(self) -> str:
        """Printed name of the rack, such as R02-07."""
        return f"R{self.row:02d}-{self.position:02d}"

    @property
    def centre_u(self) -> float:
        """Middle of its height above the floor of the rack, in U."""
        return self.u - 1 + self.height_u / 2


@dataclass(frozen=True)
class Layout:
    """Places of all servers and switches. `chassis` takes a GPU to its server and a switch to itself."""

    room: Room
    places: Mapping[str, Place]
    chassis: Mapping[str, str]
    home_switches: Mapping[str, tuple[str, ...]]

    def place_of(self, node: str) -> Place:
        """Place of a GPU's server or of a switch. Raises KeyError."""
        return self.places[self.chassis[node]]

    @property
    def racks(self) -> int:
        """Racks that hold something."""
        return len({place.rack for place in self.places.values()})

    def direct(self, a: Place, b: Place) -> bool:
        """Whether a cable stays below the tray: in one rack, or through open rack sides."""
        return a.row == b.row and abs(a.position - b.position) <= self.room.open_sides

    def length_m(self, a: Place, b: Place) -> float:
        """Length of a cable, m: vertical + along the row + between rows + slack, to the centimetre.

        Direct: the difference in height. Otherwise up to the tray at both ends, and over it at right angles.
        """
        room, top = self.room, self.room.rack_u
        if self.direct(a, b):
            vertical = abs(a.centre_u - b.centre_u) * U_M
        else:
            vertical = (2 * top - a.centre_u - b.centre_u) * U_M + 2 * room.tray_m
        along = abs(a.position - b.position) * room.rack_pitch_m
        between = abs(a.row - b.row) * room.row_pitch_m
        return round(vertical + along + between + room.slack_m, 2)

    def copper(self, a: Place, b: Place) -> bool:
        """Whether a DAC reaches."""
        return self.direct(a, b) and self.length_m(a, b) <= self.room.dac_reach_m


def home_switches(fabric: Fabric) -> dict[str, tuple[str, ...]]:
    """Switch -> its servers in order, for the access switches that are racked with their servers."""
    index = {server: i for i, server in enumerate(dict.fromkeys(gpu.server for gpu in fabric.gpus))}
    name = list(index)
    behind: dict[str, set[int]] = {}
    switches_of: dict[str, set[str]] = {}
    for (gpu, _), end in fabric.attachment.items():
        behind.setdefault(end.node, set()).add(index[fabric.gpu_by_name[gpu].server])
        switches_of.setdefault(gpu, set()).add(end.node)
    span = {switch: max(found) - min(found) for switch, found in behind.items()}
    away = {
        switch
        for switches in switches_of.values()
        for switch in switches
        if span[switch] > min(span[other] for other in switches)
    }
    return {
        switch.name: tuple(name[i] for i in sorted(behind[switch.name]))
        for switch in fabric.switches
        if switch.name in behind and switch.name not in away
    }


@dataclass
class _Rack:
    servers: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)

    def places(self, room: Room, row: int, position: int) -> Iterator[tuple[str, Place]]:
        """Servers from the floor and from the top, switches between them; a rack of switches from the top."""
        low = -(-room.servers_per_rack // 2)
        for slot, server in enumerate(self.servers):
            below = slot if slot < low else 0
            u = 1 + below * room.server_u if slot < low else room.rack_u - (slot - low + 1) * room.server_u + 1
            yield server, Place(row, position, u, room.server_u)
        used = len(self.switches) * room.switch_u
        if self.servers:
            zone = room.rack_u - room.servers_per_rack * room.server_u
            first = low * room.server_u + 1 + (zone - used) // 2
        else:
            first = room.rack_u - used + 1
        for slot, switch in enumerate(self.switches):
            yield switch, Place(row, position, first + slot * room.switch_u, room.switch_u)


def lay_out(fabric: Fabric, room: Room | None = None) -> Layout:
    """Rack a fabric. Blocks (servers that share home switches) stay in neighbouring racks of one row where they fit."""
    room = room or Room()
    homes = home_switches(fabric)
    servers = list(dict.fromkeys(gpu.server for gpu in fabric.gpus))
    groups: list[list[_Rack]] = []
    for block, switches in _blocks(servers, homes):
        last = groups[-1][-1] if groups else None
        if (
            last is not None
            and last.servers
            and len(last.servers) + len(block) <= room.servers_per_rack
            and len(last.switches) + len(switches) <= room.switches_between
        ):
            last.servers += block
            last.switches += switches
        else:
            groups.append(_block_racks(block, {name: homes[name] for name in switches}, room))
    pieces = [
        group[at : at + room.racks_per_row] for group in groups for at in range(0, len(group), room.racks_per_row)
    ]
    away = [switch.name for switch in fabric.switches if switch.name not in homes]
    size = room.network_switches_per_rack
    network = [_Rack([], away[at : at + size]) for at in range(0, len(away), size)]
    places: dict[str, Place] = {}
    for row, racks in enumerate(_rows(pieces, network, room.racks_per_row), 1):
        for position, rack in enumerate(racks, 1):
            places.update(rack.places(room, row, position))
    chassis = {gpu.name: gpu.server for gpu in fabric.gpus} | {s.name: s.name for s in fabric.switches}
    return Layout(room, places, chassis, homes)


def _blocks(servers: Sequence[str], homes: Mapping[str, Sequence[str]]) -> list[tuple[list[str], list[str]]]:
    """(servers, home switches) of each set of servers that home switches join, in the order of the servers."""
    root = {server: server for server in servers}

    def find(server: str) -> str:
        while root[server] != server:
            root[server] = root[root[server]]
            server = root[server]
        return server

    for shared in homes.values():
        for server in shared[1:]:
            root[find(server)] = find(shared[0])
    blocks: dict[str, tuple[list[str], list[str]]] = {}
    for server in servers:
        blocks.setdefault(find(server), ([], []))[0].append(server)
    for switch, shared in homes.items():
        blocks[find(shared[0])][1].append(switch)
    return list(blocks.values())


def _block_racks(block: Sequence[str], homes: Mapping[str, Sequence[str]], room: Room) -> list[_Rack]:
    """Racks of one block: each switch as near to the middle of its servers as there is room, else in a rack between."""
    size = room.servers_per_rack
    racks = [_Rack(list(block[at : at + size])) for at in range(0, len(block), size)]
    rack_of = {server: index for index, rack in enumerate(racks) for server in rack.servers}
    left: list[str] = []
    for switch, servers in homes.items():
        ends = [rack_of[server] for server in servers]
        middle = (min(ends) + max(ends)) / 2
        with_room = (i for i, rack in enumerate(racks) if len(rack.switches) < room.switches_between)
        best = min(with_room, key=lambda i: (abs(i - middle), i), default=None)
        (left if best is None else racks[best].switches).append(switch)
    size = room.network_switches_per_rack
    between = [_Rack([], left[at : at + size]) for at in range(0, len(left), size)]
    half = -(-len(racks) // 2)
    return [*racks[:half], *between, *racks[half:]]


def _rows(pieces: Sequence[list[_Rack]], network: Sequence[_Rack], per_row: int) -> list[list[_Rack]]:
    """The fewest rows that hold all racks; network racks in the middle of the middle rows, no piece split."""
    count = -(-(sum(map(len, pieces)) + len(network)) // per_row)
    while True:
        share = _network_share(len(network), count, per_row)
        rows: list[list[list[_Rack]]] = [[] for _ in range(count)]
        row = 0
        for piece in pieces:
            while row < count and sum(map(len, rows[row])) + len(piece) > per_row - share[row]:
                row += 1
            if row == count:
                break
            rows[row].append(piece)
        if row < count:
            return list(_with_network(rows, share, iter(network)))
        count += 1


def _network_share(racks: int, rows: int, per_row: int) -> list[int]:
    """Network racks of each row: the middle rows first."""
    share = [0] * rows
    for row in sorted(range(rows), key=lambda r: (abs(r - (rows - 1) / 2), r)):
        share[row] = min(per_row, racks)
        racks -= share[row]
    return share


def _with_network(
    rows: Iterable[list[list[_Rack]]], share: Sequence[int], network: Iterator[_Rack]
) -> Iterator[list[_Rack]]:
    for pieces, wanted in zip(rows, share, strict=True):
        total = sum(map(len, pieces))
        left: list[_Rack] = []
        right: list[_Rack] = []
        for piece in pieces:
            (left if len(left) + len(piece) / 2 <= total / 2 and not right else right).extend(piece)
        yield [*left, *(next(network) for _ in range(wanted)), *right]


def with_more_switches(layout: Layout, names: Sequence[str]) -> Layout:
    """The layout with further switches: in network racks with room, then in new racks at the ends of middle rows."""
    room, places = layout.room, dict(layout.places)
    servers = {layout.chassis[node] for node in layout.chassis if layout.chassis[node] != node}
    compute = {places[name].rack for name in servers}
    lowest: dict[tuple[int, int], list[int]] = {}
    for place in places.values():
        if place.rack not in compute:
            lowest.setdefault((place.row, place.position), []).append(place.u)
    ends = {place.row: 0 for place in places.values()}
    for place in places.values():
        ends[place.row] = max(ends[place.row], place.position)
    for name in names:
        spot = next((at for at, us in lowest.items() if len(us) < room.network_switches_per_rack), None)
        if spot is None:
            middle = (len(ends) + 1) / 2
            rows = sorted((row for row in ends if ends[row] < room.racks_per_row), key=lambda r: (abs(r - middle), r))
            row = rows[0] if rows else len(ends) + 1
            ends[row] = ends.get(row, 0) + 1
            spot = (row, ends[row])
            lowest[spot] = []
        u = min(lowest[spot], default=room.rack_u + 1) - room.switch_u
        lowest[spot].append(u)
        places[name] = Place(*spot, u, room.switch_u)
    return replace(layout, places=places, chassis={**layout.chassis, **{name: name for name in names}})
