"""The KV model of a Hugging Face `config.json`.

Read are `num_hidden_layers`, `max_position_embeddings` and, by what attention it describes:

* MLA where `kv_lora_rank` is set: it and `qk_rope_head_dim`;
* a DSA indexer where `index_head_dim` is set: on all layers, or on those that `indexer_types` calls `full`;
* otherwise GQA or MHA: `num_key_value_heads` (without it `num_attention_heads`), `head_dim` (without it
  `hidden_size / num_attention_heads`), and `v_head_dim` where values have another width.

A `text_config` (models that also see or hear) is read in place of the whole. Refused are models whose cache does not
grow by the same bytes with every token: sliding windows, linear attention, state-space layers, compressed caches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scenario.errors import InputError
from scenario.text_file import read_text
from traffic.kv_formulas import Attention, Gqa, KvModel, Mla, kv_model_from

#: A config with quantisation lists of every layer can be large; weights are larger.
MAX_BYTES = 8_000_000
#: No published model has more of anything that is read here (a context of 16 M tokens is the largest).
MAX_VALUE = 100_000_000

_HINT = "Give the config.json of a model on Hugging Face, or layers, kv_heads and head_dim in serving.kv."
#: Fields of models with layers whose state does not grow with each token, or with a compressed cache.
_NOT_PER_TOKEN = (
    "linear_attn_config",
    "full_attention_interval",
    "hybrid_override_pattern",
    "attn_type_list",
    "layers_block_type",
    "mamba_d_state",
    "ssm_state_size",
    "compress_ratios",
    "attention_chunk_size",
)
_FULL_ATTENTION = {"full_attention", "attention", "deepseek_sparse_attention"}


def kv_model_of_config(path: Path, dtype: str = "auto", field: str = "serving.model") -> KvModel:
    """The KV model of a config.json; auto is BF16, as engines keep the cache unless told otherwise.

    Raises `InputError` (of `field`, or of `field: path: key`) that names the key, its value and what is allowed.
    """
    text = read_text(path, field, "a config.json", _HINT, MAX_BYTES)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(field, str(path), f"is not JSON: {error}", _HINT) from None
    if not isinstance(data, dict):
        raise InputError(field, str(path), "must be a JSON object", _HINT)
    nested = data.get("text_config")
    config = nested if isinstance(nested, dict) else data
    reader = _Reader(config, f"{field}: {path}" + (": text_config" if config is nested else ""))
    reader.refuse_what_is_not_per_token()
    name = path.parent.name or path.stem
    context = reader.positive("max_position_embeddings")
    return kv_model_from(name, _attention(reader), "bf16" if dtype == "auto" else dtype, context)


def _attention(reader: _Reader) -> Attention:
    layers = reader.positive("num_hidden_layers")
    if reader.given("kv_lora_rank"):
        index_head_dim = reader.positive("index_head_dim") if reader.given("index_head_dim") else 0
        return Mla(
            layers,
            reader.positive("kv_lora_rank"),
            reader.positive("qk_rope_head_dim"),
            indexer_layers=reader.indexer_layers(layers) if index_head_dim else 0,
            index_head_dim=index_head_dim,
        )
    if reader.given("index_head_dim"):
        raise reader.bad(
            "index_head_dim", "given", "an indexer without kv_lora_rank: the size of its cache is not known"
        )
    heads = "num_key_value_heads" if reader.given("num_key_value_heads") else "num_attention_heads"
    if reader.given("head_dim"):
        head_dim = reader.positive("head_dim")
    else:
        hidden, queries = reader.positive("hidden_size"), reader.positive("num_attention_heads")
        if hidden % queries:
            raise reader.bad("hidden_size", hidden, f"is not a multiple of num_attention_heads = {queries}")
        head_dim = hidden // queries
    both = head_dim + reader.positive("v_head_dim") if reader.given("v_head_dim") else None
    return Gqa(layers, reader.positive(heads), head_dim, None if both == 2 * head_dim else both)


class _Reader:
    """Typed access to a config; every complaint says where."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config, self._where = config, where

    def bad(self, key: str, value: object, allowed: str, hint: str = _HINT) -> InputError:
        return InputError(f"{self._where}: {key}", value, allowed, hint)

    def given(self, key: str) -> bool:
        return self._config.get(key) is not None

    def positive(self, key: str) -> int:
        """A whole number from 1 to `MAX_VALUE`."""
        value = self._config.get(key)
        if value is None:
            raise self.bad(key, None, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_VALUE:
            raise self.bad(key, value, f"must be a whole number from 1 to {MAX_VALUE:,}")
        return value

    def indexer_layers(self, layers: int) -> int:
        types = self._config.get("indexer_types")
        if types is None:
            return layers
        if not isinstance(types, list) or len(types) < layers or set(map(str, types)) - {"full", "shared"}:
            raise self.bad("indexer_types", types, f"must be a list of {layers} times full or shared")
        return types[:layers].count("full")

    def refuse_what_is_not_per_token(self) -> None:
        hint = "Give the layers that do grow with each token in serving.kv, and say so where you publish."
        for key in _NOT_PER_TOKEN:
            value = self._config.get(key)
            # 1, or a list of nothing but 1: full attention on every layer (MiniMax-M2's attn_type_list).
            if value and value != 1 and not (isinstance(value, list) and all(each == 1 for each in value)):
                raise self.bad(key, value, "not every layer's cache grows by the same bytes a token", hint)
        types = self._config.get("layer_types")
        if isinstance(types, list) and (other := sorted(set(map(str, types)) - _FULL_ATTENTION)):
            raise self.bad(
                "layer_types", other, f"only {', '.join(sorted(_FULL_ATTENTION))} grow with each token", hint
            )
        window = self._config.get("sliding_window")
        windowed = window is not None and self._config.get("use_sliding_window", True)
        # Configs of some full-attention models give a window as long as the context.
        if windowed and isinstance(window, int) and 0 < window < self._config.get("max_position_embeddings", 0):
            raise self.bad("sliding_window", window, "the cache of a window does not grow with each token", hint)
