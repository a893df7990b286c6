"""KV bytes per token of the presets."""

from __future__ import annotations

import pytest

from scenario.errors import InputError
from traffic.kv import KV_MODELS, gqa_bytes_per_token, kv_model, mla_bytes_per_token


@pytest.mark.parametrize(
    ("name", "bytes_per_token", "mla"),
    [
        ("glm-5.1-fp8", 61_464, True),
        ("glm-5.1-bf16", 100_152, True),
        ("glm-5.2-fp8", 53_940, True),
        ("deepseek-v3", 70_272, True),
        ("deepseek-v3.2-fp8", 48_068, True),
        ("deepseek-v3.2-bf16", 78_324, True),
        ("kimi-k2", 70_272, True),
        ("llama-3.1-8b", 131_072, False),
        ("llama-3.1-70b", 327_680, False),
        ("llama-3.1-70b-fp8", 163_840, False),
        ("llama-3.1-405b", 516_096, False),
        ("glm-4.6", 376_832, False),
        ("glm-4.5-air", 188_416, False),
        ("qwen2.5-7b", 57_344, False),
        ("qwen2.5-72b", 327_680, False),
        ("qwen3-8b", 147_456, False),
        ("qwen3-32b", 262_144, False),
        ("qwen3-30b-a3b", 98_304, False),
        ("qwen3-235b-a22b", 192_512, False),
        ("qwen3-coder-480b", 253_952, False),
        ("mixtral-8x7b", 131_072, False),
        ("mixtral-8x22b", 229_376, False),
    ],
)
def test_published_figures(name: str, bytes_per_token: int, mla: bool) -> None:
    model = kv_model(name)
    assert (model.bytes_per_token, model.mla) == (bytes_per_token, mla)
    assert model.kv_bytes(1000) == 1000 * bytes_per_token


def test_measured_on_hardware() -> None:
    # 55.7 kB per prompt token on the wire of a GLM-5.2 run (AMD-AGI/Infera, 16.84e9 packets of 4,096 B).
    assert kv_model("glm-5.2-fp8").bytes_per_token == pytest.approx(55_700, rel=0.035)


def test_formulas() -> None:
    assert gqa_bytes_per_token(layers=80, kv_heads=8, head_dim=128, bytes_per_element=2) == 327_680
    assert mla_bytes_per_token(78, fp8_packed=True, indexer_layers=78) == 61_464
    with pytest.raises(InputError):
        mla_bytes_per_token(61, kv_lora_rank=256, fp8_packed=True)


def test_every_preset_has_a_context_and_its_own_name() -> None:
    for name, model in KV_MODELS.items():
        assert model.name == name
        assert model.max_context_tokens >= 32_768
        assert str(model.layers) in model.formula


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"glm-5\.1-fp8") as error:
        kv_model("gpt-17")
    assert error.value.field == "serving.model"
    assert error.value.exit_code == 2
