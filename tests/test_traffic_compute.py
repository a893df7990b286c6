"""Compute models: the formula, splitwise-sim's table, DistServe's fits and a user's CSV."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenario.errors import InputError
from scenario.load import check_scenario
from scenario.models import Scenario
from traffic.coding_agent import CodingAgentSource, mean_prefill_s, mean_uncached_tokens
from traffic.compute import ComputeModel, compute_model, decode_after_first_s, nominal_service_s, prefill_batch_s
from traffic.compute_curves import Piecewise, StepTable
from traffic.compute_range import outside_range
from traffic.requests import Request
from traffic.sources import make_source

PERF_MODEL = Path(__file__).resolve().parents[1] / ".." / "shared" / "reference" / "splitwise-perf_model.csv"
needs_perf_model = pytest.mark.skipif(
    not PERF_MODEL.exists(), reason="splitwise-sim's data/perf_model.csv is not part of this project"
)

SMALL = """model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel
a,gpu,100,1,128,10,20,8
a,gpu,100,1,256,14,22,8
a,gpu,100,1,512,12,90,8
a,gpu,200,1,128,20,21,8
a,gpu,100,2,128,24,30,8
a,gpu,100,4,128,40,40,8
a,gpu,100,1,128,99,99,4
"""


def scenario(gpus_per_server: int = 8, **serving: object) -> Scenario:
    return check_scenario({"fabric": {"gpus_per_server": gpus_per_server}, "serving": serving})


def splitwise(path: Path, model: str, hardware: str, tensor_parallel: int | None = 8) -> ComputeModel:
    key = {"model": model, "hardware": hardware, "tensor_parallel": tensor_parallel}
    return compute_model(scenario(compute="splitwise", compute_csv=path, compute_key=key))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "measured.csv"
    path.write_text(text)
    return path


def test_the_formula() -> None:
    asked = scenario(4, prefill_base_ms=30, prefill_tokens_per_s_per_gpu=5_000, decode_step_ms=20)
    model = compute_model(asked)
    assert model.prefill_s(0) == 0.03
    assert model.prefill_s(20_000) == pytest.approx(1.03)
    assert model.decode_step_s(1, 10) == model.decode_step_s(64, 1e6) == 0.02
    assert prefill_batch_s(asked, 20_000) == model.prefill_s(20_000)
    assert decode_after_first_s(asked, 1_000, 101) == pytest.approx(2.0)


def test_nominal_service_is_its_parts() -> None:
    asked = scenario(gateway_delay_ms=1, transfer_overhead_ms=2, decode_first_step_ms=4)
    request = Request(0, 0, 0, "any", 50_000, 10_000, 11, "measured")
    parts = 7e-3 + prefill_batch_s(asked, 40_000) + 10 * 0.02
    assert nominal_service_s(asked, request) == pytest.approx(parts)


# splitwise-sim


def test_splitwise_takes_medians_and_straight_lines(tmp_path: Path) -> None:
    model = splitwise(written(tmp_path, SMALL), "a", "gpu")
    assert model.prefill_s(100) == 0.012  # of 10, 14, 12
    assert model.prefill_s(200) == 0.022  # 200 x 1 and 100 x 2
    assert model.prefill_s(150) == pytest.approx(0.017)
    assert model.prefill_s(400) == 0.040
    assert model.prefill_s(600) == pytest.approx(0.058)  # as from 200 to 400
    assert model.prefill_s(50) == pytest.approx(0.007)
    assert model.prefill_s(0) == pytest.approx(0.002)
    assert [model.decode_step_s(batch, 5_000) for batch in (1, 2, 3, 4, 8)] == pytest.approx(
        [0.0215, 0.030, 0.035, 0.040, 0.060]
    )
    for part in ("100 to 400 tokens", "1 to 4 requests", "linear from the last two points"):
        assert part in model.range_note


def test_splitwise_takes_the_servers_tp_unless_told(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    assert splitwise(path, "a", "gpu", None) == splitwise(path, "a", "gpu", 8)
    assert splitwise(path, "a", "gpu", 4).prefill_s(1e6) == 0.099


PUBLISHED_MS = {
    ("llama2-70b", "h100-80gb"): {512: 53.4, 1024: 77.9, 2048: 136.8, 4096: 390, 8192: 845},
    ("llama2-70b", "a100-80gb"): {512: 94, 1024: 155, 2048: 274, 4096: 661, 8192: 1550},
    ("bloom-176b", "h100-80gb"): {8192: 1535},
}


@needs_perf_model
@pytest.mark.parametrize(("model", "hardware"), PUBLISHED_MS)
def test_splitwise_published_times(model: str, hardware: str) -> None:
    """Times of single prompts; the curve's medians are over batches of several with as many tokens, too."""
    curve = splitwise(PERF_MODEL, model, hardware)
    for tokens, ms in PUBLISHED_MS[model, hardware].items():
        assert curve.prefill_s(tokens) * 1e3 == pytest.approx(ms, rel=0.02 if tokens == 512 else 0.15), tokens


@needs_perf_model
def test_splitwise_decode_is_about_30_ms_and_as_an_independent_reader_finds_it() -> None:
    model = splitwise(PERF_MODEL, "llama2-70b", "h100-80gb")
    assert model.decode_step_s(1, 1_000) * 1e3 == pytest.approx(30, abs=1.5)
    table = pd.read_csv(PERF_MODEL)
    rows = table[(table.model == "llama2-70b") & (table.hardware == "h100-80gb") & (table.tensor_parallel == 8)]
    for batch, ms in rows.groupby("batch_size").token_time.median().items():
        assert model.decode_step_s(int(str(batch)), 512) * 1e3 == pytest.approx(ms)
    for tokens, ms in rows.groupby(rows.prompt_size * rows.batch_size).prompt_time.median().items():
        assert model.prefill_s(float(str(tokens))) * 1e3 == pytest.approx(ms)
    # No batch gets cheaper by being longer where nothing was measured.
    assert model.prefill_s(200_000) > model.prefill_s(32_768)


def test_splitwise_names_what_was_measured(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a gpu 4; a gpu 8") as error:
        splitwise(written(tmp_path, SMALL), "b", "gpu")
    assert (error.value.field, error.value.value) == ("serving.compute_key", "b gpu 8")


# DistServe


@pytest.mark.parametrize(
    ("model", "tp", "a", "b", "c"),
    [
        ("opt-13b", 1, 18.10, 0.1019, 7.12e-6),
        ("opt-66b", 4, 29.44, 0.1514, 8.32e-6),
        ("opt-66b", 8, 25.49, 0.1066, 3.39e-6),
    ],
)
@pytest.mark.parametrize("tokens", [1, 512, 2048])
def test_distserve_prefill(model: str, tp: int, a: float, b: float, c: float, tokens: int) -> None:
    fit = compute_model(scenario(compute="distserve", compute_key={"model": model, "tensor_parallel": tp}))
    assert fit.prefill_s(tokens) * 1e3 == pytest.approx(a + b * tokens + c * tokens**2, rel=1e-3)
    assert "2,048" in fit.range_note


def test_distserve_decode() -> None:
    fit = compute_model(scenario(compute="distserve", compute_key={"model": "opt-66b"}))
    for batch, context in ((1, 500), (16, 1000), (94, 10)):
        expected = 23.16 + 2.27e-4 * context * batch + 0.048 * batch
        assert fit.decode_step_s(batch, context) * 1e3 == pytest.approx(expected, rel=1e-3)
    assert fit.decode_step_s(95, 0) * 1e3 == pytest.approx(21.718 + 0.08979 * 95, rel=1e-3)


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ({"model": "opt-30b"}, "serving.compute_key"),
        ({"model": "opt-66b", "tensor_parallel": 16}, "serving.compute_key"),
        ({"model": "opt-66b", "hardware": "h100-80gb"}, "serving.compute_key.hardware"),
    ],
)
def test_distserve_has_what_it_has(key: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as error:
        compute_model(scenario(compute="distserve", compute_key=key))
    assert error.value.field == field


# A user's CSV

BOTH = """prefill_tokens,batch_ms,context_tokens,batch_size,step_ms
1000,50,,,
2000,90,,,
4000,190,1000,1,10
,,3000,1,14
,,1000,4,20
,,3000,4,28
"""


def user(path: Path, **serving: object) -> ComputeModel:
    return compute_model(scenario(compute="csv", compute_csv=path, **serving))


def test_a_users_csv(tmp_path: Path) -> None:
    model = user(written(tmp_path, BOTH))
    assert [model.prefill_s(n) for n in (1000, 1500, 4000, 6000)] == pytest.approx([0.05, 0.07, 0.19, 0.29])
    assert model.decode_step_s(1, 2000) == pytest.approx(0.012)
    assert model.decode_step_s(4, 2000) == pytest.approx(0.024)
    assert model.decode_step_s(2, 2000) == pytest.approx(0.016)
    assert model.decode_step_s(7, 5000) == pytest.approx(0.054)  # 18 at 1, 36 at 4
    for part in ("1,000 to 4,000 tokens", "1 to 4 requests", "1,000 to 3,000 tokens of context"):
        assert part in model.range_note


def test_a_csv_without_decode_leaves_it_to_the_constant(tmp_path: Path) -> None:
    model = user(written(tmp_path, " Prefill_Tokens , batch_ms,note\n100,5,x\n"), decode_step_ms=7)
    assert model.prefill_s(1e6) == 0.005  # one point is a constant
    assert model.decode_step_s(9, 9) == 0.007
    assert "decode_step_ms" in model.range_note


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["no header"]),
        ("a,b\n1,2\n", ["line 1", "no column prefill_tokens, batch_ms"]),
        ("prefill_tokens,batch_ms,batch_size\n", ["no column context_tokens, step_ms"]),
        ("prefill_tokens,batch_ms\n", ["no prefill row"]),
        ("prefill_tokens,batch_ms\n1,2\n\n3,x\n", ["line 4", "batch_ms", "'x'", "above 0"]),
        ("prefill_tokens,batch_ms\n1,0\n", ["line 2", "batch_ms", "'0'"]),
        ("prefill_tokens,batch_ms\n-1,2\n", ["line 2", "prefill_tokens", "'-1'", "at least 0"]),
        ("prefill_tokens,batch_ms\nnan,2\n", ["line 2", "'nan'"]),
        ("prefill_tokens,batch_ms\n1,inf\n", ["line 2", "'inf'"]),
        ("prefill_tokens,batch_ms\n1,2,3\n", ["line 2", "3 cells where the header has 2"]),
        ("prefill_tokens,batch_ms,batch_ms\n", ["two columns"]),
        (BOTH + ",,1000,,30\n", ["line 8", "batch_size", "''"]),
        (BOTH + "5,,,,\n", ["line 8", "batch_ms", "''"]),
        ('prefill_tokens,batch_ms\n"1,2\n', ["is not CSV"]),
    ],
)
def test_bad_csv_files(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        user(path)
    for part in ("serving.compute_csv", str(path), *parts):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("serving", "field"),
    [
        ({"compute": "csv"}, "serving.compute_csv"),
        ({"compute": "splitwise", "compute_csv": "x.csv"}, "serving.compute_key"),
        ({"compute": "distserve"}, "serving.compute_key"),
        ({"compute": "distserve", "compute_csv": "x.csv", "compute_key": {"model": "opt-66b"}}, "serving.compute_csv"),
        ({"compute": "csv", "compute_csv": "x.csv", "compute_key": {"model": "opt-66b"}}, "serving.compute_key"),
        ({"compute_csv": "x.csv"}, "serving.compute_csv"),
        ({"compute": "csv", "compute_csv": "/nowhere.csv"}, "serving.compute_csv"),
    ],
)
def test_settings_that_are_missing_or_have_no_use(serving: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as error:
        compute_model(scenario(**serving))
    assert error.value.field == field


# Curves

POINTS = st.lists(
    st.tuples(st.integers(0, 10**6), st.floats(1e-4, 1e3)), min_size=1, max_size=12, unique_by=lambda p: p[0]
)


@given(POINTS, st.floats(0, 1e7), st.floats(0, 1e7))
def test_piecewise_meets_its_points_and_never_falls_outside_them(
    points: list[tuple[int, float]], one: float, other: float
) -> None:
    curve = Piecewise.of(points)
    for x, y in points:
        assert curve(x) == pytest.approx(y)
    low, high = sorted((one, other))
    if low >= curve.x[-1] or high <= curve.x[0]:
        assert curve(low) <= curve(high) * (1 + 1e-9)
    if curve.x[0] <= one <= curve.x[-1]:
        assert min(curve.y) * (1 - 1e-9) <= curve(one) <= max(curve.y) * (1 + 1e-9)
    assert curve(one) >= 0 and math.isfinite(curve(one))


def test_falling_measurements_are_held_outside() -> None:
    curve = Piecewise.of([(1, 9.0), (2, 5.0), (3, 7.0), (4, 6.0)])
    assert (curve(0), curve(100)) == (9.0, 6.0)
    assert curve(1.5) == 7.0


def test_steps_of_one_batch_size() -> None:
    steps = StepTable.of({2: [(100.0, 1.0), (200.0, 3.0)]})
    assert [steps(batch, 150) for batch in (1, 2, 9)] == [2.0, 2.0, 2.0]


# The workload that is sized by it


def test_a_linear_model_given_as_a_csv_sizes_the_closed_loop_as_the_formula_does(tmp_path: Path) -> None:
    plain = scenario(4)
    line = compute_model(plain)
    rows = [f"{n},{line.prefill_s(n) * 1e3!r}" for n in (0, 400_000)]
    path = written(tmp_path, "prefill_tokens,batch_ms\n" + "\n".join(rows) + "\n")
    formula, csv = (CodingAgentSource(one) for one in (plain, scenario(4, compute="csv", compute_csv=path)))
    assert csv.session_count == pytest.approx(formula.session_count, rel=0.02)
    assert csv.mean_cycle_s == pytest.approx(formula.mean_cycle_s, rel=0.01)
    exact = line.prefill_s(mean_uncached_tokens(100_000))
    assert mean_prefill_s(line.prefill_s, 100_000) == pytest.approx(exact, rel=0.01)


def test_a_model_twice_as_slow_halves_the_sessions(tmp_path: Path) -> None:
    counts = []
    for factor in (1, 2):
        path = tmp_path / f"{factor}.csv"
        path.write_text(f"prefill_tokens,batch_ms\n0,{10 * factor}\n100000,{1000 * factor}\n")
        counts.append(CodingAgentSource(scenario(4, compute="csv", compute_csv=path)).session_count)
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.02)


def test_a_convex_model_counts_its_long_prompts() -> None:
    fit = compute_model(scenario(compute="distserve", compute_key={"model": "opt-66b"}))
    assert mean_prefill_s(fit.prefill_s, 100_000) > 1.9 * fit.prefill_s(mean_uncached_tokens(100_000))


def test_prompts_outside_the_measured_range_are_counted(tmp_path: Path) -> None:
    def told(**more: object) -> str:
        lengths = {"kind": "lognormal", "input_median": 3_000, "input_sigma": 0.9}
        asked = check_scenario(
            {
                "workload": {"kind": "synthetic", "requests": 50, "lengths": lengths},
                "serving": {"compute": "csv", "compute_csv": path, **more},
            }
        )
        source = make_source(asked)
        tokens = [request.uncached_tokens for request in source.requests]
        assert any(n < 1_000 for n in tokens) and any(n > 4_000 for n in tokens)
        counts = (sum(n < 1_000 for n in tokens), sum(n > 4_000 for n in tokens), max(tokens), len(tokens))
        return outside_range(asked, source) + str(counts)

    path = written(tmp_path, BOTH)
    text, _, counts = told().partition("(")
    below, above, longest, everyone = (int(n) for n in counts.rstrip(")").split(","))
    assert f"of {everyone} prompts, {below} compute less and {above} compute more, {longest:,} tokens at most" in text
    assert "1,000 to 4,000 tokens" in text
    assert "more" not in told(chunked_prefill=True, prefill_batch_tokens=4_000)
    assert outside_range(scenario(), make_source(scenario())) == ""  # a formula has no range
