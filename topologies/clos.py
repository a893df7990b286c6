"""Folded Clos without rails: leaf-spine with contiguous placement, and the k-ary fat-tree.

`clos`: GPUs in order on leaves of d ports (a server's GPUs share a leaf), u uplinks each; two tiers, 1:1 by
default. `fat_tree`: k = R, k pods of k/2 leaves (its edge switches) and k/2 spines (aggregation), (k/2)^2 cores,
k^3/4 GPUs, all links alike (Al-Fares et al., SIGCOMM 2008, section 3, https://doi.org/10.1145/1402958.1402967).
"""

from __future__ import annotations

from topologies.fabric import Fabric, FabricError
from topologies.fitting import asic_hint, nearest
from topologies.tree import Plug, Tree, tree_fabric


def clos(
    gpus: int,
    asic_ports: int,
    *,
    gpus_per_server: int = 4,
    gpu_gbps: float = 400.0,
    gpus_per_leaf: int | None = None,
    uplinks_per_leaf: int | None = None,
) -> Fabric:
    """Wire a two-tier leaf-spine fabric; N/d leaves, ceil(N/d*u/R) spines. Raises FabricError."""
    n, r, g = gpus, asic_ports, gpus_per_server
    down = min(gpus_per_leaf or r // 2, n)
    up = uplinks_per_leaf or min(down, r - down)
    if r < 2 or down + up > r or up < 1:
        raise FabricError("gpus_per_leaf", down, f"with {up} uplinks it must fit the asic_ports = {r} of a leaf")
    if n % g:
        raise FabricError("gpus", n, f"must be a multiple of gpus_per_server = {g}")
    leaves = n // down if n % down == 0 else 0
    spines = -(-leaves * up // r)
    if not leaves or leaves > r or up < spines or (leaves * up) % spines:
        needed = {m: -(-m * up // r) for m in range(1, r + 1)}
        fits = [m * down for m, few in needed.items() if m * down % g == 0 and m * up % few == 0 and up >= few]
        raise FabricError(
            "gpus",
            n,
            f"does not fill leaves of {down} GPUs below spines of {r} ports; these fit: {nearest(fits, n) or 'none'};"
            f" {asic_hint(n, lambda size: _fits(n, size))}",
        )
    parameters: dict[str, object] = {
        "gpus": n,
        "asic_ports": r,
        "gpus_per_server": g,
        "gpu_gbps": gpu_gbps,
        "gpus_per_leaf": down,
        "uplinks_per_leaf": up,
        "oversubscription": down / up,
    }
    tree = Tree(range(leaves), range(spines), up, gpu_gbps)
    return tree_fabric("clos", parameters, _contiguous(n, down), [tree], gpus_per_server=g, port_gbps=gpu_gbps)


def fat_tree(gpus: int, asic_ports: int, *, gpus_per_server: int = 4, gpu_gbps: float = 400.0) -> Fabric:
    """Wire the k-ary fat-tree, k = `asic_ports`: it carries exactly k^3/4 GPUs. Raises FabricError."""
    k, half = asic_ports, asic_ports // 2
    if k % 2:
        raise FabricError("asic_ports", k, "k of a fat-tree must be even")
    if gpus != k * half * half:
        sizes = {size: size**3 // 4 for size in range(2, 66, 2)}
        near = nearest(sizes.values(), gpus)
        pairs = ", ".join(f"{n} (asic_ports {next(s for s, many in sizes.items() if many == n)})" for n in near)
        raise FabricError("gpus", gpus, f"asic_ports = {k} carries exactly k^3/4 = {k * half * half}; near: {pairs}")
    if gpus % gpus_per_server:
        raise FabricError("gpus_per_server", gpus_per_server, f"must divide gpus = {gpus}")
    parameters: dict[str, object] = {
        "gpus": gpus,
        "asic_ports": k,
        "gpus_per_server": gpus_per_server,
        "gpu_gbps": gpu_gbps,
        "pods": k,
        "oversubscription": 1.0,
    }
    tree = Tree(range(k * half), range(k * half), half, gpu_gbps, range(half * half), k, half)
    return tree_fabric(
        "fat_tree", parameters, _contiguous(gpus, half), [tree], gpus_per_server=gpus_per_server, port_gbps=gpu_gbps
    )


def _contiguous(n: int, down: int) -> list[tuple[Plug]]:
    return [(Plug(i // down, i % down + 1),) for i in range(n)]


def _fits(n: int, r: int) -> bool:
    down = r // 2
    return n % down == 0 and n // down <= r and n % (spines := -(-n // r)) == 0 and down >= spines
