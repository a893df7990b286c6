"""What Open vSwitch remembers of its rules, forgotten after a repair.

The first packet of a flow takes Open vSwitch's slow path through the rules; what that decided is kept in a cache, and
after a change of rules its revalidator corrects what is kept. In 3.1.0 (Debian 12) a correction can get lost: now and
then, on a busy machine, one flow is sent to its old port from then on, though the switch has confirmed the new rules
and shows them (seen in 7 of 32 runs of `tests/emulated_faults.py`, four at a time on two cores: `ofctl dump-flows` was
right, `dpctl/dump-flows` had the dead port for as long as packets kept coming; in none of 20 since). Dropping the cache
of the switches that were given new rules costs each of their flows one more walk through the rules.
"""

from __future__ import annotations

from collections.abc import Collection

from emulation.network import EmulatedNetwork
from emulation.ovs_counters import appctl
from emulation.worker import Worker


def switch_caches(network: EmulatedNetwork) -> Worker[Collection[str]]:
    """Drops the caches of the switches that it is asked for, by name."""
    switches = {switch.name: switch for switch in network.switches}

    def drop(names: Collection[str]) -> None:
        for name in names:
            appctl(switches[name].rundir, switches[name].daemon_pid, "revalidator/purge")

    return Worker("switch caches", drop)
