"""What is said of a run's faults, on made-up runs: the timeline, who used the failed cable, events not reached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from analysis_runs import Plan, make_run
from rich.console import Console

from analysis.arms import Arm
from analysis.compare import compare
from analysis.console import renderable
from analysis.failover import failover
from analysis.report import render
from results.reader import RunFolder

T0_S = 1000.0
DILATION = 3.0


def event(name: str, t_s: float, /, **more: object) -> dict[str, object]:
    return {"event": name, "t_monotonic_s": T0_S + t_s * DILATION, **more}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = make_run(tmp_path / "zcube", Plan(requests=60, warmup=5))
    run = RunFolder(folder)
    cable = run.transfers()["path"].map(lambda path: path[1]).mode()[0]
    at_s = first_under_way(run, cable)
    scenario = yaml.safe_load((folder / "scenario.yaml").read_text())
    scenario["faults"] = {"events": [{"at_s": at_s, "down": [cable]}, {"at_s": 900.0, "down": ["odd3"], "up": [cable]}]}
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario))
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "t0_monotonic_s": T0_S}))
    repair: dict[str, Any] = {"computed_ms": 5.4, "phases": 1}
    events = [
        event("serving", 0),
        event("fault down", at_s, what=[cable]),
        event("repaired", at_s + 0.1, down=[cable], before=[], changes=8, last_barrier_ms=88.9, **repair),
        event("flows moved", at_s + 0.2, down=[cable], queue_pairs_cut=1),
        event("fault up", at_s + 1, what=[cable]),
        event("repaired", at_s + 2, down=[], before=[cable], changes=8, last_barrier_ms=21.2, **repair),
        event("flows moved", at_s + 2, down=[], queue_pairs_cut=0),
        event("fault not reached", 100, at_s=900.0, down=["odd3"], up=[cable], served_s=100.0),
        event("capture", 100, port="odd1-eth9", packets=12, full=False),
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    return run


def first_under_way(run: RunFolder, cable: str) -> float:
    rows = run.transfers()
    row = rows[rows["path"].map(lambda path: cable in path)].iloc[3]
    return float((row["t_submit_s"] + row["t_done_s"]) / 2)


def test_the_timeline_names_each_step_and_undoing_is_no_repair(run: RunFolder) -> None:
    found = failover(run.path)
    texts = [moment.text for moment in found.timeline]
    cable = texts[0].removesuffix(" fails")
    assert texts == [
        f"{cable} fails",
        "repair confirmed: 8 rule changes in 1 phase; after PORT_STATUS 5 ms to compute, 89 ms to the last barrier",
        "agents told: 1 queue pair cut, their bytes go on over others, or wait",
        f"{cable} comes back",
        "back to the normal rules: 8 rule changes in 1 phase; after PORT_STATUS 5 ms to compute, 21 ms to the"
        " last barrier",
        "agents told: no queue pair is cut, bytes go on by the new rules",
    ]
    assert found.timeline[0].wall_ms == 0 and found.timeline[3].wall_ms == pytest.approx(3000)
    assert found.queue_pairs_cut == 1 and found.repair_ms == (88.9, 21.2)


def test_handoffs_on_their_way_are_told_apart_by_whether_they_used_the_cable(run: RunFolder) -> None:
    found = failover(run.path)
    rows, at_s = run.transfers(), found.timeline[0].model_s
    cable = found.timeline[0].text.removesuffix(" fails")
    under_way = rows[(rows["t_submit_s"] <= at_s) & (rows["t_done_s"] >= at_s)]
    using = under_way[under_way["path"].map(lambda path: cable in path)]
    assert found.in_flight == under_way["transfer_id"].nunique() and found.lost == 0
    assert found.used.handoffs == using["transfer_id"].nunique() > 0
    assert found.others.handoffs == found.in_flight - found.used.handoffs
    late_ms = (using["t_done_s"] - using["t_submit_s"] - using["isolated_s"]).max() * DILATION * 1e3
    assert found.used.longest_wall_ms == pytest.approx(late_ms)
    assert any(f"{found.used.handoffs} used what failed" in line for line in found.lines())


def test_a_run_alone_says_its_faults_and_captures_and_compares_nothing(run: RunFolder) -> None:
    alone = compare([Arm("zcube", run.path)])
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable(alone))
    for text in (console.export_text(), render(alone)):
        assert "back to the normal rules" in text and "NOT REACHED" in text and "at 900 model s" in text
        assert "odd1-eth9.pcap, 12 packets" in text
        for footer in ("NOT EQUAL", "Percentages", "fabric-free bound was computed", "against an infinite core"):
            assert footer not in text
    assert alone.to_json()["faults"]["zcube"]["not_reached"]


def test_a_check_that_is_told_gives_its_reason(run: RunFolder) -> None:
    verdict = run.fidelity()
    why = "not judged: the replay knows no failures, and this run had some"
    for check in verdict["checks"]:
        if check["name"] == "maxmin_ratio_p95":
            check["text"] = why
    (run.path / "fidelity.json").write_text(json.dumps(verdict))
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable(compare([Arm("zcube", run.path)])))
    assert why in console.export_text()
