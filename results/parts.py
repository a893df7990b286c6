"""A table that grows for as long as a run serves, and of which a kill loses the last seconds alone.

Parquet's index is written last, so a single file that is cut off has lost all its rows. Here every block becomes a
finished file of its own, `NAME.parts/part-0001.parquet` and so on, synced and renamed as all files of a run folder
are. When the run ends well, `join` makes `NAME.parquet` of them and the parts go. Where they are still there, the run
ended before that, and `parts_left` says how much of the table there is.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from results.writer import TableWriter, create_folder

#: Whoever writes a table in parts closes one this often, in wall seconds: about as much is lost by a kill.
PART_S = 2.0
_PATTERN = "part-*.parquet"


def parts_folder(path: Path) -> Path:
    """Where the parts of the table `path` are until it is whole: ports.parquet -> ports.parts."""
    return path.with_suffix(".parts")


class PartsWriter:
    """Writes each block of rows as a finished part of the table `path`. Not safe for use by several threads at once."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.schema, self.rows_written = schema, 0
        self._folder = parts_folder(path)
        self._number = 0
        if self._folder.is_dir() and not self._folder.is_symlink():
            shutil.rmtree(self._folder)  # what a crashed run left under this name
        create_folder(self._folder)

    def write(self, columns: Mapping[str, Sequence[object] | np.ndarray] | pd.DataFrame | pa.Table) -> None:
        """Adds a block of rows: on the disk, and readable, when this returns."""
        self._number += 1
        with TableWriter(self._folder / f"part-{self._number:04d}.parquet", self.schema) as part:
            part.write(columns)
        self.rows_written += part.rows_written


def join(path: Path, schema: pa.Schema) -> None:
    """Makes the whole table of its parts, a part at a time, and removes them once it has its name."""
    folder = parts_folder(path)
    with TableWriter(path, schema) as table:
        for part in sorted(folder.glob(_PATTERN), key=_number):
            table.write(pq.read_table(part))
    shutil.rmtree(folder)


@dataclass(frozen=True)
class PartsLeft:
    """What there is of a table that was never joined.

    `until_wall_s`: the latest `t_wall_s` of a row (NaN without one); `lost`: numbers of parts before the last that are
    missing or cannot be read.
    """

    name: str
    parts: tuple[Path, ...]
    rows: int
    until_wall_s: float
    lost: tuple[int, ...]

    def __str__(self) -> str:
        if not self.rows:
            there = "none of its rows was written"
        else:
            there = (
                f"there are {self.rows:,} rows, up to {self.until_wall_s:.1f} s of wall time after serving began;"
                f" what came after them is missing, some {PART_S:g} s if nothing hung"
            )
        middle = f"; {len(self.lost)} of the parts before that are missing or damaged too" if self.lost else ""
        return f"{self.name} is incomplete: {there}{middle}"


def parts_left(path: Path) -> PartsLeft | None:
    """What is left of the table `path`: None where it is whole, or was not written in parts."""
    folder = parts_folder(path)
    if path.is_file() or not folder.is_dir():
        return None
    good: dict[int, Path] = {}
    seen, rows, until_s = 0, 0, float("nan")
    for part in sorted(folder.glob(_PATTERN), key=_number):
        seen = max(seen, _number(part))
        try:
            with pq.ParquetFile(part) as file:
                rows += file.metadata.num_rows
                until_s = np.fmax(until_s, _latest(file))
        except (pa.ArrowException, OSError):
            continue
        good[_number(part)] = part
    lost = tuple(number for number in range(1, seen + 1) if number not in good)
    return PartsLeft(path.name, tuple(good.values()), rows, float(until_s), lost)


def _latest(file: pq.ParquetFile) -> float:
    """The greatest `t_wall_s` of a file; NaN where it has no such column, or no row."""
    if "t_wall_s" not in file.schema_arrow.names or not file.metadata.num_rows:
        return float("nan")
    return float(np.nanmax(file.read(columns=["t_wall_s"]).column(0).to_numpy()))


def _number(part: Path) -> int:
    digits = part.name.removeprefix("part-").removesuffix(".parquet")
    return int(digits) if digits.isdecimal() else 0
