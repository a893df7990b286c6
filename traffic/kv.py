"""KV-cache bytes per token of common models: what a handoff of one prompt weighs.

Formulas (whole model, one copy, before any split over ranks):

* GQA/MHA: ``2 * layers * kv_heads * head_dim * bytes_per_element`` (keys and values; Ainslie et al., "GQA",
  https://arxiv.org/abs/2305.13245).
* MLA: ``layers * (kv_lora_rank + qk_rope_head_dim) * bytes_per_element`` (one latent and one shared rope key
  a layer; DeepSeek-V2, section 2.1, https://arxiv.org/abs/2405.04434).
* MLA packed in FP8: 656 B per layer = 512 FP8 latent + 16 B of scales + 64 BF16 rope values, as SGLang and
  FlashMLA store it (https://github.com/sgl-project/sglang/pull/32620).
* DSA indexer: 132 B per indexed layer = 128 FP8 key + 4 B scale (same source). It is part of the handoff:
  decode fails without it (https://github.com/ROCm/MAD/issues/176).

Layer counts, head counts and context limits are those of the models' own config.json, as collected in
https://github.com/ai-dynamo/aiconfigurator (commit 095f58a5, aic-core/src/aiconfigurator_core/model_configs).
The multi-token-prediction layer is not counted (+1.3 % on GLM-5.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from scenario.errors import InputError

MLA_FP8_PACKED_BYTES_PER_LAYER = 656
INDEXER_BYTES_PER_LAYER = 132


@dataclass(frozen=True)
class KvModel:
    """One preset. `mla` says that the cache has no heads to split, so each rank of a TP group holds all of
    it."""

    name: str
    bytes_per_token: int
    mla: bool
    max_context_tokens: int
    layers: int
    formula: str

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the KV cache of `tokens` tokens: one copy of the whole model's cache."""
        return self.bytes_per_token * tokens

    def prefill_ranks_share(self) -> bool:
        """True where the ranks of a server split the cache (GQA); False where each holds a full copy
        (MLA)."""
        return not self.mla


def gqa_bytes_per_token(layers: int, kv_heads: int, head_dim: int, bytes_per_element: int) -> int:
    """KV bytes per token of grouped-query attention (module docstring, first formula)."""
    return 2 * layers * kv_heads * head_dim * bytes_per_element


def mla_bytes_per_token(
    layers: int,
    kv_lora_rank: int = 512,
    qk_rope_head_dim: int = 64,
    *,
    fp8_packed: bool = False,
    indexer_layers: int = 0,
) -> int:
    """KV bytes per token of latent attention, BF16 or packed FP8, with the DSA indexer cache of
    `indexer_layers`.

    The packed figure exists for rank 512 and rope 64 only; other dimensions raise `InputError`.
    """
    if fp8_packed:
        if (kv_lora_rank, qk_rope_head_dim) != (512, 64):
            raise InputError(
                "kv_lora_rank, qk_rope_head_dim",
                (kv_lora_rank, qk_rope_head_dim),
                "the packed FP8 layout of 656 B is defined for (512, 64)",
                "Use the BF16 layout.",
            )
        per_layer = MLA_FP8_PACKED_BYTES_PER_LAYER
    else:
        per_layer = 2 * (kv_lora_rank + qk_rope_head_dim)
    return layers * per_layer + indexer_layers * INDEXER_BYTES_PER_LAYER


def _gqa(name: str, layers: int, kv_heads: int, context: int, *, fp8: bool = False) -> KvModel:
    size = 1 if fp8 else 2
    return KvModel(
        name=name,
        bytes_per_token=gqa_bytes_per_token(layers, kv_heads, 128, size),
        mla=False,
        max_context_tokens=context,
        layers=layers,
        formula=f"GQA: 2 * {layers} layers * {kv_heads} KV heads * 128 * {size} B",
    )


def _mla(name: str, layers: int, context: int, *, fp8: bool = False, indexer_layers: int = 0) -> KvModel:
    per_layer = f"{MLA_FP8_PACKED_BYTES_PER_LAYER} B (packed FP8)" if fp8 else "(512 + 64) * 2 B"
    indexer = f" + {indexer_layers} layers * {INDEXER_BYTES_PER_LAYER} B indexer" if indexer_layers else ""
    return KvModel(
        name=name,
        bytes_per_token=mla_bytes_per_token(layers, fp8_packed=fp8, indexer_layers=indexer_layers),
        mla=True,
        max_context_tokens=context,
        layers=layers,
        formula=f"MLA: {layers} layers * {per_layer}{indexer}",
    )


_MODELS: tuple[KvModel, ...] = (
    _mla("glm-5.1-fp8", 78, 202_752, fp8=True, indexer_layers=78),
    _mla("glm-5.1-bf16", 78, 202_752, indexer_layers=78),
    _mla("glm-5.2-fp8", 78, 1_048_576, fp8=True, indexer_layers=21),
    _mla("deepseek-v3", 61, 163_840),
    _mla("deepseek-v3.2-fp8", 61, 163_840, fp8=True, indexer_layers=61),
    _mla("deepseek-v3.2-bf16", 61, 163_840, indexer_layers=61),
    _mla("kimi-k2", 61, 131_072),
    _mla("kimi-k2.5", 61, 262_144),
    # GLM-4.6 has the architecture of 4.5 and 4.7; its context is that of its model card (200K).
    _gqa("glm-4.6", 92, 8, 202_752),
    _gqa("glm-4.5", 92, 8, 131_072),
    _gqa("glm-4.5-air", 46, 8, 131_072),
    _gqa("llama-3.1-8b", 32, 8, 131_072),
    _gqa("llama-3.1-70b", 80, 8, 131_072),
    _gqa("llama-3.1-70b-fp8", 80, 8, 131_072, fp8=True),
    _gqa("llama-3.1-405b", 126, 8, 131_072),
    _gqa("qwen2.5-7b", 28, 4, 32_768),
    _gqa("qwen2.5-72b", 80, 8, 32_768),
    _gqa("qwen3-8b", 36, 8, 40_960),
    _gqa("qwen3-32b", 64, 8, 40_960),
    _gqa("qwen3-30b-a3b", 48, 4, 40_960),
    _gqa("qwen3-235b-a22b", 94, 4, 40_960),
    _gqa("qwen3-coder-480b", 62, 8, 262_144),
    _gqa("mixtral-8x7b", 32, 8, 32_768),
    _gqa("mixtral-8x22b", 56, 8, 65_536),
)

#: Name -> preset, in the order they are listed to a person.
KV_MODELS: dict[str, KvModel] = {model.name: model for model in _MODELS}


def kv_model(name: str) -> KvModel:
    """The preset called `name`; raises `InputError` that lists the names."""
    try:
        return KV_MODELS[name]
    except KeyError:
        raise InputError(
            "serving.model",
            name,
            "no KV preset of this name",
            f"Choose one of: {', '.join(KV_MODELS)}.",
        ) from None
