"""Whether a workload leaves the range that its compute model was measured in."""

from __future__ import annotations

from scenario.models import Scenario
from traffic.compute import compute_model
from traffic.requests import Source


def outside_range(scenario: Scenario, source: Source) -> str:
    """For a person: how many prompts, each a prefill batch of its own, are shorter or longer than what was measured;
    empty where none is. A cached prefix is not computed and does not count; with chunked prefill no batch is longer
    than `prefill_batch_tokens`.
    """
    requests, model = source.requests, compute_model(scenario)
    if not requests or model.prefill_tokens is None:
        return ""
    low, high = model.prefill_tokens
    most = scenario.serving.prefill_batch_tokens if scenario.serving.chunked_prefill else None
    batches = [r.uncached_tokens if most is None else min(most, r.uncached_tokens) for r in requests]
    below, above = sum(tokens < low for tokens in batches), sum(tokens > high for tokens in batches)
    parts = [f"{below:,} compute less"] if below else []
    parts += [f"{above:,} compute more, {max(batches):,} tokens at most"] if above else []
    if not parts:
        return ""
    return (
        f"of {len(batches):,} prompts, {' and '.join(parts)} than the compute model {model.name} was measured for:"
        f" {model.range_note}."
    )
