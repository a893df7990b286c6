"""The run folder on disk: whole files only, clear messages, and the right owner."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from results import schema, writer
from results.reader import RunFolder
from scenario.errors import InputError
from scenario.models import Scenario

GPU_ROWS = [{"gpu": "gpu1", "t_s": 0.5, "state": "busy"}, {"gpu": "gpu2", "t_s": 1.5, "state": "waiting"}]


def test_json_is_whole_and_has_no_nan(tmp_path: Path) -> None:
    target = tmp_path / "meta.json"
    writer.write_json(target, {"a": np.float64("nan"), "b": np.int64(3), "c": [math.inf, Path("x")], "d": {1: True}})
    assert json.loads(target.read_text()) == {"a": None, "b": 3, "c": [None, "x"], "d": {"1": True}}
    assert [path.name for path in tmp_path.iterdir()] == ["meta.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "meta.json"
    writer.write_json(target, {"a": 1})
    with pytest.raises(TypeError):
        writer.write_json(target, {"a": object()})
    assert json.loads(target.read_text()) == {"a": 1}


def test_table_has_its_name_only_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "gpus.parquet"
    table = writer.TableWriter(target, schema.GPUS, row_group_rows=1)
    table.append(GPU_ROWS[0])
    assert not target.exists()
    assert (tmp_path / "gpus.parquet.partial").exists()
    table.append(GPU_ROWS[1])
    table.close()
    table.close()
    assert [path.name for path in tmp_path.iterdir()] == ["gpus.parquet"]
    assert pq.ParquetFile(target).num_row_groups == 2
    assert table.rows_written == 2


def test_rows_reach_the_disk_while_the_run_goes_on(tmp_path: Path) -> None:
    with writer.TableWriter(tmp_path / "gpus.parquet", schema.GPUS, row_group_rows=50_000) as table:
        before = (tmp_path / "gpus.parquet.partial").stat().st_size
        rng = np.random.default_rng(1)
        for _ in range(4):
            table.write({"gpu": ["gpu1"] * 100_000, "t_s": rng.random(100_000), "state": ["busy"] * 100_000})
        assert (tmp_path / "gpus.parquet.partial").stat().st_size > before + 1_000_000


def test_an_exception_leaves_a_readable_partial_table(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        writer.TableWriter(tmp_path / "gpus.parquet", schema.GPUS) as table,
    ):
        table.append(GPU_ROWS[0])
        raise ZeroDivisionError
    assert not (tmp_path / "gpus.parquet").exists()
    assert pq.read_table(tmp_path / "gpus.parquet.partial").num_rows == 1
    with pytest.raises(InputError) as told:  # somebody may still want to look at it
        RunFolder(tmp_path).gpus()
    assert "gpus.parquet.partial is there" in str(told.value) and "index" not in str(told.value)


def test_a_killed_writer_leaves_no_table_that_looks_finished(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from results import schema, writer\n"
        "table = writer.TableWriter(Path(sys.argv[1]), schema.GPUS, row_group_rows=1)\n"
        "table.append({'gpu': 'gpu1', 't_s': 1.0, 'state': 'busy'}); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "gpus.parquet")], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(InputError, match=r"gpus\.parquet\.partial is there.*without its index, so its rows cannot be"):
        RunFolder(tmp_path).gpus()
    writer.write_table(tmp_path / "gpus.parquet", schema.GPUS, GPU_ROWS)  # a second try goes over the leftover
    assert RunFolder(tmp_path).gpus()["t_s"].tolist() == [0.5, 1.5]


def test_rows_frames_and_columns_give_the_same_table(tmp_path: Path) -> None:
    writer.write_table(tmp_path / "a.parquet", schema.GPUS, GPU_ROWS)
    writer.write_table(tmp_path / "b.parquet", schema.GPUS, pd.DataFrame(GPU_ROWS))
    with writer.TableWriter(tmp_path / "c.parquet", schema.GPUS) as table:
        table.append(GPU_ROWS[0])
        table.write({name: [GPU_ROWS[1][name]] for name in schema.GPUS.names})
    tables = [pq.read_table(tmp_path / f"{name}.parquet") for name in "abc"]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


def test_unknown_columns_are_refused_and_missing_ones_are_null(tmp_path: Path) -> None:
    with writer.TableWriter(tmp_path / "gpus.parquet", schema.GPUS) as table:
        with pytest.raises(KeyError, match="colour"):
            table.append({"gpu": "gpu1", "colour": "red"})
        with pytest.raises(KeyError, match="colour"):
            table.write({"colour": ["red"]})
        table.append({"gpu": "gpu1"})
    assert RunFolder(tmp_path).gpus()["state"].isna().all()


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "meta.json.partial").symlink_to(victim)
    (tmp_path / "meta.json").symlink_to(victim)
    writer.write_json(tmp_path / "meta.json", {"schema_version": 1})
    assert victim.read_text() == "untouched"
    assert not (tmp_path / "meta.json").is_symlink()
    (tmp_path / "events.jsonl").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        writer.EventLog(tmp_path / "events.jsonl")


def test_a_link_put_there_at_the_last_moment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # as if the link came after the clean-up
    (tmp_path / "meta.json.partial").symlink_to(victim)
    with pytest.raises(FileExistsError):
        writer.write_json(tmp_path / "meta.json", {"schema_version": 1})
    assert victim.read_text() == "untouched"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_belong_to_the_person_behind_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setenv("SUDO_GID", "23456")
    folder = writer.create_folder(tmp_path / "runs" / "one")
    writer.write_yaml(folder / "scenario.yaml", {"name": "x"})
    writer.write_table(folder / "gpus.parquet", schema.GPUS, GPU_ROWS)
    with writer.EventLog(folder / "events.jsonl") as log:
        log.write({"event": "start"})
    made = [folder.parent, folder, *folder.iterdir()]
    assert len(made) == 5
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(12345, 23456)}
    assert tmp_path.stat().st_uid == 0  # what was there already is left alone


def test_a_strange_sudo_uid_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "root")
    monkeypatch.setenv("SUDO_GID", "0")
    assert writer.sudo_owner() is None


def test_scenario_comes_back_as_it_was(tmp_path: Path) -> None:
    scenario = Scenario(name="there-and-back", seed=7)
    writer.write_yaml(tmp_path / "scenario.yaml", scenario.model_dump(mode="json"))
    assert RunFolder(tmp_path).scenario() == scenario


def test_a_scenario_that_is_not_one_names_the_field(tmp_path: Path) -> None:
    writer.write_yaml(tmp_path / "scenario.yaml", {"fabric": {"kind": "mesh"}})
    writer.write_json(tmp_path / "meta.json", {"schema_version": 1, "zcube_version": "9.9"})
    with pytest.raises(InputError, match=r"fabric\.kind") as caught:
        RunFolder(tmp_path).scenario()
    assert "9.9" in str(caught.value)


def test_a_scenario_that_is_cut_is_no_scenario_of_defaults(tmp_path: Path) -> None:
    """Wherever a line of its first sections ends: what is left is often a valid file of fewer settings."""
    file = tmp_path / "scenario.yaml"
    writer.write_yaml(file, Scenario(name="whole", seed=7).model_dump(mode="json"))
    lines = file.read_text().splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if line.startswith("telemetry:"))
    for kept in range(last):
        file.write_text("".join(lines[:kept]))
        with pytest.raises(InputError, match=r"scenario\.yaml"):
            RunFolder(tmp_path).scenario()
    older = "".join(lines[: next(number for number, line in enumerate(lines) if line.startswith("faults:"))])
    file.write_text(older)  # written before there were faults and background traffic: it has none
    assert RunFolder(tmp_path).scenario() == Scenario(name="whole", seed=7)


@pytest.mark.parametrize("text", ["[1, 2]", "{", "null"])
def test_damaged_json_is_one_message(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.json").write_text(text)
    with pytest.raises(InputError, match=r"meta\.json"):
        RunFolder(tmp_path).meta()


def test_missing_and_newer_files_say_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        RunFolder(tmp_path / "nowhere")
    run = RunFolder(tmp_path)
    with pytest.raises(InputError, match=r"has no summary\.json"):
        run.summary()
    writer.write_json(tmp_path / "summary.json", {"schema_version": schema.SCHEMA_VERSION + 1})
    with pytest.raises(InputError, match="reads versions up to"):
        run.summary()
    (tmp_path / "gpus.parquet").write_bytes(b"not a table")
    with pytest.raises(InputError, match="cannot be read"):
        run.gpus()
    newer = schema.GPUS.with_metadata({writer.VERSION_KEY: b"99"})
    pq.write_table(newer.empty_table(), tmp_path / "gpus.parquet")
    with pytest.raises(InputError, match="reads versions up to"):
        run.gpus()
    pq.write_table(schema.GPUS.remove(0).empty_table(), tmp_path / "gpus.parquet")
    with pytest.raises(InputError, match="lacks the column gpu"):
        run.gpus()


def test_scale_and_window_are_checked(tmp_path: Path) -> None:
    scale = {"rate_factor": 5e-5, "dilation": 3.0, "frame_bytes": 9000, "mss_bytes": 8942}
    meta = {"schema_version": 1, "scale": scale, "window": {"t_start_s": 5, "t_end_s": 5}}
    writer.write_json(tmp_path / "meta.json", meta)
    run = RunFolder(tmp_path)
    assert run.scale().model_bytes_per_frame == pytest.approx(60e6)  # 9000 / (5e-5 * 3)
    # 72,000 bits on a 400G port at 20 Mb/s take 3.6 ms of wall time, 1.2 ms of model time.
    assert run.scale().frame_time_s(400) == pytest.approx(1.2e-3)
    with pytest.raises(InputError, match="must end after"):
        run.window()
    writer.write_json(tmp_path / "meta.json", {"schema_version": 1, "scale": {"dilation": 3}})
    with pytest.raises(InputError, match="incomplete"):
        run.scale()
    with pytest.raises(InputError, match="window"):
        run.window()


def test_a_torn_last_event_is_left_out(tmp_path: Path) -> None:
    with writer.EventLog(tmp_path / "events.jsonl") as log:
        log.write({"event": "start", "t_s": float("nan")})
    with (tmp_path / "events.jsonl").open("a") as handle:
        handle.write('{"event": "st')
    assert RunFolder(tmp_path).events() == [{"event": "start", "t_s": None}]
    (tmp_path / "events.jsonl").write_text('{"a"\n{"b": 1}\n')
    with pytest.raises(InputError, match="line 1"):
        RunFolder(tmp_path).events()
