"""Traffic matrices of other tools: NIXL kvbench's, and htsim's connection matrices.

* kvbench (ai-dynamo/nixl, benchmark/kvbench/test/inference_workload_matgen.py): a line a source rank, a cell a
  destination rank, sizes such as `0`, `512K`, `1.5G` (B, K, M, G, T: powers of 1024), separated by white space or
  commas. A `.tp` file has the same below `[rdma]`; its `[read]` and `[write]` are storage and do not cross this fabric.
  `metadata.yaml` lists matrices, each played `sleep_before_launch_sec` after the one before has ended.
* htsim (Broadcom/csg-htsim, sim/datacenter/connection_matrix.cpp): `Nodes`, `Connections`, perhaps `Triggers`; then
  `SRC->DST id I start PICOSECONDS size BYTES`, with `trigger T` in place of `start`, and `send_done_trigger T` or
  `recv_done_trigger T`; `trigger id T oneshot` or `trigger id T barrier count C`. Either trigger fires here when the
  last byte has arrived.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from scenario.errors import InputError
from scenario.text_file import read_text

FIELD = "workload.path"
_HINT = "docs/collectives.md shows the formats"
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:[eE]([+-]?\d+))?([BKMGT]?)", re.IGNORECASE)
_UNITS = {"": 0, "B": 0, "K": 1, "M": 2, "G": 3, "T": 4}
#: More than any message of a real system.
MAX_BYTES = 10**15


@dataclass(frozen=True)
class Cell:
    """Bytes from one rank to another."""

    src: int
    dst: int
    size_bytes: int


@dataclass(frozen=True)
class Matrix:
    """One matrix; `delay_s` is the pause before it."""

    name: str
    ranks: int
    cells: tuple[Cell, ...]
    delay_s: float = 0.0


@dataclass(frozen=True)
class Connection:
    """A line of a connection matrix. It starts at `start_s`, or with `trigger`; its end fires `fires`."""

    line: int
    name: str
    cell: Cell
    start_s: float | None
    trigger: int | None
    fires: tuple[int, ...]


@dataclass(frozen=True)
class Trigger:
    """Starts its connections when `needs` of the connections that fire it have ended."""

    number: int
    needs: int
    line: int


@dataclass(frozen=True)
class Connections:
    """A whole .cm file."""

    nodes: int
    connections: tuple[Connection, ...]
    triggers: dict[int, Trigger] = field(default_factory=dict)


def read_matrix_file(path: Path) -> tuple[Matrix, ...] | Connections:
    """The file, whichever of the formats it has. Raises InputError with file, line and column."""
    text = read_text(path, FIELD, "a traffic matrix", _HINT)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _series(path, text)
    if re.match(r"(\s*#[^\n]*\n|\s*\n)*\s*(Nodes|Connections)\b", text):
        return _connections(path, text)
    return (_matrix(path, text),)


def _error(path: Path, line: int, column: int | None, value: str, allowed: str) -> InputError:
    where = f"{FIELD}: {path}, line {line}" + (f", column {column}" if column is not None else "")
    return InputError(where, value, allowed, _HINT)


def size_bytes(text: str) -> int:
    """A size as kvbench writes it. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    value = float(match[1]) * 10.0 ** int(match[2] or 0) * 1024.0 ** _UNITS[match[3].upper()]
    if not value <= MAX_BYTES:
        raise ValueError(text)
    return round(value)


def _matrix(path: Path, text: str, delay_s: float = 0.0) -> Matrix:
    rows: list[tuple[int, list[str]]] = []
    sectioned, inside = "[rdma]" in text.lower(), False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.split("#")[0].strip()
        if stripped.startswith("["):
            inside = stripped.lower() == "[rdma]"
        elif stripped and (inside or not sectioned):
            separated = stripped.rstrip(",").split(",") if "," in stripped else stripped.split()
            rows.append((number, [cell.strip() for cell in separated]))
    if len(rows) < 2:
        raise _error(path, 1, None, text[:40], "must have a row and a column for each of two ranks or more")
    cells = []
    for src, (number, row) in enumerate(rows):
        if len(row) != len(rows):
            raise _error(path, number, len(row), " ".join(row)[:60], f"{len(row)} cells in a file of {len(rows)} rows")
        for dst, cell in enumerate(row):
            try:
                size = size_bytes(cell)
            except ValueError:
                raise _error(path, number, dst + 1, cell, "must be a size such as 0, 512K or 1.5G") from None
            if size and src == dst:
                raise _error(path, number, dst + 1, cell, "must be 0: a rank does not send to itself")
            if size:
                cells.append(Cell(src, dst, size))
    return Matrix(path.stem, len(rows), tuple(cells), delay_s)


def _series(path: Path, text: str) -> tuple[Matrix, ...]:
    try:
        patterns = yaml.safe_load(text)["traffic_patterns"]
        listed = [
            (str(p.get("matrix_file") or p["tp_file"]), float(p.get("sleep_before_launch_sec") or 0)) for p in patterns
        ]
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            FIELD, str(path), f"is not kvbench's metadata.yaml: traffic_patterns of matrix_file or tp_file ({reason})",
            _HINT,
        ) from None  # fmt: skip
    found = []
    for name, delay_s in listed:
        if not 0 <= delay_s < math.inf:
            raise InputError(f"{FIELD}: {path}: sleep_before_launch_sec", delay_s, "must be 0 or more", _HINT)
        file = path.parent / name
        found.append(_matrix(file, read_text(file, FIELD, "a traffic matrix", _HINT), delay_s))
    if not found:
        raise InputError(FIELD, str(path), "lists no traffic pattern", _HINT)
    return tuple(found)


def _connections(path: Path, text: str) -> Connections:
    heads: dict[str, int] = {}
    connections: list[Connection] = []
    triggers: dict[int, Trigger] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        reader = _Words(path, number, words)
        if words[0] in ("Nodes", "Connections", "Triggers", "Failures"):
            heads[words[0]] = reader.whole(1)
            if words[0] == "Failures" and heads["Failures"]:
                raise reader.error(1, "failures are set in the scenario: faults.events")
        elif "->" in words[0]:
            connections.append(_connection(reader))
        elif words[0] == "trigger":
            trigger = _trigger(reader)
            triggers[trigger.number] = trigger
        else:
            raise reader.error(0, "must be Nodes, Connections, Triggers, SRC->DST or trigger")
    for name, count in (("Connections", len(connections)), ("Triggers", len(triggers))):
        if heads.get(name, 0) != count:
            raise _error(path, 1, None, str(heads.get(name)), f"the head says so many {name}; the file has {count}")
    if "Nodes" not in heads or not connections:
        raise _error(path, 1, None, text[:40], "must have Nodes and at least one connection")
    for one in connections:
        if max(one.cell.src, one.cell.dst) >= heads["Nodes"]:
            raise _error(path, one.line, 1, one.name, f"nodes are 0 to {heads['Nodes'] - 1}")
        for wanted in (*one.fires, *((one.trigger,) if one.trigger is not None else ())):
            if wanted not in triggers:
                raise _error(path, one.line, None, f"trigger {wanted}", "is not described: trigger id ... oneshot")
    for trigger in triggers.values():
        firing = sum(one.fires.count(trigger.number) for one in connections)
        if trigger.needs > firing:
            raise _error(
                path, trigger.line, None, f"trigger {trigger.number}",
                f"never fires: it needs {trigger.needs} and {firing} connections fire it",
            )  # fmt: skip
    _require_starts(path, connections, triggers)
    return Connections(heads["Nodes"], tuple(connections), triggers)


def _require_starts(path: Path, connections: Sequence[Connection], triggers: dict[int, Trigger]) -> None:
    """Raise InputError where a connection never starts since its trigger waits, over others, for that connection."""
    fired = dict.fromkeys(triggers, 0)
    waiting: dict[int, list[Connection]] = {number: [] for number in triggers}
    for one in connections:
        if one.trigger is not None:
            waiting[one.trigger].append(one)
    ended = [one for one in connections if one.trigger is None]
    while ended:
        for number in ended.pop().fires:
            fired[number] += 1
            if fired[number] >= triggers[number].needs:
                ended += waiting.pop(number, [])
    stuck = [one for some in waiting.values() for one in some]
    if stuck:
        first = min(stuck, key=lambda one: one.line)
        raise _error(
            path, first.line, None, f"trigger {first.trigger}",
            "never fires: what fires it waits for this connection, over one trigger or several; one must have a start",
        )  # fmt: skip


@dataclass(frozen=True)
class _Words:
    """A line of a .cm file."""

    path: Path
    line: int
    words: Sequence[str]

    def error(self, at: int, allowed: str) -> InputError:
        """`at`: which word, from 0."""
        value = self.words[at] if at < len(self.words) else "(nothing)"
        return _error(self.path, self.line, at + 1, value, allowed)

    def whole(self, at: int, low: int = 0) -> int:
        """A whole number."""
        if at >= len(self.words) or not self.words[at].isdecimal() or not low <= int(self.words[at]) <= MAX_BYTES:
            raise self.error(at, f"must be a whole number of at least {low}")
        return int(self.words[at])

    def number(self, at: int) -> float:
        """A number that is not negative."""
        try:
            value = float(self.words[at])
        except (IndexError, ValueError):
            value = math.nan
        if not 0 <= value < math.inf:
            raise self.error(at, "must be a number of at least 0")
        return value


def _connection(reader: _Words) -> Connection:
    ends = reader.words[0].split("->")
    if len(ends) != 2 or not all(end.isdecimal() for end in ends) or ends[0] == ends[1]:
        raise reader.error(0, "must be SRC->DST, two different node numbers")
    start_s: float | None = None
    trigger: int | None = None
    size = 0
    fires: list[int] = []
    at = 1
    while at < len(reader.words):
        word = reader.words[at]
        if word == "start":
            start_s = reader.number(at + 1) / 1e12
        elif word == "size":
            size = reader.whole(at + 1, 1)
        elif word == "trigger":
            trigger = reader.whole(at + 1, 1)
        elif word in ("send_done_trigger", "recv_done_trigger"):
            fires.append(reader.whole(at + 1, 1))
        elif word in ("id", "prio"):
            reader.whole(at + 1)
        else:
            raise reader.error(at, "must be id, start, size, trigger, send_done_trigger, recv_done_trigger or prio")
        at += 2
    if not size:
        raise reader.error(len(reader.words), "the connection has no size")
    if (start_s is None) == (trigger is None):
        raise reader.error(len(reader.words), "the connection needs either start or trigger")
    return Connection(
        reader.line, reader.words[0], Cell(int(ends[0]), int(ends[1]), size), start_s, trigger, tuple(fires)
    )


def _trigger(reader: _Words) -> Trigger:
    number, needs = 0, 0
    at = 1
    while at < len(reader.words):
        word = reader.words[at]
        if word == "id":
            number = reader.whole(at + 1, 1)
            at += 1
        elif word == "count":
            needs = reader.whole(at + 1, 1)
            at += 1
        elif word == "oneshot":
            needs = 1
        elif word != "barrier":
            raise reader.error(at, "must be id N, oneshot, or barrier count N (multishot is not replayed)")
        at += 1
    if not number or not needs:
        raise reader.error(len(reader.words), "needs id N, and oneshot or barrier count N")
    return Trigger(number, needs, reader.line)
