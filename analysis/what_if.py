"""What another NIC rate, or a fabric without links in the way, would make of a run: simulated repeats, in figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

#: A gain in mean TTFT below this is none.
GAIN = 0.05


def _gain(before: float, after: float) -> float:
    """Share saved; none of nothing, NaN where one is not known."""
    return 1 - after / before if before else 0.0


@dataclass(frozen=True)
class WhatIf:
    """Mean and P95 TTFT in ms of the same scenario, simulated at half, the same and double the rate of every port, and
    on an infinite core, where only NICs limit."""

    half: tuple[float, float]
    same: tuple[float, float]
    double: tuple[float, float]
    core: tuple[float, float]

    @property
    def bandwidth_gain(self) -> float:
        """Share of mean TTFT that double the rate would save."""
        return _gain(self.same[0], self.double[0])

    @property
    def mapping_gain(self) -> float:
        """Share of mean TTFT that a fabric without links in the way would save, at the same NIC rate."""
        return _gain(self.same[0], self.core[0])

    @property
    def answer(self) -> str:
        """`bandwidth`, `mapping`, `both` or `neither` would help; `unknown` where a repeat completed nothing."""
        if math.isnan(self.bandwidth_gain) or math.isnan(self.mapping_gain):
            return "unknown"
        helps = (self.bandwidth_gain >= GAIN, self.mapping_gain >= GAIN)
        return {(True, True): "both", (True, False): "bandwidth", (False, True): "mapping"}.get(helps, "neither")

    def to_json(self) -> Mapping[str, object]:
        """For `--json`."""
        return {
            "ttft_ms": {
                name: {"mean": mean, "p95": p95}
                for name, (mean, p95) in (
                    ("half", self.half), ("same", self.same), ("double", self.double), ("infinite_core", self.core),
                )
            },
            "bandwidth_gain": self.bandwidth_gain,
            "mapping_gain": self.mapping_gain,
            "answer": self.answer,
        }  # fmt: skip
