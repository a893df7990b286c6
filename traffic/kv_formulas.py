"""KV-cache bytes per token from the shape of a model's attention: what a handoff of one prompt weighs.

Formulas (whole model, one copy, before any split over ranks):

* GQA/MHA: ``2 * layers * kv_heads * head_dim * bytes_per_element`` (keys and values; Ainslie et al., "GQA",
  https://arxiv.org/abs/2305.13245). FP8 and INT8 are one byte; scales per tensor weigh nothing.
* MLA: ``layers * (kv_lora_rank + qk_rope_head_dim) * bytes_per_element`` (one latent and one shared rope key
  a layer; DeepSeek-V2, section 2.1, https://arxiv.org/abs/2405.04434).
* MLA with sparse attention (DSA) in FP8: packed, as SGLang and FlashMLA store it: the latent in FP8, a 4 B scale for
  each 128 of it, the rope key left in BF16. 512 + 16 + 128 = 656 B a layer for rank 512 and rope 64
  (https://github.com/sgl-project/sglang/pull/32620). Without an indexer FP8 is plain, one byte an element, as vLLM's
  `fp8` cache of dense MLA (vllm/v1/kv_cache_interface.py).
* DSA indexer: an FP8 key and a 4 B scale for each 128 of it, 132 B per indexed layer for head dimension 128, whatever
  the type of the rest (same source as 656). It is part of the handoff: decode fails without it
  (https://github.com/ROCm/MAD/issues/176).

Sparse attention reads less of the cache; it does not make the handoff smaller. The multi-token-prediction layer is not
counted (+1.3 % on GLM-5.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scenario.errors import InputError

#: Types of KV elements that a scenario can ask for; auto: the preset's own, and BF16 for a config.json.
KV_DTYPES = ("auto", "bf16", "fp8", "int8")

_BYTES_PER_ELEMENT = {"bf16": 2, "fp8": 1, "int8": 1}
#: Values that share one 4 B scale in the packed latent and in the indexer's key.
_SCALE_BLOCK = 128


@dataclass(frozen=True)
class KvModel:
    """KV sizes of one model in one type. `mla` says that the cache has no heads to split, so each rank of a TP group
    holds all of it; with GQA, ranks split `kv_heads`."""

    name: str
    bytes_per_token: int
    mla: bool
    max_context_tokens: int
    layers: int
    formula: str
    dtype: str = "bf16"
    kv_heads: int = 0

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the KV cache of `tokens` tokens: one copy of the whole model's cache."""
        return self.bytes_per_token * tokens

    def prefill_ranks_share(self) -> bool:
        """True where the ranks of a server split the cache (GQA); False where each holds a full copy
        (MLA)."""
        return not self.mla


@dataclass(frozen=True)
class Gqa:
    """Grouped-query (or multi-head) attention: `kv_heads` keys and values of `head_dim` a layer."""

    layers: int
    kv_heads: int
    head_dim: int = 128
    #: Of the key and value together where they differ; None: 2 * head_dim.
    key_and_value_dim: int | None = None

    def bytes_per_token(self, bytes_per_element: float) -> int:
        """KV bytes per token, rounded up where elements are smaller than a byte."""
        both = 2 * self.head_dim if self.key_and_value_dim is None else self.key_and_value_dim
        return math.ceil(self.layers * self.kv_heads * both * bytes_per_element)

    def formula(self, bytes_per_element: float) -> str:
        """The sum behind `bytes_per_token`."""
        size = f"{bytes_per_element:g} B"
        if self.key_and_value_dim is None:
            return f"GQA: 2 * {self.layers} layers * {self.kv_heads} KV heads * {self.head_dim} * {size}"
        return f"GQA: {self.layers} layers * {self.kv_heads} KV heads * {self.key_and_value_dim} (key + value) * {size}"


@dataclass(frozen=True)
class Mla:
    """Latent attention; `indexer_layers` of its layers have a DSA indexer with keys of `index_head_dim`."""

    layers: int
    kv_lora_rank: int = 512
    qk_rope_head_dim: int = 64
    indexer_layers: int = 0
    index_head_dim: int = 128

    @property
    def indexer_bytes_per_layer(self) -> int:
        """Bytes of one indexed layer's key: FP8 and its scales."""
        return self.index_head_dim + 4 * math.ceil(self.index_head_dim / _SCALE_BLOCK)

    def latent_bytes_per_layer(self, dtype: str) -> tuple[int, str]:
        """(bytes, how they come about) of the latent and the rope key of one layer."""
        rank, rope = self.kv_lora_rank, self.qk_rope_head_dim
        if dtype == "fp8" and self.indexer_layers:
            packed = rank + 4 * math.ceil(rank / _SCALE_BLOCK) + 2 * rope
            return packed, f"{packed} B (packed FP8)"
        size = _BYTES_PER_ELEMENT[dtype]
        return (rank + rope) * size, f"({rank} + {rope}) * {size} B"

    def bytes_per_token(self, dtype: str) -> int:
        """KV bytes per token; `dtype` bf16 or fp8."""
        indexer = self.indexer_layers * self.indexer_bytes_per_layer
        return self.layers * self.latent_bytes_per_layer(dtype)[0] + indexer

    def formula(self, dtype: str) -> str:
        """The sum behind `bytes_per_token`."""
        text = f"MLA: {self.layers} layers * {self.latent_bytes_per_layer(dtype)[1]}"
        if not self.indexer_layers:
            return text
        return f"{text} + {self.indexer_layers} layers * {self.indexer_bytes_per_layer} B indexer"


Attention = Gqa | Mla


def kv_model_from(name: str, attention: Attention, dtype: str, max_context_tokens: int) -> KvModel:
    """The KV model of an attention in one of `KV_DTYPES` without auto.

    Raises `InputError` for a type that the attention has not: no engine keeps a latent cache in INT8.
    """
    if dtype not in _BYTES_PER_ELEMENT:
        allowed = ", ".join(_BYTES_PER_ELEMENT)
        raise InputError("serving.kv_dtype", dtype, f"must be one of {allowed}")
    if isinstance(attention, Mla):
        if dtype == "int8":
            raise InputError(
                "serving.kv_dtype",
                dtype,
                f"{name} has latent attention (MLA), whose cache is kept in bf16 or fp8",
                "Choose one of these.",
            )
        size, formula, heads = attention.bytes_per_token(dtype), attention.formula(dtype), 0
    else:
        each = _BYTES_PER_ELEMENT[dtype]
        size, formula, heads = attention.bytes_per_token(each), attention.formula(each), attention.kv_heads
    return KvModel(name, size, heads == 0, max_context_tokens, attention.layers, formula, dtype, heads)


def gqa_bytes_per_token(layers: int, kv_heads: int, head_dim: int, bytes_per_element: float) -> int:
    """KV bytes per token of grouped-query attention (module docstring, first formula)."""
    return Gqa(layers, kv_heads, head_dim).bytes_per_token(bytes_per_element)
