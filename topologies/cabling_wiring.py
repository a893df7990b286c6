"""A fabric plugged otherwise than planned, for tests of whatever should notice it.

Faults are made one after another, each on the cables as they are by then. A port is named as its interface
(`odd1-eth9`), a cable by its id (`odd1-eth9--even2-eth9`) or by either interface.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace

from topologies.fabric import End, Fabric, FabricError, Link, Port, Switch, port_name

#: Free ports that every switch has beyond the planned ones, for plugs that go astray. A GPU's NIC has none.
SPARE_PORTS = 8

_INTERFACE = re.compile(r"(.+)-eth([1-9][0-9]{0,5})")


class Wiring:
    """The cables of a plan, as somebody plugs them. Errors are FabricError named after the argument."""

    def __init__(self, plan: Fabric) -> None:
        self.plan = plan
        self._ends: dict[str, tuple[End, End]] = {link.id: (link.a, link.b) for link in plan.links}
        self._cable_at = {end: link.id for link in plan.links for end in (link.a, link.b)}

    def swap(self, a: str, b: str) -> None:
        """Exchange the plugs in two ports."""
        plugs = self._plug("a", a), self._plug("b", b)
        cables = [self._cable_at[plug] for plug in plugs]
        if cables[0] == cables[1]:
            raise FabricError("b", b, "is on the cable that is in a: exchanging its two ends changes nothing")
        self._move({plugs[0]: plugs[1], plugs[1]: plugs[0]})

    def move(self, cable: str, to: str) -> None:
        """Put one plug of a cable into a free port: the named one, or the one on the device of `to`, or on its like."""
        ends = self._ends[self._cable("cable", cable)]
        target = self._end("to", to)
        if target in self._cable_at:
            taken = self._cable_at[target]
            raise FabricError("to", to, f"is taken by {taken}: use kind swap, or make that one missing first")
        switches = self.plan.switch_by_name
        here = (
            [end for end in ends if cable == port_name(end)]
            or [end for end in ends if end.node == target.node]
            or [end for end in ends if (end.node in switches) == (target.node in switches)]
        )
        if len(here) != 1:
            names = " or ".join(port_name(end) for end in ends)
            raise FabricError("cable", cable, f"say which plug goes to {target.node}: {names}")
        self._move({here[0]: target})

    def unplug(self, cable: str) -> None:
        """Take a cable out at both ends."""
        for end in self._ends.pop(self._cable("cable", cable)):
            del self._cable_at[end]

    def fabric(self) -> Fabric:
        """The fabric as it is wired now; the plan itself where nothing differs. Cables keep their order."""
        links = tuple(self._link(link) for link in self.plan.links if link.id in self._ends)
        if links == self.plan.links:
            return self.plan
        switches = tuple(self._with_spares(switch) for switch in self.plan.switches)
        return replace(self.plan, switches=switches, links=links)

    def _link(self, planned: Link) -> Link:
        a, b = self._ends[planned.id]
        return replace(planned, id=f"{port_name(a)}--{port_name(b)}", a=a, b=b)

    def _with_spares(self, switch: Switch) -> Switch:
        used = max((end.port for end in self._cable_at if end.node == switch.name), default=0)
        spares = (
            Port(port_name(End(switch.name, number)), number, switch.ports[-1].gbps)
            for number in range(len(switch.ports) + 1, used + 1)
        )
        return replace(switch, ports=(*switch.ports, *spares))

    def _move(self, moves: dict[End, End]) -> None:
        cables = {end: self._cable_at.pop(end) for end in moves}  # all plugs out, then all in
        for end, cable in cables.items():
            self._cable_at[moves[end]] = cable
            first, second = self._ends[cable]
            self._ends[cable] = (moves[end], second) if first == end else (first, moves[end])

    def _plug(self, argument: str, name: str) -> End:
        end = self._end(argument, name)
        if end not in self._cable_at:
            raise FabricError(argument, name, "has no cable")
        return end

    def _cable(self, argument: str, name: str) -> str:
        if name in self._ends:
            return name
        if "--" not in name:
            return self._cable_at[self._plug(argument, name)]
        near = [self._cable_at[end] for end in map(self._known, name.split("--")) if end in self._cable_at]
        near = list(dict.fromkeys(near)) or difflib.get_close_matches(name, self._ends, 1)
        raise FabricError(argument, name, "is no cable" + (f"; there is {' and '.join(near)}" if near else ""))

    def _known(self, name: str) -> End | None:
        parsed = _INTERFACE.fullmatch(name)
        return End(parsed[1], int(parsed[2])) if parsed else None

    def _end(self, argument: str, name: str) -> End:
        """The port of that interface name, which may be a free one."""
        parsed = _INTERFACE.fullmatch(name)
        if parsed is None:
            raise FabricError(argument, name, f"must be an interface such as {self.plan.switches[0].ports[0].name}")
        node, number = parsed[1], int(parsed[2])
        owner = self.plan.gpu_by_name.get(node) or self.plan.switch_by_name.get(node)
        if owner is None:
            switches = ", ".join(switch.name for switch in self.plan.switches[:16])
            more = ", ..." if len(self.plan.switches) > 16 else ""
            raise FabricError(
                argument, name, f"no {node} here; there are gpu1 to gpu{len(self.plan.gpus)}, {switches}{more}"
            )
        last = len(owner.ports) + (SPARE_PORTS if node in self.plan.switch_by_name else 0)
        if number > last:
            raise FabricError(argument, name, f"{node} has {node}-eth1 to {node}-eth{last}")
        return End(node, number)
