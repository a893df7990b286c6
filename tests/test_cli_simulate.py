"""`zcube simulate` as a user meets it: folders that report and diagnose take, that it says where queues do not exist,
bad input, runs that are stopped, and equal bytes for equal scenarios."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from zcube_command import one_message, zcube

from cli.simulate import _stoppable
from results.reader import RunFolder
from scenario.load import check_scenario
from scenario.models import Scenario
from scenario.simulation_section import NO_QUEUES
from simulation.run import TABLES, Model, simulate, simulate_into, write_run

SMALL = "--requests", "12"
#: A cable that fails and comes back, messages beside the workload, and an event that comes too late.
BUSY = {
    "name": "busy",
    "workload": {"kind": "coding_agent", "requests": 12, "warmup_requests": 3},
    "background": [{"kind": "flows", "pairs": ["gpu4->gpu16"], "size_mb": 500, "gbps": 50}],
    "faults": {"events": [{"at_s": 0.5, "down": "odd1"}, {"at_s": 1.5, "up": "odd1"}, {"at_s": 9e5, "down": "odd3"}]},
}


def written(tmp_path: Path, scenario: dict[str, object]) -> str:
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(scenario))  # JSON is YAML
    return str(path)


def words(text: str) -> str:
    return " ".join(text.split())


def test_report_and_diagnose_take_the_folder_and_all_say_that_queues_do_not_exist(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ran = zcube("simulate", written(tmp_path, BUSY), "--out", str(folder))
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count(NO_QUEUES) == 2  # first and last
    assert "Queues do not exist in this model" in words(ran.stdout)
    assert "NOT REACHED" in ran.stdout and "was not reached" in ran.stderr
    run = RunFolder(folder)
    meta = run.meta()
    assert (meta["executor"], meta["model"], meta["interrupted"]) == ("simulation", NO_QUEUES, False)
    assert [missed["at_s"] for missed in meta["faults_not_reached"]] == [9e5]
    assert meta["background"][0]["bytes_arrived"] > 0
    assert [(event["event"], event.get("t_s")) for event in run.events()] == [
        ("fault down", 0.5), ("flows moved", 0.6), ("fault up", 1.5), ("flows moved", 1.6), ("fault not reached", None),
    ]  # fmt: skip
    page = tmp_path / "page.html"
    again = zcube("report", str(folder), "--page", str(page))
    assert again.returncode == 0, again.stderr
    assert "Queues do not exist in this model" in page.read_text()
    why = zcube("diagnose", str(folder))
    assert why.returncode == 0, why.stderr
    assert words(why.stdout).startswith(NO_QUEUES)
    assert NO_QUEUES in (folder / "diagnosis.html").read_text()
    found = json.loads(zcube("diagnose", str(folder), "--json").stdout)
    assert found["model"] == NO_QUEUES
    # The repeat at the same rate is the run itself, its faults and headers too.
    same = found["what_if"]["ttft_ms"]["same"]["mean"]
    assert same == pytest.approx(json.loads((folder / "summary.json").read_text())["mean_ttft_ms"])


def test_the_demo_puts_the_three_arms_side_by_side_and_a_second_scenario(tmp_path: Path) -> None:
    ran = zcube("simulate", "--demo", *SMALL, "--out", str(tmp_path / "demo"), "--json")
    assert ran.returncode == 0, ran.stderr
    first, second = json.loads(ran.stdout)
    assert [arm["label"] for arm in first["arms"]] == ["ROFT", "ZCube", "ZCube trunk", "infinite core"]
    assert [arm["label"] for arm in second["arms"]] == ["ROFT", "ZCube", "infinite core"]
    for found in (first, second):
        assert found["like_for_like"] and found["exit_code"] == 0
    for name in ("coding-agent", "same-rail"):
        assert (tmp_path / "demo" / name / "report.html").exists()
        assert json.loads((tmp_path / "demo" / name / "comparison.json").read_text())["valid"]


def test_one_fabric_of_the_users_own_beside_a_label(tmp_path: Path) -> None:
    out = tmp_path / "two"
    ran = zcube("simulate", "--arm", "ZCube", "--arm", "rail_only", *SMALL, "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["bound", "rail-only", "zcube"]
    assert "In short, both scenarios" not in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--trace", "/nowhere/trace.csv"], ["/nowhere/trace.csv"]),
        (["--gpus", "33"], ["fabric.gpus = 33"]),
        (["--gpus", "-4"], ["fabric.gpus = -4", "greater"]),
        (["--requests", "0"], ["requests = 0"]),
        (["--seed", "-1"], ["seed = -1"]),
        (["--placement", "best"], ["serving.placement = 'best'", "least_loaded"]),
        (["--arm", "torus"], ["torus", "zcube, zcube_recursive, roft"]),
        (["--arm", "ROFT", "--arm", "ROFT"], ["--arm = 'ROFT'", "twice"]),
        (["--demo", "--gpus", "20"], ["fabric.gpus = 20", "these fit"]),
        (["--speedup", "2"], ["--trace"]),
        (["/nowhere.yaml"], ["/nowhere.yaml", "No such file"]),
        (["--nonsense"], ["No such option"]),
        (["experiments/mooncake.yaml"], ["transport.kind = 'mooncake'", "allowed: tcp, udp", "run it emulated"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_message_before_anything_is_made(
    tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    one_message(zcube("simulate", *arguments, "--out", str(tmp_path / "out")), 2, *parts)
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    one_message(zcube("simulate", "--out", str(tmp_path)), 2, "--out", "new or an empty folder")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def busy() -> Scenario:
    return check_scenario(BUSY)


def test_equal_scenarios_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        simulate_into(tmp_path / name, busy(), Model.of(busy()))
    for name in (*(f"{table}.parquet" for table in TABLES), "events.jsonl", "fabric.json", "scenario.yaml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_the_bound_is_the_same_whether_rows_are_kept_or_written_as_they_come(tmp_path: Path) -> None:
    write_run(tmp_path / "kept", simulate(busy(), infinite_core=True))
    simulate_into(tmp_path / "written", busy(), Model(), infinite_core=True)
    for name in TABLES:
        key = ["transfer_id"] if name == "transfers" else []
        kept, streamed = (RunFolder(tmp_path / one).table(name).to_pandas() for one in ("kept", "written"))
        if key:
            kept, streamed = (one.sort_values(key, kind="stable").reset_index(drop=True) for one in (kept, streamed))
        assert kept.equals(streamed), name


def test_a_run_that_is_stopped_keeps_what_it_had(tmp_path: Path) -> None:
    looks = iter([False] * 60)
    result = simulate_into(tmp_path / "run", busy(), Model.of(busy()), stop=lambda: next(looks, True))
    assert result.interrupted
    run = RunFolder(tmp_path / "run")
    assert run.meta()["interrupted"] is True
    assert {"ok", "unfinished"} <= set(run.requests()["status"])
    assert "ok" in set(run.transfers()["status"])
    assert not list((tmp_path / "run").glob("*.partial"))


def test_a_first_ctrl_c_stops_and_a_second_ends_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), _stoppable() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
