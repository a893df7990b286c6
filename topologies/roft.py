"""Rail-optimised fat-tree (ROFT), two or three tiers, non-blocking, oversubscribed or of ZCube's switch spend.

A block is d servers; leaf r of a block connects GPU r of every server in it (d GPUs, by default R/2) and has u
uplinks (by default R/2: non-blocking). Z.ai blog figure 1: 8 servers of 4 GPUs, R = 8, so 2 blocks, 8 leaves,
4 spines, one cable per leaf and spine (https://z.ai/blog/zcube). Each GPU has one port of the full NIC rate.

Switches, non-blocking: two tiers 3N/R (N <= R*R/2), three tiers 5N/R: the counts of SIGCOMM'25
(https://doi.org/10.1145/3718958.3750503) Tables 6 and 7. The papers do not give the pods of three tiers; here a pod
is the most whole blocks whose leaves do not outnumber the uplinks of a leaf.
"""

from __future__ import annotations

from topologies.fabric import Fabric, FabricError
from topologies.fitting import asic_hint, nearest
from topologies.tree import Plug, Tree, tree_fabric


def fitting_gpu_counts(gpus: int, asic_ports: int, gpus_per_server: int, tiers: int = 2) -> list[int]:
    """GPU counts near `gpus` that fill whole blocks of a non-blocking ROFT with whole spines and even spreading."""
    half = asic_ports // 2
    block = max(1, half * gpus_per_server)
    most = asic_ports * half if tiers == 2 else asic_ports * half * half
    near = gpus // block
    multiples = {*range(1, 9), *range(max(1, near - 64), near + 66)}
    fits = [
        n
        for n in (m * block for m in multiples)
        if n <= most and _reason(n, asic_ports, gpus_per_server, tiers) is None
    ]
    return nearest(fits, gpus)


def roft(
    gpus: int,
    asic_ports: int,
    *,
    gpus_per_server: int = 4,
    gpu_gbps: float = 400.0,
    tiers: int | None = None,
    gpus_per_leaf: int | None = None,
    uplinks_per_leaf: int | None = None,
    equal_cost: bool = False,
) -> Fabric:
    """Wire a ROFT of N GPUs from ASICs of R ports; rates in Gb/s per direction. Raises FabricError.

    `tiers`: 2 or 3; default 2 where N <= R*R/2, else 3. `gpus_per_leaf` (servers in a block) and `uplinks_per_leaf`
    state an oversubscription, two tiers only. `equal_cost`: the two-tier ROFT with the lowest oversubscription whose
    switches do not outnumber ZCube's 2N/R; where there is none, the one with the fewest switches.
    """
    n, r, g = gpus, asic_ports, gpus_per_server
    if r % 2:
        raise FabricError("asic_ports", r, "must be even: half of a leaf's ports go up")
    if n % g:
        raise FabricError("gpus", n, f"must be a multiple of gpus_per_server = {g}")
    stated = gpus_per_leaf is not None or uplinks_per_leaf is not None
    tiers = tiers or (2 if stated or equal_cost or n <= r * r // 2 else 3)
    if tiers not in (2, 3):
        raise FabricError("tiers", tiers, "a ROFT has 2 or 3")
    if (stated or equal_cost) and tiers == 3:
        raise FabricError("tiers", 3, "gpus_per_leaf, uplinks_per_leaf and equal_cost are for two tiers")
    if equal_cost and stated:
        raise FabricError("equal_cost", True, "chooses gpus_per_leaf and uplinks_per_leaf itself; leave them out")
    if equal_cost:
        down, up, spines = equal_cost_sizes(n, r, g)
    elif stated:
        down, up = gpus_per_leaf or r // 2, uplinks_per_leaf or r // 2
        if down + up > r:
            raise FabricError("gpus_per_leaf + uplinks_per_leaf", down + up, f"an ASIC has asic_ports = {r}")
        if (n // g) % min(down, n // g):
            raise FabricError("gpus", n, f"{n // g} servers do not fill blocks of gpus_per_leaf = {down}")
        down = min(down, n // g)
        spines = -(-(n // down) * up // r)
        if up < spines:
            raise FabricError("uplinks_per_leaf", up, f"two tiers need one to each of the {spines} spines at least")
    else:
        reason = _reason(n, r, g, tiers)
        if reason:
            fits = fitting_gpu_counts(n, r, g, tiers)
            raise FabricError(
                "gpus",
                n,
                f"does not fill a non-blocking {('two', 'three')[tiers - 2]}-tier ROFT ({reason});"
                f" with asic_ports = {r} and {g} GPUs a server these fit: {fits or 'none'};"
                f" {asic_hint(n, lambda ports: _any_tiers(n, ports, g))}",
            )
        down = up = r // 2
        spines = n // r if tiers == 2 else n // (r // 2)
    return _wired(n, r, g, gpu_gbps, tiers, down, up, spines, equal_cost=equal_cost)


def _wired(
    n: int, r: int, g: int, gpu_gbps: float, tiers: int, down: int, up: int, spines: int, *, equal_cost: bool
) -> Fabric:
    servers = n // g
    blocks = -(-servers // down)
    sizes = [servers // blocks + (b < servers % blocks) for b in range(blocks)]
    plugs = [
        (Plug(block * g + rail, host),)
        for block, size in enumerate(sizes)
        for host in range(1, size + 1)
        for rail in range(g)
    ]
    leaves = blocks * g
    pods = blocks // blocks_per_pod(blocks, g, up) if tiers == 3 else 0
    cores = range(n // r) if tiers == 3 else range(0)
    tree = Tree(range(leaves), range(spines), up, gpu_gbps, cores, pods, r // 2 if tiers == 3 else 0)
    parameters: dict[str, object] = {
        "gpus": n,
        "asic_ports": r,
        "gpus_per_server": g,
        "gpu_gbps": gpu_gbps,
        "tiers": tiers,
        "gpus_per_leaf": max(sizes),
        "uplinks_per_leaf": up,
        **({"links_per_leaf_spine": up // spines} if tiers == 2 and up % spines == 0 else {}),
        **({"pods": pods} if tiers == 3 else {}),
        **({"equal_cost": True} if equal_cost else {}),
        "oversubscription": max(sizes) / up,
    }
    return tree_fabric("roft", parameters, plugs, [tree], gpus_per_server=g, port_gbps=gpu_gbps)


def equal_cost_sizes(n: int, r: int, g: int) -> tuple[int, int, int]:
    """(GPUs per leaf, uplinks per leaf, spines) of the two-tier ROFT of about ZCube's 2N/R switches.

    Among all numbers of blocks and spines: the lowest oversubscription within the budget; where nothing is within
    it, the fewest switches, then the lowest oversubscription. All leaves carry equally many GPUs to within one.
    """
    servers, budget = n // g, 2 * n / r
    found: list[tuple[float, int, tuple[int, int, int], bool]] = []
    for blocks in range(1, servers + 1):
        down, leaves = -(-servers // blocks), blocks * g
        if down >= r:
            continue
        if leaves > budget and found and leaves >= min(switches for _, switches, _, _ in found):
            break
        for spines in range(1, max(1, n // r) + 1):
            up = min(r - down, spines * r // leaves)
            if up >= spines:  # every leaf on every spine, or two leaves might share none
                found.append((down / up, leaves + spines, (down, up, spines), leaves + spines <= budget))
    if not found:
        raise FabricError("gpus", n, f"no two-tier ROFT of {g}-GPU servers fits asic_ports = {r}; take larger ASICs")
    within = [one for one in found if one[3]]
    best = min(within, key=lambda one: one[:2]) if within else min(found, key=lambda one: (one[1], one[0]))
    return best[2]


def blocks_per_pod(blocks: int, g: int, up: int) -> int:
    """Blocks in a pod of three tiers: the most whole ones with no more leaves than a leaf has uplinks, evenly."""
    fits = [b for b in range(1, blocks + 1) if blocks % b == 0 and b * g <= up and up % (b * g) == 0]
    return max(fits, default=0)


def _reason(n: int, r: int, g: int, tiers: int) -> str | None:
    """Why N GPUs do not make a non-blocking ROFT, or None."""
    half = r // 2
    if n > r * half ** (tiers - 1):
        most = "R*R/2" if tiers == 2 else "R*R*R/4"
        return f"{('two', 'three')[tiers - 2]} tiers carry at most {most} = {r * half ** (tiers - 1)}"
    if not half or n % (half * g):
        return f"a block holds {half} servers of {g}, so gpus must be a multiple of {half * g}"
    if n % r:
        return f"gpus must be a multiple of asic_ports = {r}"
    if tiers == 2:
        if half % (n // r):
            return f"the {half} uplinks of a leaf do not spread evenly over {n // r} spines"
        return None
    blocks = n // (half * g)
    per_pod = blocks_per_pod(blocks, g, half)
    if not per_pod:
        return f"a pod of {g} leaves and {g} spines does not spread {half} uplinks evenly"
    pods, leaves_per_pod = blocks // per_pod, per_pod * g
    if pods > r or (leaves_per_pod * half) % (n // r):
        return f"the {leaves_per_pod * half} core uplinks of a pod do not spread evenly over {n // r} cores"
    return None


def _any_tiers(n: int, r: int, g: int) -> bool:
    return _reason(n, r, g, 2 if n <= r * r // 2 else 3) is None
