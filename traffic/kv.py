"""Which KV model a scenario asks for: a preset, a config.json, or layers and heads given directly."""

from __future__ import annotations

from pathlib import Path

from scenario.errors import InputError
from scenario.serving_section import ServingSection
from traffic.kv_config import kv_model_of_config
from traffic.kv_formulas import KV_DTYPES, Gqa, KvModel, gqa_bytes_per_token
from traffic.kv_presets import ALIASES, KV_MODELS, kv_model

__all__ = [
    "ALIASES",
    "KV_DTYPES",
    "KV_MODELS",
    "KvModel",
    "direct_kv_model",
    "gqa_bytes_per_token",
    "kv_model",
    "kv_model_of_config",
    "model_of",
]


def direct_kv_model(
    layers: int, kv_heads: int, head_dim: int, bytes_per_element: float, max_context_tokens: int, name: str = "given"
) -> KvModel:
    """GQA of the given numbers; an element may be half a byte (FP4). Sizes are not checked: the scenario did."""
    attention = Gqa(layers, kv_heads, head_dim)
    size = attention.bytes_per_token(bytes_per_element)
    formula = attention.formula(bytes_per_element)
    return KvModel(name, size, False, max_context_tokens, layers, formula, f"{bytes_per_element:g} B", kv_heads)


def model_of(serving: ServingSection) -> KvModel:
    """The KV model of a scenario: `serving.kv` where given, else `serving.model` in `serving.kv_dtype`.

    Reads `serving.model` where it is the path of a config.json (ends in .json). Raises `InputError` for a name or file
    that is none, for a type that the model has not, and where `serving.kv` and `serving.kv_dtype` are both given.
    """
    given = serving.kv
    if given is None:
        if serving.model.lower().endswith(".json"):
            return kv_model_of_config(Path(serving.model), serving.kv_dtype)
        return kv_model(serving.model, serving.kv_dtype)
    if serving.kv_dtype != "auto":
        raise InputError(
            "serving.kv_dtype",
            serving.kv_dtype,
            "must be auto where serving.kv is given",
            "serving.kv.bytes_per_element says what an element weighs.",
        )
    return direct_kv_model(
        given.layers,
        given.kv_heads,
        given.head_dim,
        given.bytes_per_element,
        given.max_context_tokens,
        name="serving.kv",
    )
