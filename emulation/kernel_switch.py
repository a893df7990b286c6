"""A Mininet switch that is the kernel's own IP forwarding in a network namespace: no Open vSwitch, no OpenFlow.

Its routes are static and set in one batch (`emulation.kernel_routes`), then read back: what the kernel has is compared
with what was planned, route by route. Forwarding lowers a packet's TTL by one a switch and rewrites its MACs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mininet.node import Switch

from emulation.kernel_routes import FIRST_TABLE, PRIORITY, PROTOCOLS, FlowRule, SwitchRoutes
from emulation.netns import Batch, inside, read_sysctls, write_sysctls
from topologies.fabric import Switch as FabricSwitch

#: Of each switch's namespace, before it has interfaces. `ip_forward` first: it resets others.
SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
    **{
        f"net/ipv4/conf/{which}/{name}": value
        for which in ("all", "default")
        for name, value in (
            ("rp_filter", "0"),
            ("accept_local", "1"),  # with policy rules the source would be looked up as well, for each packet
            ("send_redirects", "0"),
            ("accept_redirects", "0"),
        )
    },
    "net/ipv4/fib_multipath_hash_policy": "1",  # the 5-tuple
}
HASH_SEED = "net/ipv4/fib_multipath_hash_seed"  # since Linux 6.11; before, each boot draws another
#: Counters of /proc/net/snmp (Ip) that say that the IP layer threw a packet away.
_IP_DROPS = ("InHdrErrors", "InAddrErrors", "InDiscards", "OutDiscards", "OutNoRoutes")


class KernelSwitch(Switch):
    """A namespace that forwards. `batchStartup` sets the routes of all at the same time."""

    def __init__(self, name: str, *, plan: FabricSwitch, **params: object) -> None:
        """`plan` gives ports and DPID; `routes` are set by `batchStartup` once they are there."""
        self.plan = plan
        self.routes: SwitchRoutes | None = None
        super().__init__(name, dpid=f"{plan.dpid:016x}", **{**params, "inNamespace": True})

    @classmethod
    def batchStartup(cls, switches: Sequence[KernelSwitch]) -> Sequence[KernelSwitch]:
        """Set all routes. Raises RuntimeError."""
        batch = Batch()
        for switch in switches:
            if switch.routes is not None:
                write_sysctls(switch.pid, {HASH_SEED: str(switch.routes.hash_seed)})
                batch.start(inside(switch.pid, ["ip", "-batch", "-"]), switch.routes.batch())
        batch.finish(timeout_s=120)
        return switches

    def start(self, controllers: Iterable[object]) -> None:
        """Mininet calls it for each switch; there is nothing to start."""

    def connected(self) -> bool:
        """There is no controller to be connected to."""
        return True

    def stop(self, deleteIntfs: bool = True) -> None:
        """Nothing: the sandbox's end removes everything."""


def read_back(switches: Iterable[KernelSwitch]) -> dict[str, str]:
    """Differences between what was planned and what the kernel has, by switch; empty when all is well."""
    planned = [switch for switch in switches if switch.routes is not None]
    batch = Batch()
    for switch in planned:
        for what in (["nexthop", "show"], ["-4", "route", "show", "table", "all"], ["rule", "show"]):
            batch.start(inside(switch.pid, ["ip", "-j", *what]))
    answers = [json.loads(text or "[]") for text in batch.finish(timeout_s=120)]
    found: dict[str, str] = {}
    for number, switch in enumerate(planned):
        assert switch.routes is not None
        difference = _difference(switch.routes, *answers[3 * number : 3 * number + 3])
        settings = read_sysctls(switch.pid, [*SYSCTLS, HASH_SEED])
        wanted = {**SYSCTLS, HASH_SEED: str(switch.routes.hash_seed)}
        wrong = [name for name, value in settings.items() if value not in (wanted[name], "absent")]
        if difference or wrong:
            found[switch.name] = difference or f"{wrong[0]} is {settings[wrong[0]]}, not {wanted[wrong[0]]}"
    return found


Rows = Sequence[Mapping[str, Any]]


def _difference(planned: SwitchRoutes, nexthops: Rows, routes: Rows, rules: Rows) -> str:
    port_of = {name: port for port, (name, _) in planned.interfaces.items()}
    ports_of = {row["id"]: (port_of.get(row["dev"], 0),) for row in nexthops if "dev" in row}
    singles = dict(ports_of)
    for row in nexthops:
        if "group" in row:
            ports_of[row["id"]] = tuple(port for member in row["group"] for port in singles.get(member["id"], (0,)))
    have: Counter[object] = Counter()
    for row in routes:
        table = str(row.get("table", "main"))
        if table == "local":
            continue
        ports = () if row.get("type") == "blackhole" else ports_of.get(row.get("nhid"), (0,))
        have[(table, row["dst"], ports)] += 1
    for row in rules:
        if row["priority"] == PRIORITY:
            have[_rule_key(row)] += 1
    want: Counter[object] = Counter({("main", "default", ()): 1})
    for route in planned.routes:
        # `ip` prints a host route without its length.
        text = str(route.prefix.network_address) if route.prefix.prefixlen == 32 else str(route.prefix)
        want[("main", text, route.ports)] += 1
    for port in {rule.port for rule in planned.flows}:
        want[(str(FIRST_TABLE + port), "default", (port,))] += 1
    for rule in planned.flows:
        want[_planned_key(rule)] += 1
    missing, extra = want - have, have - want
    if not missing and not extra:
        return ""
    example = f"; missing {next(iter(missing))}" if missing else ""
    example += f"; not planned {next(iter(extra))}" if extra else ""
    return f"{missing.total()} of {want.total()} routes and rules missing, {extra.total()} not planned{example}"


def _rule_key(row: Mapping[str, Any]) -> tuple[object, ...]:
    protocol = row.get("ipproto")
    return row.get("src"), row.get("dst"), protocol, row.get("sport"), row.get("dport"), str(row.get("table"))


def _planned_key(rule: FlowRule) -> tuple[object, ...]:
    flow = rule.flow
    ends = flow.src_ip, flow.dst_ip, PROTOCOLS[flow.protocol], flow.src_port, flow.dst_port
    return (*ends, str(FIRST_TABLE + rule.port))


def dropped(pid: int) -> int:
    """Packets that a switch threw away outside its queues, since it is there: those that found the processor's input
    queue full (net.core.netdev_max_backlog), and those that the IP layer could not forward."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    total = 0
    for line in lines:
        fields = line.partition(":")[2].split()
        total += int(fields[3]) + int(fields[11])  # of receive, of transmit (the far end's input queue)
    names, values = [
        line.split()[1:] for line in Path(f"/proc/{pid}/net/snmp").read_text().splitlines() if line.startswith("Ip:")
    ]
    counters = dict(zip(names, map(int, values), strict=True))
    return total + sum(counters[name] for name in _IP_DROPS)
