"""What leaves each NIC in a handoff, by how engines split it, and how long that takes at line rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scenario.errors import InputError
from traffic.kv import KvModel


@dataclass(frozen=True)
class Senders:
    """One convention: `ranks` of a TP group send `bytes_per_rank` each, every one from the NIC of its own GPU."""

    convention: str
    ranks: int
    bytes_per_rank: int

    @property
    def bytes_total(self) -> int:
        """What the group sends together."""
        return self.ranks * self.bytes_per_rank


def conventions(model: KvModel, tokens: int, tensor_parallel: int) -> tuple[Senders, ...]:
    """Who sends what of the cache of `tokens` tokens, prefill and decode of the same TP.

    GQA: KV heads are split over ranks; a rank holds at least one head, so with more ranks than heads each head is there
    several times, and is sent by each rank to its peer (vLLM, `ModelConfig.get_num_kv_heads`). MLA: every rank holds
    the whole cache; either each sends it to its peer (https://github.com/vllm-project/vllm/pull/27274), or the first
    sends it to one decode GPU and the others nothing (https://github.com/sgl-project/sglang/pull/5922).
    Raises `InputError` for a TP or a number of tokens below 1.
    """
    if tensor_parallel < 1:
        raise InputError("tp", tensor_parallel, "must be at least 1")
    if tokens < 1:
        raise InputError("tokens", tokens, "must be at least 1")
    whole = model.kv_bytes(tokens)
    if not model.prefill_ranks_share():
        return (
            Senders("MLA, replicated: every rank sends the whole copy it holds (shape C)", tensor_parallel, whole),
            Senders("MLA, first rank only sends, others nothing (shape D)", 1, whole),
        )
    heads = math.ceil(model.kv_heads / tensor_parallel)
    each = math.ceil(whole * heads / model.kv_heads)
    what = f"{heads} of {model.kv_heads} KV heads"
    if tensor_parallel > model.kv_heads:
        what += f", each head on {tensor_parallel / model.kv_heads:g} ranks"
    return (Senders(f"GQA, split over ranks: {what} (shape A)", tensor_parallel, each),)


def wire_s(size_bytes: float, gbps: float) -> float:
    """Seconds of this many bytes over one NIC at line rate: bytes * 8 / (Gb/s * 1e9). No headers, no software."""
    return size_bytes * 8 / (gbps * 1e9)
