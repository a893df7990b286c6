"""Names of files and folders may hold what rich takes for markup."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests_root import REPOSITORY

from cli.app import err, out
from cli.progress import RunProgress

NAME = "x[/]y [bold red]"


def test_consoles_print_a_name_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for console in (out, err):
        console.print(f"Runs are in {NAME}", highlight=False)
        console.rule(NAME)
    said = capsys.readouterr()
    assert said.out.count(NAME) == said.err.count(NAME) == 2


def test_progress_shows_a_name_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress(NAME) as progress:
        progress({"phase": f"in {NAME}"})
        progress._bar.console.print(progress._bar.make_tasks_table(progress._bar.tasks))
    assert capsys.readouterr().err.count(NAME) >= 3


def test_a_wrong_folder_with_markup_in_its_name_is_one_message(tmp_path: Path) -> None:
    folder = tmp_path / "x[" / "]y"
    folder.mkdir(parents=True)
    zcube = [sys.executable, "-m", "cli.main", "report", str(folder)]
    done = subprocess.run(zcube, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "x[/]y" in done.stderr
