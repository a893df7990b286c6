"""Things that last, found by time: a run may have thousands of congested stretches, and of transfers at one port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

Item = TypeVar("Item")


class InTime(Generic[Item]):
    """Items with a start and an end each, in seconds."""

    def __init__(self, items: Sequence[Item], spans: Sequence[tuple[float, float]]) -> None:
        self._items = items
        self._places = sorted(range(len(items)), key=lambda place: (spans[place][0], place))
        self._starts = np.array([spans[place][0] for place in self._places], dtype=np.float64)
        self._ends = np.array([spans[place][1] for place in self._places], dtype=np.float64)
        # Before the first place at which this is past an instant, all has ended by then.
        self._reach = np.maximum.accumulate(self._ends)

    def between(self, start_s: float, end_s: float) -> list[Item]:
        """Those that begin before `end_s` and end after `start_s`, in the order in which they were given."""
        first = int(np.searchsorted(self._reach, start_s, side="right"))
        past = int(np.searchsorted(self._starts, end_s, side="left"))
        return [
            self._items[place]
            for place in sorted(self._places[at] for at in range(first, past) if self._ends[at] > start_s)
        ]
