"""Which flows share which cables, and what each gets, without running any traffic.

Given transfers (source GPU, destination GPU) that are all active, every queue pair is laid on its path and gets its
max-min fair rate; a transfer's rate is the sum over its queue pairs (`adaptive` striping), or as many times the
slowest (`static`: equal parts, done when all are). Rates are in Gb/s and as a share of the NIC. There is no time,
no queue and no TCP here: it is what fair sharing would give to transfers of endless length.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from topologies.fabric import End, Fabric, FabricError
from topologies.paths import check_policy, path, queue_pairs, shares
from topologies.waterfill import weighted_max_min

Pair = tuple[str, str]


@dataclass(frozen=True)
class LinkLoad:
    """One direction of a cable: `flows` queue pairs on it (a sprayed one counts by its share), Gb/s carried."""

    end: End
    link: str
    flows: float
    carried_gbps: float
    capacity_gbps: float


@dataclass(frozen=True)
class Collisions:
    """Rates of all transfers in the order given, and every cable direction that a flow crosses."""

    pairs: tuple[Pair, ...]
    rates_gbps: NDArray[np.float64]
    nic_gbps: float
    links: tuple[LinkLoad, ...]

    @property
    def shares_percent(self) -> NDArray[np.float64]:
        """[transfer] rate in percent of the NIC."""
        return 100 * self.rates_gbps / self.nic_gbps

    @property
    def mean_percent(self) -> float:
        """Mean over transfers."""
        return float(self.shares_percent.mean())

    @property
    def p1_percent(self) -> float:
        """First percentile over transfers."""
        return float(np.percentile(self.shares_percent, 1))


def collisions(
    fabric: Fabric,
    pairs: Sequence[Pair],
    *,
    queue_pairs_per_port_pair: int = 1,
    policy: str | None = None,
    striping: Literal["adaptive", "static"] = "adaptive",
    seed: int = 0,
) -> Collisions:
    """Lay transfers on the fabric. Raises FabricError for a pair without a path and for a policy without a plan."""
    policy = check_policy(fabric, policy)
    if policy == "ecmp_ovs":
        raise FabricError(
            "policy", policy, "is hashed by the switch itself: no path is known; ecmp is its planned form"
        )
    flow: list[int] = []
    resource: list[int] = []
    part: list[float] = []
    owner: list[int] = []
    number: dict[End, int] = {}
    for transfer, (src, dst) in enumerate(pairs):
        lanes = queue_pairs(fabric, src, dst, queue_pairs_per_port_pair, policy=policy)
        if not lanes:
            raise FabricError("transfer", f"{src} to {dst}", "has no path on this fabric (NVLink inside a server)")
        for qp in lanes:
            used = (
                shares(fabric, qp.src, qp.dst)
                if policy == "spray"
                else dict.fromkeys(path(fabric, qp, seed).egress, 1.0)
            )
            for end, weight in used.items():
                flow.append(len(owner))
                resource.append(number.setdefault(end, len(number)))
                part.append(weight)
            owner.append(transfer)
    capacity = np.array([fabric.port(end.node, end.port).gbps for end in number])
    flows, resources, weights = np.array(flow), np.array(resource), np.array(part)
    rates = weighted_max_min(flows, resources, weights, capacity)
    owners = np.array(owner)
    total = np.bincount(owners, weights=rates, minlength=len(pairs)).astype(np.float64)
    if striping == "static":
        slowest = np.full(len(pairs), np.inf)
        np.minimum.at(slowest, owners, rates)
        total = slowest * np.bincount(owners, minlength=len(pairs)).astype(np.float64)
    crossing = np.bincount(resources, weights=weights, minlength=len(number))
    carried = np.bincount(resources, weights=weights * rates[flows], minlength=len(number))
    links = tuple(
        LinkLoad(end, fabric.link_at[end.node, end.port].id, float(crossing[i]), float(carried[i]), float(capacity[i]))
        for end, i in number.items()
    )
    return Collisions(tuple(pairs), total, sum(p.gbps for p in fabric.gpus[0].ports), links)


Pattern = Callable[[Fabric, random.Random], list[Pair]]


def cross_rail(fabric: Fabric, rng: random.Random, active: float = 1.0) -> list[Pair]:
    """GPUs of the first half of the servers, each to a distinct random GPU of the second half; `active` of them."""
    senders, receivers = _halves(fabric)
    chosen = sorted(rng.sample(senders, round(active * len(senders))))
    return _named(zip(chosen, rng.sample(receivers, len(chosen)), strict=True))


def quarter_active(fabric: Fabric, rng: random.Random) -> list[Pair]:
    """`cross_rail` with a quarter of the senders."""
    return cross_rail(fabric, rng, 0.25)


def rail_aligned(fabric: Fabric, rng: random.Random) -> list[Pair]:
    """Servers of the first half to distinct random servers of the second, rank i to rank i."""
    per_server, servers = fabric.gpus_per_server, len(fabric.gpus) // fabric.gpus_per_server
    left = range(servers // 2)
    right = rng.sample(range(servers - servers // 2, servers), len(left))
    return _named(
        (a * per_server + rank + 1, b * per_server + rank + 1)
        for a, b in zip(left, right, strict=True)
        for rank in range(per_server)
    )


def first_nic_only(fabric: Fabric, rng: random.Random) -> list[Pair]:
    """Only rank 0 of each server of the first half sends, to a random rank of a distinct server of the second."""
    per_server = fabric.gpus_per_server
    pairs = rail_aligned(fabric, rng)[::per_server]
    number = fabric.gpu_by_name
    return _named((number[a].number, number[b].number + rng.randrange(per_server)) for a, b in pairs)


def block_to_block(fabric: Fabric, rng: random.Random) -> list[Pair]:
    """ZCube: a random permutation from the k GPUs of one even switch to those of another: no collision by wiring."""
    first, second = rng.sample(_zcube_groups(fabric, "even", 2), 2)
    return _named(zip(first, rng.sample(second, len(second)), strict=True))


def g_to_one(fabric: Fabric, rng: random.Random) -> list[Pair]:
    """ZCube's worst case: the k GPUs of one odd switch to the k GPUs of one even switch: G flows a cable one way."""
    senders, receivers = _zcube_groups(fabric, "odd", 2)[0], _zcube_groups(fabric, "even", 2)[-1]
    while True:  # a GPU below both switches must not send to itself
        rng.shuffle(receivers)
        if all(a != b for a, b in zip(senders, receivers, strict=True)):
            return _named(zip(senders, receivers, strict=True))


def permutation(fabric: Fabric, rng: random.Random) -> list[Pair]:
    """Every GPU to a distinct one of another server: servers in one random cycle, ranks at random."""
    per_server, servers = fabric.gpus_per_server, len(fabric.gpus) // fabric.gpus_per_server
    order = rng.sample(range(servers), servers)
    if servers < 2:
        raise FabricError("gpus", len(fabric.gpus), f"must fill two servers of {per_server} for this pattern")
    pairs = []
    for server, other in zip(order, order[1:] + order[:1], strict=True):
        ranks = rng.sample(range(per_server), per_server)
        pairs += [(server * per_server + i + 1, other * per_server + rank + 1) for i, rank in enumerate(ranks)]
    return _named(sorted(pairs))


#: Name on the command line -> pattern.
PATTERNS: dict[str, Pattern] = {
    "cross-rail": cross_rail,
    "rail-aligned": rail_aligned,
    "first-nic": first_nic_only,
    "quarter": quarter_active,
    "block-to-block": block_to_block,
    "g-to-one": g_to_one,
    "permutation": permutation,
}


def _halves(fabric: Fabric) -> tuple[list[int], list[int]]:
    """GPU numbers of the first and of the second half of the servers (a middle server belongs to neither)."""
    servers, per_server = len(fabric.gpus) // fabric.gpus_per_server, fabric.gpus_per_server
    if servers < 2:
        raise FabricError("gpus", len(fabric.gpus), f"must fill two servers of {per_server} for this pattern")
    half = servers // 2 * per_server
    return list(range(1, half + 1)), list(range(len(fabric.gpus) - half + 1, len(fabric.gpus) + 1))


def _zcube_groups(fabric: Fabric, tier: str, wanted: int) -> list[list[int]]:
    """GPU numbers below each switch of a tier."""
    groups: dict[str, list[int]] = {switch.name: [] for switch in fabric.switches if switch.tier == tier}
    if fabric.kind != "zcube" or len(groups) < max(wanted, 2):
        raise FabricError(
            "pattern",
            fabric.kind,
            f"this pattern is made from a zcube with {max(wanted, 2)} switches in a group; for another fabric list the"
            " same pairs in a file (--transfers)",
        )
    for (gpu, _), end in fabric.attachment.items():
        if end.node in groups:
            groups[end.node].append(fabric.gpu_by_name[gpu].number)
    return list(groups.values())


def _named(pairs: Iterable[tuple[int, int]]) -> list[Pair]:
    return [(f"gpu{a}", f"gpu{b}") for a, b in pairs]
