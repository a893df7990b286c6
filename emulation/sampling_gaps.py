"""Where the sampler was blind: stretches without a sample of a node, longer than three of the periods that were due."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

PERIODS = 3


@dataclass(frozen=True)
class Gap:
    """From `last_ns`, the sample before (or model time 0), to `next_ns`; `period_ns` was due in between."""

    last_ns: int
    next_ns: int
    period_ns: int


@dataclass
class Watch:
    """Finds the gaps of one node as its samples come. `tick_ns`: length of a tick of the sampler's clock.

    Costs one comparison a sample. What comes before `begin`'s instant is not looked at: nothing is served yet.
    """

    tick_ns: int
    gaps: list[Gap] = field(default_factory=list)
    _last_ns: int = 0
    _period_ns: int = 0
    _limit_ns: int = 0

    def begin(self, start_ns: int, ticks: int) -> None:
        """Serving starts at `start_ns`, which may be in the future; a sample is due every so many ticks."""
        self._last_ns = start_ns
        self._due(ticks)

    def sampled(self, t_ns: int, ticks: int) -> None:
        """A sample was taken at `t_ns`, and the next is due in so many ticks."""
        if t_ns <= self._last_ns:  # before the start
            self._due(ticks)
            return
        if t_ns > self._limit_ns:
            self.gaps.append(Gap(self._last_ns, t_ns, self._period_ns))
        self._last_ns = t_ns
        self._due(ticks)

    def finish(self, end_ns: int) -> list[Gap]:
        """All gaps, that before the end included."""
        if end_ns > self._limit_ns:
            self.gaps.append(Gap(self._last_ns, end_ns, self._period_ns))
        return self.gaps

    def _due(self, ticks: int) -> None:
        self._period_ns = ticks * self.tick_ns
        self._limit_ns = self._last_ns + PERIODS * self._period_ns


def gap_rows(node: str, gaps: Iterable[Gap], start_ns: int, dilation: float) -> list[dict[str, str | float]]:
    """Rows of the `gaps` table; `start_ns` is model time 0."""
    rows: list[dict[str, str | float]] = []
    for gap in gaps:
        t_wall_s, length_wall_s = (gap.last_ns - start_ns) / 1e9, (gap.next_ns - gap.last_ns) / 1e9
        rows.append(
            {
                "node": node,
                "t_s": t_wall_s / dilation,
                "t_wall_s": t_wall_s,
                "length_s": length_wall_s / dilation,
                "length_wall_s": length_wall_s,
                "period_wall_s": gap.period_ns / 1e9,
            }
        )
    return rows
