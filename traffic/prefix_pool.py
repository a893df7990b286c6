"""`prefix_cache: pool`: what another prefill instance holds of a prompt's beginning is read over the fabric."""

from __future__ import annotations

from collections.abc import Iterable

from traffic.kv import KvModel
from traffic.nic_map import split_evenly
from traffic.prefill import Prefill
from traffic.records import Live
from traffic.shapes import Flow


def remote_prefix(live: Live, here: Prefill, everyone: Iterable[Prefill], model: KvModel) -> list[Flow]:
    """Flows that bring what the best other instance holds of the prefix and this one lacks; it then counts as cached.

    With MLA every rank holds all of it, so that one copy crosses the fabric and the server passes it on; else each rank
    reads its share from its like.
    """
    found = [(one.cache.match(live.request), one) for one in everyone if one is not here]
    held, holder = max(found, key=lambda pair: pair[0], default=(0, here))
    more = held - live.cached_tokens
    if more <= 0:
        return []
    live.cached_tokens = held
    size = model.kv_bytes(more)
    pairs = list(zip(holder.instance.gpus, here.instance.gpus, strict=True))
    if model.mla:
        return [Flow(*pairs[0], size)]
    return [Flow(*pair, share) for pair, share in zip(pairs, split_evenly(size, len(pairs)), strict=True)]
