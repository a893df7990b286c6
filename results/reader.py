"""Reads a run folder. What is missing, damaged or from a newer version is one clear message, never a
traceback."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import ValidationError

from results.parts import PartsLeft, parts_left
from results.schema import SCHEMA_VERSION, TABLES
from results.writer import VERSION_KEY, partial_name
from scenario.errors import InputError
from scenario.models import Scenario

#: Every run's scenario.yaml has them, whatever wrote it; sections that came later are absent from older ones.
_SECTIONS = ("name", "seed", "fabric", "routing", "scale", "serving", "workload", "transport", "telemetry")


class IncompleteTable(UserWarning):
    """A table was read of which a part is missing, as its run was ended before it was whole; the text says how much."""


@dataclass(frozen=True)
class Scale:
    """How model units became emulated ones: emulated rate = a * rate, wall time = d * time, bytes = a*d *
    bytes."""

    rate_factor: float
    dilation: float
    frame_bytes: int
    mss_bytes: int
    model_bytes_per_frame: float

    def frame_time_s(self, gbps: float) -> float:
        """Model seconds that one full frame occupies a port of `gbps`."""
        return self.frame_bytes * 8 / (self.rate_factor * gbps * 1e9) / self.dilation


@dataclass(frozen=True)
class Window:
    """The fixed stretch of model time that throughput, load and backlog are taken over."""

    t_start_s: float
    t_end_s: float

    @property
    def duration_s(self) -> float:
        """Length in model seconds."""
        return self.t_end_s - self.t_start_s


class RunFolder:
    """One run's results, read from its folder file by file when asked for."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise InputError("run folder", str(self.path), "there is no such folder", "Give the folder of a run.")

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def has(self, name: str) -> bool:
        """Whether the complete file is there, e.g. has("ports.parquet")."""
        return (self.path / name).is_file()

    def scenario(self) -> Scenario:
        """The resolved scenario of the run. A file that is cut is an error, and not a scenario of defaults."""
        given = self.scenario_dict()
        try:
            scenario = Scenario.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InputError(
                f"{self.path / 'scenario.yaml'}: {where}",
                first.get("input"),
                first["msg"],
                self._newer_hint(),
            ) from error
        if missing := [name for name in _SECTIONS if name not in given]:
            raise InputError(
                str(self.path / "scenario.yaml"),
                ", ".join(given),
                f"has no {missing[0]}, and a run writes all its settings",
                "The file is cut, or not that of a run: run it again.",
            )
        return scenario

    def scenario_dict(self) -> dict[str, Any]:
        """scenario.yaml as it stands in the file."""
        try:
            return self._mapping("scenario.yaml", yaml.safe_load(self._text("scenario.yaml")))
        except yaml.YAMLError as error:
            raise self._damaged("scenario.yaml", error) from error

    def meta(self) -> dict[str, Any]:
        """meta.json: versions, machine, scale, seeds, settings as they were in force."""
        return self._json("meta.json")

    def fabric(self) -> dict[str, Any]:
        """fabric.json: GPUs, switches, links, in model units."""
        found = self._json("fabric.json")
        for name in ("gpus", "switches", "links"):
            if not isinstance(found.get(name), list):
                raise InputError(
                    f"{self.path / 'fabric.json'}: {name}", found.get(name), "must be a list",
                    "The file is damaged: run it again.",
                )  # fmt: skip
        return found

    def summary(self) -> dict[str, Any]:
        """summary.json: the metrics of the run."""
        return self._json("summary.json")

    def fidelity(self) -> dict[str, Any]:
        """fidelity.json: whether the emulation did what it should have done."""
        return self._json("fidelity.json")

    def rules(self) -> Any:
        """rules.json: the rules that were installed (fabric.switch: ovs)."""
        return self._json("rules.json")

    def routes(self) -> Any:
        """routes.json: the kernel routes that were set and read back (fabric.switch: linux)."""
        return self._json("routes.json")

    def scale(self) -> Scale:
        """The scale of the run, from meta.json."""
        given = self._section("scale")
        try:
            a, d = float(given["rate_factor"]), float(given["dilation"])
            frame_bytes = int(given["frame_bytes"])
            return Scale(
                rate_factor=a,
                dilation=d,
                frame_bytes=frame_bytes,
                mss_bytes=int(given.get("mss_bytes") or frame_bytes),
                model_bytes_per_frame=float(given.get("model_bytes_per_frame") or frame_bytes / (a * d)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.path / 'meta.json'}: scale", given, f"incomplete: {error}") from error

    def window(self) -> Window:
        """The window of the run, from meta.json."""
        given = self._section("window")
        try:
            window = Window(float(given["t_start_s"]), float(given["t_end_s"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.path / 'meta.json'}: window", given, f"incomplete: {error}") from error
        if not window.duration_s > 0:
            raise InputError(f"{self.path / 'meta.json'}: window", given, "must end after it starts")
        return window

    def requests(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """requests.parquet: a row a request."""
        return _frame(self.table("requests", columns))

    def transfers(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """transfers.parquet: a row a queue pair's share of a handoff."""
        return _frame(self.table("transfers", columns))

    def ports(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """ports.parquet: egress samples; `node` is categorical, since there may be millions of rows.

        Of a run that was ended before its time: what there is, with the warning `IncompleteTable`.
        """
        return _frame(self.table("ports", columns, dictionary=("node",)))

    def gpus(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """gpus.parquet: a row a change of state."""
        return _frame(self.table("gpus", columns))

    def events(self) -> list[dict[str, Any]]:
        """events.jsonl; a last line that a crash cut short is left out."""
        lines = self._text("events.jsonl").split("\n")
        found: list[dict[str, Any]] = []
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError as error:
                if number == len(lines):
                    break
                raise self._damaged(f"events.jsonl line {number}", error) from error
        return found

    def table(self, name: str, columns: Sequence[str] | None = None, dictionary: Sequence[str] = ()) -> pa.Table:
        """One of the tables of `results.schema.TABLES` as Arrow, with the columns asked for (default: all
        known)."""
        wanted = list(columns) if columns is not None else list(TABLES[name].names)
        left = self.left_of(name)
        if left is None or not left.rows:
            return self._read(self._existing(f"{name}.parquet"), wanted, dictionary)
        warnings.warn(f"{self.path}: {left}", IncompleteTable, stacklevel=3)
        return pa.concat_tables([self._read(part, wanted, dictionary) for part in left.parts]).unify_dictionaries()

    def left_of(self, name: str) -> PartsLeft | None:
        """What there is of a table that is not whole, since the run was ended before; None where it is whole, or
        absent, or of those that are written in one go."""
        return parts_left(self.path / f"{name}.parquet")

    def _read(self, path: Path, wanted: list[str], dictionary: Sequence[str]) -> pa.Table:
        try:
            with pq.ParquetFile(path, read_dictionary=[c for c in dictionary if c in wanted]) as file:
                present = file.schema_arrow
                self._check_version(path.name, (present.metadata or {}).get(VERSION_KEY, b"0"))
                if missing := [column for column in wanted if column not in present.names]:
                    raise InputError(
                        str(path),
                        present.names,
                        f"lacks the column {missing[0]}",
                        "Was this table written by zcube?",
                    )
                return file.read(columns=wanted)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(path.name, error) from error

    def _section(self, name: str) -> dict[str, Any]:
        given = self.meta().get(name)
        if not isinstance(given, dict):
            raise InputError(f"{self.path / 'meta.json'}: {name}", given, "must be a JSON object")
        return given

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value = self._mapping(name, json.loads(self._text(name)))
        except json.JSONDecodeError as error:
            raise self._damaged(name, error) from error
        self._check_version(name, value.get("schema_version", 0))
        return value

    def _mapping(self, name: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InputError(str(self.path / name), value, "must hold one mapping")
        return value

    def _text(self, name: str) -> str:
        try:
            return self._existing(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self._damaged(name, error) from error

    def _existing(self, name: str) -> Path:
        path = self.path / name
        if path.is_file():
            return path
        hint = "Is this the folder of a run?"
        if (left := parts_left(path) or self.left_of("ports")) is not None:  # samples are joined last of all tables
            hint = f"The run was ended before its results were written: {left}. Run it again."
        elif partial_name(path).exists():
            hint = f"{partial_name(path).name} is there: the run ended before it was complete. Run it again."
            if path.suffix == ".parquet" and not _has_index(partial_name(path)):
                hint = hint.replace("complete.", "complete, and without its index, so its rows cannot be read.")
        raise InputError("run folder", str(self.path), f"has no {name}", hint)

    def _check_version(self, name: str, version: object) -> None:
        try:
            number = int(version)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            raise InputError(f"{self.path / name}: schema_version", version, "must be a whole number") from None
        if number > SCHEMA_VERSION:
            raise InputError(
                f"{self.path / name}: schema_version",
                number,
                f"this zcube reads versions up to {SCHEMA_VERSION}",
                "Use the zcube that wrote the run, or a newer one.",
            )

    def _newer_hint(self) -> str:
        if not self.has("meta.json"):  # of a run that goes on, or was ended
            return "The file is damaged, or not that of a run."
        return f"The folder was written by zcube {self.meta().get('zcube_version', '(unknown)')}."

    def _damaged(self, name: str, error: Exception) -> InputError:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return InputError(str(self.path / name), reason, "cannot be read", "The file is damaged: run it again.")


def _has_index(path: Path) -> bool:
    """Whether a Parquet file ends as a finished one does: without the index at its end no row group is found."""
    try:
        with path.open("rb") as file:
            file.seek(-4, 2)
            return file.read() == b"PAR1" and path.stat().st_size > 8
    except OSError:
        return False


def _frame(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas()
    return frame
