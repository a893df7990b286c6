"""What Open vSwitch remembers of its rules, forgotten after a repair.

The first packet of a flow takes Open vSwitch's slow path through the rules; what that decided is kept in a cache, and
after a change of rules its revalidator corrects what is kept. In 3.1.0 (Debian 12) a correction can get lost: now and
then, on a busy machine, one flow is sent to its old port from then on, though the switch has confirmed the new rules
and shows them (seen in 7 of 32 runs of `tests/emulated_faults.py`, four at a time on two cores: `ofctl dump-flows` was
right, `dpctl/dump-flows` had the dead port for as long as packets kept coming; in none of 20 since). Dropping the cache
of the switches that were given new rules costs each of their flows one more walk through the rules.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection

from emulation.network import EmulatedNetwork
from emulation.ovs_counters import appctl
from scenario.errors import RunError


class SwitchCaches:
    """Drops caches in a thread of its own: nobody waits for a busy switch."""

    def __init__(self, network: EmulatedNetwork) -> None:
        self._switches = {switch.name: switch for switch in network.switches}
        self._asked: queue.SimpleQueue[Collection[str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed = ""

    def drop(self, names: Collection[str]) -> None:
        """Ask for it. Raises RunError when a switch has refused before."""
        self._check()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="switch caches", daemon=True)
            self._thread.start()
        self._asked.put(names)

    def finish(self) -> None:
        """Wait until all is done. Raises RunError when a switch refused."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
            self._thread = None
        self._check()

    def _check(self) -> None:
        if self._failed:
            raise RunError(self._failed)

    def _work(self) -> None:
        while (names := self._asked.get()) is not None:
            for name in names:
                switch = self._switches[name]
                try:
                    appctl(switch.rundir, switch.daemon_pid, "revalidator/purge")
                except RunError as error:
                    self._failed = self._failed or str(error)
