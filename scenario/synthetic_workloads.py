"""Workloads that are drawn: an arrival process with a law of lengths, and bursts of handoffs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from scenario.section import Section

Rate = Annotated[float, Field(gt=0, le=1e6, description="arrivals a model second")]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]


class PoissonArrivals(Section):
    """Exponential gaps."""

    kind: Literal["poisson"] = "poisson"
    rate_per_s: Rate = 1.0


class GammaArrivals(Section):
    """Gamma gaps: bursty where their coefficient of variation (cv) is above 1."""

    kind: Literal["gamma"] = "gamma"
    rate_per_s: Rate = 1.0
    cv: float = Field(3.0, ge=0.05, le=50, description="standard deviation of the gaps over their mean")


class ServeGenArrivals(Section):
    """The sum of ServeGen's clients: per client and window a Gamma or Weibull renewal process."""

    kind: Literal["servegen"] = "servegen"
    path: Path = Field(description="folder of chunk-<client>-trace.csv")
    start_s: float = Field(0.0, ge=0, description="second of the curves that is time 0")
    rate_per_s: Rate | None = Field(
        None,
        description="arrivals a model second of all clients together at start_s; all rates of the curves are multiplied"
        " alike; default: as they were measured",
    )


Arrivals = Annotated[PoissonArrivals | GammaArrivals | ServeGenArrivals, Field(discriminator="kind")]


class LogNormalLengths(Section):
    """Lognormal prompt and output lengths, drawn apart."""

    kind: Literal["lognormal"] = "lognormal"
    input_median: float = Field(6900, ge=1, le=1e7, description="tokens")
    input_sigma: float = Field(1.0, ge=0, le=5, description="standard deviation of the logarithm")
    output_median: float = Field(350, ge=1, le=1e7, description="tokens")
    output_sigma: float = Field(0.8, ge=0, le=5, description="standard deviation of the logarithm")


class QuantileLengths(Section):
    """Lengths by quantiles, interpolated in the logarithm; the first is probability 0, the last 1."""

    kind: Literal["quantiles"] = "quantiles"
    input: dict[float, Tokens] = Field(description="probability: tokens, e.g. {0: 100, 0.5: 1469, 1: 7437}")
    output: dict[float, Tokens] = Field(description="probability: tokens")

    @model_validator(mode="after")
    def _rise(self) -> QuantileLengths:
        for name in ("input", "output"):
            table: dict[float, int] = getattr(self, name)
            points = sorted(table.items())
            if len(points) < 2 or points[0][0] != 0 or points[-1][0] != 1:
                raise ValueError(f"{name}: needs tokens for probability 0, for 1, and perhaps some between")
            if any(b[1] < a[1] for a, b in pairwise(points)):
                raise ValueError(f"{name}: tokens must not fall as the probability rises")
        return self


class SampledLengths(Section):
    """Pairs of prompt and output lengths of a trace file, each row equally likely (up to its first million)."""

    kind: Literal["sampled"] = "sampled"
    path: Path = Field(description="a trace of any format that holds token counts")


Lengths = Annotated[LogNormalLengths | QuantileLengths | SampledLengths, Field(discriminator="kind")]


class SyntheticWorkload(Section):
    """Open loop of drawn arrivals and lengths."""

    kind: Literal["synthetic"] = "synthetic"
    requests: int = Field(300, ge=1, le=1_000_000, description="measured requests")
    warmup_requests: int = Field(0, ge=0, le=1_000_000, description="served before them, not measured")
    speedup: float = Field(1.0, ge=1e-6, le=1e6, description="divides every gap between arrivals")
    arrivals: Arrivals = PoissonArrivals()
    lengths: Lengths = LogNormalLengths()
    cached_share: float = Field(0.0, ge=0, le=1, description="of every prompt: prefix hits, not computed again")
    max_input_tokens: int = Field(202_752, ge=1, description="longer prompts are cut")


class BurstWorkload(Section):
    """Bursts of handoffs: some at once, repeated. Prompts count as cached, so prefill takes its fixed time only."""

    kind: Literal["burst"] = "burst"
    handoffs: int = Field(8, ge=1, le=100_000, description="in each burst")
    tokens: tuple[Tokens, ...] = Field((100_000,), min_length=1, description="prompt sizes, in turn")
    window_ms: float = Field(10.0, ge=0, le=1e6, description="the burst's arrivals are drawn from this window")
    repeats: int = Field(5, ge=1, le=100_000, description="bursts")
    period_s: float = Field(5.0, gt=0, le=1e6, description="from one burst's start to the next")
    warmup_repeats: int = Field(0, ge=0, le=1000, description="bursts before them, not measured")

    @property
    def requests(self) -> int:
        """Measured requests."""
        return self.handoffs * self.repeats

    @model_validator(mode="after")
    def _bounded(self) -> BurstWorkload:
        total = self.handoffs * (self.repeats + self.warmup_repeats)
        if total > 1_000_000:
            raise ValueError(f"handoffs x (repeats + warmup_repeats) is {total:,}; at most 1,000,000 fit")
        if self.window_ms > self.period_s * 1e3:
            raise ValueError(f"window_ms {self.window_ms:g} is longer than period_s {self.period_s:g}: bursts overlap")
        return self
