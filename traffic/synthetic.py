"""Drawn workloads: arrivals by a process, lengths by a law or from a trace, and bursts. Each draw is keyed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from scenario.errors import InputError
from scenario.models import Scenario
from scenario.synthetic_workloads import (
    Arrivals,
    BurstWorkload,
    GammaArrivals,
    Lengths,
    LogNormalLengths,
    QuantileLengths,
    ServeGenArrivals,
    SyntheticWorkload,
)
from traffic import servegen
from traffic.kv import model_of
from traffic.open_loop import OpenLoop, phase_of
from traffic.readers.trace import Trace, detect
from traffic.requests import Request, cooldown_count
from traffic.rng import LogNormal, QuantileTable, exponential, from_quantiles, gamma, lognormal, uniform

#: Rows of a trace that lengths are sampled from.
SAMPLED_ROWS = 1_000_000


def arrival_times(seed: int, arrivals: Arrivals) -> Iterator[tuple[float, str]]:
    """(model s, client) of an arrival process; only ServeGen's has clients and ends. Raises InputError."""
    if isinstance(arrivals, ServeGenArrivals):
        clients = servegen.read_clients(arrivals.path)
        if arrivals.rate_per_s is not None:
            clients = servegen.at_rate(clients, arrivals.start_s, arrivals.rate_per_s)
        yield from servegen.arrivals(seed, clients, arrivals.start_s)
        return
    mean_s, at_s, number = 1 / arrivals.rate_per_s, 0.0, 0
    while True:
        if isinstance(arrivals, GammaArrivals):
            # A Gamma law of shape k has CV 1 / sqrt(k).
            shape = arrivals.cv**-2
            at_s += gamma(seed, number, purpose="gap", shape=shape, scale=mean_s / shape)
        else:
            at_s += exponential(seed, number, purpose="gap", mean=mean_s)
        yield at_s, ""
        number += 1


def length_law(seed: int, lengths: Lengths) -> Callable[[int], tuple[int, int]]:
    """Number of a request -> (input, output tokens). Raises InputError for a trace that cannot be sampled."""
    if isinstance(lengths, LogNormalLengths):
        laws = (
            LogNormal(lengths.input_median, lengths.input_sigma),
            LogNormal(lengths.output_median, lengths.output_sigma),
        )
        return lambda number: (
            max(1, round(lognormal(seed, number, purpose="input", law=laws[0]))),
            max(1, round(lognormal(seed, number, purpose="output", law=laws[1]))),
        )
    if isinstance(lengths, QuantileLengths):
        tables = (_table(lengths.input), _table(lengths.output))
        return lambda number: (
            round(from_quantiles(seed, number, purpose="input", table=tables[0])),
            round(from_quantiles(seed, number, purpose="output", table=tables[1])),
        )
    pairs = _pairs(lengths.path)
    return lambda number: pairs[int(uniform(seed, number, purpose="row") * len(pairs))]


def _table(quantiles: dict[float, int]) -> QuantileTable:
    points = sorted(quantiles.items())
    return QuantileTable(tuple(p for p, _ in points), tuple(float(tokens) for _, tokens in points))


def _pairs(path: Path) -> list[tuple[int, int]]:
    form = detect(path)
    if form.name == "transfers":
        raise InputError("workload.lengths.path", str(path), "a transfer log has no token counts")
    rows = islice(Trace(path, form, raw_timestamps=True), SAMPLED_ROWS)
    pairs = [(row.input_tokens, row.output_tokens) for row in rows]
    if not pairs:
        raise InputError("workload.lengths.path", str(path), "has no rows")
    return pairs


class SyntheticSource(OpenLoop):
    """Open loop of drawn requests: arrivals and lengths do not depend on each other. Raises `InputError`."""

    def __init__(self, scenario: Scenario) -> None:
        workload, seed = scenario.workload, scenario.seed
        if not isinstance(workload, SyntheticWorkload):
            raise InputError("workload.kind", workload.kind, "this source draws synthetic")
        needed = workload.warmup_requests + workload.requests
        limit = needed + cooldown_count(workload.requests)
        longest = min(workload.max_input_tokens, model_of(scenario.serving).max_context_tokens)
        lengths = length_law(seed, workload.lengths)
        found: list[tuple[float, Request]] = []
        cut = 0
        for number, (at_s, client) in enumerate(islice(arrival_times(seed, workload.arrivals), limit)):
            tokens, output = lengths(number)
            cut += tokens > longest
            tokens = min(tokens, longest)
            cached = min(round(tokens * workload.cached_share), tokens - 1)
            phase = phase_of(number, workload.warmup_requests, workload.requests)
            request = Request(number, number, 0, client or "synthetic", tokens, cached, output, phase)
            found.append((at_s / workload.speedup, request))
        if len(found) < needed:
            raise InputError(
                "workload.requests",
                workload.requests,
                f"the rate curves end after {len(found):,} arrivals; warmup_requests + requests need {needed:,}",
                "Lower workload.requests or workload.arrivals.start_s.",
            )
        super().__init__(found, {"kind": "synthetic", "arrivals": workload.arrivals.kind, "cut_prompts": cut})


class BurstSource(OpenLoop):
    """`handoffs` requests within `window_ms`, every `period_s`.

    All of a prompt but its last token counts as cached: prefill takes its fixed time, and the handoffs start
    together, as far as prefill servers batch them together.
    """

    def __init__(self, scenario: Scenario) -> None:
        workload, seed = scenario.workload, scenario.seed
        if not isinstance(workload, BurstWorkload):
            raise InputError("workload.kind", workload.kind, "this source draws burst")
        longest = model_of(scenario.serving).max_context_tokens
        if max(workload.tokens) > longest:
            raise InputError(
                "workload.tokens", max(workload.tokens), f"{scenario.serving.model} holds at most {longest:,} tokens"
            )
        found: list[tuple[float, Request]] = []
        for burst in range(workload.warmup_repeats + workload.repeats):
            drawn = sorted(
                (uniform(seed, burst, i, purpose="burst") * workload.window_ms / 1e3, i)
                for i in range(workload.handoffs)
            )
            for offset_s, i in drawn:
                number, tokens = len(found), workload.tokens[i % len(workload.tokens)]
                phase = "warmup" if burst < workload.warmup_repeats else "measured"
                request = Request(number, number, 0, "burst", tokens, tokens - 1, 1, phase)  # type: ignore[arg-type]
                found.append((burst * workload.period_s + offset_s, request))
        found.sort(key=lambda pair: pair[0])
        super().__init__(found, {"kind": "burst"})
