"""A fabric as a graph of GPUs, switches and cables, and nothing else: no clock, no root, no I/O.

Both ends of a cable name a node and a port number. Port numbers are those of OpenFlow and start at 1; a switch
numbers its GPU-facing ports first, so that the GPU with host address h sits on port h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

SCHEMA_VERSION = 1

#: First half of the DPID: names such as leaf1 and spine1 must not collide (Mininet takes the number alone).
TIER_NUMBER = {"odd": 1, "even": 2, "leaf": 3, "spine": 4, "core": 5, "top": 6}


class FabricError(ValueError):
    """A fabric that cannot be built. `parameter`, `value`, `allowed` say why and what would fit."""

    def __init__(self, parameter: str, value: object, allowed: str) -> None:
        self.parameter, self.value, self.allowed = parameter, value, allowed
        super().__init__(f"{parameter} = {value}: {allowed}")


@dataclass(frozen=True)
class Port:
    """One port; `gbps` is per direction; `ip` and `mac` on GPU ports only."""

    name: str
    number: int
    gbps: float
    ip: str | None = None
    mac: str | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU and the ports of its NIC."""

    name: str
    number: int
    server: str
    ports: tuple[Port, ...]


@dataclass(frozen=True)
class Switch:
    """A switch; `tier` is odd, even, top (ZCube), leaf, spine or core (trees)."""

    name: str
    tier: str
    number: int
    ports: tuple[Port, ...]

    @property
    def dpid(self) -> int:
        """OpenFlow datapath id: tier << 32 | number."""
        return TIER_NUMBER[self.tier] << 32 | self.number


@dataclass(frozen=True)
class End:
    """One end of a cable."""

    node: str
    port: int


@dataclass(frozen=True)
class Link:
    """A full-duplex cable. `tier`: access, inter (between ZCube switches), uplink (leaf-spine), core (spine-core)."""

    id: str
    tier: str
    a: End
    b: End
    gbps: float


@dataclass(frozen=True)
class Fabric:
    """The whole graph. `kind` and `parameters` say which rule made it."""

    kind: str
    parameters: Mapping[str, object]
    gpus: tuple[Gpu, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    bundle: str = field(default="destination")

    @cached_property
    def memo(self) -> dict[object, object]:
        """What other modules derive from this fabric and keep with it."""
        return {}

    @property
    def gpus_per_server(self) -> int:
        """GPUs that share a server."""
        value = self.parameters["gpus_per_server"]
        assert isinstance(value, int)
        return value

    @cached_property
    def gpu_by_name(self) -> Mapping[str, Gpu]:
        """GPU name -> GPU."""
        return MappingProxyType({gpu.name: gpu for gpu in self.gpus})

    @cached_property
    def switch_by_name(self) -> Mapping[str, Switch]:
        """Switch name -> switch."""
        return MappingProxyType({switch.name: switch for switch in self.switches})

    @cached_property
    def link_at(self) -> Mapping[tuple[str, int], Link]:
        """(node, port) -> the cable plugged in there."""
        return MappingProxyType({(end.node, end.port): link for link in self.links for end in (link.a, link.b)})

    @cached_property
    def nodes(self) -> tuple[Gpu | Switch, ...]:
        """GPUs, then switches."""
        return (*self.gpus, *self.switches)

    @cached_property
    def attachment(self) -> Mapping[tuple[str, int], End]:
        """(GPU name, port number) -> the switch end of its cable."""
        return MappingProxyType({(link.a.node, link.a.port): link.b for link in self.links if link.tier == "access"})

    @cached_property
    def gpu_port_by_ip(self) -> Mapping[str, End]:
        """Address -> GPU port."""
        return MappingProxyType({p.ip: End(g.name, p.number) for g in self.gpus for p in g.ports if p.ip})

    def port(self, node: str, number: int) -> Port:
        """The port of a GPU or switch. Raises KeyError for an unknown node or port."""
        owner = self.gpu_by_name.get(node) or self.switch_by_name[node]
        if not 1 <= number <= len(owner.ports):
            raise KeyError(f"{node} has no port {number}")
        return owner.ports[number - 1]

    def far_end(self, node: str, port: int) -> End:
        """Where the cable at (node, port) leads."""
        link = self.link_at[node, port]
        return link.b if (link.a.node, link.a.port) == (node, port) else link.a

    @cached_property
    def parallel_ports(self) -> Mapping[tuple[str, str], tuple[int, ...]]:
        """(switch, neighbour switch) -> ports of the switch that lead there, ascending."""
        found: dict[tuple[str, str], list[int]] = {}
        for link in self.links:
            if link.tier == "access":
                continue
            for here, there in ((link.a, link.b), (link.b, link.a)):
                found.setdefault((here.node, there.node), []).append(here.port)
        return MappingProxyType({pair: tuple(sorted(ports)) for pair, ports in found.items()})

    @cached_property
    def neighbours(self) -> Mapping[str, tuple[str, ...]]:
        """Switch -> the switches it has cables to, in the order of its ports."""
        found: dict[str, dict[str, None]] = {switch.name: {} for switch in self.switches}
        for here, there in self.parallel_ports:
            found[here][there] = None
        return MappingProxyType({switch: tuple(near) for switch, near in found.items()})

    def to_json(self) -> dict[str, object]:
        """The public form (`fabric.json`); gbps per direction, in model units."""

        def ports(owner: Gpu | Switch) -> list[dict[str, object]]:
            return [
                {"name": p.name, "number": p.number, "gbps": p.gbps, **({"ip": p.ip} if p.ip else {})}
                for p in owner.ports
            ]

        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "parameters": dict(self.parameters),
            "bundle": self.bundle,
            "gpus": [{"name": g.name, "server": g.server, "ports": ports(g)} for g in self.gpus],
            "switches": [{"name": s.name, "tier": s.tier, "dpid": s.dpid, "ports": ports(s)} for s in self.switches],
            "links": [
                {
                    "id": link.id,
                    "tier": link.tier,
                    "a": {"node": link.a.node, "port": link.a.port},
                    "b": {"node": link.b.node, "port": link.b.port},
                    "gbps": link.gbps,
                }
                for link in self.links
            ],
        }


class Builder:
    """Collects cables, then numbers and names the ports in the order in which they were plugged."""

    def __init__(self) -> None:
        self._ports: dict[str, dict[int, float]] = {}
        self._links: list[Link] = []

    def cable(self, tier: str, a: End, b: End, gbps: float) -> None:
        """Plug one cable. Raises FabricError when a port is taken."""
        for end in (a, b):
            ports = self._ports.setdefault(end.node, {})
            if end.port in ports:
                raise FabricError("cable", f"{end.node} port {end.port}", "this port has a cable already")
            ports[end.port] = gbps
        self._links.append(Link(f"{port_name(a)}--{port_name(b)}", tier, a, b, gbps))

    def next_port(self, node: str) -> int:
        """The lowest port number that comes after those in use."""
        return max(self._ports.get(node, {0: 0.0})) + 1

    def rates(self, node: str) -> list[float]:
        """Rates of a node's ports by number. Raises FabricError when a number is left out."""
        ports = self._ports.get(node, {})
        if sorted(ports) != list(range(1, len(ports) + 1)):
            raise FabricError("ports", node, f"numbers must run from 1 without a gap, got {sorted(ports)}")
        return [ports[number] for number in sorted(ports)]

    def switch(self, tier: str, number: int) -> Switch:
        """The switch of that tier and number, with the ports that have cables."""
        name = f"{tier}{number}"
        rates = enumerate(self.rates(name), 1)
        return Switch(name, tier, number, tuple(Port(port_name(End(name, p)), p, rate) for p, rate in rates))

    @property
    def links(self) -> tuple[Link, ...]:
        """The cables so far."""
        return tuple(self._links)


def port_name(end: End) -> str:
    """Interface name as Mininet makes it; at most 15 characters up to gpu16384 and spine4096."""
    return f"{end.node}-eth{end.port}"


def server_of(gpu_number: int, gpus_per_server: int) -> str:
    """Name of the server that holds a GPU: server1 holds the first `gpus_per_server`."""
    return f"server{(gpu_number - 1) // gpus_per_server + 1}"
