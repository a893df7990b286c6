"""Percentiles and bootstrap intervals.

Percentiles are those of `numpy.percentile` (linear between the two nearest ranks), as in `vllm bench serve`.
Intervals come from a cluster bootstrap: whole sessions are drawn with replacement, since the turns of a
session are not independent of each other. They say how far another draw of sessions from the same workload
could move the figure on this fabric with this seed. They do not cover another seed, another ECMP mapping or
the emulator's own error, so two intervals that do not overlap prove no difference between fabrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

PERCENTILES = (50, 90, 95, 99)
LEVEL = 0.95
RESAMPLES = 2000
#: With fewer values, fewer than ten lie above P99: the figure is marked indicative.
P99_MIN_COUNT = 1000


@dataclass(frozen=True)
class Interval:
    """Bounds in the unit of the figure they belong to."""

    low: float
    high: float


def percentile(values: ArrayLike, percent: float) -> float:
    """The given percentile; NaN when there is no value."""
    data = np.asarray(values, dtype=np.float64)
    return float(np.percentile(data, percent)) if data.size else float("nan")


def weighted_percentiles(values: Floats, counts: NDArray[np.int64], percents: tuple[float, ...]) -> Floats:
    """Percentiles of the values, each repeated `counts` times, without building the long array."""
    order = np.argsort(values, kind="stable")
    found: Floats = _repeated_percentiles(values[order], counts[order][np.newaxis, :], percents)[0]
    return found


def describe(values: ArrayLike) -> dict[str, float]:
    """mean, median, std (of the population, as vLLM has it) and the percentiles; NaN when there is no
    value."""
    data = np.asarray(values, dtype=np.float64)
    if not data.size:
        return dict.fromkeys(("mean", "median", "std", *(f"p{p}" for p in PERCENTILES)), float("nan"))
    found = {"mean": float(data.mean()), "median": float(np.median(data)), "std": float(data.std())}
    return found | {f"p{p}": percentile(data, p) for p in PERCENTILES}


def bootstrap(
    values: ArrayLike,
    units: ArrayLike,
    seed: int,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Mapping[str, Interval]:
    """Percentile-bootstrap intervals of mean and P50/P90/P95/P99; `units` is the session of each value.

    Returns an empty mapping when there are fewer than two sessions: then nothing can be resampled.
    """
    data = np.asarray(values, dtype=np.float64)
    _, unit = np.unique(np.asarray(units), return_inverse=True)
    number = int(unit.max()) + 1 if unit.size else 0
    if number < 2:
        return {}
    order = np.argsort(data, kind="stable")
    data, unit = data[order], unit[order]
    random = np.random.default_rng(seed)
    block = max(1, min(resamples, 4_000_000 // data.size))
    means: list[Floats] = []
    ranks: list[Floats] = []
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = random.multinomial(number, np.full(number, 1 / number), size=rows)
        counts = drawn[:, unit]
        means.append(counts @ data / counts.sum(axis=1))
        ranks.append(_repeated_percentiles(data, counts, PERCENTILES))
    table = np.column_stack([np.concatenate(means), np.concatenate(ranks)])
    tail = (1 - level) / 2 * 100
    low, high = np.percentile(table, [tail, 100 - tail], axis=0)
    names = ("mean", *(f"p{p}" for p in PERCENTILES))
    return {name: Interval(float(low[i]), float(high[i])) for i, name in enumerate(names)}


def _repeated_percentiles(values: Floats, counts: NDArray[np.int64], percents: tuple[float, ...]) -> Floats:
    """Row by row: percentiles of the sorted values repeated counts[row] times."""
    reach = np.cumsum(counts, axis=1)
    found = np.empty((counts.shape[0], len(percents)))
    for row, ends in enumerate(reach):
        total = int(ends[-1])
        if not total:
            found[row] = np.nan
            continue
        place = (total - 1) * np.asarray(percents, dtype=np.float64) / 100
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, total - 1)
        low = values[np.searchsorted(ends, below, side="right")]
        high = values[np.searchsorted(ends, above, side="right")]
        found[row] = low + (high - low) * (place - below)
    return found
