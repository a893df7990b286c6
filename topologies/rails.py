"""Fabrics of separate rails or planes: Rail-only and HPN.

Rail-only (https://arxiv.org/abs/2307.12169): each rail (the GPUs of one rank) has a Clos of its own, one switch
(`tiers` 1) or two tiers; nothing joins the rails. A GPU reaches another rank over NVLink inside its own server: the
GPU there that has the destination's rank sends (PXN), so its NIC carries the bytes.

HPN (Alibaba, SIGCOMM 2024, https://doi.org/10.1145/3651890.3672265), in the 1:1 form of SIGCOMM'25 appendix L: two
NIC ports of half the rate, one in each of two planes that share nothing (dual ToR, dual plane). In a plane, leaf r
of a segment of R servers connects that port of GPU r of each (R ports of half rate) and has R/2 uplinks of the full
rate. Both ports of a GPU see the same rail; in ZCube they see different groupings.

Switches: Rail-only 3N/R (two tiers), HPN 3N/R.
"""

from __future__ import annotations

from topologies.fabric import Fabric, FabricError
from topologies.fitting import asic_hint, nearest
from topologies.tree import Plug, Tree, tree_fabric


def rail_only(
    gpus: int, asic_ports: int, *, gpus_per_server: int = 4, gpu_gbps: float = 400.0, tiers: int | None = None
) -> Fabric:
    """Wire Rail-only; `tiers` 1 (one switch a rail) or 2; default 2 where it fits, else 1. Raises FabricError."""
    n, r, g = gpus, asic_ports, gpus_per_server
    if tiers not in (None, 1, 2):
        raise FabricError("tiers", tiers, "rail_only has 1 or 2")
    chosen = tiers or (2 if _rail_reason(n, r, g, 2) is None else 1)
    reason = _rail_reason(n, r, g, chosen)
    if reason:
        fits = [m for m in range(g, r * r * g // 2 + 1, g) if abs(m - n) < 4 * r * g and _rail_fits(m, r, g, tiers)]
        raise FabricError(
            "gpus",
            n,
            f"does not fill rail_only ({reason}); with asic_ports = {r} and {g} GPUs a server these fit:"
            f" {nearest(fits, n) or 'none'}; {asic_hint(n, lambda size: _rail_fits(n, size, g, tiers))}",
        )
    rail = n // g
    half = r // 2
    down = rail if chosen == 1 else half
    leaves_per_rail = rail // down
    spines_per_rail = rail // r if chosen == 2 else 0
    plugs = [
        (Plug(rank * leaves_per_rail + server // down, server % down + 1),)
        for server in range(rail)
        for rank in range(g)
    ]
    trees = [
        Tree(
            range(rank * leaves_per_rail, (rank + 1) * leaves_per_rail),
            range(rank * spines_per_rail, (rank + 1) * spines_per_rail),
            half if chosen == 2 else 0,
            gpu_gbps,
        )
        for rank in range(g)
    ]
    parameters: dict[str, object] = {
        "gpus": n,
        "asic_ports": r,
        "gpus_per_server": g,
        "gpu_gbps": gpu_gbps,
        "tiers": chosen,
        "oversubscription": 1.0,
    }
    return tree_fabric("rail_only", parameters, plugs, trees, gpus_per_server=g, port_gbps=gpu_gbps)


def hpn(gpus: int, asic_ports: int, *, gpus_per_server: int = 4, gpu_gbps: float = 400.0) -> Fabric:
    """Wire HPN: segments of R servers, two planes, 2N/R leaves and N/R spines. Raises FabricError."""
    n, r, g = gpus, asic_ports, gpus_per_server
    reason = _hpn_reason(n, r, g)
    if reason:
        fits = [m for m in range(r * g, r * r + 1, r * g) if _hpn_reason(m, r, g) is None]
        raise FabricError(
            "gpus",
            n,
            f"does not fill hpn ({reason}); with asic_ports = {r} and {g} GPUs a server these fit:"
            f" {nearest(fits, n) or 'none'}; {asic_hint(n, lambda size: _hpn_reason(n, size, g) is None)}",
        )
    leaves, spines = n // r, n // (2 * r)  # of one plane
    plugs = []
    for server in range(n // g):
        for rank in range(g):
            leaf, host = server // r * g + rank, server % r + 1
            plugs.append((Plug(leaf, host), Plug(leaves + leaf, host)))
    trees = [
        Tree(
            range(plane * leaves, (plane + 1) * leaves),
            range(plane * spines, (plane + 1) * spines),
            r // 2,
            gpu_gbps,
        )
        for plane in range(2)
    ]
    parameters: dict[str, object] = {
        "gpus": n,
        "asic_ports": r,
        "gpus_per_server": g,
        "gpu_gbps": gpu_gbps,
        "planes": 2,
        "segments": n // (r * g),
        "oversubscription": 1.0,
    }
    return tree_fabric("hpn", parameters, plugs, trees, gpus_per_server=g, port_gbps=gpu_gbps / 2)


def _rail_reason(n: int, r: int, g: int, tiers: int) -> str | None:
    """Why N GPUs do not make a Rail-only fabric of so many tiers, or None."""
    if n % g:
        return f"gpus must be a multiple of gpus_per_server = {g}"
    rail, half = n // g, r // 2
    if tiers == 1:
        return None if rail <= r else f"a rail of {rail} GPUs needs more than the {r} ports of one switch"
    if r % 2 or rail % r:
        return f"a rail of {rail} GPUs must be a multiple of asic_ports = {r} for two tiers"
    if rail > r * half or half % (rail // r):
        return f"the {half} uplinks of a leaf do not spread evenly over the {rail // r} spines of a rail"
    return None


def _rail_fits(n: int, r: int, g: int, tiers: int | None) -> bool:
    return any(_rail_reason(n, r, g, each) is None for each in ([tiers] if tiers else [1, 2]))


def _hpn_reason(n: int, r: int, g: int) -> str | None:
    """Why N GPUs do not make an HPN, or None."""
    if r % 2:
        return f"asic_ports = {r} must be even"
    if n % (r * g):
        return f"a segment holds {r} servers of {g}, so gpus must be a multiple of {r * g}"
    spines = n // (2 * r)
    if n % (2 * r) or n > r * r or (r // 2) % spines:
        return (
            f"the {r // 2} uplinks of a leaf do not spread evenly over {spines} spines of a plane, N <= R*R = {r * r}"
        )
    return None
