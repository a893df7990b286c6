"""KV bytes per token: presets against published figures, types, scenarios, and what leaves each NIC."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenario.errors import InputError
from scenario.load import check_scenario
from traffic.budget import demand
from traffic.coding_agent import CodingAgentSource
from traffic.kv import ALIASES, KV_MODELS, KvModel, gqa_bytes_per_token, kv_model, model_of
from traffic.kv_formulas import Gqa, Mla, kv_model_from
from traffic.kv_wire import conventions, wire_s

GQA_8K_GB = [
    ("llama-3.1-8b", 131_072, 1.07),
    ("llama-3.1-70b", 327_680, 2.68),
    ("llama-3.1-405b", 516_096, 4.23),
    ("qwen2.5-7b", 57_344, 0.47),
    ("qwen2.5-72b", 327_680, 2.68),
    ("qwen3-8b", 147_456, 1.21),
    ("qwen3-32b", 262_144, 2.15),
    ("qwen3-30b-a3b", 98_304, 0.81),
    ("qwen3-235b-a22b", 192_512, 1.58),
    ("qwen3-coder-480b", 253_952, 2.08),
    ("glm-4.5", 376_832, 3.09),
    ("glm-4.6", 376_832, 3.09),
    ("glm-4.7", 376_832, 3.09),
    ("glm-4.5-air", 188_416, 1.54),
    ("mixtral-8x7b", 131_072, 1.07),
    ("mixtral-8x22b", 229_376, 1.88),
]
MLA = [
    ("deepseek-v3", 70_272),
    ("deepseek-r1", 70_272),
    ("kimi-k2", 70_272),
    ("kimi-k2.5", 70_272),
    ("kimi-k2.7", 70_272),
    ("deepseek-v3.2-bf16", 78_324),
    ("deepseek-v3.2-fp8", 48_068),
    ("glm-5-bf16", 100_152),
    ("glm-5.1-bf16", 100_152),
    ("glm-5-fp8", 61_464),
    ("glm-5.1-fp8", 61_464),
    ("glm-5.2-fp8", 53_940),
]
#: Tokens, preset, GB of one copy, its milliseconds over one NIC of each rate.
WIRE = [
    (8_192, "glm-5.1-fp8", 0.504, {100: 40, 200: 20, 400: 10}),
    (32_768, "glm-5.1-fp8", 2.01, {100: 161, 200: 81, 400: 40}),
    (131_072, "glm-5.1-fp8", 8.06, {100: 644, 200: 322, 400: 161}),
    (8_192, "llama-3.1-70b", 2.68, {200: 107}),
    (32_768, "llama-3.1-70b", 10.7, {200: 429}),
    (131_072, "llama-3.1-70b", 42.9, {200: 1_718}),
    (8_192, "glm-4.6", 3.09, {200: 123}),
    (32_768, "glm-4.6", 12.3, {200: 494}),
    (131_072, "glm-4.6", 49.4, {200: 1_976}),
]


@pytest.mark.parametrize(("name", "bytes_per_token", "gb"), GQA_8K_GB)
def test_gqa_figures(name: str, bytes_per_token: int, gb: float) -> None:
    model = kv_model(name)
    assert (model.bytes_per_token, model.mla, model.dtype) == (bytes_per_token, False, "bf16")
    assert round(model.kv_bytes(8_192) / 1e9, 2) == gb
    for half in ("fp8", "int8"):
        assert kv_model(name, half).bytes_per_token * 2 == bytes_per_token


@pytest.mark.parametrize(("name", "bytes_per_token"), MLA)
def test_mla_figures(name: str, bytes_per_token: int) -> None:
    model = kv_model(name)
    assert (model.bytes_per_token, model.mla) == (bytes_per_token, True)


@pytest.mark.parametrize(("tokens", "name", "gb", "wire_ms"), WIRE)
def test_sizes_and_wire_times(tokens: int, name: str, gb: float, wire_ms: dict[int, float]) -> None:
    size = kv_model(name).kv_bytes(tokens)
    assert float(f"{size / 1e9:.3g}") == gb
    for gbps, ms in wire_ms.items():
        assert wire_s(size, gbps) * 1e3 == pytest.approx(ms, abs=0.6)


@pytest.mark.parametrize("name", KV_MODELS)
def test_a_prompt_of_32_times_the_tokens_weighs_32_times(name: str) -> None:
    model = kv_model(name)
    assert model.kv_bytes(131_072) == 32 * model.kv_bytes(4_096)


def test_measured_on_hardware() -> None:
    # 55.7 kB per prompt token on the wire of a GLM-5.2 run (AMD-AGI/Infera, 16.84e9 packets of 4,096 B).
    assert kv_model("glm-5.2-fp8").bytes_per_token == pytest.approx(55_700, rel=0.035)


def test_formulas() -> None:
    assert gqa_bytes_per_token(layers=80, kv_heads=8, head_dim=128, bytes_per_element=2) == 327_680
    assert gqa_bytes_per_token(layers=1, kv_heads=1, head_dim=3, bytes_per_element=0.25) == 2  # 1.5 B, rounded up
    assert Mla(1, indexer_layers=1).indexer_bytes_per_layer == 132
    assert Mla(1, indexer_layers=1).latent_bytes_per_layer("fp8")[0] == 656
    assert Mla(61).bytes_per_token("fp8") == 61 * 576  # without an indexer FP8 is plain
    assert Mla(61).bytes_per_token("bf16") == 2 * Mla(61).bytes_per_token("fp8")


@given(st.integers(1, 200), st.integers(1, 128), st.integers(1, 512), st.integers(1, 10**6))
def test_gqa_is_linear_in_everything(layers: int, heads: int, head_dim: int, tokens: int) -> None:
    bf16, int8 = (kv_model_from("any", Gqa(layers, heads, head_dim), dtype, 1) for dtype in ("bf16", "int8"))
    assert bf16.kv_bytes(tokens) == 2 * int8.kv_bytes(tokens) == 4 * layers * heads * head_dim * tokens


def test_every_preset_has_a_context_its_own_name_and_a_formula_that_gives_its_bytes() -> None:
    for name, model in KV_MODELS.items():
        assert model.name == name
        assert model.max_context_tokens >= 32_768
        terms = model.formula.split(": ", 1)[1]
        for word in (" layers", " KV heads", " B (packed FP8)", " B indexer", " B"):
            terms = terms.replace(word, "")
        assert eval(terms) == model.bytes_per_token, model.formula


def test_types_of_a_preset() -> None:
    assert kv_model("glm-5.1") is kv_model("glm-5.1-fp8") is kv_model("glm-5.1-bf16", "fp8")
    assert kv_model("glm-5.1", "bf16") is KV_MODELS["glm-5.1-bf16"]
    assert kv_model("llama-3.1-70b", "fp8") is KV_MODELS["llama-3.1-70b-fp8"]
    assert kv_model("llama-3.1-70b-fp8", "bf16") is KV_MODELS["llama-3.1-70b"]
    assert kv_model("qwen3-8b", "int8").name == "qwen3-8b-int8"
    assert set(ALIASES.values()) <= set(KV_MODELS)
    with pytest.raises(InputError, match="bf16 or fp8") as error:
        kv_model("glm-5.1", "int8")
    assert (error.value.field, error.value.value) == ("serving.kv_dtype", "int8")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"glm-5\.1-fp8") as error:
        kv_model("gpt-17")
    assert error.value.field == "serving.model"
    assert error.value.exit_code == 2
    with pytest.raises(InputError, match=r"Did you mean qwen3-32b\?"):
        kv_model("qwen3-32")


def asked(**serving: object) -> KvModel:
    return model_of(check_scenario({"serving": serving}).serving)


def test_a_scenario_asks_by_name_and_type_or_in_numbers() -> None:
    assert asked() is KV_MODELS["glm-5.1-fp8"]
    assert asked(model="deepseek-v3.2", kv_dtype="bf16").bytes_per_token == 78_324
    shape = {"layers": 80, "kv_heads": 8, "head_dim": 128, "bytes_per_element": 1, "max_context_tokens": 1_000}
    model = asked(kv=shape)
    assert (model.bytes_per_token, model.max_context_tokens, model.mla) == (163_840, 1_000, False)
    with pytest.raises(InputError, match=r"bytes_per_element") as error:
        asked(kv=shape, kv_dtype="fp8")
    assert error.value.field == "serving.kv_dtype"
    with pytest.raises(InputError, match="did you mean layers") as error:
        asked(kv={**shape, "layer": 80})
    assert error.value.field == "serving.kv.layer"
    with pytest.raises(InputError) as error:
        asked(kv={**shape, "kv_heads": 0})
    assert error.value.field == "serving.kv.kv_heads"


def test_numbers_in_a_scenario_decide_prompts_and_handoffs() -> None:
    from topologies.build import build

    serving = {"kv": {"layers": 10, "kv_heads": 4, "head_dim": 64, "max_context_tokens": 20_000}}
    scenario = check_scenario({"serving": serving, "workload": {"kind": "coding_agent", "requests": 30}})
    source = CodingAgentSource(scenario)
    longest = max(request.input_tokens for request in source.requests)
    assert longest == 20_000
    asked_for = demand(scenario, build(scenario.fabric), source)
    assert asked_for.median_transfer_bytes <= 20_000 * 2 * 10 * 4 * 64 * 2


@pytest.mark.parametrize(
    ("name", "tp", "ranks", "share"),
    [("llama-3.1-70b", 8, 8, 8), ("llama-3.1-70b", 4, 4, 4), ("qwen3-235b-a22b", 8, 8, 4), ("llama-3.1-70b", 1, 1, 1)],
)
def test_gqa_ranks_split_heads(name: str, tp: int, ranks: int, share: int) -> None:
    (one,) = conventions(kv_model(name), 8_192, tp)
    assert (one.ranks, one.bytes_per_rank) == (ranks, kv_model(name).kv_bytes(8_192) // share)


def test_gqa_heads_that_do_not_divide_evenly() -> None:
    model = kv_model_from("any", Gqa(1, 6, 1), "int8", 1)  # 12 B a token: 2 B a head
    (one,) = conventions(model, 1, 4)
    assert one.bytes_per_rank == 4  # two heads on the fullest ranks
    assert "2 of 6" in one.convention


def test_mla_ranks_hold_whole_copies() -> None:
    model = kv_model("glm-5.1-fp8")
    replicated, first = conventions(model, 8_192, 8)
    assert replicated.bytes_per_rank == first.bytes_per_rank == model.kv_bytes(8_192)
    assert (replicated.ranks, first.ranks) == (8, 1)
    assert replicated.bytes_total == 8 * first.bytes_total


@pytest.mark.parametrize(("tokens", "tp", "field"), [(0, 8, "tokens"), (1, 0, "tp")])
def test_splits_of_nothing(tokens: int, tp: int, field: str) -> None:
    with pytest.raises(InputError) as error:
        conventions(kv_model("glm-5.1"), tokens, tp)
    assert error.value.field == field
