"""What a run does about a controller that ends: without a network, with small processes in its place."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.progress import RunProgress
from controller.statistics_log import RECORD, whole_records_bytes
from controller.status import StatusBoard, failures_before
from emulation.takeover import MAX_RESTARTS, ControllerKeeper
from scenario.errors import RunError


class Process:
    """Stands where a controller does: a process that runs `code`; `state` is what its status says."""

    listening, target = True, "tcp:192.0.2.1:6654"

    def __init__(self, first: str, then: str, state: str) -> None:
        self.then, self.state = then, state
        self.process = self._run(first)

    @staticmethod
    def _run(code: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", code])

    def restart(self, *, discover: bool) -> bool:
        self.process = self._run(self.then)
        return False

    def status(self) -> dict[str, object]:
        if self.state != "confirmed":
            return {"state": self.state, "switches": {}, "errors": ["odd1 refused"]}
        switches = {"odd1": {"rules_kept": 16, "rules_sent": 0}, "even2": {"rules_kept": 15, "rules_sent": 1}}
        return {"state": self.state, "switches": switches, "errors": []}


DIES, STAYS = "raise SystemExit(7)", "import time; time.sleep(60)"


def keeper(process: Process, events: list[dict[str, object]], said: list[str]) -> ControllerKeeper:
    return ControllerKeeper(process, (), None, events.append, said.append)  # type: ignore[arg-type]


def test_a_controller_that_ends_is_replaced_and_the_takeover_is_told() -> None:
    process = Process(DIES, STAYS, "confirmed")
    events: list[dict[str, object]] = []
    said: list[str] = []
    kept = keeper(process, events, said)
    process.process.wait()
    kept.finish()
    try:
        assert [event["event"] for event in events] == ["controller ended", "controller took over"]
        assert events[0]["exit_status"] == 7
        assert (events[1]["rules_kept"], events[1]["rules_sent"]) == (31, 1)
        assert len(kept.restarts) == 1 and len(said) == 2 and not kept.quiet
        kept.step()
        assert len(events) == 2
    finally:
        process.process.kill()
        process.process.wait()


class Orders:
    """Takes what the keeper tells the polls."""

    def __init__(self) -> None:
        self.resumed: list[float] = []

    def resume(self, since_s: float) -> None:
        self.resumed.append(since_s)


def test_polls_go_on_with_the_start_of_the_new_controller_and_count_from_the_end_of_the_old() -> None:
    """Not with its takeover: on a busy machine that is many seconds later, and polls would be missing."""
    process, orders = Process(DIES, STAYS, "waiting"), Orders()
    events: list[dict[str, object]] = []
    kept = ControllerKeeper(process, (), orders, events.append, print)  # type: ignore[arg-type]
    process.process.wait()
    try:
        kept.step()
        assert kept.quiet and orders.resumed == [events[0]["t_monotonic_s"]]
        process.state = "confirmed"
        kept.finish()
        assert not kept.quiet and len(orders.resumed) == 1
    finally:
        process.process.kill()
        process.process.wait()


def test_a_controller_that_dies_before_serving_is_replaced_and_the_polls_start_with_the_new_one() -> None:
    """The order to start fails with the controller that dies just then, and is given again."""

    class Starts(Orders):
        started = 0

        def start(self) -> None:
            self.started += 1
            if self.started == 1:
                process.process.kill()
                process.process.wait()
                raise RunError("the controller does not answer orders for statistics")

    process, polls = Process(DIES, STAYS, "confirmed"), Starts()
    events: list[dict[str, object]] = []
    kept = keeper(process, events, [])
    process.process.wait()
    try:
        kept.start_polls(polls)  # type: ignore[arg-type]
        assert [event["event"] for event in events] == ["controller ended", "controller took over"] * 2
        assert polls.started == 2 and polls.resumed == [] and kept.polls is polls
    finally:
        process.process.kill()
        process.process.wait()


def test_a_note_does_not_end_the_phase(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress("arm") as progress:
        for message in ({"phase": "serving"}, {"note": "the controller ended"}, {"phase": "serving"}):
            progress(dict(message))
    said = capsys.readouterr().err
    assert said.count("serving") == 1 and said.count("the controller ended") == 1


def test_a_controller_that_dies_again_and_again_ends_the_run() -> None:
    events: list[dict[str, object]] = []
    process = Process(DIES, DIES, "starting")
    process.process.wait()
    with pytest.raises(RunError, match=f"ended {MAX_RESTARTS + 1} times, .* status 7"):
        keeper(process, events, []).finish()
    assert [event["event"] for event in events] == ["controller ended"] * (MAX_RESTARTS + 1)


def test_a_new_controller_that_cannot_take_over_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulation.takeover.TAKEOVER_WITHIN_S", 0.2)
    process = Process(DIES, STAYS, "waiting")
    process.process.wait()
    try:
        with pytest.raises(RunError, match="could not take over within"):
            keeper(process, [], []).finish()
        process.state = "failed"
        with pytest.raises(RunError, match="odd1 refused"):
            process.process.kill()
            process.process.wait()
            keeper(process, [], []).finish()
    finally:
        process.process.kill()
        process.process.wait()


def test_a_new_controller_begins_with_the_failures_of_the_one_before(tmp_path: Path) -> None:
    path, dpids = tmp_path / "status.json", {"odd1": 1, "even2": 2}
    assert failures_before(path, dpids, 1) is None
    board = StatusBoard(dpids, list(dpids), sdn="ryu", listen="", rule_set_version=1, now_s=0.0, path=path)
    board.repaired({"down": ["a cable"], "before": []})
    assert failures_before(path, dpids, 1) == ("a cable",)
    assert failures_before(path, dpids, 2) is None  # other rules, another fabric: nothing of it is ours
    assert failures_before(path, {"odd1": 1}, 1) is None
    path.write_text("{")
    assert failures_before(path, dpids, 1) is None
    StatusBoard(
        dpids, list(dpids), sdn="ryu", listen="", rule_set_version=1, now_s=0.0, path=path, failures=["a cable"]
    )
    assert json.loads(path.read_text())["failures"] == ["a cable"]  # never told as gone in between


@pytest.mark.parametrize("cut", [0, 1, RECORD.size, RECORD.size + 3])
def test_the_log_of_a_controller_that_was_killed_ends_with_a_whole_record(cut: int) -> None:
    whole = RECORD.pack(1, 2, 5) + b"reply" + RECORD.pack(3, 4, 0)
    rest = (RECORD.pack(5, 6, 20) + b"cut short")[:cut]
    assert whole_records_bytes(io.BytesIO(whole + rest)) == len(whole)
