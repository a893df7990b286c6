"""Ctrl-C while a sandbox runs: real signals to this process, a sandbox that only notes what it is asked."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from emulation import stopping
from emulation.stopping import WRITING, WRITTEN, Stopping


class Noted:
    """What `Stopping` uses of a sandbox; the real one is in tests/test_emulation_network.py."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def interrupt(self) -> None:
        self.calls.append("interrupt")

    def end(self) -> None:
        self.calls.append("end")


@pytest.fixture
def noted() -> Iterator[tuple[Stopping, Noted, list[str]]]:
    said: list[str] = []
    sandbox = Noted()
    with Stopping(lambda message: said.append(str(message["note"]))) as found:
        found.watch(sandbox)  # type: ignore[arg-type]
        yield found, sandbox, said


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0)  # the handler runs before the next statement


def wait_for(sandbox: Noted, call: str) -> None:
    for _ in range(2000):
        if call in sandbox.calls:
            return
        time.sleep(0.005)
    raise AssertionError(f"{call} never came: {sandbox.calls}")


def test_the_first_asks_and_the_others_are_told_to_wait(noted: tuple[Stopping, Noted, list[str]]) -> None:
    found, sandbox, said = noted
    assert not found.asked
    ctrl_c()
    assert found.asked and sandbox.calls == ["interrupt"] and not said
    found.hear({"phase": WRITING})
    for _ in range(3):
        ctrl_c()
    os.kill(os.getpid(), signal.SIGTERM)
    assert sandbox.calls == ["interrupt"] and len(said) == 4 and "writing results" in said[0]
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0  # no limit while it writes
    found.hear({"phase": WRITTEN})
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= stopping.CLOSING_S


def test_a_runner_that_does_not_come_to_writing_is_ended(
    noted: tuple[Stopping, Noted, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "GRACE_S", 0.01)
    ctrl_c()
    wait_for(noted[1], "end")


def test_writing_that_takes_very_long_can_be_ended(
    noted: tuple[Stopping, Noted, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, sandbox, _ = noted
    ctrl_c()
    found.hear({"phase": WRITING})
    monkeypatch.setattr(stopping, "WRITING_S", -1.0)
    ctrl_c()
    assert sandbox.calls == ["interrupt", "end"]


def test_one_that_comes_before_the_sandbox_is_passed_on_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    sandbox = Noted()
    with Stopping(lambda _: None) as found:
        ctrl_c()
        found.watch(sandbox)  # type: ignore[arg-type]
        assert sandbox.calls == ["interrupt"]
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
