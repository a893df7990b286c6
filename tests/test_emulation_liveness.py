"""Real processes that end, are stopped and go on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from emulation.liveness import Liveness, is_stopped
from scenario.errors import RunError


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    found = subprocess.Popen(["sleep", "600"])
    yield found
    found.kill()
    found.wait()


def stop(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)


def go_on(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, child.pid, os.WCONTINUED)


def test_a_process_that_stays_stopped_is_named_with_what_to_do(child: subprocess.Popen[bytes]) -> None:
    watch = Liveness({"this test": os.getpid(), "the agent of server1": child.pid})
    watch.check()
    stop(child)
    watch.check()
    with pytest.raises(
        RunError, match=r"the agent of server1 was stopped while serving \(state T\)\n  continue or end what"
    ):
        watch.check()
    watch.close()


def test_a_process_that_goes_on_at_once_is_no_failure(child: subprocess.Popen[bytes]) -> None:
    watch = Liveness({"a switch": child.pid})
    for _ in range(2):
        stop(child)
        watch.check()
        go_on(child)
        watch.check()
    assert not is_stopped(child.pid)
    watch.close()


def test_a_process_that_ends_is_named(child: subprocess.Popen[bytes]) -> None:
    watch = Liveness({"a switch": child.pid})
    watch.check()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(RunError, match="a switch ended while serving"):
        watch.check()
    watch.close()
    child.wait()
    with pytest.raises(RunError, match="a switch ended"):
        Liveness({"a switch": child.pid})
    assert not is_stopped(child.pid)
