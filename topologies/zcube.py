"""ZCube wiring: odd and even switches fully joined, no spine, one NIC port of each GPU in each group.

Rule (Z.ai blog, https://z.ai/blog/zcube; equal to SIGCOMM'25 https://doi.org/10.1145/3718958.3750503 section 5.1
for two levels): GPU i (from 1), k GPUs per switch, G = N/k switches a group,
port 1 -> odd switch ((i-1) mod G)*2+1, port 2 -> even switch ceil(i/k)*2.
m parallel port-rate links join each odd-even pair; it is 1:1 when m = k*k/N.
"""

from __future__ import annotations

from topologies.addresses import gpu_ip, gpu_mac
from topologies.fabric import Builder, End, Fabric, FabricError, Gpu, Port, port_name, server_of
from topologies.fitting import asic_hint

#: What m links of a pair are: a member by destination, a member by hash, or one link of m times the rate.
BUNDLES = ("destination", "hashed", "trunk")


def odd_switch(gpu: int, groups: int) -> int:
    """Number of the odd switch of port 1; `groups` is G."""
    return (gpu - 1) % groups * 2 + 1


def even_switch(gpu: int, gpus_per_switch: int) -> int:
    """Number of the even switch of port 2."""
    return -(-gpu // gpus_per_switch) * 2


def fitting_gpu_counts(gpus: int, gpus_per_switch: int, gpus_per_server: int) -> list[int]:
    """GPU counts near `gpus` that a 1:1 ZCube of this k can have: multiples of k and of the server, k*k/N whole."""
    fits = [
        n
        for n in range(gpus_per_switch, gpus_per_switch**2 + 1, gpus_per_switch)
        if gpus_per_switch**2 % n == 0 and n % gpus_per_server == 0
    ]
    return sorted(fits, key=lambda n: (abs(n - gpus), n))[:4]


def zcube(
    gpus: int,
    gpus_per_switch: int,
    links_per_pair: int | None = None,
    *,
    asic_ports: int | None = None,
    gpus_per_server: int = 4,
    gpu_gbps: float = 400.0,
    bundle: str = "destination",
) -> Fabric:
    """Wire ZCube(N, k, m); rates in Gb/s per direction.

    `bundle` trunk makes the m links of a pair one link of m times the rate. `asic_ports` R, where given, bounds the
    radix: k + m*G ports of half the NIC rate on an ASIC of 2R. Raises FabricError naming the parameter and what
    would fit.
    """
    if bundle not in BUNDLES:
        raise FabricError("bundle", bundle, f"must be one of {', '.join(BUNDLES)}")
    n, k = gpus, gpus_per_switch
    fits = fitting_gpu_counts(n, k, gpus_per_server)
    carriers = asic_hint(n, lambda ports: n % ports == 0 and ports * ports % n == 0 and n % gpus_per_server == 0)
    hint = f"with gpus_per_switch = {k} and {gpus_per_server} GPUs a server these fit 1:1: {fits or 'none'}; {carriers}"
    if n % k:
        raise FabricError("gpus", n, f"must be a multiple of gpus_per_switch; {hint}")
    if n % gpus_per_server:
        raise FabricError("gpus", n, f"must be a multiple of gpus_per_server; {hint}")
    if links_per_pair is None:
        if k * k % n:
            raise FabricError("gpus", n, f"gpus_per_switch squared / gpus is not a whole number; {hint}")
        links_per_pair = k * k // n
    groups, m = n // k, links_per_pair
    port_gbps = gpu_gbps / 2
    if asic_ports is not None and k + m * groups > 2 * asic_ports:
        raise FabricError(
            "gpus_per_switch",
            k,
            f"k + m*G = {k} + {m}*{groups} ports of {port_gbps:g} Gb/s do not fit the {2 * asic_ports} of an ASIC of"
            f" asic_ports = {asic_ports}; 1:1 needs asic_ports >= gpus_per_switch, or take a smaller links_per_pair",
        )

    cables = Builder()
    for i in range(1, n + 1):
        odd, even = odd_switch(i, groups), even_switch(i, k)
        cables.cable("access", End(f"gpu{i}", 1), End(f"odd{odd}", (i - 1) // groups + 1), port_gbps)
        cables.cable("access", End(f"gpu{i}", 2), End(f"even{even}", (i - 1) % k + 1), port_gbps)
    members, rate = (1, port_gbps * m) if bundle == "trunk" else (m, port_gbps)
    for o in range(groups):
        for e in range(groups):
            for j in range(members):
                cables.cable(
                    "inter",
                    End(f"odd{2 * o + 1}", k + e * members + j + 1),
                    End(f"even{2 * e + 2}", k + o * members + j + 1),
                    rate,
                )

    def gpu(i: int) -> Gpu:
        ips = (
            gpu_ip(1, (i - 1) % groups, (i - 1) // groups + 1),
            gpu_ip(2, (i - 1) // k, (i - 1) % k + 1),
        )
        ports = tuple(Port(port_name(End(f"gpu{i}", p)), p, port_gbps, ip, gpu_mac(ip)) for p, ip in enumerate(ips, 1))
        return Gpu(f"gpu{i}", i, server_of(i, gpus_per_server), ports)

    return Fabric(
        kind="zcube",
        parameters={
            "gpus": n,
            "gpus_per_switch": k,
            "links_per_pair": m,
            "asic_ports": asic_ports or k,
            "gpus_per_server": gpus_per_server,
            "gpu_gbps": gpu_gbps,
            "oversubscription": k * k / (n * m),
        },
        gpus=tuple(gpu(i) for i in range(1, n + 1)),
        switches=tuple(cables.switch("odd" if s % 2 else "even", s) for s in range(1, 2 * groups + 1)),
        links=cables.links,
        bundle=bundle,
    )
