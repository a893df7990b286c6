"""Which fabrics htsim's fat-tree file can describe, read off the graph.

htsim (github.com/Broadcom/csg-htsim, sim/datacenter/fat_tree_topology.cpp) builds a tree from a few numbers a tier:
hosts have one port; two tiers join every leaf with every spine; three tiers have pods whose aggregation switches at
the same place share their cores. A `FatTree` holds those numbers, and the order of the GPUs that makes the tree the
fabric (a rail-optimised block spreads a server over its leaves; htsim numbers hosts leaf by leaf).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from topologies.fabric import Fabric


@dataclass(frozen=True)
class Tier:
    """One tier of switches: cables down and up, and how many parallel cables make one bundle downwards."""

    radix_down: int
    radix_up: int
    bundle: int


@dataclass(frozen=True)
class FatTree:
    """The numbers of a .topo file. `hosts` are GPU names in htsim's order; `tiers` from the leaves upwards."""

    hosts: tuple[str, ...]
    pod_hosts: int
    gbps: int
    tiers: tuple[Tier, ...]


class NotAFatTree(ValueError):
    """Why a .topo file cannot describe this fabric."""


def fat_tree(fabric: Fabric) -> FatTree:
    """The fabric as htsim's fat tree. Raises NotAFatTree with the first reason against it."""
    if ports := {len(gpu.ports) for gpu in fabric.gpus} - {1}:
        raise NotAFatTree(f"GPUs have {max(ports)} ports; an htsim host has one")
    rates = {link.gbps for link in fabric.links}
    if len(rates) != 1 or not next(iter(rates)).is_integer():
        shown = ", ".join(f"{rate:g}" for rate in sorted(rates))
        raise NotAFatTree(f"all cables must have one whole rate in Gb/s, not {shown}")
    up = _cables_up(fabric)
    leaves = list(dict.fromkeys(fabric.attachment[gpu.name, 1].node for gpu in fabric.gpus))
    spines = _above(leaves, up)
    cores = _above(spines, up)
    if not spines:
        raise NotAFatTree("there is one tier of switches; htsim needs two or three")
    if set(leaves) & set(spines) or len(leaves) + len(spines) + len(cores) != len(fabric.switches):
        raise NotAFatTree("its switches are not two or three tiers, each joined to the next only")
    pods = _pods(leaves, up)
    if not cores and len(pods) > 1:
        raise NotAFatTree(f"it is {len(pods)} separate two-tier networks; htsim joins every leaf to every spine")
    leaf_order = [leaf for pod in pods for leaf in pod]
    down = Counter(end.node for end in fabric.attachment.values())
    tiers = [Tier(_same(down[leaf] for leaf in leaves), _cables(leaves, up), 1)]
    tiers.append(_spine_tier(pods, up, bool(cores)))
    if cores:
        tiers.append(_core_tier(pods, up, cores))
    for tier in tiers[:-1]:
        if tier.radix_down % tier.radix_up:
            raise NotAFatTree(f"{tier.radix_down} cables down and {tier.radix_up} up are not a whole oversubscription")
    place = {leaf: index for index, leaf in enumerate(leaf_order)}
    at = {gpu.name: fabric.attachment[gpu.name, 1] for gpu in fabric.gpus}
    hosts = tuple(sorted(at, key=lambda name: (place[at[name].node], at[name].port)))
    return FatTree(hosts, len(hosts) // len(pods), int(next(iter(rates))), tuple(tiers))


Cables = Mapping[str, Counter[str]]


def _cables_up(fabric: Fabric) -> Cables:
    """Switch -> upper neighbour -> cables. The lower switch is end a, as in all of our wiring rules."""
    up: dict[str, Counter[str]] = {switch.name: Counter() for switch in fabric.switches}
    for link in fabric.links:
        if link.tier != "access":
            up[link.a.node][link.b.node] += 1
    return up


def _above(switches: Iterable[str], up: Cables) -> list[str]:
    return list(dict.fromkeys(there for switch in switches for there in up[switch]))


def _pods(leaves: list[str], up: Cables) -> list[list[str]]:
    """Leaves that share a spine, in fabric order."""
    import networkx as nx  # takes longer to load than most verbs to run

    graph: nx.Graph[str] = nx.Graph((leaf, spine) for leaf in leaves for spine in up[leaf])
    order = {leaf: place for place, leaf in enumerate(leaves)}
    pods = [sorted(part & set(leaves), key=order.__getitem__) for part in nx.connected_components(graph)]
    return sorted(pods, key=lambda pod: order[pod[0]])


def _same(values: Iterable[int]) -> int:
    """The one value that all have."""
    found = set(values)
    if len(found) != 1:
        raise NotAFatTree(f"switches of one tier differ: {sorted(found)} cables")
    return found.pop()


def _cables(switches: Iterable[str], up: Cables) -> int:
    return _same(up[switch].total() for switch in switches)


def _spine_tier(pods: list[list[str]], up: Cables, has_cores: bool) -> Tier:
    """Every leaf of a pod is joined to all of its spines by bundles of one size; pods are alike."""
    bundle = _same(count for pod in pods for leaf in pod for count in up[leaf].values())
    _same(len(pod) for pod in pods)
    _same(len(up[leaf]) for pod in pods for leaf in pod)
    if any(len({frozenset(up[leaf]) for leaf in pod}) != 1 for pod in pods):
        raise NotAFatTree("a leaf does not reach every spine of its pod")
    spines = _above((leaf for pod in pods for leaf in pod), up)
    return Tier(len(pods[0]) * bundle, _cables(spines, up) if has_cores else 0, bundle)


def _core_tier(pods: list[list[str]], up: Cables, cores: list[str]) -> Tier:
    """One spine of each pod shares each set of cores, and no core is in two sets."""
    spines = [_above(pod, up) for pod in pods]
    bundle = _same(count for pod in spines for spine in pod for count in up[spine].values())
    groups = {frozenset(frozenset(up[spine]) for spine in pod) for pod in spines}
    sets = next(iter(groups))
    if len(groups) != 1 or len(sets) != len(spines[0]) or sum(map(len, sets)) != len(cores):
        raise NotAFatTree("spines do not share their cores place by place")
    return Tier(len(pods) * bundle, 0, bundle)
