"""KV models by name.

Layer counts, head counts and context limits are those of the models' own config.json, as collected in
https://github.com/ai-dynamo/aiconfigurator (commit 095f58a5, aic-core/src/aiconfigurator_core/model_configs). GLM-5 and
GLM-5.1 have the same config; so have Kimi K2.5 to K2.7, and GLM-4.6 that of 4.5 and 4.7 but for its context (200K, from
its model card). GLM-5.2 shares its indexer: `indexer_types` of its config is `full` for 21 of 78 layers.
"""

from __future__ import annotations

import difflib

from scenario.errors import InputError
from traffic.kv_formulas import Attention, Gqa, KvModel, Mla, kv_model_from

_GLM5 = Mla(78, indexer_layers=78)
_GLM52 = Mla(78, indexer_layers=21)
_DEEPSEEK = Mla(61)
_DEEPSEEK_SPARSE = Mla(61, indexer_layers=61)

#: Name, attention, type, context in tokens.
_TABLE: tuple[tuple[str, Attention, str, int], ...] = (
    ("glm-5.1-fp8", _GLM5, "fp8", 202_752),
    ("glm-5.1-bf16", _GLM5, "bf16", 202_752),
    ("glm-5-fp8", _GLM5, "fp8", 202_752),
    ("glm-5-bf16", _GLM5, "bf16", 202_752),
    ("glm-5.2-fp8", _GLM52, "fp8", 1_048_576),
    ("glm-5.2-bf16", _GLM52, "bf16", 1_048_576),
    ("deepseek-v3", _DEEPSEEK, "bf16", 163_840),
    ("deepseek-r1", _DEEPSEEK, "bf16", 163_840),
    ("deepseek-v3.2-fp8", _DEEPSEEK_SPARSE, "fp8", 163_840),
    ("deepseek-v3.2-bf16", _DEEPSEEK_SPARSE, "bf16", 163_840),
    ("kimi-k2", _DEEPSEEK, "bf16", 131_072),
    ("kimi-k2.5", _DEEPSEEK, "bf16", 262_144),
    ("kimi-k2.6", _DEEPSEEK, "bf16", 262_144),
    ("kimi-k2.7", _DEEPSEEK, "bf16", 262_144),
    ("glm-4.7", Gqa(92, 8), "bf16", 202_752),
    ("glm-4.6", Gqa(92, 8), "bf16", 202_752),
    ("glm-4.5", Gqa(92, 8), "bf16", 131_072),
    ("glm-4.5-air", Gqa(46, 8), "bf16", 131_072),
    ("llama-3.1-8b", Gqa(32, 8), "bf16", 131_072),
    ("llama-3.1-70b", Gqa(80, 8), "bf16", 131_072),
    ("llama-3.1-70b-fp8", Gqa(80, 8), "fp8", 131_072),
    ("llama-3.1-405b", Gqa(126, 8), "bf16", 131_072),
    ("qwen2.5-7b", Gqa(28, 4), "bf16", 32_768),
    ("qwen2.5-72b", Gqa(80, 8), "bf16", 32_768),
    ("qwen3-8b", Gqa(36, 8), "bf16", 40_960),
    ("qwen3-32b", Gqa(64, 8), "bf16", 40_960),
    ("qwen3-30b-a3b", Gqa(48, 4), "bf16", 40_960),
    ("qwen3-235b-a22b", Gqa(94, 4), "bf16", 40_960),
    ("qwen3-coder-480b", Gqa(62, 8), "bf16", 262_144),
    ("mixtral-8x7b", Gqa(32, 8), "bf16", 32_768),
    ("mixtral-8x22b", Gqa(56, 8), "bf16", 65_536),
)
_BY_NAME = {row[0]: row for row in _TABLE}

#: Name -> preset, in the order they are listed to a person.
KV_MODELS: dict[str, KvModel] = {
    name: kv_model_from(name, attention, dtype, context) for name, attention, dtype, context in _TABLE
}

#: Short names of models whose presets name their type: FP8, as they are served.
ALIASES = {name: f"{name}-fp8" for name in ("glm-5", "glm-5.1", "glm-5.2", "deepseek-v3.2")}


def kv_model(name: str, dtype: str = "auto", field: str = "serving.model") -> KvModel:
    """The preset called `name` (or its alias), in `dtype`; auto is the preset's own type.

    Raises `InputError` (of `field`) that lists the names, and (of serving.kv_dtype) for a type that it has not.
    """
    try:
        known, attention, own, context = _BY_NAME[ALIASES.get(name, name)]
    except KeyError:
        near = difflib.get_close_matches(name, (*KV_MODELS, *ALIASES), 1)
        raise InputError(
            field,
            name,
            "no KV preset of this name, nor a path that ends in .json",
            (f"Did you mean {near[0]}? " if near else "") + f"Choose one of: {', '.join(KV_MODELS)}.",
        ) from None
    if dtype in ("auto", own):
        return KV_MODELS[known]
    base = known.removesuffix(f"-{own}")
    for other in (base, f"{base}-{dtype}"):
        if other in KV_MODELS and KV_MODELS[other].dtype == dtype:
            return KV_MODELS[other]
    return kv_model_from(f"{base}-{dtype}", attention, dtype, context)
