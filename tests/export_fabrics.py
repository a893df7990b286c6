"""Fabrics that the export tests share: every wiring rule, parallel cables, and a mis-wired ZCube."""

from __future__ import annotations

from topologies.clos import clos, fat_tree
from topologies.export_simai import simai
from topologies.fabric import Builder, End, Fabric, Gpu, Port, port_name
from topologies.rails import hpn, rail_only
from topologies.recursive import zcube_recursive
from topologies.roft import roft
from topologies.zcube import zcube

FABRICS = {
    "zcube-16-4": zcube(16, 4),
    "zcube-32-8-parallel": zcube(32, 8),
    "zcube-32-8-trunk": zcube(32, 8, bundle="trunk"),
    "roft-32-8": roft(32, 8),
    "roft-64-16-parallel": roft(64, 16),
    "recursive-64": zcube_recursive(64, 3),
    "recursive-64-partial": zcube_recursive(64, 3, partial=True),
    "rail-only-32-8": rail_only(32, 8),
    "rail-only-one-tier": rail_only(32, 16, tiers=1),
    "hpn-32-8": hpn(32, 8),
    "clos-32-8": clos(32, 8),
    "fat-tree-16-4": fat_tree(16, 4),
}


def three_tier(pods: int = 4, half: int = 2) -> Fabric:
    """A three-tier fat tree built here by hand: `pods` pods of `half` leaves with `half` GPUs, `half` spines."""
    cables = Builder()
    gpus = pods * half * half
    for i in range(gpus):
        cables.cable("access", End(f"gpu{i + 1}", 1), End(f"leaf{i // half + 1}", i % half + 1), 100.0)
    for leaf in range(pods * half):
        for s in range(half):
            spine = leaf // half * half + s
            cables.cable(
                "uplink", End(f"leaf{leaf + 1}", half + s + 1), End(f"spine{spine + 1}", leaf % half + 1), 100.0
            )
    for spine in range(pods * half):
        for c in range(half):
            core = spine % half * half + c
            cables.cable(
                "core", End(f"spine{spine + 1}", half + c + 1), End(f"core{core + 1}", spine // half + 1), 100.0
            )
    return Fabric(
        kind="hand_made",
        parameters={"gpus": gpus},
        gpus=tuple(
            Gpu(f"gpu{i}", i, f"server{(i - 1) // half + 1}", (Port(port_name(End(f"gpu{i}", 1)), 1, 100.0),))
            for i in range(1, gpus + 1)
        ),
        switches=(
            *(cables.switch("leaf", s) for s in range(1, pods * half + 1)),
            *(cables.switch("spine", s) for s in range(1, pods * half + 1)),
            *(cables.switch("core", s) for s in range(1, half * half + 1)),
        ),
        links=cables.links,
    )


def same_index_zcube(gpus: int = 32, k: int = 8) -> str:
    """A SimAI file of a "ZCube" wired as a public generator does: both ports follow one running index, so switch j
    of either group holds the GPUs that are j modulo G."""
    groups = gpus // k
    servers = gpus // 4
    first = gpus + servers
    lines = [
        f"{first + 2 * groups} 4 {servers} {2 * groups} {3 * gpus + groups * groups} H100",
        " ".join(str(node) for node in range(gpus, first + 2 * groups)),
    ]
    for gpu in range(gpus):
        lines.append(f"{gpu} {gpus + gpu // 4} 2880Gbps 0.000025ms 0")
        lines += [f"{gpu} {first + group * groups + gpu % groups} 200Gbps 0.0005ms 0" for group in (0, 1)]
    for a in range(groups):
        lines += [f"{first + a} {first + groups + b} {200 * k * k // gpus}Gbps 0.0005ms 0" for b in range(groups)]
    return "\n".join(lines) + "\n"


def renumbered(fabric: Fabric) -> str:
    """The fabric's SimAI file with its switches in reverse order and its links shuffled: equal up to names."""
    lines = simai(fabric).splitlines()
    nodes, _, nvswitches, switches = (int(word) for word in lines[0].split()[:4])
    first = nodes - switches

    def new(word: str) -> str:
        return str(nodes - 1 - (int(word) - first)) if int(word) >= first else word

    links = []
    for line in lines[2:]:
        a, b, *rest = line.split()
        links.append(" ".join([new(b), new(a), *rest]))
    assert nvswitches
    return "\n".join([lines[0], lines[1], *links[::-2], *links[-2::-2]]) + "\n"
