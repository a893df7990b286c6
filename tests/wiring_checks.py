"""What holds for the plugs of every fabric."""

from __future__ import annotations

from collections import Counter, defaultdict

from topologies.fabric import End, Fabric


def check_plugs(fabric: Fabric) -> None:
    """Every port of every node has exactly one cable, and names, addresses and DPIDs are unique and fit."""
    ends = Counter(end for link in fabric.links for end in (link.a, link.b))
    owners = {owner.name: owner.ports for owner in (*fabric.gpus, *fabric.switches)}
    assert set(ends.values()) == {1}
    assert set(ends) == {End(name, port.number) for name, ports in owners.items() for port in ports}
    names = [port.name for ports in owners.values() for port in ports]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 15
    nics = [port for gpu in fabric.gpus for port in gpu.ports]
    assert len({port.ip for port in nics}) == len({port.mac for port in nics}) == len(nics)
    assert len({switch.dpid for switch in fabric.switches}) == len(fabric.switches)
    assert len({link.id for link in fabric.links}) == len(fabric.links)
    prefix_of: dict[str, set[str]] = defaultdict(set)
    for gpu in fabric.gpus:
        for port in gpu.ports:
            prefix_of[str(port.ip).rsplit(".", 1)[0]].add(fabric.attachment[gpu.name, port.number].node)
    assert all(len(homes) == 1 for homes in prefix_of.values())  # a /24 is one switch
