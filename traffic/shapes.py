"""Who sends what for one request: the traffic shapes of KV handoffs, and every pair of NICs they can use.

With n GPUs in a prefill instance (or in a decode target):

| shape | setting | flows of one request | bytes each | source |
|---|---|---|---|---|
| A | GQA, equal TP | rank i -> rank i, n flows | 1/n | SGLang `disaggregation/common/conn.py`: equal TP maps i to i |
| B | GQA, TP 1 -> TP n | the one GPU -> each of n | 1/n | llm-d's TP1 -> TP4: span map, one sender |
| C | MLA, equal TP, replicated | rank i -> rank i, n flows | all | each rank holds a copy (sgl-project/sglang#32620) |
| D | MLA, TP n -> data-parallel attention | first rank -> one GPU | all | the span's first rank sends (#5922) |
| E | data parallel -> data parallel | one GPU -> one GPU | all | AMD-AGI/Infera, GLM-5.2 DP8 -> DP8 |
| F | context parallel -> TP n | first rank -> each of n | all | SGLang: only CP rank 0 sends (#32620) |
| G | context parallel -> TP n | each of n -> each of n | 1/n | all CP ranks send; LayerSplit (#29421) |

A and C stay on one rail, where a rail-optimised fabric is at home; D to G cross rails. `nic_map` may move a flow to
other NICs of the two servers. Numbers are pull requests of sgl-project/sglang.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scenario.errors import InputError
from scenario.models import Scenario
from traffic.layout import Instance, Roles, Server, decode_targets, prefill_instances, roles, servers
from traffic.nic_map import NicMap, nic_map, split_evenly

__all__ = [
    "SHAPES",
    "Flow",
    "Instance",
    "Roles",
    "Server",
    "carried",
    "decode_targets",
    "handoff",
    "planned_pairs",
    "prefill_instances",
    "roles",
    "server_of",
    "servers",
]

SHAPES = ("A", "B", "C", "D", "E", "F", "G")


class Flow(NamedTuple):
    """Bytes from one GPU to another."""

    src: str
    dst: str
    bytes: int


def handoff(shape: str, prefill_gpus: Sequence[str], decode_gpus: Sequence[str] | str, kv_bytes: int) -> list[Flow]:
    """The flows of one handoff of `kv_bytes` (one copy of the whole prompt's KV), in rank order.

    Where a division leaves a rest, the first ranks carry one byte more. Raises `InputError` for an unknown shape or for
    instances that the shape cannot use.
    """
    sources, targets = list(prefill_gpus), [decode_gpus] if isinstance(decode_gpus, str) else list(decode_gpus)
    if shape not in SHAPES:
        raise InputError("serving.shape", shape, f"allowed: {', '.join(SHAPES)}")
    if shape in "DE" and len(targets) != 1:
        raise InputError("decode_target", targets, f"shape {shape} sends to exactly one decode GPU")
    if shape in "BE" and len(sources) != 1:
        raise InputError("prefill_instance", sources, f"shape {shape} has one GPU in a prefill instance")
    if shape in "AC" and len(sources) != len(targets):
        raise InputError(
            "decode_target", targets, f"shape {shape} needs equal TP on both sides; prefill has {len(sources)} GPUs"
        )
    if shape == "A":
        return [Flow(*one) for one in zip(sources, targets, split_evenly(kv_bytes, len(targets)), strict=True)]
    if shape == "C":
        return [Flow(src, dst, kv_bytes) for src, dst in zip(sources, targets, strict=True)]
    if shape == "B":
        shares = split_evenly(kv_bytes, len(targets))
        return [Flow(sources[0], dst, size) for dst, size in zip(targets, shares, strict=True)]
    if shape == "G":
        shares = split_evenly(kv_bytes, len(sources))
        return [Flow(src, dst, size) for src, size in zip(sources, shares, strict=True) for dst in targets]
    return [Flow(sources[0], dst, kv_bytes) for dst in targets]  # D, E, F


def server_of(scenario: Scenario, gpu: str) -> tuple[int, int]:
    """(zero-based server, rank) of a GPU."""
    return divmod(int(gpu.removeprefix("gpu")) - 1, scenario.fabric.gpus_per_server)


def carried(scenario: Scenario, nics: NicMap, flow: Flow, nth: int) -> list[Flow]:
    """The flow as its NICs carry it: from NIC to NIC, a NIC being known by its GPU. A flow inside a server stays."""
    ranks = scenario.fabric.gpus_per_server
    (src_server, src_rank), (dst_server, dst_rank) = server_of(scenario, flow.src), server_of(scenario, flow.dst)
    if src_server == dst_server:
        return [flow]
    pairs = nics.carriers(src_rank, dst_rank, nth)
    return [
        Flow(f"gpu{src_server * ranks + a + 1}", f"gpu{dst_server * ranks + b + 1}", size)
        for (a, b), size in zip(pairs, split_evenly(flow.bytes, len(pairs)), strict=True)
    ]


def planned_pairs(scenario: Scenario) -> list[tuple[str, str]]:
    """Every (source NIC, destination NIC), by GPU, that a transfer of this scenario can use, each once.

    Queue pairs are planned from this list before anything starts. Raises `InputError` for a layout or a NIC map that
    does not fit.
    """
    pairs: dict[tuple[str, str], None] = {}
    prefills = prefill_instances(scenario)
    for instance in prefills:
        for target in decode_targets(scenario, instance):
            for flow in handoff(scenario.serving.shape, instance.gpus, target.gpus, 0):
                pairs[flow.src, flow.dst] = None
    if scenario.serving.prefix_cache == "pool":
        for holder in prefills:
            for reader in prefills:
                if holder is not reader:
                    for src, dst in zip(holder.gpus, reader.gpus, strict=True):
                        pairs[src, dst] = None
    found = dict.fromkeys(_by_nic(scenario, pairs))
    for group in expert_groups(scenario):
        gpus = [gpu for target in group for gpu in target.gpus]
        found |= dict.fromkeys(
            (a, b) for a in gpus for b in gpus if server_of(scenario, a)[0] != server_of(scenario, b)[0]
        )
    return list(found)


def expert_groups(scenario: Scenario) -> list[tuple[Instance, ...]]:
    """The decode targets that exchange tokens (`serving.ep_background`), in order; the last group may be smaller.

    Raises InputError where a group is no whole number of targets, or none spans two servers.
    """
    experts = scenario.serving.ep_background
    if experts is None:
        return []
    targets = decode_targets(scenario)
    each = len(targets[0].gpus)
    field = "serving.ep_background.group_gpus"
    if experts.group_gpus % each:
        raise InputError(field, experts.group_gpus, f"must be a multiple of a decode target's {each} GPUs")
    per_group = experts.group_gpus // each
    groups = [tuple(targets[at : at + per_group]) for at in range(0, len(targets), per_group)]
    if all(len({server_of(scenario, gpu)[0] for target in group for gpu in target.gpus}) < 2 for group in groups):
        raise InputError(field, experts.group_gpus, "no group spans two servers: nothing would cross the fabric")
    return groups


def _by_nic(scenario: Scenario, pairs: dict[tuple[str, str], None]) -> list[tuple[str, str]]:
    ranks = scenario.fabric.gpus_per_server
    nics = nic_map(scenario.serving.nic_map, ranks)
    found: dict[tuple[str, str], None] = {}
    for src, dst in pairs:
        (src_server, src_rank), (dst_server, dst_rank) = server_of(scenario, src), server_of(scenario, dst)
        if src_server != dst_server:
            for a, b in sorted(nics.possible(src_rank, dst_rank)):
                found[f"gpu{src_server * ranks + a + 1}", f"gpu{dst_server * ranks + b + 1}"] = None
    return list(found)
