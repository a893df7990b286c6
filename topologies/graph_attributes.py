"""What graph formats say about a node and a cable: one table of names for DOT and GraphML, so that both can be read
back into the same graph. Values are text or numbers; an attribute that does not apply is left out.
"""

from __future__ import annotations

from topologies.fabric import Fabric, Gpu, Link, Switch

Attributes = dict[str, str | int | float]


def graph_attributes(fabric: Fabric) -> Attributes:
    """Of the graph: its kind, how bundles are used, and the parameters under `parameter_NAME`."""
    said: Attributes = {"kind": fabric.kind, "bundle": fabric.bundle}
    for name, value in fabric.parameters.items():
        plain = isinstance(value, int | float | str) and not isinstance(value, bool)
        said[f"parameter_{name}"] = value if plain else repr(value)  # type: ignore[assignment]
    return said


def node_attributes(node: Gpu | Switch) -> Attributes:
    """Of a node: `tier` (gpu for a GPU), `number`, `ports`; of a GPU also `server` and the ports' addresses
    (`ip1`, `mac1`, ...); of a switch its OpenFlow datapath id as 16 hex digits."""
    if isinstance(node, Gpu):
        said: Attributes = {"tier": "gpu", "number": node.number, "ports": len(node.ports), "server": node.server}
        for port in node.ports:
            said |= {f"ip{port.number}": port.ip} if port.ip else {}
            said |= {f"mac{port.number}": port.mac} if port.mac else {}
        return said
    return {"tier": node.tier, "number": node.number, "ports": len(node.ports), "dpid": f"{node.dpid:016x}"}


def link_attributes(link: Link) -> Attributes:
    """Of a cable: `id`, `tier`, `gbps` per direction, and the port number at each end (`a_port`, `b_port`)."""
    return {"id": link.id, "tier": link.tier, "gbps": link.gbps, "a_port": link.a.port, "b_port": link.b.port}
