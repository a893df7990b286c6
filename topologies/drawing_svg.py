"""A Drawing as SVG: no fonts, scripts or files from elsewhere, and colours that office programs read.

Colours are plain values in one style sheet. `auto` adds the dark ones under `prefers-color-scheme: dark`, which
browsers follow and other programs skip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from topologies.drawing import Box, Drawing, Line
from topologies.fabric import FabricError

THEMES = ("auto", "light", "dark")

#: (light, dark) of each role.
PAPER = ("#ffffff", "#14181f")
INK = ("#1c2430", "#e6eaf0")
FAINT = ("#5b6675", "#a3adba")
FRAME = ("#eef1f5", "#212833")
FRAME_EDGE = ("#b9c2ce", "#465062")
NODE = ("#ffffff", "#1a2029")
COLOURS = {
    "tier-odd": ("#c2560a", "#ff9d52"),
    "tier-even": ("#1f5fc0", "#6fa8ff"),
    "tier-top": ("#7b3fb5", "#c79bf2"),
    "tier-leaf": ("#1f5fc0", "#6fa8ff"),
    "tier-spine": ("#7b3fb5", "#c79bf2"),
    "tier-core": ("#a32a52", "#f58aae"),
    "link-inter": ("#4c7a57", "#8cc79b"),
    "link-uplink": ("#4c7a57", "#8cc79b"),
    "link-core": ("#a32a52", "#f58aae"),
}
#: Highlighted paths, in order; further ones begin anew.
PATH_COLOURS = (("#d0021b", "#ff5a6a"), ("#008c95", "#2fe0e8"), ("#b8860b", "#ffd24a"), ("#5a2ca0", "#c9a0ff"))
#: More counts than these beside lines would hide the lines; the legend has them too.
MOST_COUNTS = 40
FONT = "font-family: Helvetica, Arial, sans-serif;"


def svg(drawing: Drawing, theme: str = "auto") -> str:
    """The drawing as an SVG document. Raises FabricError for an unknown theme."""
    if theme not in THEMES:
        raise FabricError("theme", theme, f"must be one of {', '.join(THEMES)}")
    return "\n".join(_document(drawing, theme)) + "\n"


def _document(page: Drawing, theme: str) -> Iterator[str]:
    size = f'width="{page.width:g}" height="{page.height:g}" viewBox="0 0 {page.width:g} {page.height:g}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    yield f"<title>{escape(page.title)}</title>"
    yield f"<style>{_style(theme, page)}</style>"
    yield '<rect class="paper" width="100%" height="100%"/>'
    yield _text(24, 36, "title", page.title)
    yield _text(24, 60, "faint", page.subtitle)
    yield from (_frame(frame) for frame in page.frames)
    dim = any(line.paths for line in page.lines)
    yield f'<g class="cables{" dim" if dim else ""}">'
    yield from (_line(line) for line in page.lines if not line.paths)
    yield "</g>"
    counted = [line for line in page.lines if line.cables > 1 and not line.paths]
    if not dim and len(counted) <= MOST_COUNTS:
        yield from (_count(line) for line in counted)
    yield from (text for line in page.lines if line.paths for text in _path_lines(line))
    yield from (text for box in page.boxes for text in _box(box))
    for dot in page.dots:
        yield f'<rect class="{dot.style} dot" x="{dot.x - 3:g}" y="{dot.y - 3:g}" width="6" height="6"/>'
    for row in page.rows:
        for i, text in enumerate(row.lines):
            yield _text(24, row.y - 4 + 17 * i, "faint" if i else "row", text)
    yield from _legend(page)
    yield "</svg>"


def _style(theme: str, page: Drawing) -> str:
    used = {line.style for line in page.lines} | {box.style for box in page.boxes} | {dot.style for dot in page.dots}
    styles = sorted(style for style in used if style.startswith(("tier-", "link-")))
    paths = sorted({number for line in page.lines for number in line.paths})

    def colours(dark: int) -> str:
        rules = [
            f".paper {{ fill: {PAPER[dark]} }}",
            f"text {{ fill: {INK[dark]}; {FONT} font-size: 13px }}",
            f"text.faint {{ fill: {FAINT[dark]} }}",
            f"text.count {{ stroke: {PAPER[dark]}; stroke-width: 4px; paint-order: stroke }}",
            f".server {{ fill: {FRAME[dark]}; stroke: {FRAME_EDGE[dark]} }}",
            f".gpu, .more {{ fill: {NODE[dark]}; stroke: {FAINT[dark]} }}",
        ]
        for style in styles:
            colour = COLOURS.get(style, FAINT)[dark]
            rules.append(f"line.{style} {{ stroke: {colour} }} rect.{style} {{ fill: {NODE[dark]}; stroke: {colour} }}")
            rules.append(f"rect.{style}.dot {{ fill: {colour}; stroke: none }}")
        rules += [f"line.path{n} {{ stroke: {PATH_COLOURS[n % len(PATH_COLOURS)][dark]} }}" for n in paths]
        return " ".join(rules)

    fixed = (
        " text.title { font-size: 20px; font-weight: bold } text.row { font-weight: bold }"
        " text.middle { text-anchor: middle } text.small { font-size: 11px }"
        " rect { stroke-width: 1.5 } rect.marked { stroke-width: 3.5 } rect.paper { stroke: none }"
        " .cables line { opacity: 0.8 } .more { stroke-dasharray: 4 3 }"
        " .cables line.partial { stroke-dasharray: 2 4; opacity: 0.45 }"
        " .cables.dim line, .cables.dim line.partial { opacity: 0.16 }"
    )
    if theme == "auto":
        return colours(0) + fixed + f" @media (prefers-color-scheme: dark) {{ {colours(1)} }}"
    return colours(THEMES.index(theme) - 1) + fixed


def _frame(box: Box) -> str:
    x, y = box.x + box.width / 2, box.y + box.height - 7
    return _rect(box, "server", 6) + _text(x, y, "faint small middle", box.lines[0])


def _box(box: Box) -> Iterator[str]:
    yield _rect(box, box.style + (" marked" if box.marked else ""), 4)
    first = box.y + box.height / 2 + (4.5 if len(box.lines) == 1 else -3)
    for i, text in enumerate(box.lines):
        yield _text(box.x + box.width / 2, first + 15 * i, "small faint middle" if i else "middle", text)


def _rect(box: Box, style: str, radius: int) -> str:
    where = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
    return f'<rect class="{style}" {where} rx="{radius}"/>'


def thickness(cables: int) -> float:
    """Stroke width in pixels: a cable is 1.2, four times as many are one wider, and no more than 6."""
    return min(6.0, 1.2 + 0.5 * math.log2(cables))


def _line(line: Line) -> str:
    classes = line.style + (" partial" if line.partial else "")
    title = f"<title>{escape(line.title)}</title>"
    width = 1.0 if line.partial else thickness(line.cables)
    return f'<line class="{classes}" {_ends(line)} stroke-width="{width:.2g}">{title}</line>'


def _count(line: Line) -> str:
    """How many cables a line stands for, beside its lower end, where lines have fanned out."""
    (x1, y1), (x2, y2) = line.start, line.end
    return _text(x1 + 0.72 * (x2 - x1), y1 + 0.72 * (y2 - y1) + 4, "small middle count", f"x{line.cables}")


def _path_lines(line: Line) -> Iterator[str]:
    """A highlighted cable, beside its twin where two paths share it."""
    for i, number in enumerate(line.paths):
        shift = 4.0 * (i - (len(line.paths) - 1) / 2)
        title = f"<title>{escape(line.title)}</title>"
        yield f'<line class="path{number}" {_ends(line, shift)} stroke-width="3.2">{title}</line>'


def _ends(line: Line, shift: float = 0.0) -> str:
    (x1, y1), (x2, y2) = line.start, line.end
    return f'x1="{x1 + shift:.1f}" y1="{y1:.1f}" x2="{x2 + shift:.1f}" y2="{y2:.1f}"'


def _legend(page: Drawing) -> Iterator[str]:
    top = page.height - 24 * len(page.legend) - 12
    for i, entry in enumerate(page.legend):
        y = top + 24 * i
        style = entry.style if entry.path is None else f"path{entry.path}"
        yield f'<line class="{style}" x1="24" y1="{y:g}" x2="64" y2="{y:g}" stroke-width="3.2"/>'
        yield _text(76, y + 4.5, "", entry.text)


def _text(x: float, y: float, classes: str, text: str) -> str:
    named = f" class={quoteattr(classes)}" if classes else ""
    return f'<text x="{x:g}" y="{y:g}"{named}>{escape(text)}</text>'
