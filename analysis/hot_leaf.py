"""Does the scheduler send handoffs into queues? How often a handoff's path crosses a hot leaf, or a hot port, against
an even draw.

* Leaf: a switch that GPUs hang on (in ZCube every switch). It is hot at an instant when any of its egress ports holds
  `telemetry.backlog_threshold_frames` or more. The instant is the handoff's start: its first submit, before any of its
  own bytes.
* Port: an egress port of a switch. It is hot while it holds as much itself. Where every path crosses most switches, a
  leaf that is hot by any of its ports says little; in a hot port's queue the handoff's own packets will wait. The
  sender's NIC is no port of the fabric: what waits there is its own.
* A handoff crosses the leaves (ports) on the paths of all its queue pairs, as the path function gives them, whatever
  each then carried: adaptive striping moves bytes away from a full path, which is not the scheduler's doing. With queue
  pairs in turn (`round_robin`) the rate is the mean over them. Of bytes, each pair's are spread evenly over its queue
  pairs.
* Even: the same handoff, at the same instant, from the same GPUs, to each of the targets that the scheduler could have
  chosen (`candidates`), each with equal weight. So a fabric whose paths cross more leaves has both rates higher.
* Amplification: rate / even rate. Above 1 the scheduler meets hot leaves more often than a draw would, below 1 it
  avoids them.

The keys `hot_port_*` are those of `hot_leaf_*` with ports in place of leaves. Planned paths are those without failures.
Handoffs inside a server (NVLink) cross no leaf and do not count.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis import requests as rq
from analysis.port_series import Floats
from analysis.ports import ROLES, PortFigures
from scenario.models import Scenario
from topologies.build import build
from topologies.fabric import End, Fabric, port_name
from topologies.paths import Path

Pairs = tuple[tuple[str, str], ...]
NO_QUEUES = "no queues were sampled: a simulation has none"


@dataclass(frozen=True)
class Hot:
    """When each leaf, or port ("leaf1-eth5"), was hot: ascending, disjoint stretches."""

    start_s: dict[str, Floats]
    end_s: dict[str, Floats]

    def at(self, t_s: float) -> frozenset[str]:
        """Those that are hot at an instant."""
        found = []
        for name, starts in self.start_s.items():
            place = int(np.searchsorted(starts, t_s, side="right")) - 1
            if place >= 0 and t_s < self.end_s[name][place]:
                found.append(name)
        return frozenset(found)


def hot_ports(ports: PortFigures) -> Hot:
    """Stretches of each switch port over the threshold."""
    starts: dict[str, Floats] = {}
    ends: dict[str, Floats] = {}
    for number, info in enumerate(ports.infos):
        mine = ports.over.port == number
        if info.role != ROLES[0] and mine.any():
            order = np.argsort(ports.over.start_s[mine], kind="stable")
            name = port_name(End(info.node, info.port))
            starts[name], ends[name] = ports.over.start_s[mine][order], ports.over.end_s[mine][order]
    return Hot(starts, ends)


def hot_leaves(ports: PortFigures, leaves: frozenset[str]) -> Hot:
    """The union over a leaf's ports of the stretches in which they are over the threshold."""
    node_of = np.array([info.node for info in ports.infos], dtype=object)[ports.over.port]
    starts: dict[str, Floats] = {}
    ends: dict[str, Floats] = {}
    for name in sorted(leaves):
        mine = np.flatnonzero(node_of == name)
        if not mine.size:
            continue
        order = mine[np.argsort(ports.over.start_s[mine], kind="stable")]
        start, reach = ports.over.start_s[order], np.maximum.accumulate(ports.over.end_s[order])
        new = np.r_[True, start[1:] > reach[:-1]]
        starts[name], ends[name] = start[new], reach[np.r_[np.flatnonzero(new)[1:] - 1, start.size - 1]]
    return Hot(starts, ends)


@dataclass
class Crossing:
    """Which leaves a handoff between GPUs crosses, or with `of_ports` by which switch ports it leaves."""

    scenario: Scenario
    fabric: Fabric
    of_ports: bool = False
    _known: dict[tuple[str, str], tuple[tuple[int, frozenset[str]], ...]] = field(default_factory=dict)

    @property
    def leaves(self) -> frozenset[str]:
        """The switches that GPUs hang on."""
        return frozenset(end.node for end in self.fabric.attachment.values())

    def pair(self, src: str, dst: str) -> tuple[tuple[int, frozenset[str]], ...]:
        """(index, leaves or ports) of each queue pair of a GPU pair."""
        if (src, dst) not in self._known:
            routing = self.scenario.paths
            self._known[src, dst] = tuple(
                (qp.index, self._crossed(routing.path(self.fabric, qp)))
                for qp in routing.queue_pairs(self.fabric, src, dst)
            )
        return self._known[src, dst]

    def _crossed(self, path: Path) -> frozenset[str]:
        if self.of_ports:
            return frozenset(port_name(end) for end in path.egress[1:])
        return self.leaves.intersection(path.switches)

    def hit(self, pairs: Pairs, hot: frozenset[str]) -> float:
        """Whether a handoff over these GPU pairs meets one that is hot; with queue pairs in turn, the mean of turns."""
        crossed = [one for src, dst in pairs for one in self.pair(src, dst)]
        if self.scenario.routing.qp_policy != "round_robin":
            return float(any(leaves & hot for _, leaves in crossed))
        turns = {index for index, _ in crossed}
        hits = {index for index, leaves in crossed if leaves & hot}
        return len(hits) / len(turns) if turns else 0.0

    def byte_share(self, src: str, dst: str, hot: frozenset[str]) -> float:
        """Share of a GPU pair's queue pairs that cross one that is hot."""
        crossed = self.pair(src, dst)
        return sum(bool(leaves & hot) for _, leaves in crossed) / len(crossed) if crossed else 0.0


def target_gpus(fabric: Fabric, name: str) -> tuple[str, ...]:
    """GPUs of a decode target by its name in `candidates`: a GPU, a server, or the second half of one (layout
    per_rail: "server3d"). Empty for an unknown name."""
    if name in fabric.gpu_by_name:
        return (name,)
    of = [gpu.name for gpu in fabric.gpus if gpu.server == name]
    if not of and name.endswith("d"):
        whole = [gpu.name for gpu in fabric.gpus if gpu.server == name[:-1]]
        of = whole[len(whole) // 2 :]
    return tuple(of)


def redirected(fabric: Fabric, pairs: Pairs, chosen: Sequence[str], other: Sequence[str], own_nics: bool) -> Pairs:
    """The GPU pairs that the handoff would have had with `other` GPUs as its target: the same ranks of it.

    Where NICs are not the ranks' own (`nic_map`) and a target is one GPU, the NICs of the same index in its server.
    """
    if len(chosen) == len(other) and (own_nics or len(chosen) > 1) and all(dst in chosen for _, dst in pairs):
        return tuple((src, other[chosen.index(dst)]) for src, dst in pairs)
    per_server = fabric.gpus_per_server
    first = (fabric.gpu_by_name[other[0]].number - 1) // per_server * per_server
    return tuple(
        (src, fabric.gpus[first + (fabric.gpu_by_name[dst].number - 1) % per_server].name) for src, dst in pairs
    )


_NAMES = ("hit_rate", "hit_rate_even", "amplification", "hit_rate_bytes", "hit_rate_even_bytes",
          "amplification_bytes", "any_share")  # fmt: skip


def hot_leaf_rates(
    requests: pd.DataFrame, transfers: pd.DataFrame, ports: PortFigures | None, scenario: Scenario
) -> dict[str, object]:
    """The `hot_leaf_*` and `hot_port_*` keys of summary.json, over handoffs of measured requests that crossed the
    fabric. Rates are NaN where there is nothing to compute them from; `hot_leaf_reason`, `hot_port_reason` say why."""
    found: dict[str, object] = {f"hot_{what}_{name}": math.nan for what in ("leaf", "port") for name in _NAMES}
    found |= {
        "hot_leaf_scheduler": scenario.serving.decode_placement or scenario.serving.placement,
        "hot_leaf_handoffs": 0,
        "hot_leaf_reason": None,
        "hot_port_reason": None,
    }
    if ports is None:
        return found | dict.fromkeys(("hot_leaf_reason", "hot_port_reason"), NO_QUEUES)
    by_leaf, by_port = (Crossing(scenario, build(scenario.fabric), of_ports) for of_ports in (False, True))
    table = _handoffs(requests, transfers, by_leaf)
    if table.empty:
        return found | dict.fromkeys(("hot_leaf_reason", "hot_port_reason"), "no measured handoff crossed the fabric")
    sides = (("leaf", hot_leaves(ports, by_leaf.leaves), by_leaf), ("port", hot_ports(ports), by_port))
    for what, hot, crossing in sides:
        found |= {f"hot_{what}_{name}": value for name, value in _figures(table, hot, crossing).items()}
    return found | {"hot_leaf_handoffs": len(table)}


def _figures(table: pd.DataFrame, hot: Hot, crossing: Crossing) -> dict[str, object]:
    """The seven figures of _NAMES, and `reason`, of leaves or of ports."""
    weights = table["bytes"].to_numpy(dtype=np.float64)
    rates = np.array([_rates(row, hot.at(row["start_s"]), crossing) for row in table.to_dict("records")])
    hit, even, any_hot = (float(rates[:, column].mean()) for column in (0, 1, 4))
    hit_bytes, even_bytes = (
        float(np.average(rates[:, column], weights=weights)) if weights.sum() else math.nan for column in (2, 3)
    )
    known = bool((table["candidates"].map(len) > 1).any())
    if not known:
        even = even_bytes = math.nan
    reason = None
    if not known:
        reason = "even rate: requests.parquet names no target but the chosen one (of more than 64, only that is kept)"
    elif not even:
        reason = f"amplification: no target would have led over a hot {'port' if crossing.of_ports else 'leaf'}"
    values = (
        hit, even, hit / even if even else math.nan,
        hit_bytes, even_bytes, hit_bytes / even_bytes if even_bytes else math.nan, any_hot,
    )  # fmt: skip
    return dict(zip(_NAMES, values, strict=True)) | {"reason": reason}


def _handoffs(requests: pd.DataFrame, transfers: pd.DataFrame, crossing: Crossing) -> pd.DataFrame:
    """A row a handoff: start_s, bytes, pairs and pair_bytes, chosen (GPUs), candidates (GPUs of each target)."""
    kv = transfers[transfers["kind"].fillna("kv") == "kv"] if "kind" in transfers else transfers
    if "attempt" in kv and len(kv):  # a repeat is a decision that was made with the first
        kv = kv[kv["attempt"] == kv.groupby("request_id")["attempt"].transform("min")]
    measured = rq.measured(requests).set_index("request_id")
    fabric = crossing.fabric
    gpus: dict[str, tuple[str, ...]] = {}
    rows = []
    for request_id, mine in kv[kv["request_id"].isin(measured.index)].groupby("request_id", sort=True):
        by_pair = mine.groupby(["src_gpu", "dst_gpu"], sort=True)["bytes"].sum()
        pairs = tuple((str(src), str(dst)) for src, dst in by_pair.index)
        if not any(crossing.pair(src, dst) for src, dst in pairs):
            continue
        asked = measured.loc[request_id]
        names = rq.decode_candidates(asked["candidates"])
        targets = []
        for name in names:
            if name not in gpus:
                gpus[name] = target_gpus(fabric, name)
            if gpus[name]:
                targets.append(gpus[name])
        one = str(asked["decode_gpu"])
        chosen = next((target for target in targets if target[0] == one), (one,))
        rows.append(
            {
                "start_s": float(mine["t_submit_s"].min()),
                "bytes": float(by_pair.sum()),
                "pairs": pairs,
                "pair_bytes": tuple(float(value) for value in by_pair),
                "chosen": chosen,
                "candidates": tuple(targets),
            }
        )
    return pd.DataFrame(rows)


def _rates(row: Mapping[Hashable, Any], hot: frozenset[str], crossing: Crossing) -> tuple[float, ...]:
    """Hit, its even expectation, both of bytes, and whether anything was hot."""
    if not hot:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    pairs, sizes, chosen, targets = (row[name] for name in ("pairs", "pair_bytes", "chosen", "candidates"))
    own = crossing.scenario.serving.nic_map == "own"
    ways = [redirected(crossing.fabric, pairs, chosen, target, own) for target in targets] or [pairs]
    total = sum(sizes)

    def share(way: Pairs) -> float:
        shares = [crossing.byte_share(src, dst, hot) for src, dst in way]
        return float(np.average(shares, weights=sizes)) if total else 0.0

    return (
        crossing.hit(pairs, hot),
        float(np.mean([crossing.hit(way, hot) for way in ways])),
        share(pairs),
        float(np.mean([share(way) for way in ways])),
        1.0,
    )
