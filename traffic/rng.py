"""Keyed random draws: each is a pure function of (seed, key, purpose), so the order of events cannot change
it.

The key (session, turn, ...) and the purpose ("think", ...) are hashed with BLAKE2b (RFC 7693) to 53 bits, the
mantissa of a double. There is no generator state: two executors that ask in another order get the same
numbers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from statistics import NormalDist

Key = int | str

_NORMAL = NormalDist()


def uniform(seed: int, *key: Key, purpose: str) -> float:
    """A number in the open interval (0, 1); never 0 or 1, so that inverse distribution functions stay
    finite."""
    # repr separates 1 from "1" and (12, 3) from (1, 23).
    text = repr((seed, key, purpose)).encode()
    bits = int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 11
    return (bits + 0.5) * 2.0**-53


def exponential(seed: int, *key: Key, purpose: str, mean: float) -> float:
    """Exponential with this mean (by inversion)."""
    return -mean * math.log(uniform(seed, *key, purpose=purpose))


@dataclass(frozen=True)
class LogNormal:
    """Lognormal distribution by its median and the standard deviation of the logarithm."""

    median: float
    sigma: float

    @property
    def mean(self) -> float:
        """exp(mu + sigma^2 / 2)."""
        return self.median * math.exp(self.sigma**2 / 2)

    def quantile(self, p: float) -> float:
        """Inverse distribution function, 0 < p < 1."""
        return self.median * math.exp(self.sigma * _NORMAL.inv_cdf(p))

    def length_biased(self) -> LogNormal:
        """Distribution weighted by its own value: again lognormal, with mu + sigma^2.

        It is what a random instant sees (inspection paradox; Cox, "Renewal Theory", 1962, section 5.4).
        """
        return LogNormal(self.median * math.exp(self.sigma**2), self.sigma)

    def scaled(self, factor: float) -> LogNormal:
        """Distribution of `factor` times the variable."""
        return LogNormal(self.median * factor, self.sigma)


@dataclass(frozen=True)
class QuantileTable:
    """Distribution given by quantiles, interpolated linearly in log space (each piece is log-uniform)."""

    probabilities: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        p, v = self.probabilities, self.values
        if len(p) != len(v) or len(p) < 2 or p[0] != 0.0 or p[-1] != 1.0:
            raise ValueError("a quantile table needs values for probabilities from 0 to 1")
        if any(a >= b for a, b in pairwise(p)) or v[0] <= 0 or list(v) != sorted(v):
            raise ValueError("a quantile table needs rising probabilities and positive rising values")

    def quantile(self, p: float) -> float:
        """Inverse distribution function, 0 <= p <= 1."""
        i = min(max(bisect_right(self.probabilities, p) - 1, 0), len(self.values) - 2)
        return self.values[i] * math.exp(self.log_slope(i) * (p - self.probabilities[i]))

    def log_slope(self, piece: int) -> float:
        """d ln(value) / d p on a piece."""
        rise = math.log(self.values[piece + 1] / self.values[piece])
        return rise / (self.probabilities[piece + 1] - self.probabilities[piece])

    @property
    def mean(self) -> float:
        """Exact mean of the interpolated distribution (the logarithmic mean of each piece's ends)."""
        total = 0.0
        for i in range(len(self.values) - 1):
            low, high = self.values[i], self.values[i + 1]
            weight = self.probabilities[i + 1] - self.probabilities[i]
            total += weight * (low if high == low else (high - low) / math.log(high / low))
        return total


def lognormal(seed: int, *key: Key, purpose: str, law: LogNormal) -> float:
    """A draw of a lognormal law."""
    return law.quantile(uniform(seed, *key, purpose=purpose))


def from_quantiles(seed: int, *key: Key, purpose: str, table: QuantileTable) -> float:
    """A draw of a quantile table."""
    return table.quantile(uniform(seed, *key, purpose=purpose))


def choice(seed: int, *key: Key, purpose: str, options: Sequence[str]) -> str:
    """One of the options, each equally likely."""
    return options[min(int(uniform(seed, *key, purpose=purpose) * len(options)), len(options) - 1)]


def gamma(seed: int, *key: Key, purpose: str, shape: float, scale: float) -> float:
    """A draw of a Gamma law with mean shape * scale.

    Rejection after Marsaglia and Tsang, "A simple method for generating gamma variables" (ACM TOMS 26, 2000); each
    try has a key of its own. Shapes below 1: that of shape + 1 times u^(1 / shape) (same paper, section 6).
    """
    if shape < 1:
        boost = math.log(uniform(seed, *key, purpose=purpose + "/boost")) / shape
        return gamma(seed, *key, purpose=purpose, shape=shape + 1, scale=scale) * math.exp(boost)
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    attempt = 0
    while True:
        x = _NORMAL.inv_cdf(uniform(seed, *key, attempt, purpose=purpose + "/x"))
        v = (1 + c * x) ** 3
        if v > 0:
            u = uniform(seed, *key, attempt, purpose=purpose + "/u")
            if math.log(u) < x * x / 2 + d - d * v + d * math.log(v):
                return d * v * scale
        attempt += 1


def weibull(seed: int, *key: Key, purpose: str, shape: float, scale: float) -> float:
    """A draw of a Weibull law with mean scale * Gamma(1 + 1 / shape) (by inversion)."""
    return scale * (-math.log(uniform(seed, *key, purpose=purpose))) ** (1 / shape)
