"""Which NICs carry a flow: GPU j's own NIC, or what engines do instead.

| map | local NIC | NIC of the destination's server | as in |
|---|---|---|---|
| `own` | the source GPU's | the destination GPU's | Mooncake's preferred NIC, one a GPU |
| `first` | that of rank 0 | that of rank 0 | a flat device list: sgl-project/sglang#23003, openucx/ucx#11259 |
| `round_robin` | the source's rank + n, for the n-th handoff | the destination's rank + n | `MC_PATH_ROUNDROBIN` |
| `stripe:Q` | Q from the source's rank on, 1/Q of the bytes each | Q from the destination's on | UCX `MAX_RMA_RAILS` |
| `a=b,c;...` | the source GPU's, say a | b, c in turn, by handoff | Mooncake's `MC_NIC_PEER_AFFINITY` |

NICs are known by their rank in the server, so a NIC here is the GPU that it belongs to. In a peer map a name's number
is its rank (`nic0`, `mlx5_0`); a NIC that is not on the left keeps the destination GPU's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scenario.errors import InputError

FIELD = "serving.nic_map"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*?(\d+)")
_ALLOWED = "own, first, round_robin, stripe:Q, or local=peer,peer;... such as nic0=nic1;nic1=nic0"


@dataclass(frozen=True)
class NicMap:
    """A map for servers of `ranks` GPUs. `stripes` NICs carry a flow; `peers`: local rank -> ranks of the peer."""

    kind: str
    ranks: int
    stripes: int = 1
    peers: Mapping[int, tuple[int, ...]] | None = None

    def carriers(self, src_rank: int, dst_rank: int, nth: int) -> tuple[tuple[int, int], ...]:
        """(local rank, peer rank) of each NIC pair that the `nth` handoff (from 0) uses; equal shares of the bytes."""
        n = self.ranks
        if self.kind == "first":
            return ((0, 0),)
        if self.kind == "round_robin":
            return (((src_rank + nth) % n, (dst_rank + nth) % n),)
        if self.kind == "stripe":
            return tuple(((src_rank + i) % n, (dst_rank + i) % n) for i in range(self.stripes))
        peers = (self.peers or {}).get(src_rank)
        return ((src_rank, peers[nth % len(peers)] if peers else dst_rank),)

    def possible(self, src_rank: int, dst_rank: int) -> frozenset[tuple[int, int]]:
        """Every NIC pair that some handoff may use."""
        turns = self.ranks if self.kind == "round_robin" else max(map(len, (self.peers or {0: (0,)}).values()))
        return frozenset(pair for nth in range(turns) for pair in self.carriers(src_rank, dst_rank, nth))


def nic_map(text: str, ranks: int) -> NicMap:
    """Read a map. Raises InputError naming what is wrong."""
    if text in ("own", "first", "round_robin"):
        return NicMap(text, ranks)
    if text.startswith("stripe:"):
        count = text.removeprefix("stripe:")
        if not count.isdecimal() or not 1 <= int(count) <= ranks:
            raise InputError(FIELD, text, f"Q must be from 1 to {ranks}, the NICs of a server")
        return NicMap("stripe", ranks, stripes=int(count))
    if "=" not in text:
        raise InputError(FIELD, text, f"must be {_ALLOWED}")
    peers: dict[int, tuple[int, ...]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        local, equals, others = part.partition("=")
        if not equals or not others.strip():
            raise InputError(FIELD, part, f"each part must be local=peer,peer; allowed: {_ALLOWED}")
        rank = _rank(local, ranks)
        if rank in peers:
            raise InputError(FIELD, part, f"{local.strip()} is on the left twice")
        peers[rank] = tuple(_rank(name, ranks) for name in others.split(","))
    return NicMap("peer", ranks, peers=peers)


def _rank(name: str, ranks: int) -> int:
    found = _NAME.fullmatch(name.strip())
    if found is None or int(found[1]) >= ranks:
        raise InputError(FIELD, name.strip(), f"a NIC's name must end in its rank, 0 to {ranks - 1}, such as nic0")
    return int(found[1])


def split_evenly(size: int, parts: int) -> Sequence[int]:
    """Whole numbers that sum to `size`, the first ones larger by one where it does not divide."""
    share, rest = divmod(size, parts)
    return [share + (1 if i < rest else 0) for i in range(parts)]
