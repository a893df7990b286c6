"""Curves that compute models are made of: seconds over prefill tokens, and over a decode batch and its context."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Protocol


class PrefillCurve(Protocol):
    """Seconds of a prefill batch over its uncached tokens."""

    def __call__(self, tokens: float, /) -> float: ...


class DecodeCurve(Protocol):
    """Seconds of a decode step over the requests in it and the mean context of a request, in tokens."""

    def __call__(self, batch_size: int, context_tokens: float, /) -> float: ...


@dataclass(frozen=True)
class Linear:
    """``base_s + tokens / tokens_per_s``."""

    base_s: float
    tokens_per_s: float

    def __call__(self, tokens: float, /) -> float:
        return self.base_s + tokens / self.tokens_per_s


@dataclass(frozen=True)
class Quadratic:
    """``a + b * tokens + c * tokens**2``, seconds."""

    a: float
    b: float
    c: float

    def __call__(self, tokens: float, /) -> float:
        return self.a + self.b * tokens + self.c * tokens * tokens


@dataclass(frozen=True)
class Piecewise:
    """Straight lines between points of rising `x`; outside them, the line of the two nearest points.

    Outside the points it never falls with x (two noisy points must not make a longer batch cheaper) nor below 0. One
    point is a constant.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> Piecewise:
        """Through the median of the points that share an x."""
        grouped = groupby(sorted(points), key=lambda point: point[0])
        x, y = zip(*((at, median(value for _, value in same)) for at, same in grouped), strict=True)
        return cls(x, y)

    def __call__(self, at: float, /) -> float:
        x, y = self.x, self.y
        if len(x) == 1:
            return y[0]
        right = min(max(bisect_right(x, at), 1), len(x) - 1)
        slope = (y[right] - y[right - 1]) / (x[right] - x[right - 1])
        if at < x[0]:
            return max(0.0, y[0] + max(0.0, slope) * (at - x[0]))
        if at > x[-1]:
            return y[-1] + max(0.0, slope) * (at - x[-1])
        return y[right - 1] + slope * (at - x[right - 1])


@dataclass(frozen=True)
class ConstantStep:
    """The same time for every step."""

    step_s: float

    def __call__(self, batch_size: int, context_tokens: float, /) -> float:
        return self.step_s


@dataclass(frozen=True)
class LinearStep:
    """``a + b * (context of all requests together) + c * batch_size``, seconds; other numbers from `large_batch` on."""

    small: tuple[float, float, float]
    large: tuple[float, float, float]
    large_batch: int

    def __call__(self, batch_size: int, context_tokens: float, /) -> float:
        a, b, c = self.small if batch_size < self.large_batch else self.large
        return a + b * context_tokens * batch_size + c * batch_size


@dataclass(frozen=True)
class StepTable:
    """Measured steps: over the context within each batch size (`Piecewise`), then over batch sizes the same way."""

    batch_sizes: tuple[float, ...]
    over_context: tuple[Piecewise, ...]

    @classmethod
    def of(cls, rows: Mapping[float, list[tuple[float, float]]]) -> StepTable:
        """From batch size -> [(context tokens, seconds)]."""
        sizes = tuple(sorted(rows))
        return cls(sizes, tuple(Piecewise.of(rows[size]) for size in sizes))

    def __call__(self, batch_size: int, context_tokens: float, /) -> float:
        return Piecewise(self.batch_sizes, tuple(curve(context_tokens) for curve in self.over_context))(batch_size)
