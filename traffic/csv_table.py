"""A CSV file of measurements, read row by row. Whatever is wrong is one message with file, line, column and value."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scenario.errors import InputError
from scenario.text_file import read_text


@dataclass(frozen=True)
class CsvRow:
    """The cells of one line by normal name of their column (lower case, single spaces)."""

    table: CsvTable
    line: int
    cells: dict[str, str]

    def has(self, column: str) -> bool:
        """True where the cell is not blank."""
        return bool(self.cells.get(column, "").strip())

    def bad(self, column: str, allowed: str) -> InputError:
        """The error for this cell."""
        where = f"{self.table.field}: {self.table.path}, line {self.line}, column {self.table.shown(column)}"
        return InputError(where, self.cells.get(column, ""), allowed, self.table.hint)

    def number(self, column: str, *, above: float | None = None, at_least: float | None = None) -> float:
        """A finite number within the bound. Raises InputError."""
        bound = (
            f" above {above:g}" if above is not None else f" of at least {at_least:g}" if at_least is not None else ""
        )
        try:
            value = float(self.cells.get(column, ""))
        except ValueError:
            raise self.bad(column, f"must be a number{bound}") from None
        inside = (above is None or value > above) and (at_least is None or value >= at_least)
        if not math.isfinite(value) or not inside:
            raise self.bad(column, f"must be a number{bound}")
        return value


@dataclass(frozen=True)
class CsvTable:
    """Header and rows; `field` names the option or setting in errors, `hint` the next step."""

    path: Path
    field: str
    hint: str
    header: dict[str, str]
    text: str

    def shown(self, column: str) -> str:
        """The column as the file writes it."""
        return self.header.get(column, column)

    def need(self, *columns: str) -> None:
        """Raise InputError where one of these columns is not there."""
        missing = [name for name in columns if name not in self.header]
        if missing:
            raise InputError(
                f"{self.field}: {self.path}, line 1",
                ",".join(self.header.values()),
                f"has no column {', '.join(missing)}",
                self.hint,
            )

    def rows(self) -> Iterator[CsvRow]:
        """All lines but the header; blank ones are left out. Raises InputError."""
        reader = csv.reader(io.StringIO(self.text), strict=True)
        try:
            next(reader)
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) != len(self.header):
                    raise InputError(
                        f"{self.field}: {self.path}, line {reader.line_num}",
                        ",".join(cells),
                        f"{len(cells)} cells where the header has {len(self.header)}",
                        self.hint,
                    )
                yield CsvRow(self, reader.line_num, dict(zip(self.header, cells, strict=True)))
        except csv.Error as error:
            raise InputError(
                f"{self.field}: {self.path}, line {reader.line_num}", "...", f"is not CSV: {error}"
            ) from None


def read_table(path: Path, field: str, hint: str) -> CsvTable:
    """Read a CSV file with a header. Raises InputError for what is none, and for a column named twice."""
    text = read_text(path, field, "a CSV file", hint)
    try:
        names = next(csv.reader(io.StringIO(text), strict=True), [])
    except csv.Error as error:
        raise InputError(f"{field}: {path}, line 1", text[:80], f"is not CSV: {error}", hint) from None
    if not any(name.strip() for name in names):
        raise InputError(field, str(path), "has no header in its first line", hint)
    header: dict[str, str] = {}
    for name in names:
        normal = re.sub(r"\s+", " ", name.strip().lower())
        if normal in header:
            raise InputError(f"{field}: {path}, line 1", name, "is the name of two columns", hint)
        header[normal] = name.strip()
    return CsvTable(path, field, hint, header, text)
