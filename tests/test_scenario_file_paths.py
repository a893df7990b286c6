"""Relative paths of a scenario are those of the user's working directory, wherever the run is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.options import scenario_with_options
from scenario.file_paths import with_absolute_paths
from scenario.load import check_scenario


def test_relative_paths_start_at_the_folder_and_absolute_ones_stay() -> None:
    scenario = check_scenario({
        "serving": {"model": "glm/config.json", "compute": "csv", "compute_csv": "/data/times.csv"},
        "workload": {"kind": "azure", "path": "trace.csv"},
    })  # fmt: skip
    found = with_absolute_paths(scenario, Path("/home/me"))
    assert found.serving.model == "/home/me/glm/config.json"
    assert str(found.serving.compute_csv) == "/data/times.csv"
    assert str(getattr(found.workload, "path", "")) == "/home/me/trace.csv"


def test_a_scenario_without_files_is_left_alone() -> None:
    scenario = check_scenario({})
    assert with_absolute_paths(scenario, Path("/home/me")) is scenario


def test_a_run_from_another_folder_finds_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("serving: {compute: csv, compute_csv: times.csv}\n")
    monkeypatch.chdir(tmp_path)
    assert scenario_with_options(Path("mine.yaml")).serving.compute_csv == tmp_path / "times.csv"
