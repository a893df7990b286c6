"""KV models from config.json files: published ones, cut to what is read, and broken ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenario.errors import InputError
from scenario.load import check_scenario
from traffic.kv import KV_MODELS, kv_model_of_config, model_of

LLAMA_70B = {
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "max_position_embeddings": 131_072,
}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "hidden_size": 7168,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 163_840,
}
GLM_5 = {
    **DEEPSEEK_V3,
    "num_hidden_layers": 78,
    "head_dim": 192,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "max_position_embeddings": 202_752,
}
#: GLM-5.2: full at 0, 1, 2 and then every fourth layer.
GLM_52 = {
    **GLM_5,
    "max_position_embeddings": 1_048_576,
    "indexer_types": ["full" if i < 3 or i % 4 == 2 else "shared" for i in range(78)],
}
QWEN3_8B = {
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 40_960,
    "sliding_window": None,
    "use_sliding_window": False,
}


def written(tmp_path: Path, config: object) -> Path:
    path = tmp_path / "some-model" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "dtype", "preset"),
    [
        (LLAMA_70B, "auto", "llama-3.1-70b"),
        (LLAMA_70B, "fp8", "llama-3.1-70b-fp8"),
        ({**QWEN3_8B, "use_sliding_window": False, "sliding_window": 4096}, "bf16", "qwen3-8b"),
        (QWEN3_8B, "auto", "qwen3-8b"),
        ({**QWEN3_8B, "attn_type_list": [1] * 36, "full_attention_interval": 1}, "auto", "qwen3-8b"),
        ({**QWEN3_8B, "layer_types": ["full_attention"] * 36, "sliding_window": 40_960}, "auto", "qwen3-8b"),
        (DEEPSEEK_V3, "auto", "deepseek-v3"),
        ({"text_config": DEEPSEEK_V3, "num_hidden_layers": 1}, "auto", "deepseek-v3"),
        (GLM_5, "auto", "glm-5-bf16"),
        (GLM_5, "fp8", "glm-5-fp8"),
        (GLM_52, "fp8", "glm-5.2-fp8"),
    ],
)
def test_configs_of_presets(tmp_path: Path, config: object, dtype: str, preset: str) -> None:
    path = written(tmp_path, config)
    model, same = kv_model_of_config(path, dtype), KV_MODELS[preset]
    assert (model.bytes_per_token, model.mla, model.max_context_tokens, model.layers, model.formula) == (
        same.bytes_per_token, same.mla, same.max_context_tokens, same.layers, same.formula,
    )  # fmt: skip
    assert model.name == "some-model"
    serving = check_scenario({"serving": {"model": str(path), "kv_dtype": dtype}}).serving
    assert model_of(serving) == model


def test_multi_head_attention_and_values_of_another_width(tmp_path: Path) -> None:
    mha = {k: v for k, v in LLAMA_70B.items() if k != "num_key_value_heads"}
    assert kv_model_of_config(written(tmp_path, mha)).bytes_per_token == 8 * 327_680
    wide = {**QWEN3_8B, "head_dim": 192, "v_head_dim": 128}
    assert kv_model_of_config(written(tmp_path, wide)).bytes_per_token == 36 * 8 * (192 + 128) * 2


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ("{", ["is not JSON"]),
        ("[]", ["must be a JSON object"]),
        ("[" * 100_000, ["is not JSON"]),
        ({}, ["max_position_embeddings", "missing"]),
        ({**LLAMA_70B, "num_hidden_layers": None}, ["num_hidden_layers", "missing"]),
        ({**LLAMA_70B, "num_hidden_layers": 0}, ["num_hidden_layers = 0", "1 to"]),
        ({**LLAMA_70B, "num_hidden_layers": True}, ["num_hidden_layers = True"]),
        ({**LLAMA_70B, "num_key_value_heads": "8"}, ["num_key_value_heads = '8'"]),
        ({**LLAMA_70B, "hidden_size": 8191}, ["hidden_size = 8191", "multiple of num_attention_heads = 64"]),
        ({**DEEPSEEK_V3, "qk_rope_head_dim": -1}, ["qk_rope_head_dim = -1"]),
        ({**GLM_52, "indexer_types": ["full"]}, ["indexer_types", "78"]),
        ({**GLM_52, "indexer_types": ["some"] * 78}, ["indexer_types", "full or shared"]),
        ({**QWEN3_8B, "index_head_dim": 128}, ["index_head_dim", "kv_lora_rank"]),
        ({**QWEN3_8B, "sliding_window": 4096, "use_sliding_window": True}, ["sliding_window = 4096"]),
        ({**QWEN3_8B, "layer_types": ["linear_attention", "full_attention"]}, ["layer_types", "linear_attention"]),
        ({**QWEN3_8B, "attn_type_list": [0, 1] * 18}, ["attn_type_list"]),
        ({"text_config": {**QWEN3_8B, "full_attention_interval": 4}}, ["text_config: full_attention_interval = 4"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, config: object, parts: list[str]) -> None:
    path = written(tmp_path, config)
    with pytest.raises(InputError) as error:
        kv_model_of_config(path)
    for part in ("serving.model", str(path), *parts):
        assert part in str(error.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InputError, match="No such file") as error:
        model_of(check_scenario({"serving": {"model": "/nowhere/config.json"}}).serving)
    assert error.value.field == "serving.model"
