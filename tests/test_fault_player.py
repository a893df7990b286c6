"""Which interfaces are down after which events, and that they are set in the order of the events."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests_root import REPOSITORY, needs_root

from emulation.faults import FaultLedger
from scenario.fabric_spec import fabric_from_text
from scenario.models import FaultEvent
from topologies.fabric import End

FABRIC = fabric_from_text("zcube:gpus=16,asic_ports=4")
CABLE = "odd1-eth5--even2-eth5"


def event(*, down: tuple[str, ...] = (), up: tuple[str, ...] = ()) -> FaultEvent:
    return FaultEvent(at_s=0, down=down, up=up)


def test_a_cable_that_failed_by_name_stays_down_when_its_switch_comes_back() -> None:
    ledger, cable = FaultLedger(FABRIC), End("odd1", 5)
    assert ledger.play([event(down=(CABLE,))]) == {cable: False}
    others = {End("odd1", n) for n in range(1, 9)} - {cable}
    assert ledger.play([event(down=("odd1",))]) == dict.fromkeys(others, False)
    assert ledger.play([event(up=("odd1",))]) == dict.fromkeys(others, True)
    assert ledger.play([event(up=(CABLE,))]) == {cable: True}


def test_a_switch_stays_down_when_one_of_its_cables_comes_back() -> None:
    ledger = FaultLedger(FABRIC)
    ledger.play([event(down=("odd1", CABLE))])
    assert ledger.play([event(up=(CABLE,))]) == {}
    assert len(ledger.play([event(up=("odd1",))])) == 8


def test_events_of_one_moment_are_one_change_and_the_last_state_counts() -> None:
    ledger = FaultLedger(FABRIC)
    assert ledger.play([event(down=(CABLE,)), event(up=(CABLE,))] * 500) == {}
    assert ledger.play([*[event(down=(CABLE,)), event(up=(CABLE,))] * 500, event(down=(CABLE,))]) == {
        End("odd1", 5): False
    }
    assert ledger.play([event(down=(CABLE,))]) == {}  # it is down already
    assert ledger.play([event(up=(CABLE, "even2"))]) == {End("odd1", 5): True}


#: In a network namespace of its own: a veth pair that goes down and up many times, and one that is left down.
FLAPPING = """
import os
from pathlib import Path
from emulation.interfaces import Interfaces

interfaces = Interfaces(lambda _: os.getpid())
for _ in range(300):
    interfaces.set({("n", "a0"): False, ("n", "b0"): False})
    interfaces.set({("n", "a0"): True})
interfaces.finish()
up = [int(Path(f"/sys/class/net/{name}/flags").read_text(), 16) & 1 for name in ("a0", "b0")]
print(up)
interfaces.set({("n", "nothing"): True})
try:
    interfaces.finish()
except Exception as error:
    print(type(error).__name__, error)
"""
MAKE = "mount -t sysfs sysfs /sys && for n in a b; do ip link add ${n}0 up type veth peer name ${n}1 || exit 1; done"


@pytest.mark.root
@needs_root
def test_interfaces_end_in_the_state_asked_for_last() -> None:
    done = subprocess.run(
        ["unshare", "-n", "-m", "sh", "-c", MAKE + ' && exec "$0" -c "$1"', sys.executable, FLAPPING],
        capture_output=True, text=True, cwd=REPOSITORY, env={**os.environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[1, 0]",
        "RunError an interface could not be changed: nothing up: No such device",
    ]
