"""Who stands by is called at once, leaves another behind, and ends with whoever could call it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tests_root import REPOSITORY

from controller.standby import Line, Order
from emulation.adopted import Adopted

#: Serves by writing its order and its PID, and then sleeps.
CODE = """
import os, sys, time
from controller.standby import Order, leave_behind
order = leave_behind(int(sys.argv[1]), Order(1, True))
print(order.port, order.discover, os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def started(line: Line) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, str(line.descriptor)],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, pass_fds=[line.descriptor],
    )  # fmt: skip


def called(line: Line, order: Order) -> int:
    """The standby announces itself a moment after its parent has begun to serve."""
    deadline = time.monotonic() + 30
    while (pid := line.call(order)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return pid


def said(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_each_standby_serves_by_its_order_and_leaves_another(line: Line) -> None:
    first = started(line)
    try:
        assert said(first) == ["1", "True", str(first.pid)]
        first.kill()
        first.wait()
        second = called(line, Order(2, False))
        assert said(first) == ["2", "False", str(second)]
        os.kill(second, 9)
        third = called(line, Order(3, True))
        assert said(first) == ["3", "True", str(third)] and third != second
        os.kill(third, 9)
    finally:
        first.kill()


def test_a_standby_that_has_died_is_not_called(line: Line) -> None:
    first = started(line)
    try:
        said(first)
        second = called(line, Order(2, False))  # now the third waits
        said(first)
        deadline = time.monotonic() + 30
        while (third := line._next()) is None:
            assert time.monotonic() < deadline
        line._waiting = third
        os.kill(third, 9)
        assert gone(third)
        assert line.call(Order(4, False)) is None
        os.kill(second, 9)
    finally:
        first.kill()


def test_an_order_that_nobody_has_read_does_not_reach_the_standby_of_another_controller(line: Line) -> None:
    """The one that was called was stopped, and died: a controller that is started anew has a line of its own."""
    first = started(line)
    said(first)
    deadline = time.monotonic() + 30
    while (standby := line._next()) is None:
        assert time.monotonic() < deadline
    line._waiting = standby
    os.kill(standby, signal.SIGSTOP)
    assert line.call(Order(2, False)) == standby
    os.kill(standby, signal.SIGKILL)
    first.kill()
    another = Line()
    line.close()
    second = started(another)
    try:
        assert said(second)[0] == "1"
        assert called(another, Order(3, False)) and said(second)[0] == "3"
    finally:
        another.close()
        second.kill()


def test_it_ends_with_the_line() -> None:
    line = Line()
    first = started(line)
    try:
        said(first)
        second = called(line, Order(2, False))
        said(first)
        deadline = time.monotonic() + 30
        while (third := line._next()) is None:
            assert time.monotonic() < deadline
        line.close()
        assert gone(third) and not gone_now(second)
        os.kill(second, 9)
    finally:
        first.kill()


def gone_now(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_an_adopted_process_is_like_one_that_was_started() -> None:
    sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    adopted = Adopted(sleeper.pid)
    assert adopted.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        adopted.wait(0.01)
    adopted.kill()
    assert adopted.wait(30) == adopted.poll() == Adopted.UNKNOWN
    adopted.terminate()  # nothing to end any more
    assert sleeper.wait() == -9
