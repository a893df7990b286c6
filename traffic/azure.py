"""Reader of the Azure LLM inference traces, and their open-loop replay.

Data: https://github.com/Azure/AzurePublicDataset (AzureLLMInferenceDataset2023.md and 2024.md, CC-BY-4.0;
Patel et al., "Splitwise", ISCA 2024). Columns: TIMESTAMP, ContextTokens (prompt), GeneratedTokens (output).
The files have CRLF line ends, seven fractional digits (100 ns), no line end after the last row; those of 2024
carry a time zone and drop the fraction where it is zero.

The rows have no prefix data, so `cached_tokens` is 0 in every request: prefill computes the whole prompt.
They have no client either: each row is a session of one turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path

from scenario.errors import InputError
from scenario.models import AzureWorkload, Scenario
from traffic.requests import Phase, Request, cooldown_count

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
#: More than any context window: such a number is a damaged row.
MAX_TOKENS = 10_000_000
#: A longer line is not a row of this format; it bounds the memory that a wrong file can take.
MAX_LINE_BYTES = 4096

_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s?(Z|UTC|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
_COUNT = re.compile(r"-?\d{1,18}", re.ASCII)
_EPOCH = date(1970, 1, 1)
_FORMAT = f"rows of the form {','.join(HEADER)}, for example 2023-11-16 18:17:03.9799600,4808,10"


@dataclass(frozen=True)
class AzureRow:
    """One row; `stamp_ns` counts from the Unix epoch (stamps without a zone are read as UTC)."""

    line: int
    stamp_ns: int
    context_tokens: int
    generated_tokens: int


def parse_stamp_ns(text: str) -> int | None:
    """Nanoseconds since the Unix epoch of a time stamp of the 2023 or the 2024 form; None where it is
    neither."""
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


def read_rows(path: Path) -> Iterator[AzureRow]:
    """The rows of a trace, one at a time, in constant memory.

    Raises `InputError` that names the file and the line for: a missing, unreadable or empty file, a wrong
    header, a malformed row, token counts outside 1 to 10 million, and a time stamp earlier than the row
    before. Rows out of order are refused and not sorted, since sorting would change what `skip` means.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError("workload.path", str(path), "cannot be read: it is not a regular file")
        with open(path, "rb") as handle:
            yield from _rows(path, iter(lambda: handle.readline(MAX_LINE_BYTES + 1), b""))
    except OSError as error:
        raise InputError(
            "workload.path",
            str(path),
            f"the file cannot be read ({error.strerror or error})",
            "Give the path of an Azure trace, for example AzureLLMInferenceTrace_code.csv from"
            " https://github.com/Azure/AzurePublicDataset.",
        ) from error


def _rows(path: Path, lines: Iterator[bytes]) -> Iterator[AzureRow]:
    header = next(lines, b"")
    names = tuple(name.strip() for name in _text(path, 1, header).removeprefix("\ufeff").split(","))
    if not header.strip():
        raise _bad(path, 1, header, "the file is empty")
    if names != HEADER:
        raise _bad(path, 1, header, f"the header must be {','.join(HEADER)}")
    previous: AzureRow | None = None
    blank_at = 0
    for number, raw in enumerate(lines, start=2):
        if not raw.strip():
            blank_at = blank_at or number
            continue
        if blank_at:
            raise _bad(path, blank_at, b"", "an empty line between rows")
        row = _row(path, number, raw)
        if previous is not None and row.stamp_ns < previous.stamp_ns:
            raise _bad(path, number, raw, "the time stamp is earlier than that of the row before")
        previous = row
        yield row


def _row(path: Path, number: int, raw: bytes) -> AzureRow:
    fields = [field.strip() for field in _text(path, number, raw).split(",")]
    if len(fields) != len(HEADER):
        raise _bad(path, number, raw, f"{len(fields)} fields where {len(HEADER)} are expected")
    stamp_ns = parse_stamp_ns(fields[0])
    if stamp_ns is None:
        raise _bad(path, number, raw, f"{fields[0]!r} is not a time stamp")
    counts = []
    for name, field in zip(HEADER[1:], fields[1:], strict=True):
        if not _COUNT.fullmatch(field):
            raise _bad(path, number, raw, f"{name} {field!r} is not a whole number")
        if not 1 <= int(field) <= MAX_TOKENS:
            raise _bad(path, number, raw, f"{name} {field} is outside 1 to {MAX_TOKENS:,}")
        counts.append(int(field))
    return AzureRow(number, stamp_ns, counts[0], counts[1])


def _text(path: Path, number: int, raw: bytes) -> str:
    if len(raw) > MAX_LINE_BYTES:
        raise _bad(path, number, raw[:60], f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        return raw.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise _bad(path, number, raw, "the line is not text (UTF-8)") from None


def _bad(path: Path, number: int, raw: bytes, what: str) -> InputError:
    shown = raw.decode("utf-8", "replace").strip()
    return InputError(f"workload.path: {path}, line {number}", shown, what, f"Allowed: {_FORMAT}.")


class AzureSource:
    """Open-loop replay of a window of a trace (a `traffic.requests.Source`).

    Skips `skip` rows, then takes `warmup_requests`, `requests` (measured) and, as far as the file goes, the
    next 10 % as cooldown. Arrival = (stamp - stamp of the first row taken) / speedup, in model seconds.
    Raises `InputError` as `read_rows` does, and where the file has fewer rows than skip + warmup + requests.
    """

    def __init__(self, scenario: Scenario) -> None:
        if not isinstance(scenario.workload, AzureWorkload):
            raise InputError("workload.kind", scenario.workload.kind, "this source reads azure")
        workload = scenario.workload
        needed = workload.warmup_requests + workload.requests
        limit = needed + cooldown_count(workload.requests)
        arrivals: list[tuple[float, Request]] = []
        first_ns = rows = 0
        for row in read_rows(workload.path):
            rows += 1
            if rows <= workload.skip:
                continue
            index = len(arrivals)
            if index == 0:
                first_ns = row.stamp_ns
            at_s = (row.stamp_ns - first_ns) / 1e9 / workload.speedup
            phase: Phase = (
                "warmup" if index < workload.warmup_requests else "measured" if index < needed else "cooldown"
            )
            request = Request(index, index, 0, "azure", row.context_tokens, 0, row.generated_tokens, phase)
            arrivals.append((at_s, request))
            if len(arrivals) == limit:
                break
        if len(arrivals) < needed:
            raise InputError(
                "workload.requests",
                workload.requests,
                f"{workload.path} has {rows:,} rows; skip {workload.skip:,} + warmup_requests"
                f" {workload.warmup_requests:,} + requests {workload.requests:,} need"
                f" {workload.skip + needed:,}",
                "Lower workload.skip, workload.warmup_requests or workload.requests.",
            )
        self._arrivals = tuple(arrivals)

    @property
    def requests(self) -> Sequence[Request]:
        """The fixed set, in order of arrival."""
        return tuple(request for _, request in self._arrivals)

    @property
    def measured_ids(self) -> frozenset[int]:
        """The request_ids that count."""
        return frozenset(r.request_id for _, r in self._arrivals if r.phase == "measured")

    @property
    def count(self) -> int:
        """Size of the fixed set."""
        return len(self._arrivals)

    def initial(self) -> list[tuple[float, Request]]:
        """All arrivals (model s, request)."""
        return list(self._arrivals)

    def following(self, request: Request, finished_s: float) -> tuple[float, Request] | None:
        """Always None: an open loop does not wait for answers."""
        return None
