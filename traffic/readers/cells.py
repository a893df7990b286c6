"""One cell: from the text of a CSV, or a value of JSON, to a number, a time, a text or block ids."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import date
from functools import lru_cache
from typing import Any

from traffic.readers.rows import BadCell, Column

#: Times are 64-bit nanoseconds.
MAX_SECONDS = 9e9
_UNIT_NS = {"seconds": 1e9, "milliseconds": 1e6}

_COUNT = re.compile(r"-?\d{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s?(Z|UTC|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
_EPOCH = date(1970, 1, 1)


def parse_stamp_ns(text: str) -> int | None:
    """Nanoseconds since the Unix epoch of a time stamp such as 2023-11-16 18:17:03.9799600, with or without a zone
    (without: UTC); None where it is no stamp."""
    match = _STAMP.fullmatch(text)
    if match is None:
        return None
    day, hour, minute, second, fraction, zone = match.groups()
    midnight_s, offset_s = _midnight_s(day), _zone_offset_s(zone)
    # A leap second (60) is left out of Unix time; no trace has one.
    if midnight_s is None or offset_s is None or int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        return None
    seconds = midnight_s + int(hour) * 3600 + int(minute) * 60 + int(second) - offset_s
    return seconds * 10**9 + int((fraction or "").ljust(9, "0"))


@lru_cache(maxsize=64)
def _midnight_s(day: str) -> int | None:
    try:
        return (date.fromisoformat(day) - _EPOCH).days * 86_400
    except ValueError:
        return None


def _zone_offset_s(text: str | None) -> int | None:
    if text is None or text in ("Z", "UTC"):
        return 0
    digits = text[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        return None
    return (hours * 3600 + minutes * 60) * (-1 if text[0] == "-" else 1)


def is_blank(value: Any) -> bool:
    """Whether a cell says nothing: an absent or null value of JSON, an empty cell of a CSV."""
    return value is None or (isinstance(value, str) and not value.strip())


def parse_cell(column: Column, value: Any, *, from_text: bool) -> Any:
    """The value of a cell; `from_text`: of a CSV, where numbers are text. Raises BadCell."""
    if isinstance(value, str):
        value = value.strip()
    if column.kind == "text":
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise BadCell(column.name, f"{column.name} {value!r} is not a name or a number")
        return _text(column, str(value))
    if column.kind == "ids":
        return _ids(column, value)
    if column.kind == "stamp":
        stamp = parse_stamp_ns(value) if isinstance(value, str) else None
        if stamp is None or not 0 <= stamp <= MAX_SECONDS * 1e9:
            raise BadCell(column.name, f"{column.name} {value!r} is not a time stamp")
        return stamp
    if column.kind in ("count", "nanoseconds"):
        return _count(column, value, from_text)
    number = _number(column, value, from_text)
    if column.kind == "number":
        return number
    if not 0 <= number * _UNIT_NS[column.kind] <= MAX_SECONDS * 1e9:
        raise BadCell(column.name, f"{column.name} {value} is outside 0 to {MAX_SECONDS:g} s")
    return round(number * _UNIT_NS[column.kind])


def _count(column: Column, value: Any, from_text: bool) -> int:
    whole = _COUNT.fullmatch(value) if isinstance(value, str) and from_text else None
    if whole or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadCell(column.name, f"{column.name} {value!r} is not a whole number")
    low, high = (0, int(MAX_SECONDS * 1e9)) if column.kind == "nanoseconds" else (column.low, column.high)
    if not low <= value <= high:
        raise BadCell(column.name, f"{column.name} {value} is outside {low} to {high:,}")
    return value


def _text(column: Column, value: str) -> str:
    try:
        value.encode("utf-8")  # JSON can name half a surrogate pair, which no table can hold
    except UnicodeEncodeError:
        raise BadCell(column.name, f"{column.name} {value!r} is not text (UTF-8)") from None
    return value


def _number(column: Column, value: Any, from_text: bool) -> float:
    number = math.nan
    if (isinstance(value, int | float) and not isinstance(value, bool)) or (
        from_text and isinstance(value, str) and _NUMBER.fullmatch(value)
    ):
        with suppress(OverflowError):  # whole numbers of JSON have no bound
            number = float(value)
    if not math.isfinite(number):
        raise BadCell(column.name, f"{column.name} {value!r} is not a number")
    return number


def _ids(column: Column, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise BadCell(column.name, f"{column.name} {value!r} is not a list")
    for item in value:
        if type(item) is not int or not 0 <= item < 2**63:
            raise BadCell(column.name, f"{column.name} holds {item!r}, which is not a block id (0 to 2^63 - 1)")
    return tuple(value)
