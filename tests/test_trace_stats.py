"""`zcube trace stats`: statistics whose values are known, those of the real files, and the command."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from zcube_command import one_message, zcube

from traffic import bench
from traffic.kv import kv_model
from traffic.moments import EXACT_UP_TO, Gaps, Histogram, WindowCounts
from traffic.pair_matrix import PARTS, PairMatrix
from traffic.readers.trace import Trace, detect
from traffic.trace_stats import TraceStats, measure

TRACES = Path(__file__).resolve().parents[1] / ".." / "shared" / "traces"
real = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside the repository")


def stats_of(path: Path, *, raw_timestamps: bool = False) -> TraceStats:
    return measure(Trace(path, detect(path), raw_timestamps=raw_timestamps), kv_model("glm-5.1-fp8"))


def test_quantiles_are_numpys() -> None:
    draw = random.Random(1)
    values = [draw.randint(1, 500) for _ in range(999)]
    histogram = Histogram()
    histogram.add(values[:400])
    histogram.add(values[400:])
    wanted = [0.0, 0.5, 0.9, 0.99, 0.999, 1.0]
    assert histogram.quantiles(wanted) == pytest.approx(np.quantile(values, wanted).tolist())
    assert (histogram.mean, histogram.largest) == (pytest.approx(np.mean(values)), max(values))
    assert histogram.scaled(3).quantiles([0.5]) == [3 * np.median(values)]
    assert math.isnan(Histogram().quantiles([0.5])[0])


def test_large_values_are_kept_to_a_thousandth() -> None:
    draw = random.Random(1)
    values = [int(EXACT_UP_TO * math.exp(draw.uniform(-1, 6))) for _ in range(5000)]
    histogram = Histogram()
    histogram.add(values)
    assert histogram.mean == pytest.approx(np.mean(values))
    assert histogram.quantiles([0.1, 0.5, 0.99]) == pytest.approx(np.quantile(values, [0.1, 0.5, 0.99]), rel=0.001)


@pytest.mark.parametrize("batch", [1, 7, 5000])
def test_counts_per_window_and_gaps_do_not_depend_on_batches(batch: int) -> None:
    rng = np.random.default_rng(1)
    at_ns = 10**18 + np.cumsum(rng.gamma(0.3, 1e9, 5000)).astype(np.int64)
    windows, gaps = WindowCounts(10**9), Gaps()
    for start in range(0, len(at_ns), batch):
        windows.add(at_ns[start : start + batch])
        gaps.add(at_ns[start : start + batch])
    whole = np.bincount((at_ns - at_ns[0]) // 10**9)[:-1]
    assert windows.dispersion == pytest.approx(whole.var() / whole.mean())
    assert windows.empty_share == pytest.approx(np.mean(whole == 0))
    apart = np.diff(at_ns)
    assert gaps.cv == pytest.approx(apart.std() / apart.mean())
    assert gaps.span_s == pytest.approx((at_ns[-1] - at_ns[0]) / 1e9)


def test_a_poisson_stream_has_an_index_of_1_and_a_regular_one_of_0() -> None:
    rng = np.random.default_rng(1)
    poisson, regular = WindowCounts(10**9), WindowCounts(10**9)
    poisson.add(np.cumsum(rng.exponential(2e8, 50_000)).astype(np.int64))
    regular.add(np.arange(0, 10**12, 10**8))
    assert poisson.dispersion == pytest.approx(1, abs=0.05)
    assert regular.dispersion == pytest.approx(0, abs=1e-9)


def matrix(pairs: list[tuple[str, str]]) -> PairMatrix:
    found = PairMatrix()
    found.add((pair, 10) for pair in pairs)
    return found


@pytest.mark.parametrize("rows", [3, 30, PARTS, 10 * PARTS + 7])
def test_thirds_hold_all_rows_in_order(rows: int) -> None:
    pairs = [("p", str(3 * i // rows)) for i in range(rows)]
    found = matrix(pairs)
    thirds = found.thirds()
    assert sum(thirds, Counter()) == Counter(pairs) == found.rows
    assert found.bytes["p", "1"] == 10 * found.rows["p", "1"]
    for distance, _ in found.moves():
        assert distance > 0.96


def test_moves_are_told_from_chance() -> None:
    draw = random.Random(1)
    still = [(str(draw.randrange(8)), str(draw.randrange(8))) for _ in range(6000)]
    for distance, chance in matrix(still).moves():
        assert distance == pytest.approx(chance, rel=0.35)
    moved = [("0", str(draw.randrange(4) + (4 if i >= 4000 else 0))) for i in range(6000)]
    (first, _), (second, chance) = matrix(moved).moves()
    assert first < 0.06 and second > 0.95 > 10 * chance


def test_figures_of_a_small_log(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = ["0,p0,d0,1000,100", "1000000000,p0,d1,3000,300", "4000000000,p1,d0,2000,200"]
    path.write_text("start_ns,p_rank,d_rank,input_tokens,miss_tokens\n" + "\n".join(rows))
    found = stats_of(path).to_json()
    assert found["rows"] == 3 and found["input_tokens"]["mean"] == 2000
    assert found["prefix"] == {
        "hit_share": pytest.approx(0.9),
        "uncached_tokens": {"mean": 200, "p50": 200, "p90": 280, "p99": pytest.approx(298), "max": 300},
    }
    assert found["flow_bytes"]["p50"] == 2000 * 61_464 and found["flow_bytes"]["model"] == "glm-5.1-fp8"
    assert found["arrivals"]["span_s"] == 4 and found["arrivals"]["empty_seconds_share"] == 0.5
    assert found["pairs"][1] == {"prefill": "p0", "decode": "d1", "rows": 1, "bytes": 3000 * 61_464}
    assert [move["total_variation"] for move in found["moves"]] == [1, 1]


def test_empty_cells_of_cached_tokens_are_no_hits(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,cached_tokens\n0,100,1,\n1,300,1,200\n")
    assert stats_of(path).to_json()["prefix"]["hit_share"] == pytest.approx(0.5)
    path.write_text("arrival_s,input_tokens,output_tokens\n0,100,1\n")
    assert "prefix" not in stats_of(path).to_json()


def test_a_gpu_is_one_whichever_way_a_transfer_log_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("time_s,src_gpu,dst_gpu,bytes\n0,1,gpu5,10\n1,gpu1,5,20\n2,gpu1,gpu5,30\n3,host,5,1\n")
    assert stats_of(path).to_json()["pairs"] == [
        {"prefill": "gpu1", "decode": "gpu5", "rows": 3, "bytes": 60},
        {"prefill": "host", "decode": "gpu5", "rows": 1, "bytes": 1},
    ]


AZURE = {
    "code": (8819, 2.57, (2048, 1469, 5188, 7436, 7437), (27.9, 13, 251), 13.15, 13.2, 161),
    "conv": (19366, 5.53, (1155, 1020, 2734, 4142, 14050), (211, 129, 601), 1.09, 1.39, 20.6),
}


@real
@pytest.mark.parametrize("name", AZURE)
def test_whole_azure_files(name: str) -> None:
    rows, rate, prompt, output, cv, idc_1s, idc_60s = AZURE[name]
    path = TRACES / "azure-2023" / f"AzureLLMInferenceTrace_{name}.csv"
    found = stats_of(path).to_json()
    assert found["rows"] == rows
    arrivals = found["arrivals"]
    assert arrivals["per_s"] == pytest.approx(rate, abs=0.005)
    assert arrivals["gap_cv"] == pytest.approx(cv, abs=0.005)
    assert arrivals["idc_1s"] == pytest.approx(idc_1s, abs=0.05)
    assert [round(found["input_tokens"][k]) for k in ("mean", "p50", "p90", "p99", "max")] == list(prompt)
    assert [found["output_tokens"][k] for k in ("mean", "p50", "p99")] == pytest.approx(list(output), rel=0.003)
    # Published with the last minute in it, which the trace does not fill; here whole minutes count.
    minutes = _minutes(path)
    assert minutes.var() / minutes.mean() == pytest.approx(idc_60s, rel=0.005)
    assert arrivals["idc_60s"] == pytest.approx(minutes[:-1].var() / minutes[:-1].mean())
    if name == "code":
        assert arrivals["empty_seconds_share"] == pytest.approx(0.73, abs=0.005)


def _minutes(path: Path) -> np.ndarray:
    at_ns = np.array([row.at_ns for row in Trace(path, detect(path))])
    return np.bincount((at_ns - at_ns[0]) // (60 * 10**9))


@real
def test_prefix_of_the_mooncake_conversation() -> None:
    path = TRACES / "mooncake-fast25" / "conversation_trace.head.jsonl"
    found = stats_of(path).to_json()
    assert found["rows"] == 4006
    assert found["input_tokens"]["mean"] == pytest.approx(13_313, abs=1)
    assert found["input_tokens"]["p50"] == pytest.approx(7_884, rel=0.002)
    assert found["input_tokens"]["p99"] == pytest.approx(94_407, rel=0.002)
    assert found["arrivals"]["per_s"] == pytest.approx(3.08, abs=0.02)
    assert found["arrivals"]["gap_cv"] == pytest.approx(1.01, abs=0.02)
    assert found["arrivals"]["idc_1s"] == pytest.approx(1.05, abs=0.05)
    # n rows on each stamp: gaps of 3 s and n - 1 of 0 have a CV of sqrt(n - 1), 3.03 for the whole file's n of 10.2.
    raw = stats_of(path, raw_timestamps=True).to_json()["arrivals"]
    per_stamp = 4006 / len({row.at_ns for row in Trace(path, detect(path), raw_timestamps=True)})
    assert raw["gap_cv"] == pytest.approx(math.sqrt(per_stamp - 1), rel=0.02)
    assert raw["idc_1s"] > 7


@real
def test_prefix_of_the_mooncake_synthetic_trace() -> None:
    path = TRACES / "mooncake-fast25" / "synthetic_trace.head.jsonl"
    found = stats_of(path).to_json()
    assert found["rows"] == 2000
    assert [found["input_tokens"][k] for k in ("mean", "p50", "p99")] == pytest.approx(
        [12_366, 4_174, 56_635], rel=2e-4
    )
    assert found["arrivals"]["per_s"] == pytest.approx(3.75, abs=0.005)
    assert found["arrivals"] == stats_of(path, raw_timestamps=True).to_json()["arrivals"], "it lies on no grid"


@real
def test_real_sessions() -> None:
    found = stats_of(TRACES / "kv-cache-tester").to_json()
    assert (found["rows"], found["sessions"], "arrivals" in found) == (384, 12, False)
    assert found["input_tokens"]["mean"] == pytest.approx(91_205, abs=1)
    assert found["prefix"]["hit_share"] == pytest.approx(0.942, abs=0.0005)
    one = stats_of(TRACES / "kv-cache-tester" / "trace_0625.json").to_json()
    assert one["rows"] == 101
    assert one["prefix"]["uncached_tokens"]["mean"] == pytest.approx(2_021, abs=1)
    assert one["output_tokens"]["mean"] == pytest.approx(220, abs=0.6)


def test_the_command_prints_tables_and_json(tmp_path: Path) -> None:
    bench.write(tmp_path / "log.csv", "routing", 400)
    shown = zcube("trace", "stats", str(tmp_path / "log.csv"))
    assert shown.returncode == 0, shown.stderr
    for part in ("routing, 400 rows", "gap CV", "IDC 60 s", "Prefix hits (of the log): 96.6%", "glm-5.1-fp8",
                 "between successive thirds"):  # fmt: skip
        assert part in shown.stdout
    as_json = zcube("trace", "stats", str(tmp_path / "log.csv"), "--json", "--model", "llama-3.1-70b")
    found = json.loads(as_json.stdout)
    assert found["flow_bytes"]["mean"] == 122_000 * 327_680
    assert sum(pair["rows"] for pair in found["pairs"]) == 400


def test_the_command_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n1,-5,5\n")
    one_message(zcube("trace", "stats", str(path)), 2, str(path), "line 3", "column input_tokens", "-5")
    skipped = zcube("trace", "stats", str(path), "--skip-bad-rows")
    assert skipped.returncode == 0 and "1 rows, 1 bad ones left out" in skipped.stdout
    one_message(zcube("trace", "stats", str(path), "--format", "parquet"), 2, "--format = 'parquet'", "auto, azure")
    one_message(zcube("trace", "stats", str(path), "--model", "gpt"), 2, "gpt")
    one_message(zcube("trace", "stats", "/nowhere"), 2, "/nowhere")
    path.write_text("who,knows\n1,2\n")
    one_message(zcube("trace", "stats", str(path)), 2, "no format has these columns", "; --format names one")
    path.write_text("arrival_s,input_tokens,output_tokens\n")
    one_message(zcube("trace", "stats", str(path)), 2, "has no rows")
    assert "Example" in zcube("trace", "--help").stdout
