"""Where the nodes and cables of a fabric go on a page: boxes in rows and lines between them, without any SVG.

Rows follow the graph, not the kind: GPUs at the bottom, then the switch tiers by their distance from the GPUs; of
tiers equally near, the one whose GPUs lie closest together comes first (ZCube: even, then odd). Large fabrics are
collapsed: a box a server, and in every row one box for all that is left out. Each cable is on the page all the same:
a line stands for the cables between two boxes and says how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from topologies.fabric import Fabric, FabricError, Link

DETAILS = ("auto", "gpus", "servers")
#: Up to so many GPUs `auto` draws each one with its ports.
MOST_GPUS_DRAWN = 64
#: Boxes of a row when collapsed: everything up to a medium fabric, else the first ones and the last.
MOST_GPUS_UNCUT = 256
BOXES_UNCUT, BOXES_CUT = 16, 8

GPU_WIDTH, GPU_HEIGHT, GPU_GAP = 30.0, 30.0, 4.0
SERVER_GAP, SERVER_PAD = 16.0, 6.0
BOX_WIDTH, BOX_HEIGHT, BOX_GAP = 108.0, 40.0, 22.0
ROW_GAP = 190.0
LEFT, RIGHT, TOP = 276.0, 40.0, 96.0


@dataclass(frozen=True)
class Path:
    """Cables to show in colour, by link id, with a line of text for the legend."""

    label: str
    links: tuple[str, ...]


@dataclass(frozen=True)
class Box:
    """A switch, GPU, server or the rest of a row (`more`); x and y are its upper left corner. `marked` boxes are on
    a highlighted path."""

    key: str
    style: str
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float
    marked: bool = False


@dataclass(frozen=True)
class Line:
    """The cables between two boxes. `style` is the colour class, `paths` the numbers of highlighted paths on it."""

    start: tuple[float, float]
    end: tuple[float, float]
    style: str
    cables: int
    gbps: float
    partial: bool
    paths: tuple[int, ...]
    title: str


@dataclass(frozen=True)
class Dot:
    """A NIC port on a GPU's upper edge."""

    x: float
    y: float
    style: str
    number: int


@dataclass(frozen=True)
class Row:
    """A row's text at the left margin, centred on y."""

    y: float
    lines: tuple[str, ...]


@dataclass(frozen=True)
class LegendEntry:
    """One sample in the legend; `path` is the number of a highlighted path."""

    style: str
    text: str
    path: int | None = None


@dataclass(frozen=True)
class Drawing:
    """A page. `frames` are the outlines of servers, drawn below everything."""

    width: float
    height: float
    title: str
    subtitle: str
    frames: tuple[Box, ...]
    boxes: tuple[Box, ...]
    dots: tuple[Dot, ...]
    lines: tuple[Line, ...]
    rows: tuple[Row, ...]
    legend: tuple[LegendEntry, ...]


KIND_NAMES = {
    "zcube": "ZCube",
    "zcube_recursive": "ZCube (recursive)",
    "roft": "Rail-optimised fat-tree",
    "rail_only": "Rail-only",
    "hpn": "HPN",
    "clos": "Clos",
    "fat_tree": "Fat-tree",
}


def draw(fabric: Fabric, paths: Sequence[Path] = (), detail: str = "auto") -> Drawing:
    """Lay a fabric out. Raises FabricError for an unknown detail or a path over cables that it does not have."""
    if detail not in DETAILS:
        raise FabricError("detail", detail, f"must be one of {', '.join(DETAILS)}")
    links = {link.id: link for link in fabric.links}
    for path in paths:
        for link_id in path.links:
            if link_id not in links:
                raise FabricError("path", link_id, "is no cable here; `zcube fabric show --json` lists them")
    if detail == "auto":
        detail = "gpus" if len(fabric.gpus) <= MOST_GPUS_DRAWN else "servers"
    tiers = tier_order(fabric)
    used = {end.node for path in paths for link in path.links for end in (links[link].a, links[link].b)}
    members = {tier: [switch.name for switch in fabric.switches if switch.tier == tier] for tier in tiers}
    cut = BOXES_UNCUT if len(fabric.gpus) <= MOST_GPUS_UNCUT else BOXES_CUT
    if detail == "gpus":
        cut = len(fabric.nodes)
    bottom = _Bottom(fabric, detail, cut, used)
    rows = {tier: _cut_row(members[tier], cut, used) for tier in tiers}
    width = max(bottom.width, *(_row_width(row) for row in rows.values()))
    gpu_y = TOP + ROW_GAP * len(tiers)
    box_of: dict[str, str] = dict(bottom.box_of)
    boxes: dict[str, Box] = {box.key: box for box in bottom.place(LEFT, width, gpu_y)}
    page_rows = [Row(gpu_y + BOX_HEIGHT / 2, _gpu_text(fabric))]
    for level, tier in enumerate(reversed(tiers)):
        y = TOP + ROW_GAP * level
        page_rows.append(Row(y + BOX_HEIGHT / 2, _tier_text(fabric, tier, members[tier])))
        for box in _place_row(fabric, tier, rows[tier], len(members[tier]), width, y):
            boxes[box.key] = box
        shown = set(rows[tier])
        box_of |= {name: name if name in shown else _more(tier) for name in members[tier]}
    dots = bottom.dots(fabric, boxes)
    legend = _legend(fabric, paths)
    marked = {box_of[name] for name in used}
    return Drawing(
        width=LEFT + width + RIGHT,
        height=gpu_y + 90 + 24 * len(legend) + 20,
        title=_title(fabric),
        subtitle=", ".join(f"{name} {_number(value)}" for name, value in fabric.parameters.items()),
        frames=tuple(bottom.frames),
        boxes=tuple(replace(box, marked=box.key in marked) for box in boxes.values()),
        dots=tuple(dots.values()),
        lines=_lines(fabric, boxes, box_of, dots, paths),
        rows=tuple(page_rows),
        legend=legend,
    )


def tier_order(fabric: Fabric) -> list[str]:
    """Switch tiers from the GPUs upwards."""
    spread: dict[str, list[int]] = {}
    for (gpu, _), end in fabric.attachment.items():
        spread.setdefault(end.node, []).append(fabric.gpu_by_name[gpu].number)
    distance = dict.fromkeys(spread, 1)
    edge = list(spread)
    neighbours: dict[str, set[str]] = {}
    for here, there in fabric.parallel_ports:
        neighbours.setdefault(here, set()).add(there)
    for name in edge:  # grows while it is walked: breadth first
        for there in sorted(neighbours.get(name, ())):
            if there not in distance:
                distance[there] = distance[name] + 1
                edge.append(there)
    far = len(fabric.switches)
    rank: dict[str, tuple[float, float]] = {}
    for switch in fabric.switches:
        numbers = spread.get(switch.name, [0])
        near = (float(distance.get(switch.name, far)), float(max(numbers) - min(numbers)))
        rank[switch.tier] = min(rank.get(switch.tier, near), near)
    return sorted(rank, key=lambda tier: rank[tier])


def _title(fabric: Fabric) -> str:
    servers = len({gpu.server for gpu in fabric.gpus})
    name = KIND_NAMES.get(fabric.kind, fabric.kind)
    return (
        f"{name}: {len(fabric.gpus):,} GPUs in {servers:,} servers, {len(fabric.switches):,} switches, "
        f"{len(fabric.links):,} cables"
    )


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _gpu_text(fabric: Fabric) -> tuple[str, ...]:
    ports = fabric.gpus[0].ports
    rates = "/".join(f"{rate:g}" for rate in sorted({port.gbps for port in ports}))
    return ("GPUs", f"{len(ports)} x {rates} Gb/s each")


def _tier_text(fabric: Fabric, tier: str, names: Sequence[str]) -> tuple[str, ...]:
    """What one switch of the tier has, by far end: `8 to GPUs, 8 to even`."""
    far: dict[str, int] = {}
    switch = fabric.switch_by_name[names[0]]
    for port in switch.ports:
        end = fabric.far_end(switch.name, port.number).node
        kind = "GPUs" if end in fabric.gpu_by_name else fabric.switch_by_name[end].tier
        far[kind] = far.get(kind, 0) + 1
    uplinks = tuple(f"{count} to {kind}" for kind, count in far.items())
    return (f"{tier}: {len(names):,} switches", "ports each: " + ", ".join(uplinks))


def _more(tier: str) -> str:
    return f"more {tier}"


def _cut_row(names: Sequence[str], most: int, keep: set[str]) -> list[str]:
    """All names, or the first ones, those to keep, and the last one. One box of `most` is for the rest."""
    if len(names) <= most:
        return list(names)
    wanted = {*names[: most - 2], names[-1]} | (keep & set(names))
    return [name for name in names if name in wanted]


def _row_width(names: Sequence[str]) -> float:
    return (len(names) + 1) * (BOX_WIDTH + BOX_GAP)


def _place_row(fabric: Fabric, tier: str, shown: Sequence[str], total: int, width: float, y: float) -> list[Box]:
    """Boxes of a tier spread over the width; the box for the rest stands before the last one."""
    cells: list[tuple[str, str, tuple[str, ...]]] = []
    for name in shown:
        ports = fabric.switch_by_name[name].ports
        rates = "/".join(f"{rate:g}" for rate in sorted({port.gbps for port in ports}))
        cells.append((name, f"tier-{tier}", (name, f"{len(ports)} x {rates}G")))
    if total > len(shown):
        cells.insert(len(cells) - 1, (_more(tier), "more", ("...", f"{total - len(shown):,} more")))
    pitch = width / len(cells)
    box_width = min(BOX_WIDTH, pitch - 8)
    return [
        Box(key, style, lines, LEFT + pitch * (i + 0.5) - box_width / 2, y, box_width, BOX_HEIGHT)
        for i, (key, style, lines) in enumerate(cells)
    ]


class _Bottom:
    """The row of GPUs: every GPU inside its server's frame, or a box a server."""

    def __init__(self, fabric: Fabric, detail: str, cut: int, used: set[str]) -> None:
        self.servers: dict[str, list[str]] = {}
        for gpu in fabric.gpus:
            self.servers.setdefault(gpu.server, []).append(gpu.name)
        self.detail = detail
        self.frames: list[Box] = []
        keep = {gpu.server for gpu in fabric.gpus if gpu.name in used}
        self.shown = _cut_row(list(self.servers), cut, keep)
        if detail == "gpus":
            self.box_of = {gpu.name: gpu.name for gpu in fabric.gpus}
            self.width = sum(self._frame_width(names) + SERVER_GAP for names in self.servers.values())
        else:
            shown = set(self.shown)
            self.box_of = {
                name: server if server in shown else _more("servers")
                for server, names in self.servers.items()
                for name in names
            }
            self.width = _row_width(self.shown)

    @staticmethod
    def _frame_width(names: Sequence[str]) -> float:
        return len(names) * (GPU_WIDTH + GPU_GAP) - GPU_GAP + 2 * SERVER_PAD

    def place(self, left: float, width: float, y: float) -> list[Box]:
        """The boxes, and the servers' frames on the side."""
        if self.detail != "gpus":
            return self._place_servers(left, width, y)
        boxes = []
        spare = (width - self.width) / len(self.servers)
        x = left + (spare + SERVER_GAP) / 2
        for server, names in self.servers.items():
            inner = self._frame_width(names)
            self.frames.append(
                Box(server, "server", (server,), x, y - SERVER_PAD - 4, inner, GPU_HEIGHT + 2 * SERVER_PAD + 24)
            )
            for i, name in enumerate(names):
                at = x + SERVER_PAD + i * (GPU_WIDTH + GPU_GAP)
                boxes.append(Box(name, "gpu", (name.removeprefix("gpu"),), at, y + 2, GPU_WIDTH, GPU_HEIGHT))
            x += inner + SERVER_GAP + spare
        return boxes

    def _place_servers(self, left: float, width: float, y: float) -> list[Box]:
        cells = []
        for server in self.shown:
            names = self.servers[server]
            numbers = [name.removeprefix("gpu") for name in names]
            label = f"GPU {numbers[0]}" + (f"-{numbers[-1]}" if len(numbers) > 1 else "")
            cells.append(Box(server, "gpu", (server, label), 0, 0, 0, 0))
        if (rest := len(self.servers) - len(self.shown)) > 0:
            cells.insert(len(cells) - 1, Box(_more("servers"), "more", ("...", f"{rest:,} more"), 0, 0, 0, 0))
        pitch = width / len(cells)
        box_width = min(BOX_WIDTH, pitch - 8)
        return [
            Box(cell.key, cell.style, cell.lines, left + pitch * (i + 0.5) - box_width / 2, y, box_width, BOX_HEIGHT)
            for i, cell in enumerate(cells)
        ]

    def dots(self, fabric: Fabric, boxes: Mapping[str, Box]) -> dict[tuple[str, int], Dot]:
        """The NIC ports, coloured as the tier they lead to; none where a server is one box."""
        if self.detail != "gpus":
            return {}
        found = {}
        for gpu in fabric.gpus:
            box = boxes[gpu.name]
            for port in gpu.ports:
                tier = fabric.switch_by_name[fabric.attachment[gpu.name, port.number].node].tier
                x = box.x + box.width * (port.number - 0.5) / len(gpu.ports)
                found[gpu.name, port.number] = Dot(x, box.y, f"tier-{tier}", port.number)
        return found


def line_style(fabric: Fabric, link: Link) -> str:
    """Colour class: access cables as the tier of their switch, others by link tier."""
    if link.tier == "access":
        return f"tier-{fabric.switch_by_name[link.b.node].tier}"
    return f"link-{link.tier}"


def _lines(
    fabric: Fabric,
    boxes: Mapping[str, Box],
    box_of: Mapping[str, str],
    dots: Mapping[tuple[str, int], Dot],
    paths: Sequence[Path],
) -> tuple[Line, ...]:
    on: dict[str, list[int]] = {}
    for number, path in enumerate(paths):
        for link_id in path.links:
            on.setdefault(link_id, []).append(number)
    bundles: dict[tuple[str, str, int, str, tuple[int, ...]], list[Link]] = {}
    for link in fabric.links:
        a, b = box_of[link.a.node], box_of[link.b.node]
        upper, lower = (a, b) if boxes[a].y < boxes[b].y else (b, a)
        port = link.a.port if (link.a.node, link.a.port) in dots else 0
        key = (upper, lower, port, line_style(fabric, link), tuple(on.get(link.id, ())))
        bundles.setdefault(key, []).append(link)
    ends = _spread_ends(boxes, dots, list(bundles))
    lines = []
    for key, links in bundles.items():
        upper, lower, _, style, numbers = key
        text = f"{upper} - {lower}: {len(links)} x {links[0].gbps:g} Gb/s"
        partial = "more" in (boxes[upper].style, boxes[lower].style)
        lines.append(Line(*ends[key], style, len(links), links[0].gbps, partial, numbers, text))
    return tuple(sorted(lines, key=lambda line: bool(line.paths)))


Key = tuple[str, str, int, str, tuple[int, ...]]


def _spread_ends(
    boxes: Mapping[str, Box], dots: Mapping[tuple[str, int], Dot], keys: Sequence[Key]
) -> dict[Key, tuple[tuple[float, float], tuple[float, float]]]:
    """Where lines meet their boxes: side by side along an edge, in the order of what they lead to."""

    def middle(name: str) -> float:
        return boxes[name].x + boxes[name].width / 2

    below: dict[str, list[Key]] = {}
    above: dict[str, list[Key]] = {}
    for key in keys:
        below.setdefault(key[0], []).append(key)
        above.setdefault(key[1], []).append(key)
    upper_end: dict[Key, tuple[float, float]] = {}
    lower_end: dict[Key, tuple[float, float]] = {}
    for name, found in below.items():
        box = boxes[name]
        ordered = sorted(found, key=lambda key: (middle(key[1]), key[2]))
        for i, key in enumerate(ordered):
            upper_end[key] = (box.x + box.width * (i + 0.5) / len(ordered), box.y + box.height)
    for name, found in above.items():
        box = boxes[name]
        ordered = sorted(found, key=lambda key: middle(key[0]))
        for i, key in enumerate(ordered):
            dot = dots.get((name, key[2]))
            x = dot.x if dot else box.x + box.width * (i + 0.5) / len(ordered)
            lower_end[key] = (x, box.y)
    return {key: (upper_end[key], lower_end[key]) for key in keys}


def _legend(fabric: Fabric, paths: Sequence[Path]) -> tuple[LegendEntry, ...]:
    """One entry for each colour of cable, with counts, then the paths."""
    groups: dict[str, list[Link]] = {}
    for link in fabric.links:
        groups.setdefault(line_style(fabric, link), []).append(link)
    entries = []
    for style, links in groups.items():
        rates = "/".join(f"{rate:g}" for rate in sorted({link.gbps for link in links}))
        pairs = len({(link.a.node, link.b.node) for link in links})
        first = links[0]
        if first.tier == "access":
            ports = sorted({link.a.port for link in links})
            which = f"GPU port {', '.join(map(str, ports))} to {style.removeprefix('tier-')} switches"
        else:
            tier_of = {switch.name: switch.tier for switch in fabric.switches}
            ends = dict.fromkeys(f"{tier_of[link.a.node]} to {tier_of[link.b.node]}" for link in links)
            which = f"{first.tier}, " + " and ".join(ends)
        per_pair = len(links) / pairs
        each = f", {per_pair:g} per pair of switches" if first.tier != "access" else ""
        entries.append(LegendEntry(style, f"{which}: {len(links):,} cables of {rates} Gb/s{each}"))
    entries += [LegendEntry("path", path.label, number) for number, path in enumerate(paths)]
    return tuple(entries)
