"""A table written in parts: whole where the run ends well, and what there is of it where the run is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from results.parts import PartsWriter, join, parts_left
from results.reader import IncompleteTable, RunFolder
from results.schema import PORTS
from scenario.errors import InputError

WRITES_THREE_AND_DIES = """
import os, signal, sys
from pathlib import Path
from results.parts import PartsWriter
from results.schema import PORTS
from results.writer import TableWriter
table = PartsWriter(Path(sys.argv[1]), PORTS)
for number in range(3):
    table.write({"t_wall_s": [2.0 * number, 2.0 * number + 1.5], "node": ["leaf1", "leaf2"], "port": [1, 2]})
cut = TableWriter(Path(sys.argv[1]).with_suffix(".parts") / "part-0004.parquet", PORTS)
cut.write({"t_wall_s": [6.0], "node": ["leaf1"], "port": [1]})
os.kill(os.getpid(), signal.SIGKILL)
"""


def block(number: int) -> dict[str, list[object]]:
    return {"t_wall_s": [2.0 * number, 2.0 * number + 1.5], "node": ["leaf1", f"leaf{number + 2}"], "port": [1, 2]}


def three_parts(folder: Path) -> Path:
    table = PartsWriter(folder / "ports.parquet", PORTS)
    for number in range(3):
        table.write(block(number))
    assert table.rows_written == 6
    return folder / "ports.parts"


def test_joined_it_is_one_table_of_the_name_that_readers_use(tmp_path: Path) -> None:
    parts = three_parts(tmp_path)
    assert len(list(parts.iterdir())) == 3
    join(tmp_path / "ports.parquet", PORTS)
    assert [path.name for path in tmp_path.iterdir()] == ["ports.parquet"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = RunFolder(tmp_path).ports()
    assert found["t_wall_s"].tolist() == [0.0, 1.5, 2.0, 3.5, 4.0, 5.5]
    assert found["node"].tolist() == ["leaf1", "leaf2", "leaf1", "leaf3", "leaf1", "leaf4"]
    assert RunFolder(tmp_path).left_of("ports") is None


def test_of_a_killed_run_all_parts_that_were_closed_are_read_and_it_is_said(tmp_path: Path) -> None:
    """The fourth part is cut off in the middle, as a kill leaves it."""
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-c", WRITES_THREE_AND_DIES, str(tmp_path / "ports.parquet")]
    assert subprocess.run(command, cwd=root, check=False).returncode == -signal.SIGKILL
    run = RunFolder(tmp_path)
    assert not run.has("ports.parquet")  # nobody takes it for a whole table
    with pytest.warns(IncompleteTable, match=r"incomplete.*6 rows, up to 5\.5 s .* some 2 s if nothing hung$"):
        found = run.ports(("t_wall_s", "node"))
    assert found["t_wall_s"].tolist() == [0.0, 1.5, 2.0, 3.5, 4.0, 5.5]
    assert found["node"].dtype == "category"
    left = run.left_of("ports")
    assert left is not None and (left.rows, left.until_wall_s, left.lost) == (6, 5.5, ())


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_part_in_the_middle_that_is_damaged_is_told_and_the_others_are_read(tmp_path: Path, damage: str) -> None:
    second = three_parts(tmp_path) / "part-0002.parquet"
    if damage == "cut":
        os.truncate(second, second.stat().st_size - 8)
    else:
        second.unlink()
    with pytest.warns(IncompleteTable, match="1 of the parts before that are missing or damaged too"):
        found = RunFolder(tmp_path).ports()
    assert found["t_wall_s"].tolist() == [0.0, 1.5, 4.0, 5.5]
    left = parts_left(tmp_path / "ports.parquet")
    assert left is not None and left.lost == (2,)


def test_killed_before_its_first_part_there_are_no_rows_and_the_error_says_so(tmp_path: Path) -> None:
    PartsWriter(tmp_path / "ports.parquet", PORTS)
    with pytest.raises(InputError, match="none of its rows was written") as told:
        RunFolder(tmp_path).ports()
    assert "has no ports.parquet" in str(told.value) and "ports.parquet is incomplete" in str(told.value)


def test_whoever_asks_a_killed_run_for_another_file_learns_why_it_is_not_there(tmp_path: Path) -> None:
    three_parts(tmp_path)
    with pytest.raises(InputError, match=r"has no meta\.json") as told:
        RunFolder(tmp_path).meta()
    assert "ended before its results were written" in str(told.value) and "up to 5.5 s" in str(told.value)


def test_what_a_crash_left_is_not_mixed_with_a_new_run(tmp_path: Path) -> None:
    three_parts(tmp_path)
    PartsWriter(tmp_path / "ports.parquet", PORTS).write(block(7))
    join(tmp_path / "ports.parquet", PORTS)
    assert RunFolder(tmp_path).ports()["t_wall_s"].tolist() == [14.0, 15.5]


def test_a_join_that_fails_keeps_the_parts(tmp_path: Path) -> None:
    parts = three_parts(tmp_path)
    (parts / "part-0003.parquet").write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(Exception, match=r"Parquet|magic|footer"):
        join(tmp_path / "ports.parquet", PORTS)
    assert not (tmp_path / "ports.parquet").exists() and len(list(parts.iterdir())) == 3
    with pytest.warns(IncompleteTable):
        assert len(RunFolder(tmp_path).ports()) == 4


def test_parts_beyond_9999_keep_their_order(tmp_path: Path) -> None:
    parts = three_parts(tmp_path)
    for old, new in ((1, 9_999), (2, 10_000), (3, 10_001)):
        (parts / f"part-{old:04d}.parquet").rename(parts / f"part-{new:04d}.parquet")
    join(tmp_path / "ports.parquet", PORTS)
    assert np.all(np.diff(pq.read_table(tmp_path / "ports.parquet")["t_wall_s"].to_numpy()) > 0)
