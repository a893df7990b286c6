"""What a controller says of itself: its state and its counts of rules, from its socket and in its log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from test_controller_plan import board
from tests_root import REPOSITORY

from controller.audit import Difference
from controller.plan import FabricPlan
from controller.present import Present
from controller.repair import Change
from controller.repair_log import RepairLog
from controller.ruleset import MASK_24, Group, Match, Output, Rule, SelectGroup
from controller.status import failures_before, state_of
from controller.status_socket import ask
from topologies.build import build
from topologies.routes import Failures


def test_a_new_controller_is_starting_until_it_has_a_state_of_its_own(tmp_path: Path) -> None:
    """The file of a dead controller is read for its failures, and never told as the state of the living one."""
    board(tmp_path).repaired({"down": ["odd1-eth9--even2-eth9"], "before": []})
    path, place = tmp_path / "status.json", tmp_path / "controller.sock"
    serve_status = "import sys, time; from pathlib import Path; from controller import status_socket as s;"
    serve_status += "s.serve(Path(sys.argv[1]), Path(sys.argv[2])); print(flush=True); time.sleep(60)"
    argv = [sys.executable, "-c", serve_status, str(place), str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            found = ask(place)
            assert (found["state"], found["switches"], found["repairs"]) == ("starting", {}, [])
            assert found["pid"] == found["host_pid"] == process.pid
            assert state_of(path, process.pid)["state"] == "starting"
            assert failures_before(path, {"odd1": 1, "even2": 2, "odd3": 3}, 1) == ("odd1-eth9--even2-eth9",)
            path.write_text(json.dumps({"pid": process.pid, "state": "waiting"}))
            assert ask(place)["state"] == "waiting"
        finally:
            process.kill()


def test_what_a_switch_has_follows_what_it_confirmed_repairs_included() -> None:
    host, planned = (Rule("host", number, Match(f"198.18.0.{number}"), (Output(1),)) for number in (1, 2))
    repair = Rule("repair", 250, Match("198.18.1.0", MASK_24), (Group(7),))
    group = SelectGroup(7, (5, 6))
    present = Present()
    found = Difference(add_groups=(), add_rules=(planned,), delete_rules=(), delete_groups=(), kept=1, foreign=())
    present.audited((host, planned), (), found)
    assert len(present.rules) == 1  # what is sent is there when the switch has said so
    present.confirmed({1: planned, 2: "last barrier"})
    assert len(present.rules) == 2
    present.confirmed({3: Change("odd1", "add group", group), 4: Change("odd1", "add", repair)}, refused=[4])
    assert (len(present.rules), present.groups) == (2, {7})
    present.confirmed({5: Change("odd1", "add", repair)})
    assert len(present.rules) == 3
    present.confirmed({6: Change("odd1", "delete", repair), 7: Change("odd1", "delete group", group)})
    assert (len(present.rules), present.groups) == (2, set())


# --- the log of repairs ---------------------------------------------------------------------------------------


def test_a_repair_line_names_what_went_down_and_came_back() -> None:
    fabric = build(FabricPlan("zcube", 16, asic_ports=4))
    lines: list[str] = []
    log = RepairLog(fabric, False, lines.append)
    cable = next(link.id for link in fabric.links if link.tier != "access")
    down = Failures.of(fabric, [cable])
    assert log.repaired(Failures(), down, changes=8, phases=1, ms=12.4, now_s=100.0) == 0
    assert f"down: {cable}; 8 rule changes in 1 phase, the last barrier after 12 ms" in lines[0]
    assert log.repaired(down, Failures(), changes=8, phases=2, ms=9.0, now_s=102.0) == 0
    assert lines[1] == f"back: {cable}; 8 rule changes in 2 phases, the last barrier after 9 ms; everything is up"


def test_a_network_that_is_shut_down_is_one_line_a_second() -> None:
    fabric = build(FabricPlan("zcube", 16, asic_ports=4))
    lines: list[str] = []
    log = RepairLog(fabric, False, lines.append)
    before, waits = Failures(), []
    for number in range(1, len(fabric.links) + 1):
        now = Failures.of(fabric, [link.id for link in fabric.links[:number]])
        waits.append(log.repaired(before, now, changes=1, phases=1, ms=5.0, now_s=100 + number / 100))
        before = now
    assert len(lines) == 1 and sum(wait > 0 for wait in waits) == 1
    log.flush(101.5)
    assert len(lines) == 2 and f"and {len(fabric.links) - 1 - 6} more" in lines[1]
    assert f"{len(fabric.links) - 1} repairs" in lines[1] and "240 of 240 GPU pairs (ordered) are CUT OFF" in lines[1]
