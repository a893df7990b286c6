"""The coding-agent workload: its statistics, its equilibrium, and the fixed set."""

from __future__ import annotations

import heapq
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from test_traffic_driver import drive

from scenario.models import Scenario
from traffic.coding_agent import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    THINK_S,
    UNCACHED,
    WHOLE_PROMPT_SHARE,
    CodingAgentSource,
    mean_uncached_tokens,
)
from traffic.compute import nominal_service_s, prefill_batch_s
from traffic.requests import Request

SESSIONS = Path(__file__).resolve().parents[1] / ".." / "shared" / "traces" / "kv-cache-tester"


def source(
    seed: int = 1, gpus: int = 32, serving: dict[str, object] | None = None, **workload: object
) -> CodingAgentSource:
    return CodingAgentSource(scenario(seed, gpus, serving, **workload))


def scenario(seed: int = 1, gpus: int = 32, serving: dict[str, object] | None = None, **workload: object) -> Scenario:
    return Scenario.model_validate(
        {
            "seed": seed,
            "fabric": {"gpus": gpus},
            "serving": serving or {},
            "workload": {"kind": "coding_agent", **workload},
        }
    )


def nominal_arrivals(made: CodingAgentSource, setting: Scenario) -> list[tuple[float, Request]]:
    """The set served by an idle system with an infinite fabric."""
    heap = [(at_s, r.request_id, r) for at_s, r in made.initial()]
    heapq.heapify(heap)
    arrivals = []
    while heap:
        at_s, _, request = heapq.heappop(heap)
        arrivals.append((at_s, request))
        after = made.following(request, at_s + nominal_service_s(setting, request))
        if after is not None:
            heapq.heappush(heap, (after[0], after[1].request_id, after[1]))
    return arrivals


@pytest.fixture(scope="module")
def uncut() -> list[Request]:
    # Many sessions, since turns of one session are alike; a context that cuts nothing.
    made = source(gpus=1024, serving={"model": "glm-5.2-fp8"}, requests=20_000, max_input_tokens=1_000_000)
    assert made.session_count > 30_000
    return list(made.requests)


#: kv-cache-tester, 692 sessions, 46,218 requests: mean, and quantiles by probability (traffic/coding_agent.py).
PUBLISHED: dict[str, tuple[float, dict[float, float]]] = {
    "input_tokens": (118_296, {0.5: 100_446, 0.9: 209_039, 0.99: 505_880}),
    "uncached_tokens": (4_457, {0.5: 735, 0.9: 5_041, 0.99: 89_836}),
    "output_tokens": (440, {0.5: 218, 0.99: 3_723}),
}


@pytest.mark.parametrize("what", PUBLISHED)
def test_large_samples_have_the_published_statistics(uncut: list[Request], what: str) -> None:
    mean, quantiles = PUBLISHED[what]
    values = np.array([getattr(r, what) for r in uncut])
    assert values.mean() == pytest.approx(mean, rel=0.06)
    # The share above a published quantile, within 4 standard deviations of a sample of this size and 0.2 points.
    for p, value in quantiles.items():
        tolerance = 4 * math.sqrt(p * (1 - p) / len(values)) + 0.002
        assert (values > value).mean() == pytest.approx(1 - p, abs=tolerance)


def test_the_fit_itself_has_the_published_statistics() -> None:
    ranks = (np.arange(20_000) + 0.5) / 20_000
    prompts = np.array([INPUT_TOKENS.quantile(p) for p in ranks])
    new = np.array([UNCACHED.quantile(p) for p in ranks])
    for p, value in PUBLISHED["input_tokens"][1].items():
        assert (prompts > value).mean() == pytest.approx(1 - p, abs=1e-4)
    for p, value in PUBLISHED["uncached_tokens"][1].items():
        above = WHOLE_PROMPT_SHARE * (prompts > value).mean() + (1 - WHOLE_PROMPT_SHARE) * (new > value).mean()
        # Whole prompts lie above the p50 and the p90 alike; the table of the others allows for them.
        assert above == pytest.approx(1 - p, rel=0.01)
    assert prompts.mean() == pytest.approx(118_296, rel=0.01)
    assert mean_uncached_tokens(10**7) == pytest.approx(4_457, rel=0.01)
    assert OUTPUT_TOKENS.mean == pytest.approx(440, rel=0.02)
    assert OUTPUT_TOKENS.quantile(0.99) == pytest.approx(3_723, rel=0.05)
    assert THINK_S.mean == pytest.approx(83.0) and THINK_S.median == 10.0


def test_prefix_hits_have_the_published_share(uncut: list[Request]) -> None:
    hit = sum(r.cached_tokens for r in uncut) / sum(r.input_tokens for r in uncut)
    assert hit == pytest.approx(0.962, abs=0.005)


def test_think_times_have_the_published_statistics() -> None:
    made = source(gpus=512, requests=2000)
    thinks = np.array([made._think_s(session, turn) for session in range(4000) for turn in range(10)])
    assert np.quantile(thinks, 0.5) == pytest.approx(10.0, rel=0.05)
    assert thinks.mean() == pytest.approx(83.0, rel=0.1)
    longer = source(gpus=512, requests=20, think_scale=2.5)
    assert longer._think_s(3, 4) == pytest.approx(2.5 * made._think_s(3, 4))


def test_the_cut_is_kept_and_its_mean_is_known() -> None:
    made = source(gpus=512, requests=15_000)
    prompts = np.array([r.input_tokens for r in made.requests])
    assert prompts.max() == 202_752
    assert (prompts == 202_752).mean() == pytest.approx(0.10, abs=0.03)
    uncached = np.array([r.uncached_tokens for r in made.requests])
    assert uncached.mean() == pytest.approx(made.mean_uncached_tokens, rel=0.06)
    assert mean_uncached_tokens(202_752) < mean_uncached_tokens(10**7) == pytest.approx(4457, rel=0.01)
    assert source(requests=10, max_input_tokens=500).requests[0].input_tokens == 500
    # The model's context cuts as well.
    assert max(r.input_tokens for r in source(serving={"model": "llama-3.1-70b"}).requests) <= 131_072


def test_prompts_grow_within_a_session_and_by_no_more_than_is_new() -> None:
    made = source(requests=8_000)
    turns: dict[int, list[Request]] = {}
    for request in made.requests:
        turns.setdefault(request.session_id, []).append(request)
    steps = [(a, b) for session in turns.values() for a, b in pairwise(session)]
    assert len(steps) > 5_000
    assert all(b.turn == a.turn + 1 for a, b in steps)
    grown = [(a, b) for a, b in steps if b.input_tokens >= a.input_tokens]
    assert len(grown) / len(steps) > 0.985  # the rest are compactions
    # One token of slack: both figures are rounded.
    assert all(b.cached_tokens <= a.input_tokens + 1 for a, b in grown)


def test_rate_and_sessions_follow_from_the_utilisation() -> None:
    made = source(utilisation=0.5)
    alone_s = prefill_batch_s(scenario(), made.mean_uncached_tokens)
    assert made.offered_rate_per_s * alone_s / 4 == pytest.approx(0.5)  # 4 prefill servers
    assert made.session_count == round(made.offered_rate_per_s * made.mean_cycle_s)
    assert source(utilisation=1.0).session_count == pytest.approx(2 * made.session_count, abs=2)


@pytest.mark.parametrize("settings", [{}, {"think_scale": 0.05}], ids=["default", "short thinks"])
def test_the_arrival_rate_is_steady_from_the_start(settings: dict[str, object]) -> None:
    windows, width_s, runs = 8, 15.0, 10
    counts = np.zeros(windows)
    rate = 0.0
    for seed in range(runs):
        setting = scenario(seed, requests=2000, **settings)
        made = CodingAgentSource(setting)
        rate = made.offered_rate_per_s
        for at_s, _ in nominal_arrivals(made, setting):
            if at_s < windows * width_s:
                counts[int(at_s / width_s)] += 1
    expected = rate * width_s * runs
    # Poisson-like: 4 standard deviations; a session's turns cluster a little, hence the factor 2.
    assert np.abs(counts - expected).max() < 4 * math.sqrt(2 * expected), counts / expected


def test_the_fixed_set_is_the_nominal_schedule_in_order() -> None:
    setting = scenario(requests=300, warmup_requests=40)
    made = CodingAgentSource(setting)
    assert [r.request_id for r in made.requests] == list(range(370))
    assert [r.phase for r in made.requests] == ["warmup"] * 40 + ["measured"] * 300 + ["cooldown"] * 30
    assert made.measured_ids == set(range(40, 340))
    assert made.count == 370
    nominal = nominal_arrivals(made, setting)
    assert [r.request_id for _, r in nominal] == list(range(370))
    assert len({(r.session_id, r.turn) for r in made.requests}) == 370


def test_every_fabric_serves_the_same_set() -> None:
    # Short thinks, so that most requests follow another; two "fabrics" 200 times apart in speed.
    setting = scenario(requests=200, think_scale=0.02)
    fast, slow = (
        drive(setting, CodingAgentSource(setting), duration_s=lambda t, r=rate: t.bytes / r, to_the_last_event=True)
        for rate in (50e9, 0.25e9)
    )
    keys = ("request_id", "session_id", "turn", "phase", "input_tokens", "cached_tokens", "output_tokens")
    served = [[tuple(row[k] for k in keys) for row in run.engine.requests] for run in (fast, slow)]
    assert served[0] == served[1]
    assert all(row["status"] in ("ok", "timeout") for run in (fast, slow) for row in run.engine.requests)
    # And the loop is closed: a later turn arrives a think time after the real finish of the one before.
    made = CodingAgentSource(setting)
    followed = 0
    for run in (fast, slow):
        rows = {(row["session_id"], row["turn"]): row for row in run.engine.requests}
        for row in rows.values():
            before = rows.get((row["session_id"], int(str(row["turn"])) - 1))
            if before is not None and before["status"] == "ok":
                think_s = made._think_s(int(str(row["session_id"])), int(str(row["turn"])))
                assert row["t_arrival_s"] == pytest.approx(float(str(before["t_finished_s"])) + think_s)
                followed += 1
    assert followed > 100
    assert fast.instants("arrival") != slow.instants("arrival")


def test_the_set_does_not_depend_on_the_fabric_and_does_on_the_seed() -> None:
    base = scenario()
    roft = base.model_copy(update={"fabric": base.fabric.model_copy(update={"kind": "roft"})})
    assert CodingAgentSource(base).requests == CodingAgentSource(roft).requests
    assert CodingAgentSource(base).requests != source(seed=2).requests


def test_following_does_not_depend_on_the_order_of_questions() -> None:
    made, again = source(requests=3000), source(requests=3000)
    forwards = {r.request_id: made.following(r, 5.0) for r in made.requests}
    backwards = {r.request_id: again.following(r, 5.0) for r in reversed(again.requests)}
    assert forwards == backwards
    assert sum(found is not None for found in forwards.values()) > 1000


@pytest.mark.skipif(not SESSIONS.is_dir(), reason="the real coding-agent sessions are not beside the repository")
def test_real_sessions_lie_in_the_modelled_ranges() -> None:
    prompts, outputs, thinks, uncached = [], [], [], []
    for path in sorted(SESSIONS.glob("*.json")):
        seen: set[int] = set()
        for request in json.loads(path.read_text())["requests"]:
            blocks = request["hash_ids"]
            hit = next((i for i, block in enumerate(blocks) if block not in seen), len(blocks))
            seen.update(blocks)
            prompts.append(request["in"])
            outputs.append(request["out"])
            uncached.append(request["in"] - 64 * hit)
            if "think_time" in request:
                thinks.append(request["think_time"])
    assert len(prompts) == 384
    assert min(prompts) >= INPUT_TOKENS.values[0] and max(prompts) <= INPUT_TOKENS.values[-1]
    # 12 of 739 sessions, shorter than the corpus: the middle must agree roughly.
    assert np.median(prompts) == pytest.approx(100_446, rel=0.25)
    assert np.median(uncached) == pytest.approx(735, rel=0.25)
    assert np.median(outputs) == pytest.approx(218, rel=0.25)
    assert np.median(thinks) == pytest.approx(10.0, rel=0.3)
    assert np.mean(thinks) == pytest.approx(83.0, rel=0.25)
