"""Writes a run folder so that a crash at any point leaves every finished file whole.

Each file is written under a temporary name (`NAME.partial`), synced, and renamed: a reader sees the whole
file or none. Tables are flushed a row group at a time while the run goes on. Where the run was started with
sudo, the files belong to the person who started it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from results.schema import SCHEMA_VERSION

PARTIAL_SUFFIX = ".partial"
#: Key in a Parquet file's own metadata that holds the schema version it was written with.
VERSION_KEY = b"zcube_schema_version"


def sudo_owner() -> tuple[int, int] | None:
    """(uid, gid) of the person behind `sudo`, or None when there is nobody to hand the files to."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() != 0 or not (uid.isdecimal() and gid.isdecimal()):
        return None
    return int(uid), int(gid)


def _give_to_owner(descriptor: int) -> None:
    """Works on an open descriptor, so no link that someone put in the way is followed."""
    owner = sudo_owner()
    if owner is not None:
        os.fchown(descriptor, *owner)


def create_folder(path: Path) -> Path:
    """Makes a folder, and those above it that are missing, for the person who started the run."""
    for folder in (*reversed(path.parents), path):
        try:
            os.mkdir(folder, 0o755)
        except FileExistsError:
            continue
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _give_to_owner(descriptor)
        finally:
            os.close(descriptor)
    if not path.is_dir():
        raise NotADirectoryError(f"{path} exists and is not a folder")
    return path


def _open_new(path: Path) -> IO[bytes]:
    """Opens a file that must be new: what a crashed run left under this name goes first."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    _give_to_owner(descriptor)
    return os.fdopen(descriptor, "wb")


def open_log(path: Path) -> IO[bytes]:
    """Opens a new file for text that other processes write, such as their standard error; the caller closes it."""
    return _open_new(path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(partial: Path, path: Path) -> None:
    os.replace(partial, path)
    _sync_folder(path.parent)


def adopt(partial: Path, path: Path) -> None:
    """Gives a file that another process has finished writing its name, once it is on the disk."""
    with partial.open("rb") as handle:
        os.fsync(handle.fileno())
    _publish(partial, path)


def partial_name(path: Path) -> Path:
    """The name a file has until it is complete."""
    return path.with_name(path.name + PARTIAL_SUFFIX)


def write_bytes(path: Path, data: bytes) -> None:
    """Replaces `path` as a whole: temporary name, fsync, rename."""
    partial = partial_name(path)
    with _open_new(partial) as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    _publish(partial, path)


def write_text(path: Path, text: str) -> None:
    """Replaces `path` with UTF-8 text as a whole."""
    write_bytes(path, text.encode())


def plain(value: object) -> Any:
    """The value in JSON's own types: numpy scalars and arrays unwrapped, NaN and infinity as null, paths as
    text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def write_json(path: Path, value: object) -> None:
    """Replaces `path` with JSON as a whole; NaN becomes null, since JSON has no NaN."""
    write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_yaml(path: Path, value: object) -> None:
    """Replaces `path` with YAML as a whole, keys in the order given."""
    write_text(path, yaml.safe_dump(plain(value), sort_keys=False, allow_unicode=True, width=110))


class EventLog:
    """Appends to `events.jsonl`, one whole line a call, so that a crash can lose at most the line in hand."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)
        _give_to_owner(self._descriptor)

    def write(self, event: Mapping[str, object]) -> None:
        """Appends one event."""
        line = json.dumps(plain(event), ensure_ascii=False, allow_nan=False) + "\n"
        os.write(self._descriptor, line.encode())

    def close(self) -> None:
        """Syncs and closes; a second call does nothing."""
        if self._descriptor >= 0:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TableWriter:
    """Writes one Parquet table while the run goes on: `NAME.partial` until `close`, then `NAME`.

    Rows wait in memory until `row_group_rows` are there, then go to the file as one row group. Leaving a
    `with` block by an exception keeps the partial file, with what was written so far, and never gives it the
    final name. Not safe for use by several threads at once.
    """

    def __init__(self, path: Path, schema: pa.Schema, row_group_rows: int = 65_536) -> None:
        self.path, self.row_group_rows = path, row_group_rows
        self.schema = schema.with_metadata({**(schema.metadata or {}), VERSION_KEY: str(SCHEMA_VERSION).encode()})
        self.rows_written = 0
        self._columns: dict[str, list[Any]] = {name: [] for name in schema.names}
        self._waiting = 0
        self._partial = partial_name(path)
        self._handle: IO[bytes] | None = _open_new(self._partial)
        self._writer = pq.ParquetWriter(self._handle, self.schema, compression="zstd")

    def append(self, row: Mapping[str, object]) -> None:
        """Adds one row; a missing column becomes null, an unknown one is an error."""
        if unknown := row.keys() - self._columns.keys():
            raise KeyError(f"{self.path.name} has no column {', '.join(sorted(unknown))}")
        for name, values in self._columns.items():
            values.append(row.get(name))
        self._waiting += 1
        if self._waiting >= self.row_group_rows:
            self.flush()

    def extend(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Adds rows one after the other."""
        for row in rows:
            self.append(row)

    def write(self, columns: Mapping[str, Sequence[object] | np.ndarray] | pd.DataFrame | pa.Table) -> None:
        """Adds a block of rows given as columns: the fast way for samples."""
        self.flush()
        block = _as_table(columns, self.schema)
        if block.num_rows:
            self._writer.write_table(block, row_group_size=max(self.row_group_rows, 1))
            self.rows_written += block.num_rows

    def flush(self) -> None:
        """Writes the waiting rows as a row group now."""
        if self._waiting:
            block = pa.table(
                {field.name: pa.array(self._columns[field.name], field.type) for field in self.schema},
                schema=self.schema,
            )
            self._columns = {name: [] for name in self.schema.names}
            self._waiting = 0
            self._writer.write_table(block)
            self.rows_written += block.num_rows

    def close(self) -> None:
        """Completes the file and gives it its name; a second call does nothing."""
        if self._finish():
            _publish(self._partial, self.path)

    def abandon(self) -> None:
        """Completes the partial file, so that it can be looked at, but leaves it under its temporary name."""
        self._finish()

    def _finish(self) -> bool:
        if self._handle is None:
            return False
        handle, self._handle = self._handle, None
        try:
            self.flush()
            self._writer.close()
            handle.flush()
            os.fsync(handle.fileno())
        finally:
            handle.close()
        return True

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def _as_table(columns: Mapping[str, Any] | pd.DataFrame | pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns as a table of exactly this schema; a missing column is null throughout."""
    if isinstance(columns, pa.Table):
        names, rows = set(columns.column_names), columns.num_rows
    else:
        names = {str(name) for name in columns}
        rows = len(columns) if isinstance(columns, pd.DataFrame) else len(next(iter(columns.values()), ()))
    if unknown := names - set(schema.names):
        raise KeyError(f"the schema has no column {', '.join(sorted(unknown))}")
    arrays: list[Any] = []
    for field in schema:
        if field.name not in names:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(columns, pa.Table):
            arrays.append(columns.column(field.name).cast(field.type))
        else:
            arrays.append(pa.array(columns[field.name], type=field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def write_table(
    path: Path,
    schema: pa.Schema,
    rows: Iterable[Mapping[str, object]] | pd.DataFrame | pa.Table,
) -> None:
    """Writes a whole table at once, from rows, a DataFrame or an Arrow table."""
    with TableWriter(path, schema) as table:
        if isinstance(rows, (pd.DataFrame, pa.Table)):
            table.write(rows)
        else:
            table.extend(rows)
