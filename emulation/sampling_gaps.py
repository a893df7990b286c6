"""Where the sampler was blind: gaps, and how much of them counts as unseen. The one definition of both.

A gap is a stretch of serving without a sample of a node, longer than `PERIODS` of the periods that were due then, or,
of a switch at the full rate, than `UNSEEN_PERIODS` of that rate's (a switch at rest is due later). Its unseen time is
what lies beyond the latter; ports whose rate is lower on purpose have none. Gaps are told, unseen time is judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

PERIODS = 3
#: Periods of the full rate without a sample from which on a switch's queues went unseen: four frame times of its ports
#: at the usual two samples a frame time. A queue at rest is looked at every fourth.
UNSEEN_PERIODS = 8


@dataclass(frozen=True)
class Gap:
    """From `last_ns`, the sample before (or model time 0), to `next_ns`; `period_ns` was due in between."""

    last_ns: int
    next_ns: int
    period_ns: int
    unseen_ns: int = 0


@dataclass
class Watch:
    """Finds the gaps of one node as its samples come. `tick_ns`: length of a tick of the sampler's clock;
    `unseen_after_ns`: how long without a sample a switch's queues count as seen (infinite where that is not judged).

    Costs one comparison a sample. What comes before `begin`'s instant is not looked at: nothing is served yet.
    """

    tick_ns: int
    unseen_after_ns: float = math.inf
    gaps: list[Gap] = field(default_factory=list)
    _last_ns: int = 0
    _period_ns: int = 0
    _limit_ns: float = 0

    def begin(self, start_ns: int, ticks: int) -> None:
        """Serving starts at `start_ns`, which may be in the future; a sample is due every so many ticks."""
        self._last_ns = start_ns
        self._due(ticks)

    def sampled(self, t_ns: int, ticks: int) -> None:
        """A sample was taken at `t_ns`, and the next is due in so many ticks."""
        if t_ns <= self._last_ns:  # before the start
            self._due(ticks)
            return
        self._looked(t_ns)
        self._last_ns = t_ns
        self._due(ticks)

    def finish(self, end_ns: int) -> list[Gap]:
        """All gaps, that before the end included."""
        self._looked(end_ns)
        return self.gaps

    @property
    def unseen_s(self) -> float:
        """Wall seconds of the gaps so far that count as unseen."""
        return sum(gap.unseen_ns for gap in self.gaps) / 1e9

    def _looked(self, t_ns: int) -> None:
        if t_ns > self._limit_ns:
            unseen_ns = max(0.0, t_ns - self._last_ns - self.unseen_after_ns)
            self.gaps.append(Gap(self._last_ns, t_ns, self._period_ns, round(unseen_ns)))

    def _due(self, ticks: int) -> None:
        self._period_ns = ticks * self.tick_ns
        self._limit_ns = self._last_ns + min(PERIODS * self._period_ns, self.unseen_after_ns)


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
                "unseen_wall_s": gap.unseen_ns / 1e9,
            }
        )
    return rows
