"""A file as blocks of whole lines, in constant memory, and the count of what was read and what was skipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from scenario.errors import InputError

#: Read at once. Larger blocks are no faster.
BLOCK_BYTES = 1 << 18
#: A longer line is no row of any format; it bounds the memory that a wrong file can take.
MAX_LINE_BYTES = 4 << 20
#: White space and the byte order mark: a file may begin with lines of nothing else.
BLANK = b"\xef\xbb\xbf \t\r\n"
#: What an error shows of a row.
_SHOWN = 80


@dataclass
class Reading:
    """The state of one pass over a trace: what was read, and what is done with a row that does not parse."""

    path: Path
    example: str
    skip_bad_rows: bool = False
    bad_rows: int = 0
    first_bad: str = ""
    notes: list[str] = field(default_factory=list)

    def bad(self, line: int, what: str, value: object = "", column: str = "") -> None:
        """Count the row, or raise InputError that names file, line, column and value."""
        error = self.error(line, what, value, column)
        if not self.skip_bad_rows:
            raise error
        self.bad_rows += 1
        self.first_bad = self.first_bad or str(error).splitlines()[0]

    def error(self, line: int, what: str, value: object = "", column: str = "") -> InputError:
        """The error about a line of this file."""
        where = f"workload.path: {self.path}, line {line}" + (f", column {column}" if column else "")
        shown = value.decode("utf-8", "replace").strip()[:_SHOWN] if isinstance(value, bytes) else value
        return InputError(where, shown, what, f"Allowed: {self.example}.")


def open_file(path: Path) -> BinaryIO:
    """The regular file at `path`; raises `InputError`."""
    if path.exists() and not path.is_file():
        raise InputError("workload.path", str(path), "cannot be read: it is not a regular file")
    try:
        return open(path, "rb")
    except OSError as error:
        raise InputError(
            "workload.path",
            str(path),
            f"the file cannot be read ({error.strerror or error})",
            "Give the path of a trace; docs/workload.md lists the formats.",
        ) from error


def blocks(handle: BinaryIO, reading: Reading, first_line: int) -> Iterator[tuple[int, bytes]]:
    """The rest of a file as (number of the first line, whole lines). Raises InputError for an endless line."""
    rest, line = b"", first_line
    while True:
        read = handle.read(BLOCK_BYTES)
        if not read:
            break
        end = read.rfind(b"\n") + 1
        if not end:
            rest += read
            if len(rest) > MAX_LINE_BYTES:
                raise reading.error(line, f"the line is longer than {MAX_LINE_BYTES} bytes", rest[:_SHOWN])
            continue
        block, rest = rest + read[:end], read[end:]
        yield line, block
        line += block.count(b"\n")
    if rest:
        yield line, rest


def text_of(raw: bytes) -> str | None:
    """The line as text without its end; None where it is not UTF-8."""
    try:
        return raw.decode("utf-8").strip()
    except UnicodeDecodeError:
        return None
