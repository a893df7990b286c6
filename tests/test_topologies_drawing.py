"""The drawing: everything is on the page once, and what is highlighted is the path."""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from export_fabrics import FABRICS, three_tier

from topologies.drawing import BOX_HEIGHT, BOXES_CUT, Drawing, Path, draw, tier_order
from topologies.drawing_svg import svg, thickness
from topologies.fabric import Fabric, FabricError
from topologies.paths import path, queue_pairs
from topologies.roft import roft
from topologies.zcube import zcube

SVG = "{http://www.w3.org/2000/svg}"


def paths_of(fabric: Fabric, src: str, dst: str) -> list[Path]:
    return [Path(str(qp.index), path(fabric, qp, 1).links) for qp in queue_pairs(fabric, src, dst)]


@pytest.mark.parametrize("fabric", FABRICS.values(), ids=FABRICS)
def test_every_node_and_cable_is_drawn_once(fabric: Fabric) -> None:
    page = draw(fabric)
    assert Counter(box.key for box in page.boxes) == Counter(node.name for node in fabric.nodes)
    assert sum(line.cables for line in page.lines) == len(fabric.links)
    assert len(page.dots) == sum(len(gpu.ports) for gpu in fabric.gpus)
    plugged = Counter(line.end for line in page.lines)
    assert all(plugged[dot.x, dot.y] == 1 for dot in page.dots)  # a cable on every NIC port
    assert {frame.key for frame in page.frames} == {gpu.server for gpu in fabric.gpus}
    assert f"{len(fabric.gpus)} GPUs" in page.title and f"{len(fabric.links)} cables" in page.title
    pairs = Counter((link.a.node, link.b.node) for link in fabric.links if link.tier != "access")
    assert Counter(line.cables for line in page.lines if line.cables > 1) == Counter(
        count for count in pairs.values() if count > 1
    )


#: Made where they are drawn, not with the module: every worker loads all modules.
LARGER: dict[str, Callable[[], Fabric]] = {
    "zcube-256": lambda: zcube(256, 16),
    "roft-512": lambda: roft(512, 32),
    "zcube-1024": lambda: zcube(1024, 64),
    "roft-1024": lambda: roft(1024, 64),
    "zcube-4096": lambda: zcube(4096, 64),
    "zcube-16384": lambda: zcube(16_384, 128, gpus_per_server=8),
}


@pytest.mark.parametrize("name", [*FABRICS, "three-tier", "zcube-256", "roft-512", "zcube-4096"])
def test_boxes_keep_clear_of_each_other_and_lines_end_on_boxes(name: str) -> None:
    page = draw(FABRICS[name] if name in FABRICS else {**LARGER, "three-tier": three_tier}[name]())
    rows: dict[float, list[tuple[float, float]]] = {}
    for box in page.boxes:
        assert box.x >= 0 and box.x + box.width <= page.width and box.y + box.height <= page.height
        rows.setdefault(box.y, []).append((box.x, box.x + box.width))
    for spans in rows.values():
        spans.sort()
        assert all(left[1] < right[0] for left, right in pairwise(spans))
    lower = {box.y + box.height for box in page.boxes}
    upper = {box.y for box in page.boxes}
    assert all(line.start[1] in lower and line.end[1] in upper for line in page.lines)


def test_tiers_stand_by_distance_then_by_how_near_their_gpus_are() -> None:
    assert tier_order(zcube(32, 8)) == ["even", "odd"]
    assert tier_order(roft(32, 8)) == ["leaf", "spine"]
    assert tier_order(three_tier()) == ["leaf", "spine", "core"]
    assert tier_order(FABRICS["recursive-64"]) == ["even", "odd", "top"]
    assert tier_order(FABRICS["recursive-64-partial"]) == ["even", "odd", "top"]
    assert tier_order(FABRICS["hpn-32-8"]) == ["leaf", "spine"]


def test_highlight_is_exactly_the_path() -> None:
    """Blog figure 8: 1 to 11 by odd1 and even4, and by even2 and odd5."""
    fabric = zcube(32, 8)
    page = draw(fabric, paths_of(fabric, "gpu1", "gpu11"))
    found = {number: {line.title.split(":")[0] for line in page.lines if number in line.paths} for number in (0, 1)}
    assert found[0] == {"odd1 - gpu1", "odd1 - even4", "even4 - gpu11"}
    assert found[1] == {"even2 - gpu1", "odd5 - even2", "odd5 - gpu11"}
    assert all(line.cables == 1 for line in page.lines if line.paths)  # one member of a bundle, not the bundle
    assert sum(line.cables for line in page.lines) == len(fabric.links)
    assert page.lines[-1].paths  # on top


@pytest.mark.parametrize("name", ["zcube-1024", "roft-1024", "zcube-16384"])
def test_large_fabrics_are_collapsed_without_losing_a_cable(name: str) -> None:
    fabric = LARGER[name]()
    began = time.process_time()
    last = fabric.gpus[-1].name
    middle = fabric.gpus[len(fabric.gpus) // 2].name
    page = draw(fabric, paths_of(fabric, middle, last))
    text = svg(page)
    assert time.process_time() - began < 10
    assert len(text) < 400_000
    assert sum(line.cables for line in page.lines) == len(fabric.links)
    per_row = Counter(box.y for box in page.boxes)
    assert max(per_row.values()) <= BOXES_CUT + 4  # and what the paths need
    for number in (0,):
        crossed = [line for line in page.lines if number in line.paths]
        assert len(crossed) == len(paths_of(fabric, middle, last)[number].links)
        assert not any(line.partial for line in crossed)


def elements(page: Drawing, theme: str = "auto") -> ElementTree.Element:
    return ElementTree.fromstring(svg(page, theme))


@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
def test_svg_is_well_formed_and_stands_alone(theme: str) -> None:
    fabric = zcube(32, 8)
    text = svg(draw(fabric, paths_of(fabric, "gpu1", "gpu2")), theme)
    root = ElementTree.fromstring(text)
    assert len(root.findall(f".//{SVG}line")) >= len(draw(fabric).lines)
    assert not re.search(r"<script|href|@import|url\(|var\(", text)
    assert ("prefers-color-scheme" in text) == (theme == "auto")
    assert all(element.tag != f"{SVG}script" for element in root.iter())
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert {"odd1", "even8", "server1", "32"} <= set(words)


def test_text_of_others_is_escaped() -> None:
    fabric = zcube(16, 4)
    assert elements(draw(fabric, [Path('<b>&"x', fabric.links[0].id and (fabric.links[0].id,))])) is not None


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_stand_out_from_the_paper(theme: int) -> None:
    """WCAG 2.1: 4.5 for text, 3 for graphics."""
    from topologies import drawing_svg as colours

    def contrast(one: str, other: str) -> float:
        a, b = sorted((luminance(one), luminance(other)))
        return (b + 0.05) / (a + 0.05)

    paper = colours.PAPER[theme]
    for text in (colours.INK, colours.FAINT):
        assert contrast(text[theme], paper) >= 4.5
    for line in (*colours.COLOURS.values(), *colours.PATH_COLOURS):
        assert contrast(line[theme], paper) >= 3, line


def test_bad_requests() -> None:
    fabric = zcube(16, 4)
    with pytest.raises(FabricError, match="detail"):
        draw(fabric, detail="tiny")
    with pytest.raises(FabricError, match="theme"):
        svg(draw(fabric), "blue")
    with pytest.raises(FabricError, match="no cable"):
        draw(fabric, [Path("x", ("gpu1-eth1--moon-eth1",))])
    assert thickness(1) < thickness(4) < thickness(10_000) <= 6
    assert BOX_HEIGHT > 0
