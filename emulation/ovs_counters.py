"""What Open vSwitch itself says it dropped while serving: upcalls that failed, packets its datapath gave up.

Asked over the daemon's own control socket (unixctl, JSON-RPC), so that forty switches cost no forty programs.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from emulation.network import EmulatedNetwork
from scenario.errors import RunError

_TIMEOUT_S = 10.0
#: Coverage counters of drops by the datapath (lib/dpif-netdev.c) that no healthy run makes. Drops that a rule asks for
#: (`drop_action_*`) are the fabric's business: after a failure rules drop.
_DROPS = re.compile(r"^(datapath_drop_\w+)\s.*total: (\d+)$", re.MULTILINE)
_LOOKUPS = re.compile(r"lookups: hit:(\d+) missed:(\d+) lost:(\d+)")


@dataclass(frozen=True)
class DatapathCounts:
    """Of one switch or of all: packets that missed the flow cache, those lost in it, other drops by the datapath."""

    missed: int = 0
    lost: int = 0
    dropped: int = 0

    def since(self, before: DatapathCounts) -> DatapathCounts:
        """The difference."""
        return DatapathCounts(self.missed - before.missed, self.lost - before.lost, self.dropped - before.dropped)


def parse(dpctl_show: str, coverage_show: str) -> DatapathCounts:
    """Of `dpctl/show` and `coverage/show`. Raises RunError where the lookups are not in it."""
    match = _LOOKUPS.search(dpctl_show)
    if match is None:
        raise RunError(f"Open vSwitch gave no lookup counters: {dpctl_show[:80]!r}")
    # A packet whose upcall failed is `lost` and in datapath_drop_upcall_error: once is enough.
    drops = sum(int(count) for name, count in _DROPS.findall(coverage_show) if name != "datapath_drop_upcall_error")
    return DatapathCounts(int(match[2]), int(match[3]), drops)


def read_counts(network: EmulatedNetwork) -> dict[str, DatapathCounts]:
    """Switch -> its counters; empty where no switch is an Open vSwitch. Raises RunError."""
    return {
        switch.name: parse(
            appctl(switch.rundir, switch.daemon_pid, "dpctl/show", "netdev@ovs-netdev"),
            appctl(switch.rundir, switch.daemon_pid, "coverage/show"),
        )
        for switch in network.switches
    }


def total(counts: Iterable[DatapathCounts]) -> DatapathCounts:
    """The sum."""
    missed = lost = dropped = 0
    for one in counts:
        missed, lost, dropped = missed + one.missed, lost + one.lost, dropped + one.dropped
    return DatapathCounts(missed, lost, dropped)


def difference(before: Mapping[str, DatapathCounts], after: Mapping[str, DatapathCounts]) -> DatapathCounts:
    """What all switches counted between two readings."""
    return total(counts.since(before[name]) for name, counts in after.items())


def appctl(rundir: Path, pid: int, command: str, *arguments: str) -> str:
    """What `ovs-appctl` would print. Raises RunError."""
    request = json.dumps({"method": command, "params": list(arguments), "id": 0}).encode()
    answer = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(_TIMEOUT_S)
            channel.connect(str(rundir / f"ovs-vswitchd.{pid}.ctl"))
            channel.sendall(request)
            while True:
                part = channel.recv(65536)
                answer += part
                try:
                    reply = json.loads(answer)
                    break
                except ValueError:
                    if not part:
                        raise RunError(f"{rundir.name}: Open vSwitch closed its control socket") from None
    except OSError as error:
        raise RunError(f"{rundir.name}: Open vSwitch does not answer {command}: {error}") from None
    if reply.get("error"):
        raise RunError(f"{rundir.name}: Open vSwitch refuses {command}: {str(reply['error']).strip()}")
    return str(reply.get("result") or "")
