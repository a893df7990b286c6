"""Calibration: parameters that are known are found again, under noise and outliers; published figures; bad files."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from properties import examples

from scenario.errors import InputError
from scenario.load import check_scenario
from traffic.calibration import Calibration, LineFit, fit_line
from traffic.compute import compute_model
from traffic.measurements import Measurements, read_measurements

GIB, MIB = 2**30, 2**20
#: vLLM with Mooncake, Qwen3-8B, TP8 to TP8 over 8 x 200G RoCE: prompt tokens, mean TTFT in ms, KV in MiB, transfer in
#: ms (kvcache-ai/Mooncake, docs/source/performance/vllm/vllm-v1-pd-performance.md; its "GB" are GiB: 4.50 in 31.65 ms
#: are given as 142.25 a second).
MOONCAKE = [
    (128, 46.09, 20, 0.54),
    (256, 48.04, 38, 0.61),
    (512, 59.91, 74, 0.92),
    (1024, 67.29, 146, 1.50),
    (2048, 85.31, 290, 2.51),
    (4096, 124.42, 578, 4.75),
    (8192, 212.05, 1.13 * 1024, 8.84),
    (16384, 387.52, 2.25 * 1024, 16.43),
    (32768, 749.62, 4.50 * 1024, 31.65),
]


def synthetic(
    seed: int, n: int, base_s: float, rate: float, noise: float, outliers: float = 0.0, slower: float = 10.0
) -> list[tuple[float, float]]:
    """Sizes over five decades; errors relative; outliers up to `slower` times as long."""
    draw = np.random.default_rng(seed)
    size = 10 ** draw.uniform(4.5, 9.5, n)
    seconds = (base_s + size / rate) * (1 + noise * draw.uniform(-1, 1, n))
    wrong = draw.permutation(n) < outliers * n
    seconds[wrong] *= draw.uniform(2, slower, wrong.sum())
    return list(zip(size.tolist(), seconds.tolist(), strict=True))


@given(st.floats(1e-5, 0.1), st.floats(1e8, 1e11))
def test_without_noise_the_parameters_come_back(base_s: float, rate: float) -> None:
    sizes = [1e5, 1e6, 1e7, 1e8, 1e9, 1e10]
    # Both must show: a base of a millionth of the shortest time, or of all of the longest, cannot be read off.
    assume(base_s > 1e-3 * sizes[0] / rate and base_s < 1e3 * sizes[-1] / rate)
    fit = fit_line([(size, base_s + size / rate) for size in sizes], "transfers")
    assert fit.base_s == pytest.approx(base_s, rel=1e-5)
    assert fit.rate == pytest.approx(rate, rel=1e-5)
    assert not fit.outliers and fit.n == 6
    assert fit.residual_max < 1e-6


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(1e-4, 5e-3), st.floats(2e9, 5e10))
def test_noise_and_outliers_do_not_move_it(seed: int, base_s: float, rate: float) -> None:
    rows = synthetic(seed, 80, base_s, rate, noise=0.05, outliers=0.2)
    fit = fit_line(rows, "transfers")
    assert fit.base_s == pytest.approx(base_s, rel=0.1)
    assert fit.rate == pytest.approx(rate, rel=0.1)
    assert fit.n + len(fit.outliers) == 80
    assert 10 <= len(fit.outliers) <= 24


def test_what_the_robust_step_is_for() -> None:
    robust, plain = [], []
    for seed in range(30):
        rows = synthetic(seed, 80, 1e-3, 2e10, noise=0.05, outliers=0.2)
        robust.append(abs(fit_line(rows, "transfers").rate / 2e10 - 1))
        slope, _ = np.polyfit(*np.transpose(rows), 1)
        plain.append(abs(1 / slope / 2e10 - 1))
    assert max(robust) < 0.05 < 0.2 < np.median(plain)


def test_outliers_are_the_rows_that_were_made_so() -> None:
    rows = synthetic(3, 40, 1e-3, 2e10, noise=0.02)
    for i in (0, 7, 39):
        rows[i] = (rows[i][0], rows[i][1] * 3)
    assert fit_line(rows, "transfers").outliers == (0, 7, 39)


def test_intervals_hold_what_they_claim() -> None:
    base, rate = 1e-3, 2e10
    held = np.zeros(2)
    for seed in range(200):
        fit = fit_line(synthetic(seed, 25, base, rate, noise=0.05), "transfers")
        assert fit.base_interval_s and fit.rate_interval
        held += [low <= true <= high for (low, high), true in ((fit.base_interval_s, base), (fit.rate_interval, rate))]
    assert np.all(held / 200 >= 0.9) and np.all(held / 200 < 1)


def test_two_rows_are_a_line_without_interval() -> None:
    fit = fit_line([(1.13 * GIB, 8.84e-3), (4.5 * GIB, 31.65e-3)], "transfers")
    assert fit.base_interval_s is None and fit.rate_interval is None
    assert Calibration(fit, None, nics=8).nic_gbps == pytest.approx(158.6, abs=0.1)
    assert fit.base_s * 1e3 == pytest.approx(1.19, abs=0.01)


def test_a_base_below_zero_is_held_at_zero() -> None:
    fit = fit_line([(100, 0.9), (200, 2.1), (300, 3.0)], "transfers")
    assert fit.base_s == 0
    assert fit.rate == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ([(5, 1)], "two different sizes"),
        ([(5, 1), (5, 2), (5, 3)], "two different sizes"),
        ([(1, 3), (2, 2), (3, 1)], "does not grow with the size"),
    ],
)
def test_what_cannot_be_fitted(rows: list[tuple[float, float]], part: str) -> None:
    with pytest.raises(InputError, match=part) as error:
        fit_line(rows, "transfers")
    assert error.value.field == "transfers"


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([(1e308, 1.0), (1.5e308, 2.0), (1.7e308, 2.1)], ["row 1: size", "1e+308", "0.001 to 1e+18"]),
        ([(1000, 1.0), (math.inf, 2.0)], ["row 2: size", "inf"]),
        ([(1000, 1.0), (2000, 1e297), (3000, 2e297)], ["row 2: time", "1e+297 s", "1e-12 to 1e+09 s"]),
        ([(1000, 1e-300), (2000, 2e-300)], ["row 1: time", "1e-300 s"]),
    ],
)
def test_what_is_no_measurement_is_named(rows: list[tuple[float, float]], parts: list[str]) -> None:
    with pytest.raises(InputError) as error:
        fit_line(rows, "transfers")
    for part in parts:
        assert part in str(error.value)


@examples(200)
@given(st.lists(st.tuples(st.floats(1e-3, 1e18), st.floats(1e-12, 1e9)), min_size=2, max_size=7))
def test_any_rows_are_fitted_or_refused(rows: list[tuple[float, float]]) -> None:
    try:
        fit = fit_line(rows, "transfers")
    except InputError:
        return
    assert math.isfinite(fit.base_s) and fit.base_s >= 0 and fit.rate > 0


def test_rows_on_one_line_do_not_make_outliers_of_the_others() -> None:
    line = [(size, 1e-3 + size / 1e10) for size in (1e6, 1e7, 1e8, 1e9)]
    for off in (1.03, 0.97):
        assert not fit_line([*line, (5e8, (1e-3 + 5e8 / 1e10) * off)], "transfers").outliers
    assert fit_line([*line, (5e8, 0.051 * 1.2)], "transfers").outliers == (4,)
    # Of four rows it cannot be told which is wrong.
    assert not fit_line([*line[:3], (5e8, 0.051 * 3)], "transfers").outliers


@pytest.mark.parametrize(
    ("found", "field"),
    [
        (lambda fit: Calibration(None, fit), "serving.prefill_tokens_per_s_per_gpu"),
        (lambda fit: Calibration(fit, None), "fabric.gpu_gbps"),
    ],
)
def test_what_no_scenario_may_have_is_no_setting(found: Callable[[LineFit], Calibration], field: str) -> None:
    fit = fit_line([(1000, 5e-3), (2000, 5e-3 + 1e-9), (4000, 5e-3 + 3e-9)], "prefill")
    with pytest.raises(InputError, match=rf"fitted {field} = .*: must be 1 to"):
        _ = found(fit).settings


def test_published_mooncake_figures() -> None:
    """On a clean fabric with all NICs in use: most of 200G a NIC, half a millisecond of software."""
    transfer = fit_line([(mib * MIB, ms / 1e3) for _, _, mib, ms in MOONCAKE], "transfers")
    prefill = fit_line([(tokens, (ttft - ms) / 1e3) for tokens, ttft, _, ms in MOONCAKE], "prefill")
    found = Calibration(transfer, prefill, nics=8, gpus=8)
    assert not transfer.outliers
    assert found.nic_gbps == pytest.approx(145.6, abs=0.5)
    assert transfer.base_interval_s and transfer.base_interval_s[0] > 0.3e-3 and transfer.base_interval_s[1] < 0.5e-3
    # The published rate of the longest prompt, 142.25 GiB/s, contains the overhead.
    assert 4.5 * GIB / transfer.seconds(4.5 * GIB) / GIB == pytest.approx(142.25, rel=0.07)
    assert prefill.rate / 8 == pytest.approx(6_300, rel=0.01)
    # Transfer is 4.2 % of TTFT at 32K.
    share = transfer.seconds(4.5 * GIB) / (transfer.seconds(4.5 * GIB) + prefill.seconds(32_768))
    assert share == pytest.approx(0.042, abs=0.008)


def test_settings_make_a_scenario_that_computes_what_was_fitted() -> None:
    prefill = fit_line([(n, 0.04 + n / 48_000) for n in (100, 1_000, 10_000)], "prefill")
    transfer = fit_line([(n, 2e-3 + n / 20e9) for n in (1e6, 1e8, 1e9)], "transfers")
    found = Calibration(transfer, prefill, gpus=8)
    assert found.settings == {
        "fabric": {"gpu_gbps": 160.0},
        "serving": {"transfer_overhead_ms": 2.0, "prefill_base_ms": 40.0, "prefill_tokens_per_s_per_gpu": 6_000.0},
    }
    scenario = check_scenario({**found.settings, "fabric": {**found.settings["fabric"], "gpus_per_server": 8}})
    assert compute_model(scenario).prefill_s(5_000) == pytest.approx(prefill.seconds(5_000))
    assert Calibration(transfer, None).settings.keys() == {"fabric", "serving"}
    assert Calibration(None, prefill).settings.keys() == {"serving"}


# Files


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "measured.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "transfers"),
    [
        ("bytes,seconds\n1000,0.5\n", (1000, 0.5)),
        ("bytes,ms\n1e3,500\n", (1000, 0.5)),
        ("request,Size_Bytes,latency_us,host\na,1000,500000,h\n", (1000, 0.5)),
        ("gib,ms\n4.5,31.65\n", (4.5 * GIB, 0.03165)),
        # vLLM's NIXL and Mooncake connectors: logged averages, MB of 2**20.
        ("Num successful transfers,Avg xfer time (ms),P90 xfer time (ms),Avg MB per transfer\n4,10.5,12,100\n",
         (100 * MIB, 0.0105)),
        ("transfer_duration,bytes_transferred\n0.25,8\n", (8, 0.25)),
        # nixlbench: its latency is of one block of the batch.
        ("Block Size (B),Batch Size,B/W (GB/Sec),Avg Lat. (us),Avg Tx (us)\n65536,4,1,10,9\n", (262_144, 40e-6)),
        # Mooncake's tebench: of the whole batch.
        ("BlkSize (B),Batch,BW (GB/S),Avg Lat (us),Avg Tx (us)\n65536,128,23.456789,356.2,354.1\n",
         (65536 * 128, 356.2e-6)),
        # Mooncake's transfer_engine_bench: "duration 10.00, batch count 15234".
        ("block_size,batch_size,threads,duration,batch_count\n65536,128,12,10,15000\n", (65536 * 128, 0.008)),
        ("block_size,batch_size,duration,batch_count\n65536,128,10,1000\n", (65536 * 128, 0.01)),
    ],
)  # fmt: skip
def test_columns_of_tools(tmp_path: Path, text: str, transfers: tuple[float, float]) -> None:
    read = read_measurements(written(tmp_path, text))
    assert read.prefills == ()
    assert read.transfers == (pytest.approx(transfers),)


def test_a_table_of_tebench_says_the_bandwidth_that_it_says_itself(tmp_path: Path) -> None:
    text = "BlkSize (B),Batch,BW (GB/S),Avg Lat (us)\n65536,1,5.123456,12.8\n65536,128,23.456789,356.2\n"
    read = read_measurements(written(tmp_path, text))
    for (size, seconds), gb_per_s in zip(read.transfers, (5.123, 23.457), strict=True):
        assert size / seconds / 1e9 == pytest.approx(gb_per_s, rel=0.01)


def test_prefill_rows_and_several_files(tmp_path: Path) -> None:
    prefill = read_measurements(written(tmp_path, "Prompt_Tokens,ms\n8192,203.21\n"))
    assert prefill == Measurements(prefills=((8192.0, pytest.approx(0.20321)),))
    both = read_measurements(written(tmp_path, "bytes,s\n1,2\n")) + prefill
    assert (len(both.transfers), len(both.prefills)) == (1, 1)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["no header"]),
        ("bytes,other\n1,2\n", ["line 1", "bytes,other", "has no time"]),
        ("size,ms\n1,2\n", ["line 1", "neither a size nor tokens"]),
        ("bytes,tokens,ms\n1,2,3\n", ["line 1", "both a size and tokens"]),
        ("bytes,ms\n", ["no rows"]),
        ("bytes,ms\n1,2\n\n5,fast\n", ["line 4", "column ms", "'fast'", "above 0"]),
        ("bytes,Duration_ms\n1,0\n", ["line 2", "column Duration_ms", "'0'"]),
        ("bytes,ms\n-7,1\n", ["line 2", "column bytes", "'-7'"]),
        ("bytes,ms\n1,nan\n", ["line 2", "column ms", "'nan'"]),
        ("bytes,ms\n1\n", ["line 2", "1 cells where the header has 2"]),
        ("Block Size (B),Batch Size,Avg Lat. (us)\n1,0,2\n", ["line 2", "column Batch Size", "'0'", "at least 1"]),
        ("block_size,batch_size,threads,duration,batch_count\n1,1,0.5,1,1\n", ["line 2", "column threads", "'0.5'"]),
    ],
)
def test_bad_files_are_named_by_line_and_column(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_measurements(path)
    for part in (str(path), *parts):
        assert part in str(error.value)


def test_an_unbounded_rate_is_infinite() -> None:
    fit = fit_line([(1e6, 1.0), (2e6, 1.6), (3e6, 1.1), (4e6, 1.5)], "transfers")
    assert fit.rate_interval and fit.rate_interval[1] == math.inf
