"""What every reader yields, and how a format says which column is which field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

#: More than any context window: such a number is a damaged row.
MAX_TOKENS = 10_000_000
#: More than any cache of one request (the largest context of a GQA model is some 100 GB).
MAX_BYTES = 10**14

CellKind = Literal["count", "seconds", "milliseconds", "nanoseconds", "stamp", "number", "text", "ids"]
Encoding = Literal["csv", "jsonl"]
TIME_KINDS = ("seconds", "milliseconds", "nanoseconds", "stamp")


class TraceRow(NamedTuple):
    """One row: a request, or a handoff of a transfer log.

    `at_ns` counts from the file's own origin. None and "" mean that the format does not say. `blocks` are ids of
    prefix blocks of `block_tokens` tokens, unique over the whole file or folder. `parent`: `session` of the row
    that this one goes on from.
    """

    line: int
    at_ns: int
    input_tokens: int = 0
    output_tokens: int = 1
    cached_tokens: int | None = None
    session: str = ""
    parent: str = ""
    turn: int | None = None
    tenant: str = ""
    prefill_gpu: str = ""
    decode_gpu: str = ""
    kv_bytes: int = 0
    queue_ms: float | None = None
    think_s: float | None = None
    block_tokens: int = 0
    blocks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Column:
    """A column of a file, the field of `TraceRow` it fills, and what fits in it (low to high, for counts).

    The field `miss_tokens` is no field of a row: `cached_tokens` is what is left of the prompt.
    """

    name: str
    field: str
    kind: CellKind = "count"
    required: bool = True
    low: int = 1
    high: int = MAX_TOKENS


@dataclass(frozen=True)
class Format:
    """A format of rows. `reorder`: a log written as requests end, so rows are put in order of time first.

    `check` looks at a whole row and says what is wrong with it ("" where nothing is), as (column, what).
    """

    name: str
    encodings: tuple[Encoding, ...]
    columns: tuple[Column, ...]
    example: str
    block_tokens: int = 0
    reorder: bool = False
    check: Callable[[TraceRow], tuple[str, str]] | None = None

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that a file of this format must have."""
        return tuple(column.name for column in self.columns if column.required)

    def row(self, line: int, values: dict[str, Any]) -> TraceRow:
        """The row of parsed values (by field). Raises BadCell where they do not fit together."""
        miss = values.pop("miss_tokens", None)
        if miss is not None:
            if miss > values["input_tokens"]:
                raise BadCell("miss_tokens", f"miss_tokens {miss} is more than input_tokens {values['input_tokens']}")
            values["cached_tokens"] = values["input_tokens"] - miss
        cached = values.get("cached_tokens")
        if cached is not None and cached > values["input_tokens"]:
            raise BadCell("cached_tokens", f"cached_tokens {cached} is more than input_tokens {values['input_tokens']}")
        row = TraceRow(line, block_tokens=self.block_tokens, **values)
        if self.check is not None:
            column, what = self.check(row)
            if what:
                raise BadCell(column, what)
        return row


class BadCell(Exception):
    """A value that does not fit; `column` names it ("" where the row as a whole is wrong)."""

    def __init__(self, column: str, what: str) -> None:
        self.column, self.what = column, what
        super().__init__(what)
