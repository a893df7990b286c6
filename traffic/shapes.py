"""Who sends what for one request: the traffic shapes of KV handoffs, and every pair of GPUs they can use.

* Shape D (latent attention, TP prefill to data-parallel decode): the cache is the same on each prefill rank,
  and the first rank sends all of it to one decode GPU. SGLang, P TP > D TP with MLA: only the first rank of
  the span sends, the others are dummies (https://github.com/sgl-project/sglang/pull/5922).
* Shape A (GQA, equal TP on both sides): rank i holds 1/TP of the heads and sends it to rank i (SGLang
  `disaggregation/common/conn.py`, `_resolve_rank_mapping`: equal TP maps i to i).
"""

from __future__ import annotations

from collections.abc import Sequence

from scenario.errors import InputError
from scenario.models import Scenario
from traffic.layout import DecodeTarget, Roles, Server, decode_targets, roles, servers

__all__ = [
    "DecodeTarget",
    "Flow",
    "Roles",
    "Server",
    "decode_targets",
    "handoff",
    "planned_pairs",
    "roles",
    "servers",
]

#: (source GPU, destination GPU, bytes)
Flow = tuple[str, str, int]


def handoff(
    shape: str, prefill_server_gpus: Sequence[str], decode_target: Sequence[str] | str, kv_bytes: int
) -> list[Flow]:
    """The flows of one handoff of `kv_bytes` (one copy of the whole prompt's KV), in rank order.

    `decode_target` is the GPU (shape D) or the GPUs of the server in rank order (shape A). The bytes of the
    flows sum to `kv_bytes`; where TP does not divide them, the first ranks carry one byte more. Raises
    `InputError` for an unknown shape or for targets that the shape cannot use.
    """
    targets = [decode_target] if isinstance(decode_target, str) else list(decode_target)
    if shape == "D":
        if len(targets) != 1:
            raise InputError("decode_target", targets, "shape D sends to exactly one decode GPU")
        return [(prefill_server_gpus[0], targets[0], kv_bytes)]
    if shape == "A":
        tp = len(prefill_server_gpus)
        if len(targets) != tp:
            raise InputError("decode_target", targets, f"shape A needs equal TP on both sides; prefill has {tp} GPUs")
        share, rest = divmod(kv_bytes, tp)
        return [
            (src, dst, share + (1 if rank < rest else 0))
            for rank, (src, dst) in enumerate(zip(prefill_server_gpus, targets, strict=True))
        ]
    raise InputError("serving.shape", shape, "allowed: A, D")


def planned_pairs(scenario: Scenario) -> list[tuple[str, str]]:
    """Every (source GPU, destination GPU) that a handoff of this scenario can use, each once, in number
    order.

    Queue pairs are planned from this list before anything starts. Raises `InputError` for a layout that does
    not fit.
    """
    pairs: dict[tuple[str, str], None] = {}
    for server in roles(scenario).prefill:
        for target in decode_targets(scenario, server):
            for src, dst, _ in handoff(scenario.serving.shape, server.gpus, target.gpus, 0):
                pairs[(src, dst)] = None
    return list(pairs)
