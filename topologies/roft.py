"""Rail-optimised fat-tree, two tiers, non-blocking.

A block is R/2 servers; leaf r of a block connects GPU r of every server in it; each leaf has R/2 uplinks spread
evenly over N/R spines (blog figure 1: 8 servers of 4 GPUs, R = 8, so 2 blocks, 8 leaves, 4 spines, one cable per
leaf and spine). Each GPU has one port of the full NIC rate.
"""

from __future__ import annotations

from topologies.addresses import gpu_ip, gpu_mac
from topologies.fabric import Builder, End, Fabric, FabricError, Gpu, Port, port_name, server_of


def fitting_gpu_counts(gpus: int, asic_ports: int, gpus_per_server: int) -> list[int]:
    """GPU counts near `gpus` that fill whole blocks, with whole numbers of spines and of cables per leaf and spine."""
    half = asic_ports // 2
    block = half * gpus_per_server
    fits = [
        n
        for n in range(block, asic_ports * half + 1, block)
        if n % asic_ports == 0 and half % (n // asic_ports) == 0
    ]
    return sorted(fits, key=lambda n: (abs(n - gpus), n))[:4]


def roft(gpus: int, asic_ports: int, *, gpus_per_server: int = 4, gpu_gbps: float = 400.0) -> Fabric:
    """Wire a two-tier ROFT of N GPUs from ASICs of R ports; rates in Gb/s per direction. Raises FabricError."""
    n, r, g = gpus, asic_ports, gpus_per_server
    if r % 2:
        raise FabricError("asic_ports", r, "must be even: half of a leaf's ports go up")
    half = r // 2
    fits = fitting_gpu_counts(n, r, g)
    hint = f"with asic_ports = {r} and {g} GPUs a server these fit: {fits or 'none'}"
    if n % (half * g) or n % r or n > r * half or half % (n // r):
        raise FabricError("gpus", n, f"does not fill a non-blocking two-tier ROFT; {hint}")
    blocks, spines = n // (half * g), n // r
    per_spine = half // spines

    def leaf_of(i: int) -> tuple[int, int]:
        """Zero-based leaf index and host number (from 1) of GPU i."""
        server, rail = divmod(i - 1, g)
        return server // half * g + rail, server % half + 1

    cables = Builder()
    for i in range(1, n + 1):
        leaf, host = leaf_of(i)
        cables.cable("access", End(f"gpu{i}", 1), End(f"leaf{leaf + 1}", host), gpu_gbps)
    for leaf in range(blocks * g):
        for spine in range(spines):
            for j in range(per_spine):
                cables.cable(
                    "uplink",
                    End(f"leaf{leaf + 1}", half + spine * per_spine + j + 1),
                    End(f"spine{spine + 1}", leaf * per_spine + j + 1),
                    gpu_gbps,
                )

    def gpu(i: int) -> Gpu:
        ip = gpu_ip(1, *leaf_of(i))
        return Gpu(
            f"gpu{i}",
            i,
            server_of(i, g),
            (Port(port_name(End(f"gpu{i}", 1)), 1, gpu_gbps, ip, gpu_mac(ip)),),
        )

    return Fabric(
        kind="roft",
        parameters={
            "gpus": n,
            "asic_ports": r,
            "gpus_per_server": g,
            "gpu_gbps": gpu_gbps,
            "links_per_leaf_spine": per_spine,
            "oversubscription": 1.0,
        },
        gpus=tuple(gpu(i) for i in range(1, n + 1)),
        switches=tuple(cables.switch("leaf", s) for s in range(1, blocks * g + 1))
        + tuple(cables.switch("spine", s) for s in range(1, spines + 1)),
        links=cables.links,
    )
