"""Texts of plans and of observations -> cables and sightings. Pure: the caller reads the files.

Both come as CSV (comma, semicolon, tab or bar; any line ending; UTF-8 or UTF-16 with a byte-order mark) or JSON.
Errors are FabricError whose parameter is the file's name, with the line where there is one.
"""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from topologies.cabling_model import Cable, Plug, Sighting
from topologies.fabric import FabricError

#: Column -> names that discovery tools give it, without case, spaces, dashes and underscores.
OBSERVED_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "local_device": ("localdevice", "localsystem", "localsystemname", "localhost", "device", "hostname"),
    "local_port": ("localport", "localinterface", "localintf", "localportid", "port", "interface"),
    "remote_device": (
        "remotedevice", "remotesystem", "remotesystemname", "remotehost", "neighbor", "neighbour",
        "neighbordevice", "neighbourdevice", "neighborsystemname",
    ),
    "remote_port": (
        "remoteport", "remoteinterface", "remoteintf", "remoteportid", "neighborport", "neighbourport",
        "neighborinterface", "neighborportid",
    ),
}  # fmt: skip
PLAN_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "cableid", "cable"),
    "a_device": ("adevice",),
    "a_port": ("aport",),
    "b_device": ("bdevice",),
    "b_port": ("bport",),
}
_DELIMITERS = ",;\t|"
_NUMBERED = re.compile(r"(?:eth|port ?)?0*([0-9]{1,9})(?:\.0)?", re.IGNORECASE)
_LIMIT = 200  # characters of a name: what is longer is no device or port


class _Row(NamedTuple):
    where: str
    values: Mapping[str, object]


def plan_from_text(data: bytes, name: str) -> list[Cable]:
    """Cables of a plan that `zcube cabling plan` wrote (other columns are ignored). Raises FabricError."""
    rows = list(_rows(data, name, PLAN_COLUMNS, ("cables",), (OBSERVED_COLUMNS, "an observation", "PLAN")))
    if not rows:
        raise FabricError(name, "0 cables", "is a plan without cables")
    found: list[Cable] = []
    first: dict[Plug, str] = {}
    ids: dict[str, str] = {}
    for where, values in rows:
        identity = _text(where, "id", values["id"])
        a, b = (_plug(where, f"{side}_device", f"{side}_port", values) for side in "ab")
        if not identity or a is None or b is None:
            raise FabricError(where, "an empty field", "every cable needs an id and both ends")
        if identity in ids:
            raise FabricError(where, identity, f"this id is at {ids[identity]} already")
        if a == b:
            raise FabricError(where, identity, f"joins {a} to itself")
        ids[identity] = where
        for plug in (a, b):
            if plug in first:
                raise FabricError(where, str(plug), f"has a cable at {first[plug]} already: a port takes one")
            first[plug] = where
        found.append(Cable(identity, a, b))
    return found


def observed_from_text(data: bytes, name: str) -> list[Sighting]:
    """Sightings of an LLDP-style table; an empty remote end says that nobody is there. Raises FabricError."""
    keys = ("observed", "neighbors", "neighbours", "links")
    found = []
    for where, values in _rows(data, name, OBSERVED_COLUMNS, keys, (PLAN_COLUMNS, "a cabling plan", "OBSERVED")):
        local = _plug(where, "local_device", "local_port", values)
        if local is None:
            raise FabricError(where, "an empty field", "every row needs a local device and a local port")
        found.append(Sighting(local, _plug(where, "remote_device", "remote_port", values)))
    if not any(sighting.remote for sighting in found):
        raise FabricError(name, "0 neighbours", "says nothing about any cable: was LLDP on when it was collected?")
    return found


def port_text(device: str, text: str) -> str:
    """Port as plans write it: `odd1-eth3`, `eth3` and `port 3` are 3; other names stay as they are."""
    if text.isascii() and text.isdecimal() and text[0] != "0":
        return text
    short = text.removeprefix(f"{device}-")
    numbered = _NUMBERED.fullmatch(short)
    return numbered[1] if numbered else text


def _plug(where: str, device_column: str, port_column: str, values: Mapping[str, object]) -> Plug | None:
    device = _text(where, device_column, values[device_column])
    port = _text(where, port_column, values[port_column])
    if not device and not port:
        return None
    if not device or not port:
        empty = port_column if device else device_column
        raise FabricError(where, f"{empty} is empty", "an end needs a device and a port")
    return Plug(device, port_text(device, port))


def _text(where: str, column: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FabricError(where, value, f"{column} must be a name or a number")
    text = str(value).strip()
    if text.isascii() and text.isprintable() and len(text) <= _LIMIT:
        return text
    text = unicodedata.normalize("NFC", text).strip()
    if len(text) > _LIMIT:
        raise FabricError(where, text[:40] + "...", f"{column} has more than {_LIMIT} characters")
    if any(unicodedata.category(character) == "Cc" for character in text):
        raise FabricError(where, repr(text), f"{column} has control characters")
    return text


Other = tuple[Mapping[str, tuple[str, ...]], str, str]


def _rows(
    data: bytes, name: str, columns: Mapping[str, tuple[str, ...]], keys: Sequence[str], other: Other
) -> Iterator[_Row]:
    text = _decoded(data, name)
    if not text.strip():
        raise FabricError(name, "0 rows", "is empty")
    if text.lstrip()[0] in "[{":
        yield from _json_rows(text, name, columns, keys, other)
    else:
        yield from _csv_rows(text, name, columns, other)


def _decoded(data: bytes, name: str) -> str:
    utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise FabricError(name, f"byte {error.start}", "is not UTF-8 text: save it as CSV (UTF-8) or JSON") from None
    if "\0" in text:
        raise FabricError(name, "NUL bytes", "is not a text file")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _csv_rows(text: str, name: str, columns: Mapping[str, tuple[str, ...]], other: Other) -> Iterator[_Row]:
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.strip() and not _skipped(line)), None)
    if start is None:
        raise FabricError(name, "0 rows", "is empty")
    delimiter = max(_DELIMITERS, key=lambda sign: len(_chosen(_header(lines[start], sign), columns)))
    header = _header(lines[start], delimiter)
    chosen = _chosen(header, columns)
    if len(chosen) < len(columns):
        raise _lacking(name, header, columns, chosen, other)
    width = max(chosen.values()) + 1
    rest = io.StringIO("\n".join(lines[start + 1 :]))
    reader = csv.reader(rest, delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells) or cells[0].startswith("#"):
                continue
            where = f"{name} line {start + 1 + reader.line_num}"
            if len(cells) < (len(header) if columns is PLAN_COLUMNS else width):  # a plan that is cut off
                shown = delimiter.join(cells)[:60]
                raise FabricError(where, shown, f"has {len(cells)} columns, the header has {len(header)}")
            yield _Row(where, {column: cells[index] for column, index in chosen.items()})
    except csv.Error as error:
        raise FabricError(f"{name} line {start + 1 + reader.line_num}", str(error), "is not CSV") from None


def _skipped(line: str) -> bool:
    return line.startswith("#") or line.lower().startswith("sep=")


def _header(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])


def _plain(title: object) -> str:
    return re.sub(r"[\s_\-]+", "", str(title)).casefold()


def _chosen(header: Sequence[object], columns: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Column -> index in the header; of several names that would do, the first of our list."""
    index: dict[str, int] = {}
    for i, title in enumerate(header):
        index.setdefault(_plain(title), i)
    found = {column: next((index[n] for n in names if n in index), None) for column, names in columns.items()}
    return {column: i for column, i in found.items() if i is not None}


def _lacking(
    name: str,
    header: Sequence[object],
    columns: Mapping[str, tuple[str, ...]],
    chosen: Mapping[str, int],
    other: Other,
) -> FabricError:
    theirs, what, role = other
    if len(_chosen(header, theirs)) == len(theirs):
        return FabricError(name, what, f"cannot be {role}; the order is: zcube cabling verify PLAN OBSERVED")
    lacking = [column for column in columns if column not in chosen]
    return FabricError(
        name, ", ".join(map(str, header))[:60], f"lacks {', '.join(lacking)}; needed are {', '.join(columns)}"
    )


def _json_rows(
    text: str, name: str, columns: Mapping[str, tuple[str, ...]], keys: Sequence[str], other: Other
) -> Iterator[_Row]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FabricError(name, str(error)[:80], "is not JSON") from None
    if isinstance(data, dict):
        found = next((data[key] for key in (*keys, "cables") if isinstance(data.get(key), list)), None)
        if found is None:
            raise FabricError(name, ", ".join(map(str, data))[:60], f"must have a list under {' or '.join(keys)}")
        data = found
    for number, item in enumerate(data, 1):
        where = f"{name} entry {number}"
        if not isinstance(item, dict):
            raise FabricError(where, str(item)[:40], f"must be an object with {', '.join(columns)}")
        titles = list(item)
        chosen = _chosen(titles, columns)
        if len(chosen) < len(columns):
            bare = {**dict.fromkeys(columns), **{c: item[titles[i]] for c, i in chosen.items()}}
            if columns is OBSERVED_COLUMNS and {"local_device", "local_port"} == set(chosen):
                yield _Row(where, bare)
                continue
            raise _lacking(where, titles, columns, chosen, other)
        yield _Row(where, {column: item[titles[index]] for column, index in chosen.items()})
