"""Drawn workloads: their statistics against the parameters, and against the rate curves they come from."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from scenario.errors import InputError
from scenario.load import check_scenario
from simulation.run import simulate
from traffic import servegen
from traffic.moments import WindowCounts
from traffic.requests import Source
from traffic.rng import gamma, weibull
from traffic.servegen import Window, client_arrivals, read_clients
from traffic.sources import make_source

CURVES = Path(__file__).resolve().parents[1] / ".." / "shared" / "traces" / "servegen-m-large"
real = pytest.mark.skipif(not CURVES.is_dir(), reason="the real ServeGen curves are not beside the repository")


def source(seed: int = 1, **workload: object) -> Source:
    return make_source(check_scenario({"seed": seed, "workload": {"kind": "synthetic", **workload}}))


def gaps(found: Source) -> list[float]:
    return [b - a for a, b in pairwise([0.0, *(at_s for at_s, _ in found.initial())])]


@pytest.mark.parametrize("shape", [0.2, 0.9, 1.0, 3.0, 50.0])
def test_gamma_draws_have_their_mean_and_deviation(shape: float) -> None:
    draws = [gamma(1, i, purpose="t", shape=shape, scale=2.0) for i in range(20_000)]
    assert statistics.mean(draws) == pytest.approx(2 * shape, rel=0.06)
    assert statistics.pstdev(draws) == pytest.approx(2 * math.sqrt(shape), rel=0.06)
    # Third moment: skewness 2 / sqrt(shape).
    skew = float(np.mean(((np.array(draws) - 2 * shape) / (2 * math.sqrt(shape))) ** 3))
    assert skew == pytest.approx(2 / math.sqrt(shape), rel=0.3, abs=0.08)


def test_weibull_draws_have_their_mean_and_median() -> None:
    draws = [weibull(1, i, purpose="t", shape=0.5, scale=3.0) for i in range(20_000)]
    assert statistics.mean(draws) == pytest.approx(3 * math.gamma(3), rel=0.05)
    assert statistics.median(draws) == pytest.approx(3 * math.log(2) ** 2, rel=0.05)


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [({"kind": "poisson"}, 1.0), ({"kind": "gamma", "cv": 3.0}, 3.0), ({"kind": "gamma", "cv": 0.5}, 0.5)],
)
def test_arrivals_have_the_rate_and_the_cv_that_was_asked(arrivals: dict[str, object], cv: float) -> None:
    found = gaps(source(arrivals={**arrivals, "rate_per_s": 5.0}, requests=20_000))
    assert statistics.mean(found) == pytest.approx(0.2, rel=0.06)
    assert statistics.pstdev(found) / statistics.mean(found) == pytest.approx(cv, rel=0.06)


def test_lengths_have_their_quantiles_and_do_not_depend_on_arrivals() -> None:
    quantiles = {"kind": "quantiles", "input": {0: 100, 0.5: 1469, 1: 7437}, "output": {0: 1, 0.5: 13, 1: 1899}}
    found = source(lengths=quantiles, requests=8000)
    prompts = sorted(r.input_tokens for r in found.requests)
    assert prompts[0] >= 100 and prompts[-1] <= 7437
    assert statistics.median(prompts) == pytest.approx(1469, rel=0.05)
    assert statistics.median(r.output_tokens for r in found.requests) == pytest.approx(13, abs=1)
    other = source(lengths=quantiles, requests=8000, arrivals={"kind": "gamma", "cv": 9})
    assert [r.input_tokens for r in other.requests] == [r.input_tokens for r in found.requests]


def test_lognormal_lengths_cuts_and_cached_share() -> None:
    law = {"kind": "lognormal", "input_median": 5000, "input_sigma": 1.0, "output_median": 100, "output_sigma": 0.0}
    found = source(lengths=law, requests=6000, max_input_tokens=20_000, cached_share=0.75)
    assert statistics.median(r.input_tokens for r in found.requests) == pytest.approx(5000, rel=0.06)
    assert max(r.input_tokens for r in found.requests) == 20_000
    over = sum(r.input_tokens == 20_000 for r in found.requests) / found.count
    assert over == pytest.approx(0.0828, abs=0.015)  # P(N > ln 4)
    assert {r.output_tokens for r in found.requests} == {100}
    for r in found.requests[:100]:
        assert r.cached_tokens == min(round(0.75 * r.input_tokens), r.input_tokens - 1)


def test_lengths_sampled_from_a_trace_keep_their_pairs(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,10,1\n0,20,2\n0,30,3\n0,40,4\n")
    found = source(lengths={"kind": "sampled", "path": str(path)}, requests=4000)
    assert {(r.input_tokens, r.output_tokens) for r in found.requests} == {(10, 1), (20, 2), (30, 3), (40, 4)}
    assert statistics.mean(r.input_tokens for r in found.requests) == pytest.approx(25, rel=0.05)


def test_the_order_in_which_draws_are_made_changes_nothing() -> None:
    few, many = source(requests=50), source(requests=5000)
    assert few.initial() == [
        (at_s, r) if i < 50 else (at_s, few.requests[i]) for i, (at_s, r) in enumerate(many.initial()[:55])
    ]
    assert source(seed=2, requests=50).initial() != few.initial()
    assert [t for t, _ in source(requests=50, speedup=4).initial()] == pytest.approx([t / 4 for t, _ in few.initial()])


def burst(**workload: object) -> Source:
    return make_source(check_scenario({"workload": {"kind": "burst", **workload}}))


def test_bursts_start_in_their_windows_with_their_sizes() -> None:
    found = burst(handoffs=6, tokens=[1000, 50_000], window_ms=20, repeats=3, period_s=2, warmup_repeats=1)
    assert [r.request_id for _, r in found.initial()] == list(range(24))
    for number, (at_s, request) in enumerate(found.initial()):
        start_s = 2 * (number // 6)
        assert start_s < at_s < start_s + 0.02
        assert request.uncached_tokens == 1
        assert request.phase == ("warmup" if number < 6 else "measured")
    for k in range(4):
        assert sorted(r.input_tokens for r in found.requests[6 * k : 6 * k + 6]) == [1000] * 3 + [50_000] * 3
    offsets = [at_s % 2 for at_s, _ in burst(handoffs=500, repeats=4, window_ms=100).initial()]
    assert max(offsets) - min(offsets) > 0.09


def test_bursts_and_drawn_requests_are_served() -> None:
    for workload in ({"kind": "burst", "repeats": 2}, {"kind": "synthetic", "requests": 10}):
        assert simulate(check_scenario({"fabric": {"gpus": 32}, "workload": workload}), infinite_core=True).end_s > 0


@pytest.mark.parametrize(
    ("workload", "what"),
    [
        ({"kind": "burst", "window_ms": 9000}, "bursts overlap"),
        ({"kind": "burst", "handoffs": 100_000, "repeats": 100_000}, "at most 1,000,000"),
        ({"kind": "burst", "tokens": []}, "workload.tokens"),
        ({"kind": "burst", "tokens": [0]}, r"workload\.tokens"),
        ({"kind": "synthetic", "arrivals": {"kind": "gamma", "cv": 0}}, r"workload\.arrivals\.cv = 0"),
        ({"kind": "synthetic", "arrivals": {"kind": "gamma", "cw": 1}}, r"workload\.arrivals\.cw.*known here: cv"),
        ({"kind": "synthetic", "arrivals": {"kind": "poisson", "rate_per_s": -1}}, r"rate_per_s = -1"),
        (
            {"kind": "synthetic", "lengths": {"kind": "quantiles", "input": {0: 5}, "output": {0: 1, 1: 2}}},
            "probability 0",
        ),
        (
            {"kind": "synthetic", "lengths": {"kind": "quantiles", "input": {0: 5, 1: 2}, "output": {0: 1, 1: 2}}},
            "must not fall",
        ),
    ],
)  # fmt: skip
def test_bad_settings_name_the_field(workload: dict[str, object], what: str) -> None:
    with pytest.raises(InputError, match=f"(?s){what}"):
        check_scenario({"workload": workload})


def test_a_burst_beyond_the_context_and_lengths_without_tokens(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"workload\.tokens = 300000"):
        burst(tokens=[300_000])
    (tmp_path / "log").write_text("time_s,src_gpu,dst_gpu,bytes\n1,1,2,3\n")
    with pytest.raises(InputError, match="no token counts"):
        source(lengths={"kind": "sampled", "path": str(tmp_path / "log")})


def curves(folder: Path, text: str, client: str = "1") -> Path:
    (folder / f"chunk-{client}-trace.csv").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty"),
        ("0,1,1,Gamma,1\n", "line 1.*5 fields where 6"),
        ("0,1,1,Gamma,1,1\n600,x,1,Gamma,1,1\n", "line 2, column rate.*'x' is not a number"),
        ("0,1,1,Pareto,1,1\n", "'Pareto' is not Gamma"),
        ("0,1,1,Gamma,0,1\n", "shape 0"),
        ("600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", "line 2.*does not rise"),
        ("-5,1,1,Gamma,1,1\n", "below 0"),
    ],
)
def test_bad_rate_curves_name_file_line_and_column(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(InputError, match=f"(?s){what}"):
        read_clients(curves(tmp_path, text))


def test_a_folder_without_curves_and_curves_that_end(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"chunk-<client>-trace\.csv"):
        source(arrivals={"kind": "servegen", "path": str(tmp_path)})
    curves(tmp_path, "0,0.1,1,Gamma,1,10\n")
    with pytest.raises(InputError, match=r"end after \d+ arrivals"):
        source(arrivals={"kind": "servegen", "path": str(tmp_path)}, requests=1000)


def test_windows_without_arrivals_have_none_and_the_next_one_goes_on() -> None:
    windows = [Window(0, "Gamma", 1, 0.5), Window(600, "", 0, 0), Window(1200, "Weibull", 1, 0.25)]
    found = list(client_arrivals(1, "7", windows, 0))
    assert not [t for t in found if 600 <= t < 1200]
    assert found[-1] < 1800
    assert sum(t < 600 for t in found) == pytest.approx(1200, abs=4 * math.sqrt(1200))
    assert sum(t >= 1200 for t in found) == pytest.approx(2400, abs=4 * math.sqrt(2400))
    later = list(client_arrivals(1, "7", windows, 1200))
    assert later[0] >= 0 and later[-1] < 600


def test_the_end_of_a_window_changes_nothing_where_the_law_stays() -> None:
    one = [Window(0, "Gamma", 0.1, 70.0), Window(60_000, "", 0, 0)]
    many = [Window(600.0 * i, "Gamma", 0.1, 70.0) for i in range(100)] + one[1:]
    first = list(client_arrivals(1, "7", one, 0))
    assert len(first) > 3000
    assert list(client_arrivals(1, "7", many, 0)) == pytest.approx(first)


def test_time_0_is_a_random_instant_of_the_process() -> None:
    """Mean time to the first arrival of a renewal process in equilibrium: mean gap * (CV^2 + 1) / 2."""
    for pattern, shape, squared_cv in (("Gamma", 0.25, 4.0), ("Weibull", 0.5, 5.0)):
        window = Window(0, pattern, shape, 1.0)
        first = [window.residual_s(1, str(i)) for i in range(20_000)]
        assert statistics.mean(first) == pytest.approx(window.mean_s * (squared_cv + 1) / 2, rel=0.06)


def test_clients_are_merged_in_order(tmp_path: Path) -> None:
    curves(curves(tmp_path, "0,1,1,Gamma,1,1\n"), "0,3,1,Gamma,1,0.3333\n", "x")
    found = source(arrivals={"kind": "servegen", "path": str(tmp_path)}, requests=1800)
    times = [t for t, _ in found.initial()]
    assert times == sorted(times)
    assert sum(r.tenant == "x" for r in found.requests) / found.count == pytest.approx(0.75, abs=0.05)


def test_a_rate_scales_all_clients_alike_and_leaves_windows_and_shapes(tmp_path: Path) -> None:
    curves(curves(tmp_path, "0,1,1,Gamma,1,1\n600,4,1,Gamma,1,0.25\n"), "0,3,1,Weibull,1,0.3333\n600,0,0,,0,0\n", "x")
    arrivals = {"kind": "servegen", "path": str(tmp_path), "rate_per_s": 1.0}
    times = [t for t, _ in source(arrivals=arrivals, requests=1000).initial()]
    early = [t for t in times if t < 600]  # 1/s in all, then 4/4 of the one that is left: the curves' form stays
    assert len(early) == pytest.approx(600, abs=4 * math.sqrt(600))
    assert len([t for t in times if 600 <= t < 1000]) == pytest.approx(400, abs=4 * math.sqrt(400))
    clients = read_clients(tmp_path)
    assert servegen.rate_at(clients, 0.0) == pytest.approx(4) and servegen.rate_at(clients, 700.0) == pytest.approx(4)
    scaled = servegen.at_rate(clients, 0.0, 10.0)
    assert servegen.rate_at(scaled, 0.0) == pytest.approx(10)
    was, now = ([(w.start_s, w.pattern, w.shape) for w in found["x"]] for found in (clients, scaled))
    assert now == was
    with pytest.raises(InputError, match=r"rate_per_s = 1.0: cannot be reached: no client sends anything"):
        source(arrivals={**arrivals, "start_s": 1200}, requests=1)


@real
@pytest.mark.parametrize("client", ["148", "112", "7", "78"])
def test_real_curves_give_their_rates(client: str) -> None:
    """Two hours of a client: arrivals of each window as its rate says, to four deviations of that count."""
    windows = read_clients(CURVES)[client][:12]
    counts = [0] * 12
    for at_s in client_arrivals(1, client, windows, 0.0):
        counts[int(at_s // 600)] += 1
    expected = [600 / w.mean_s if w.pattern else 0 for w in windows]
    assert sum(counts) == pytest.approx(sum(expected), rel=0.06)
    for count, mean in zip(counts, expected, strict=True):
        assert (count == 0) == (mean == 0)
        assert count == pytest.approx(mean, abs=4 * 3 * math.sqrt(mean) + 1)  # CV up to 3


@real
def test_scales_that_follow_from_the_rates_are_those_that_were_fitted() -> None:
    """So shape and rate are read from the right columns; a few windows have a fit that misses the rate."""
    ratios = []
    for client, windows in read_clients(CURVES).items():
        lines = (CURVES / f"chunk-{client}-trace.csv").read_text().splitlines()
        fitted = [float(line.split(",")[5]) for line in lines]
        assert len(windows) == 144
        found = [window.scale_s / scale for window, scale in zip(windows, fitted, strict=True) if window.pattern]
        assert statistics.median(found) == pytest.approx(1, abs=0.005)
        ratios += found
    assert sum(abs(ratio - 1) < 0.03 for ratio in ratios) > 0.8 * len(ratios)


@real
def test_the_sum_of_real_clients_is_burstier_than_poisson() -> None:
    clients = {c: w for c, w in read_clients(CURVES).items() if c in ("148", "112", "120", "34")}

    def first_hour() -> Iterator[float]:
        for at_s, _ in servegen.arrivals(1, clients, 0.0):
            if at_s > 3600:
                return
            yield at_s

    counts = WindowCounts(10**9)
    counts.add(np.array([int(t * 1e9) for t in islice(first_hour(), 200_000)]))
    assert 1.2 < counts.dispersion < 3
