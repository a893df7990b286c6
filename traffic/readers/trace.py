"""A trace of any format: what it is (by content), and its rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scenario.errors import InputError
from traffic.readers.azure import AZURE
from traffic.readers.burstgpt import BURSTGPT
from traffic.readers.lines import BLANK, Reading, open_file
from traffic.readers.logs import ROUTING, TRANSFERS
from traffic.readers.mooncake import MOONCAKE, spread
from traffic.readers.qwen import QWEN
from traffic.readers.rows import Format, TraceRow
from traffic.readers.sessions import SESSIONS, read_session, session_files
from traffic.readers.stream import read
from traffic.readers.table import TABLE

#: By name, in the order in which content is compared with them: those with more columns of their own come first.
FORMATS: dict[str, Format] = {
    form.name: form for form in (AZURE, BURSTGPT, ROUTING, TRANSFERS, TABLE, QWEN, MOONCAKE, SESSIONS)
}
#: What is looked at to tell a format.
_LOOKED_AT_BYTES = 1 << 20


def format_named(name: str, path: Path, option: str) -> Format:
    """The format called `name`, or for `auto` that of the file. Raises InputError, in which `option` is named."""
    if name == "auto":
        return detect(path, option)
    if name not in FORMATS:
        raise InputError(option, name, f"allowed: auto, {', '.join(FORMATS)}")
    return FORMATS[name]


def detect(path: Path, option: str = "--trace-format") -> Format:
    """The format of a file or folder by what is in it: header names of a CSV, keys of JSON. Raises InputError, which
    says that `option` names a format too."""
    if path.is_dir():
        session_files(path)
        return SESSIONS
    with open_file(path) as handle:
        raw = handle.read(_LOOKED_AT_BYTES)
    reading = Reading(path, f"the formats of docs/workload.md; {option} names one")
    if not raw.strip(BLANK):
        raise reading.error(1, "the file is empty", raw)
    told = raw.lstrip(BLANK)
    line = 1 + raw[: len(raw) - len(told)].count(b"\n")
    first = told.split(b"\n", 1)[0]
    try:
        text = first.decode("utf-8")
    except UnicodeDecodeError:
        raise reading.error(line, "the line is not text (UTF-8)", first) from None
    if not text.startswith("{"):
        return _by_names(reading, line, "csv", [name.strip() for name in text.split(",")], first)
    try:
        keys = json.loads(text)
    except ValueError:
        keys = None
    if isinstance(keys, dict) and "requests" not in keys:
        return _by_names(reading, line, "jsonl", list(keys), first)
    if b'"requests"' in raw:  # a session is one object, on one line or on many, longer than what is looked at
        return SESSIONS
    raise reading.error(line, "no format has such a first line", first)


def _by_names(reading: Reading, line: int, encoding: str, names: list[str], first: bytes) -> Format:
    for form in FORMATS.values():
        # Mooncake's keys are all among qwen's, which has a chat_id.
        wanted = {*form.required, *(("chat_id",) if form is QWEN else ())}
        if encoding in form.encodings and wanted <= set(names):
            return form
    known = "; ".join(
        f"{form.name}: {','.join(form.required)}" for form in FORMATS.values() if encoding in form.encodings
    )
    raise reading.error(line, f"no format has these columns. Known: {known}", first)


class Trace:
    """Rows of a file or folder, in one pass of constant memory, and what was left out of it.

    Mooncake stamps on a 3 s grid are spread by `seed`, unless `raw_timestamps`. Sessions come one after the other,
    each from its own time 0.
    """

    def __init__(
        self,
        path: Path,
        form: Format,
        *,
        skip_bad_rows: bool = False,
        seed: int = 1,
        raw_timestamps: bool = False,
    ) -> None:
        self.path, self.form = path, form
        self._seed, self._raw = seed, raw_timestamps
        self._reading = Reading(path, form.example, skip_bad_rows)
        self._files: list[Path] = []

    @property
    def bad_rows(self) -> int:
        """Rows skipped so far because they did not parse."""
        return self._reading.bad_rows

    @property
    def first_bad(self) -> str:
        """What was wrong with the first of them."""
        return self._reading.first_bad

    def __iter__(self) -> Iterator[TraceRow]:
        if self.form is SESSIONS:
            for number in range(len(self.files())):
                yield from self.session(number)
            return
        rows = read(self._reading, self.form)
        yield from spread(rows, self._seed) if self.form is MOONCAKE and not self._raw else rows

    def files(self) -> list[Path]:
        """The session files, in order. Raises InputError."""
        if not self._files:
            self._files = session_files(self.path)
        return self._files

    def session(self, number: int) -> list[TraceRow]:
        """The turns of one session file; its number starts from 0."""
        of_file = replace(self._reading, path=self.files()[number], bad_rows=0, first_bad="")
        rows = read_session(of_file, number + 1)
        self._reading.bad_rows += of_file.bad_rows
        self._reading.first_bad = self._reading.first_bad or of_file.first_bad
        return rows
