"""Reads a SimAI topology file (its form is in `export_simai`) and says which line is wrong, and why.

SimAI itself reads words and does not look at lines; here each link has a line of its own, so that a fault has a line
number. The ids of the second line may be spread over several lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class SimaiFileError(ValueError):
    """A line that does not fit: its number (from 1), what it says, what was expected."""

    def __init__(self, line: int, found: str, expected: str) -> None:
        self.line, self.found, self.expected = line, found, expected
        super().__init__(f"line {line}: {found!r}: expected {expected}")


@dataclass(frozen=True)
class SimaiLink:
    """One link; rate in Gb/s per direction, latency in microseconds."""

    source: int
    destination: int
    gbps: float
    latency_us: float
    error_rate: float


@dataclass(frozen=True)
class SimaiTopology:
    """The file. GPUs are the node ids that are neither NVSwitches nor switches, ascending."""

    gpus_per_server: int
    gpu_type: str
    gpus: tuple[int, ...]
    nvswitches: tuple[int, ...]
    switches: tuple[int, ...]
    links: tuple[SimaiLink, ...]


#: Larger numbers than these are mistakes: memory would be asked for before a link is read.
MOST_NODES = 10_000_000
GBPS = {"Gbps": 1.0, "Mbps": 1e-3, "Kbps": 1e-6, "bps": 1e-9, "Tbps": 1e3, "Gb/s": 1.0, "Mb/s": 1e-3, "b/s": 1e-9}
MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3, "ps": 1e-6}
Words = tuple[int, list[str]]


def parse_simai(text: str) -> SimaiTopology:
    """The topology in a file's text. Raises SimaiFileError."""
    lines = iter([(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()])
    head = next(lines, None)
    if head is None:
        raise SimaiFileError(1, "", "nodes gpus_per_server nvswitches switches links gpu_type")
    nodes, per_server, nvswitches, switches, count, gpu_type = _head(*head)
    ids, rest = _ids(lines, head[0], nvswitches + switches, nodes)
    taken = set(ids)
    links = tuple(_links(rest, count, nodes, len(text.splitlines())))
    return SimaiTopology(
        gpus_per_server=per_server,
        gpu_type=gpu_type,
        gpus=tuple(node for node in range(nodes) if node not in taken),
        nvswitches=tuple(ids[:nvswitches]),
        switches=tuple(ids[nvswitches:]),
        links=links,
    )


def _head(line: int, words: Sequence[str]) -> tuple[int, int, int, int, int, str]:
    expected = "nodes gpus_per_server nvswitches switches links gpu_type (five whole numbers and a word)"
    if len(words) != 6 or not all(re.fullmatch(r"[0-9]{1,9}", word) for word in words[:5]):
        raise SimaiFileError(line, _shown(words), expected)
    nodes, per_server, nvswitches, switches, links = (int(word) for word in words[:5])
    if nodes > MOST_NODES or links > 10 * MOST_NODES:
        raise SimaiFileError(line, _shown(words), f"at most {MOST_NODES:,} nodes and {10 * MOST_NODES:,} links")
    if nvswitches + switches >= nodes:
        raise SimaiFileError(line, _shown(words), "more nodes than NVSwitches and switches: the rest are GPUs")
    if per_server < 1:
        raise SimaiFileError(line, _shown(words), "at least one GPU a server")
    return nodes, per_server, nvswitches, switches, links, words[5]


def _ids(lines: Iterator[Words], line: int, wanted: int, nodes: int) -> tuple[list[int], Iterator[Words]]:
    """The ids after the head, and the lines that follow."""
    ids: list[int] = []
    seen: set[int] = set()
    while len(ids) < wanted:
        found = next(lines, None)
        if found is None:
            raise SimaiFileError(line, "end of file", f"{wanted} ids of NVSwitches and switches, {len(ids)} were given")
        line, words = found
        for word in words:
            node = _node(line, word, nodes, "the id of an NVSwitch or switch")
            if node in seen:
                raise SimaiFileError(line, word, "each NVSwitch and switch once")
            seen.add(node)
            ids.append(node)
        if len(ids) > wanted:
            raise SimaiFileError(line, _shown(words), f"{wanted} ids, as many as the first line says")
    return ids, lines


def _links(lines: Iterator[Words], wanted: int, nodes: int, last_line: int) -> Iterator[SimaiLink]:
    found = 0
    for line, words in lines:
        if found == wanted:
            raise SimaiFileError(line, _shown(words), f"nothing after the {wanted} links that the first line promises")
        if len(words) != 5:
            raise SimaiFileError(line, _shown(words), "source destination bandwidth latency error_rate")
        source, destination = (_node(line, word, nodes, "the id of a node") for word in words[:2])
        if source == destination:
            raise SimaiFileError(line, _shown(words), "two different nodes")
        gbps = _quantity(line, words[2], GBPS, "a bandwidth such as 200Gbps")
        if gbps == 0:
            raise SimaiFileError(line, words[2], "a bandwidth of more than 0")
        latency = _quantity(line, words[3], MICROSECONDS, "a latency such as 0.0005ms")
        yield SimaiLink(source, destination, gbps, latency, _quantity(line, words[4], {"": 1.0}, "an error rate"))
        found += 1
    if found < wanted:
        raise SimaiFileError(last_line, "end of file", f"{wanted} links, as the first line says; {found} were given")


def _node(line: int, word: str, nodes: int, what: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", word) or int(word) >= nodes:
        raise SimaiFileError(line, word[:60], f"{what}, 0 to {nodes - 1}")
    return int(word)


NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,3}))?")


def _quantity(line: int, word: str, units: dict[str, float], what: str) -> float:
    number = NUMBER.match(word)
    unit = units.get(word[number.end() :]) if number else None
    if number is None or unit is None or not math.isfinite(value := float(number[0]) * unit):
        raise SimaiFileError(line, word[:60], what)
    return value


def _shown(words: Sequence[str]) -> str:
    text = " ".join(words[:8])
    return text if len(text) <= 60 else text[:57] + "..."
