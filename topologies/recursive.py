"""The paper's recursive ZCube(n, levels): n GPUs per switch, one NIC port per level.

SIGCOMM'25 section 5.1 (https://doi.org/10.1145/3718958.3750503): ZCube(n, 1) is one level-0 switch with n GPUs;
ZCube(n, l+1) is n copies of ZCube(n, l) and n^l level-l switches; GPU i of copy j is port j of level-l switch i, and
level-(l-1) switch i of a copy joins level-l switches i*n .. (i+1)*n-1. Lowest and highest level need 2n ports,
the levels between them 3n.

Two levels are exactly the blog's rule with N = n*n, k = n, m = 1: level 0 is the even group (port 2, contiguous),
level 1 the odd group (port 1, modulo). Level 2 (`top`) is port 3.

The partial form (section 5.2; n even): n copies of ZCube(n, 2) whose GPUs keep two ports; n*n/2 level-2 switches
without GPUs, each on 2n ports. The paper gives the counts (ZCube(16,3)-partial: 640 switches of 48 ports, 12,288
fibres for 4,096 GPUs), not the cables: here level-2 switches 2x and 2x+1 of the full form are merged, so level-1
switch i of a copy has two cables to each of level-2 switches i*n/2 .. (i+1)*n/2-1. The longest path between
crosswise ports is then four switches, the paper's diameter.
"""

from __future__ import annotations

from topologies.addresses import gpu_ip, gpu_mac
from topologies.fabric import Builder, End, Fabric, FabricError, Gpu, Port, port_name, server_of
from topologies.fitting import nearest


def zcube_recursive(
    gpus: int,
    levels: int = 2,
    *,
    partial: bool = False,
    gpus_per_switch: int | None = None,
    asic_ports: int | None = None,
    gpus_per_server: int = 4,
    gpu_gbps: float = 400.0,
) -> Fabric:
    """Wire ZCube(n, levels), n = gpus^(1/levels); a GPU's rate is shared by its ports. Raises FabricError.

    Two levels give a fabric of kind zcube, since it is one.
    """
    if levels not in (2, 3):
        raise FabricError("levels", levels, "2 or 3")
    n = round(gpus ** (1 / levels))
    sizes = (m**levels for m in range(2, n + 4) if not (partial and m % 2))
    near = nearest((size for size in sizes if size % gpus_per_server == 0), gpus)
    if n < 2 or n**levels != gpus:
        raise FabricError("gpus", gpus, f"ZCube(n, {levels}) has n^{levels} GPUs; near: {near or 'none'}")
    if gpus_per_switch not in (None, n):
        raise FabricError("gpus_per_switch", gpus_per_switch, f"is n = {n} in ZCube(n, {levels}) of {gpus} GPUs")
    if gpus % gpus_per_server:
        raise FabricError("gpus_per_server", gpus_per_server, f"must divide gpus = {gpus}")
    if partial and (levels != 3 or n % 2):
        raise FabricError("partial", True, f"needs levels = 3 and an even n (here {levels} and {n})")
    ports = 2 if levels == 2 or partial else 3
    radix = 2 * n if levels == 2 else 3 * n
    port_gbps = gpu_gbps / ports
    if asic_ports is not None and radix > asic_ports * ports:
        need = -(-radix // ports)
        raise FabricError("asic_ports", asic_ports, f"ZCube({n}, {levels}) needs {need} ports of NIC speed on a switch")

    cables = Builder()
    plugs: list[tuple[tuple[str, int, int], ...]] = []  # per GPU and port: switch, switch index, host
    for g in range(gpus):
        copy, d1, d0 = g // (n * n), g // n % n, g % n
        plug = [(_odd(copy * n + d0), copy * n + d0, d1 + 1), (_even(g // n), g // n, d0 + 1)]
        if ports == 3:
            plug.append((_top(d1 * n + d0), d1 * n + d0, copy + 1))
        for p, (switch, _, host) in enumerate(plug, 1):
            cables.cable("access", End(f"gpu{g + 1}", p), End(switch, host), port_gbps)
        plugs.append(tuple(plug))
    copies = gpus // (n * n)
    for copy in range(copies):
        for d0 in range(n):
            for d1 in range(n):
                odd, even = End(_odd(copy * n + d0), n + d1 + 1), End(_even(copy * n + d1), n + d0 + 1)
                cables.cable("inter", odd, even, port_gbps)
    if levels == 3:
        tops_per_odd, parallel, first = (n // 2, 2, 0) if partial else (n, 1, n)
        for copy in range(copies):
            for d0 in range(n):
                for t in range(tops_per_odd):
                    for j in range(parallel):
                        up = End(_odd(copy * n + d0), 2 * n + t * parallel + j + 1)
                        down = End(_top(d0 * tops_per_odd + t), first + copy * parallel + j + 1)
                        cables.cable("inter", up, down, port_gbps)

    wide = ports > 2 or copies * n > 256
    nodes = []
    for g, plug_of_gpu in enumerate(plugs, 1):
        nic = []
        for p, (_, index, host) in enumerate(plug_of_gpu, 1):
            ip = gpu_ip(p, index, host, wide=wide)
            nic.append(Port(port_name(End(f"gpu{g}", p)), p, port_gbps, ip, gpu_mac(ip)))
        nodes.append(Gpu(f"gpu{g}", g, server_of(g, gpus_per_server), tuple(nic)))
    switches = [cables.switch("odd" if s % 2 else "even", s) for s in range(1, 2 * copies * n + 1)]
    tops = 0 if levels == 2 else n * n // 2 if partial else n * n
    switches += [cables.switch("top", s) for s in range(1, tops + 1)]
    parameters: dict[str, object] = {"gpus": gpus, "gpus_per_switch": n, "levels": levels}
    if levels == 2:
        parameters["links_per_pair"] = 1
    else:
        parameters["partial"] = partial
    if asic_ports is not None:
        parameters["asic_ports"] = asic_ports
    parameters |= {"gpus_per_server": gpus_per_server, "gpu_gbps": gpu_gbps, "oversubscription": 1.0}
    kind = "zcube" if levels == 2 else "zcube_recursive"
    return Fabric(kind, parameters, tuple(nodes), tuple(switches), cables.links)


def _odd(index: int) -> str:
    return f"odd{2 * index + 1}"


def _even(index: int) -> str:
    return f"even{2 * index + 2}"


def _top(index: int) -> str:
    return f"top{index + 1}"
