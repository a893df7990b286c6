"""Statistics of a stream that is not kept: quantiles by histogram, gaps between arrivals, counts a window."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

#: Values above this are kept to 0.1 %: their histogram stays small.
EXACT_UP_TO = 20_000_000
_STEP = math.log(1.001)


@dataclass
class Histogram:
    """Mean, maximum (exact) and quantiles (exact up to `EXACT_UP_TO`, to 0.1 % above) of positive numbers."""

    count: int = 0
    total: int = 0
    largest: int = 0
    _counts: Counter[int] = field(default_factory=Counter)

    def add(self, values: Sequence[int]) -> None:
        """Count these."""
        if not values:
            return
        self.count += len(values)
        self.total += sum(values)
        top = max(values)
        self.largest = max(self.largest, top)
        self._counts.update(values if top <= EXACT_UP_TO else map(_rounded, values))

    @property
    def mean(self) -> float:
        """Their mean; NaN without any."""
        return self.total / self.count if self.count else math.nan

    def quantiles(self, probabilities: Iterable[float]) -> list[float]:
        """Quantiles, interpolated linearly between neighbours (Hyndman and Fan 1996, type 7: numpy's default)."""
        if not self.count:
            return [math.nan for _ in probabilities]
        values = np.array(sorted(self._counts))
        ends = np.cumsum([self._counts[int(value)] for value in values])
        found = []
        for p in probabilities:
            place = p * (self.count - 1)
            low, high = (
                float(values[np.searchsorted(ends, rank, side="right")])
                for rank in (math.floor(place), math.ceil(place))
            )
            found.append(low + (high - low) * (place - math.floor(place)))
        return found

    def scaled(self, factor: int) -> Histogram:
        """The histogram of `factor` times the numbers."""
        counts: Counter[int] = Counter()
        for value, count in self._counts.items():
            counts[value * factor] += count
        return Histogram(self.count, self.total * factor, self.largest * factor, counts)


def _rounded(value: int) -> int:
    return value if value <= EXACT_UP_TO else round(math.exp(round(math.log(value) / _STEP) * _STEP))


@dataclass
class WindowCounts:
    """Counts of arrivals in windows of `window_ns` that follow one another from the first arrival on."""

    window_ns: int
    _first_ns: int = 0
    _now: int = -1
    _in_now: int = 0
    _windows: int = 0
    _sum: int = 0
    _squares: int = 0
    _empty: int = 0

    def add(self, at_ns: np.ndarray) -> None:
        """Count these arrivals, which are in order and not before those already counted."""
        if not len(at_ns):
            return
        if self._now < 0:
            self._first_ns, self._now = int(at_ns[0]), 0
        numbers, counts = np.unique((at_ns - self._first_ns) // self.window_ns, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            if number == self._now:
                self._in_now += count
                continue
            self._close(number)
            self._in_now = count

    def _close(self, following: int) -> None:
        self._windows += following - self._now
        self._empty += following - self._now - 1
        self._sum += self._in_now
        self._squares += self._in_now**2
        self._now = following

    @property
    def dispersion(self) -> float:
        """Index of dispersion: variance over mean of the counts of whole windows (1 = Poisson; Cox and Lewis 1966);
        NaN for fewer than two."""
        if self._windows < 2:
            return math.nan
        mean = self._sum / self._windows
        return (self._squares / self._windows - mean**2) / mean

    @property
    def empty_share(self) -> float:
        """Share of whole windows without an arrival; NaN without any window."""
        return self._empty / self._windows if self._windows else math.nan


@dataclass
class Gaps:
    """Mean and coefficient of variation of the gaps between arrivals."""

    count: int = 0
    first_ns: int | None = None
    last_ns: int = 0
    _sum_s: float = 0.0
    _squares_s2: float = 0.0

    def add(self, at_ns: np.ndarray) -> None:
        """Add arrivals, which are in order."""
        if not len(at_ns):
            return
        before = at_ns[:1] if self.first_ns is None else np.array([self.last_ns])
        gaps_s = np.diff(np.concatenate((before, at_ns))) / 1e9
        if self.first_ns is None:
            self.first_ns, gaps_s = int(at_ns[0]), gaps_s[1:]
        self.last_ns = int(at_ns[-1])
        self.count += len(gaps_s)
        self._sum_s += float(gaps_s.sum())
        self._squares_s2 += float(np.square(gaps_s).sum())

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return 0.0 if self.first_ns is None else (self.last_ns - self.first_ns) / 1e9

    @property
    def cv(self) -> float:
        """Standard deviation of the gaps over their mean (1 = Poisson); NaN where all arrive at once."""
        if not self.count or not self._sum_s:
            return math.nan
        mean = self._sum_s / self.count
        return math.sqrt(max(0.0, self._squares_s2 / self.count - mean**2)) / mean
