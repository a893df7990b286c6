"""Closed loop of synthetic coding-agent sessions: the default workload.

Source of the statistics: kv-cache-tester, real coding-agent sessions
(https://github.com/callanjfox/kv-cache-tester, `traces/`, commit 94f6046d, Apache-2.0; 692 sessions, 46,218
requests after duplicates are dropped). Published figures and the fit (a test compares large samples with
the published ones):

* input tokens: mean 118,296, p50 100,446, p90 209,039, p99 505,880, max 894,371. Fit: a quantile table
  through these; its lowest value, 16,127, is the smallest prompt of the 12 sessions looked at. Mean 119,363
  (+0.9 %).
* uncached tokens: mean 4,457, p50 735, p90 5,041, p99 89,836. Fit: two kinds of turn (`UNCACHED`).
  Mean 4,479 (+0.5 %), quantiles as published.
* output tokens: mean 440, p50 218, p99 3,723. Fit: lognormal, median 218, sigma 1.20. Mean 448 (+1.8 %),
  p99 3,555 (-4.5 %).
* think time: p50 10 s, mean 83 s. Fit: lognormal, median 10 s, sigma 2.057, which has both.

Prompts are cut at `max_input_tokens` and at the model's context (10 % of the corpus exceed 202,752 tokens),
which lowers the means: `CodingAgentSource.mean_uncached_tokens` is that of the cut distribution.

A session is one developer at one keyboard; within it prompts only grow, until the context is compacted and
growth starts again from a short prompt (`_Session`). Sessions do not end within a run.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from scenario.errors import InputError
from scenario.models import CodingAgentWorkload, Scenario
from traffic.compute import compute_model, nominal_constant_s, nominal_service_s
from traffic.kv import model_of
from traffic.layout import roles
from traffic.requests import FixedSet, Phase, Request, cooldown_count
from traffic.rng import LogNormal, QuantileTable, exponential, from_quantiles, lognormal, uniform

INPUT_TOKENS = QuantileTable((0.0, 0.5, 0.9, 0.99, 1.0), (16_127, 100_446, 209_039, 505_880, 894_371))
OUTPUT_TOKENS = LogNormal(median=218, sigma=1.20)
#: sigma from the published mean and median: sqrt(2 ln(83 / 10)).
THINK_S = LogNormal(median=10.0, sigma=math.sqrt(2 * math.log(8.3)))
#: Requests per session in the corpus (46,218 / 692); only numbers the turns at the start.
MEAN_TURNS = 66.8

#: Share of turns whose whole prompt is new: first turns (692 of 46,218 = 1.5 %) and rewound or rewritten
#: prefixes. 1.88 % puts the published p99 (89,836) where it is: P(input > 89,836) = 0.531 and 0.0188 * 0.531
#: = 1 %.
WHOLE_PROMPT_SHARE = 0.0188
#: Uncached tokens of all other turns. The inner probabilities are those of the published p50 and p90 once the
#: whole prompts are taken out (they lie above both): 0.5 / 0.9812, 0.9 / 0.9812. Lowest value: of the
#: sessions held. The highest one is the only free number; it makes the overall mean 4,457.
UNCACHED = QuantileTable((0.0, 0.50958, 0.91724, 1.0), (123, 735, 5_041, 32_000))


def max_growth_per_rank(max_input_tokens: int) -> float:
    """The steepest d(tokens) / d(rank) of the input quantiles below the cut, in tokens."""
    steepest = 0.0
    for piece, (low, high) in enumerate(zip(INPUT_TOKENS.values, INPUT_TOKENS.values[1:], strict=False)):
        if low < max_input_tokens:
            steepest = max(steepest, INPUT_TOKENS.log_slope(piece) * min(high, max_input_tokens))
    # A cut below the shortest prompt leaves nothing to grow; any positive figure serves.
    return steepest or INPUT_TOKENS.log_slope(0) * INPUT_TOKENS.values[0]


def mean_input_tokens(max_input_tokens: int, grid: int = 400) -> float:
    """Mean prompt when prompts are cut at `max_input_tokens` (midpoint rule)."""
    return float(np.minimum([INPUT_TOKENS.quantile((i + 0.5) / grid) for i in range(grid)], max_input_tokens).mean())


def mean_prefill_s(prefill_s: Callable[[float], float], max_input_tokens: int, grid: int = 100) -> float:
    """Mean time to prefill a turn alone, for a time that is not linear in tokens (midpoint rule as above)."""
    ranks = (np.arange(grid) + 0.5) / grid
    prompts = np.minimum([INPUT_TOKENS.quantile(p) for p in ranks], max_input_tokens)
    new = np.array([UNCACHED.quantile(p) for p in ranks])
    whole = float(np.mean([prefill_s(float(tokens)) for tokens in prompts]))
    partial = float(np.mean([prefill_s(float(tokens)) for tokens in np.minimum.outer(prompts, new).ravel()]))
    return WHOLE_PROMPT_SHARE * whole + (1 - WHOLE_PROMPT_SHARE) * partial


def mean_uncached_tokens(max_input_tokens: int, grid: int = 400) -> float:
    """Mean uncached tokens of a turn when prompts are cut at `max_input_tokens` (midpoint rule over both
    ranks)."""
    ranks = (np.arange(grid) + 0.5) / grid
    prompts = np.minimum([INPUT_TOKENS.quantile(p) for p in ranks], max_input_tokens)
    new = np.array([UNCACHED.quantile(p) for p in ranks])
    partial = float(np.minimum(prompts[:, None], new[None, :]).mean())
    return WHOLE_PROMPT_SHARE * float(prompts.mean()) + (1 - WHOLE_PROMPT_SHARE) * partial


@dataclass
class _Session:
    """A session's turns, generated one after the other.

    The prompt of a turn is the input quantile at `rank`. A session starts at a uniform rank and each turn
    moves it up by an amount that does not depend on it, modulo 1: so the rank is uniform at every turn, and
    prompts have the published distribution at any time, although they grow within the session. The step is
    the turn's new tokens over the steepest slope of the quantiles: a prompt never grows by more than its
    uncached tokens. Passing 1 is a compaction: the prompt falls back to the shortest.
    """

    seed: int
    session_id: int
    turn: int
    rank: float
    max_input_tokens: int
    growth_per_rank: float

    def next_turn(self) -> tuple[int, int, int, int]:
        """(turn, input, cached, output tokens) of the next turn."""
        key = (self.session_id, self.turn)
        new = from_quantiles(self.seed, *key, purpose="uncached", table=UNCACHED)
        self.rank = (self.rank + new / self.growth_per_rank) % 1.0
        prompt = min(round(INPUT_TOKENS.quantile(self.rank)), self.max_input_tokens)
        whole = uniform(self.seed, *key, purpose="whole_prompt") < WHOLE_PROMPT_SHARE
        uncached = prompt if whole else min(max(1, math.ceil(new)), prompt)
        output = max(1, round(lognormal(self.seed, *key, purpose="output", law=OUTPUT_TOKENS)))
        turn = self.turn
        self.turn += 1
        return turn, prompt, prompt - uncached, output


class CodingAgentSource(FixedSet):
    """The fixed set of turns and their arrivals (a `traffic.requests.Source`).

    The set is the first `warmup + measured + cooldown` arrivals of a nominal schedule, in which every request
    takes the time it would on an idle system with an infinite fabric. Served for real, a session's first turn
    in the set arrives at its nominal time, and each later one a think time after the real finish of the one
    before.

    Number of sessions: rate * mean cycle, where rate = utilisation * prefill servers / mean prefill time of a
    request alone (base included: batching shares the base, so measured utilisation can be a little lower),
    and cycle = think + nominal service (Little's law). The loop starts in equilibrium: see
    `_first_arrival_s`.
    """

    def __init__(self, scenario: Scenario) -> None:
        if not isinstance(scenario.workload, CodingAgentWorkload):
            raise InputError("workload.kind", scenario.workload.kind, "this source reads coding_agent")
        self._scenario = scenario
        self._seed = scenario.seed
        self._think = THINK_S.scaled(scenario.workload.think_scale)
        self.max_input_tokens = min(scenario.workload.max_input_tokens, model_of(scenario.serving).max_context_tokens)
        self.mean_uncached_tokens = mean_uncached_tokens(self.max_input_tokens)
        model = compute_model(scenario)
        if scenario.serving.compute == "formula":  # linear: the mean of the times is the time of the mean
            prefill_s = model.prefill_s(self.mean_uncached_tokens)
        else:
            prefill_s = mean_prefill_s(model.prefill_s, self.max_input_tokens)
        context_tokens = mean_input_tokens(self.max_input_tokens) + OUTPUT_TOKENS.mean / 2
        self._decode_step_s = model.decode_step_s(1, context_tokens)
        self._mean_service_s = nominal_constant_s(scenario) + prefill_s + (OUTPUT_TOKENS.mean - 1) * self._decode_step_s
        #: Arrivals per model second that `utilisation` asks for.
        self.offered_rate_per_s = scenario.workload.utilisation * len(roles(scenario).prefill) / prefill_s
        #: Mean time from one arrival of a session to its next, nominal, in model seconds.
        self.mean_cycle_s = self._think.mean + self._mean_service_s
        self.session_count = max(1, round(self.offered_rate_per_s * self.mean_cycle_s))
        self._initial: list[tuple[float, Request]] = []
        self._next: dict[tuple[int, int], Request] = {}
        self._requests = tuple(self._enumerate())

    def initial(self) -> list[tuple[float, Request]]:
        """The first turn in the set of each session, at its nominal arrival (model s)."""
        return list(self._initial)

    def following(self, request: Request, finished_s: float) -> tuple[float, Request] | None:
        """The session's next turn, a think time after `finished_s`; None where it is outside the fixed
        set."""
        after = self._next.get((request.session_id, request.turn + 1))
        return None if after is None else (finished_s + self._think_s(after.session_id, after.turn), after)

    def _think_s(self, session_id: int, turn: int) -> float:
        """Think time before this turn."""
        return lognormal(self._seed, session_id, turn, purpose="think", law=self._think)

    def _first_arrival_s(self, session_id: int) -> float:
        """Time until a session's first arrival when time 0 is a random instant of its endless life.

        The session is thinking or being served, in proportion to the mean times. The interval that covers a
        random instant is length-biased and what remains of it is a uniform share (Cox, "Renewal Theory",
        1962, chapter 5). Of a service time, the decode part is proportional to the output and so
        length-biased as a lognormal; the prefill part is small and taken at its mean. What is being served at
        time 0 belongs to the past and is not simulated: only its end counts, after which the session thinks.
        """
        seed = self._seed
        share = uniform(seed, session_id, purpose="residual_share")
        service_mean = self._mean_service_s
        where = uniform(seed, session_id, purpose="phase_at_start") * self.mean_cycle_s
        if where >= service_mean:
            return share * lognormal(seed, session_id, purpose="residual_think", law=self._think.length_biased())
        decode = OUTPUT_TOKENS.scaled(self._decode_step_s)
        other_s = service_mean - decode.mean
        law = decode.length_biased() if where < decode.mean else decode
        service_s = max(0.0, lognormal(seed, session_id, purpose="residual_service", law=law) + other_s)
        return share * service_s + lognormal(seed, session_id, purpose="first_think", law=self._think)

    def _enumerate(self) -> Iterator[Request]:
        workload = self._scenario.workload
        assert isinstance(workload, CodingAgentWorkload)  # the constructor refused all others
        limits = (workload.warmup_requests, workload.warmup_requests + workload.requests)
        total = limits[1] + cooldown_count(workload.requests)
        growth = max_growth_per_rank(self.max_input_tokens)
        sessions: dict[int, _Session] = {}
        heap = [(self._first_arrival_s(i), i) for i in range(self.session_count)]
        heapq.heapify(heap)
        for request_id in range(total):
            at_s, i = heap[0]
            first = i not in sessions
            if first:
                turn = int(exponential(self._seed, i, purpose="first_turn", mean=MEAN_TURNS))
                rank = uniform(self._seed, i, purpose="first_rank")
                sessions[i] = _Session(self._seed, i, turn, rank, self.max_input_tokens, growth)
            turn, prompt, cached, output = sessions[i].next_turn()
            phase: Phase = "warmup" if request_id < limits[0] else "measured" if request_id < limits[1] else "cooldown"
            request = Request(request_id, i, turn, "coding-agent", prompt, cached, output, phase)
            if first:
                self._initial.append((at_s, request))
            self._next[(i, turn)] = request
            finish_s = at_s + nominal_service_s(self._scenario, request)
            heapq.heapreplace(heap, (finish_s + self._think_s(i, turn + 1), i))
            yield request
