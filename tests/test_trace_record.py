"""`zcube trace record`: a closed loop, once run, as an open loop of the same requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cli.main import app
from results.reader import RunFolder
from scenario.errors import InputError
from scenario.load import check_scenario, with_changes
from scenario.models import Scenario
from simulation.run import simulate, write_run

BASE = {
    "fabric": {"gpus": 16},
    "workload": {"kind": "coding_agent", "requests": 120, "warmup_requests": 10, "utilisation": 0.8},
}


def recorded(tmp_path: Path) -> Scenario:
    """The scenario that replays a simulated closed loop."""
    write_run(tmp_path / "run", simulate(check_scenario(BASE)))
    done = CliRunner().invoke(app, ["trace", "record", str(tmp_path / "run"), "--out", str(tmp_path / "open.csv")])
    assert done.exit_code == 0, done.output
    workload = {"kind": "table", "path": str(tmp_path / "open.csv"), "requests": 120, "warmup_requests": 10}
    return check_scenario({**BASE, "workload": workload})


def test_replayed_it_is_the_same_requests_at_the_same_times(tmp_path: Path) -> None:
    scenario = recorded(tmp_path)
    closed = RunFolder(tmp_path / "run").requests().dropna(subset=["t_arrival_s"])
    closed = closed.sort_values(["t_arrival_s", "request_id"]).reset_index(drop=True)
    write_run(tmp_path / "open", simulate(scenario))
    opened = RunFolder(tmp_path / "open").requests().sort_values(["t_arrival_s", "request_id"]).reset_index(drop=True)
    count = 130
    for name in ("input_tokens", "output_tokens", "cached_tokens"):
        assert (opened[name][:count] == closed[name][:count]).all(), name
    start_s = closed["t_arrival_s"].min()  # a trace begins with its first row
    assert opened["t_arrival_s"][:count].to_numpy() == pytest.approx(
        closed["t_arrival_s"][:count].to_numpy() - start_s, abs=1e-6
    )
    both = opened["t_first_token_s"].notna() & closed["t_first_token_s"].notna()
    ttft = [(frame["t_first_token_s"] - frame["t_arrival_s"])[both].to_numpy() for frame in (opened, closed)]
    assert np.median(ttft[0]) == pytest.approx(np.median(ttft[1]), rel=0.02)


def test_an_open_loop_does_not_carry_a_small_difference_on(tmp_path: Path) -> None:
    """A NIC rate of 0.1 % more moves the median by no more than that: what a repeat is to be judged by."""
    scenario = recorded(tmp_path)
    p50 = [
        float(np.median(list(simulate(with_changes(scenario, {"fabric": {"gpu_gbps": gbps}})).ttft_s().values())))
        for gbps in (400.0, 400.4)
    ]
    assert p50[1] == pytest.approx(p50[0], rel=0.002)


def test_a_file_in_the_way_and_a_run_without_arrivals_are_refused(tmp_path: Path) -> None:
    recorded(tmp_path)
    again = CliRunner().invoke(app, ["trace", "record", str(tmp_path / "run"), "--out", str(tmp_path / "open.csv")])
    assert isinstance(again.exception, InputError) and "exists" in str(again.exception)
    missing = CliRunner().invoke(app, ["trace", "record", str(tmp_path), "--out", str(tmp_path / "x.csv")])
    assert isinstance(missing.exception, InputError) and "has no requests.parquet" in str(missing.exception)
