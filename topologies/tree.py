"""Leaf-spine trees of two and three tiers, whatever GPU hangs on which leaf; no tree is a fabric by itself.

The kinds differ only in placement (which GPU port is plugged into which leaf) and in what a tree spans: all leaves
(ROFT, Clos, fat-tree), the leaves of one rail (Rail-only) or of one NIC plane (HPN).

Two tiers: uplink t of leaf l goes to spine (l*u + t) mod S, which spreads the u uplinks of each leaf over the S
spines as evenly as whole cables can, and loads every spine alike. Where u is a multiple of S (the non-blocking
case) this is u/S parallel cables per leaf and spine.

Three tiers: pods of L leaves and L spines, every leaf to every spine of its pod (u/L cables each). Uplink t of
spine j of each pod goes to core (t*L + j) mod C: a core sees the same spine of every pod, as in the k-ary fat-tree
(Al-Fares et al., SIGCOMM 2008, section 3, https://doi.org/10.1145/1402958.1402967), of which this is the
generalisation to parallel cables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topologies.addresses import gpu_ip, gpu_mac
from topologies.fabric import Builder, End, Fabric, Gpu, Port, port_name, server_of


@dataclass(frozen=True)
class Plug:
    """Where a GPU port goes: leaf index (from 0) and host number on that leaf (from 1)."""

    leaf: int
    host: int


@dataclass(frozen=True)
class Tree:
    """One tree: leaves and spines by index (from 0), `uplinks` per leaf.

    `rate_up_gbps` is the rate of a leaf's uplink. `cores` and `pods` are for three tiers (pods of equally many
    leaves and spines); else 0.
    """

    leaves: range
    spines: range
    uplinks: int
    rate_up_gbps: float
    cores: range = range(0)
    pods: int = 0
    core_uplinks: int = 0


def wire(cables: Builder, tree: Tree) -> None:
    """Plug every cable between the switches of a tree; GPU ports are plugged before."""
    leaves_per_pod, spines_per_pod = len(tree.leaves), len(tree.spines)
    if tree.pods:
        leaves_per_pod, spines_per_pod = leaves_per_pod // tree.pods, spines_per_pod // tree.pods
    for position, leaf in enumerate(tree.leaves if tree.spines else ()):
        pod, place = divmod(position, leaves_per_pod)
        targets = sorted((place * tree.uplinks + t) % spines_per_pod for t in range(tree.uplinks))
        for j in targets:
            spine = tree.spines[pod * spines_per_pod + j]
            _plug(cables, "uplink", f"leaf{leaf + 1}", f"spine{spine + 1}", tree.rate_up_gbps)
    for position, spine in enumerate(tree.spines if tree.pods else ()):
        j = position % spines_per_pod
        for target in sorted((t * spines_per_pod + j) % len(tree.cores) for t in range(tree.core_uplinks)):
            _plug(cables, "core", f"spine{spine + 1}", f"core{tree.cores[target] + 1}", tree.rate_up_gbps)


def _plug(cables: Builder, tier: str, below: str, above: str, gbps: float) -> None:
    """One cable between the next free ports of two switches."""
    cables.cable(tier, End(below, cables.next_port(below)), End(above, cables.next_port(above)), gbps)


def tree_fabric(
    kind: str,
    parameters: dict[str, object],
    plugs: Sequence[Sequence[Plug]],
    trees: Sequence[Tree],
    *,
    gpus_per_server: int,
    port_gbps: float,
) -> Fabric:
    """The fabric of GPUs plugged as `plugs` says ([GPU][port]) and of the trees above.

    Leaf indices run over all trees. The leaf index within a NIC port's own group (a plane) makes the address, so
    that HPN's planes have a range each, as ZCube's groups do.
    """
    ports = len(plugs[0])
    first_leaf = [min(plug[p].leaf for plug in plugs) for p in range(ports)]
    leaves_of_port = [len({plug[p].leaf for plug in plugs}) for p in range(ports)]
    wide = max(leaves_of_port) > 256
    cables = Builder()
    gpus = []
    for i, gpu_plugs in enumerate(plugs, 1):
        nic = []
        for p, plug in enumerate(gpu_plugs, 1):
            cables.cable("access", End(f"gpu{i}", p), End(f"leaf{plug.leaf + 1}", plug.host), port_gbps)
            ip = gpu_ip(p, plug.leaf - first_leaf[p - 1], plug.host, wide=wide)
            nic.append(Port(port_name(End(f"gpu{i}", p)), p, port_gbps, ip, gpu_mac(ip)))
        gpus.append(Gpu(f"gpu{i}", i, server_of(i, gpus_per_server), tuple(nic)))
    for tree in trees:
        wire(cables, tree)
    count = {
        "leaf": max(tree.leaves.stop for tree in trees),
        "spine": max(tree.spines.stop for tree in trees),
        "core": max(tree.cores.stop for tree in trees),
    }
    switches = tuple(cables.switch(tier, s) for tier, many in count.items() for s in range(1, many + 1))
    return Fabric(kind=kind, parameters=parameters, gpus=tuple(gpus), switches=switches, links=cables.links)
