"""Samples of many egress ports as arrays sorted by port and time, and what is asked of them over time.

A sample holds until the port's next one, so every share, percentile and stretch is over time, however irregular the
samples are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class PortSeries:
    """`port[i]`: index of the port of sample i, ascending; `t_s` ascending within a port; `frames`: its backlog;
    `hold_s`: how long it held, the last one of a port to the end of what is looked at. All of one length."""

    port: Ints
    t_s: Floats
    frames: Floats
    hold_s: Floats

    @property
    def begins(self) -> Bools:
        """Whether a sample is its port's first."""
        return np.r_[True, self.port[1:] != self.port[:-1]] if self.port.size else np.empty(0, dtype=bool)


@dataclass(frozen=True)
class Stretches:
    """Stretches of time in which a port was in a state: from `start_s` to `end_s`, by port and then time."""

    port: Ints
    start_s: Floats
    end_s: Floats

    @property
    def length_s(self) -> Floats:
        """Their lengths."""
        return np.asarray(self.end_s - self.start_s, dtype=np.float64)

    def seconds(self, ports: int) -> Floats:
        """Seconds in the state, a value a port."""
        return np.bincount(self.port, self.length_s, minlength=ports).astype(np.float64)

    def count(self, ports: int) -> Ints:
        """Number of stretches, a value a port."""
        return np.bincount(self.port, minlength=ports).astype(np.int64)


def make_series(port: Ints, t_s: Floats, frames: Floats, end_s: float) -> PortSeries:
    """The series of samples that are sorted by port and time; the last sample of each port holds until `end_s`."""
    hold = np.diff(t_s, append=end_s)
    if port.size:
        ends = np.r_[np.flatnonzero(port[1:] != port[:-1]), port.size - 1]
        hold[ends] = end_s - t_s[ends]
    return PortSeries(port, t_s, frames, hold)


def stretches(series: PortSeries, on: Bools) -> Stretches:
    """Where `on`, a value a sample, is true without a break."""
    before = np.r_[False, on[:-1]] & ~series.begins
    after = np.r_[on[1:], False] & np.r_[~series.begins[1:], False]
    first, last = np.flatnonzero(on & ~before), np.flatnonzero(on & ~after)
    return Stretches(series.port[first], series.t_s[first], series.t_s[last] + series.hold_s[last])


def longest(found: Stretches, ports: int) -> tuple[Floats, Floats]:
    """Start and length of the longest stretch of each port, the first of equals; NaN and 0 where it has none."""
    start_s, length_s = np.full(ports, np.nan), np.zeros(ports)
    order = np.lexsort((found.start_s, -found.length_s, found.port))
    at, first = np.unique(found.port[order], return_index=True)
    start_s[at], length_s[at] = found.start_s[order[first]], found.length_s[order[first]]
    return start_s, length_s


def rising(values: Floats) -> Ints:
    """Row numbers of the values above 0, from the least to the greatest: of queues, few."""
    some = np.flatnonzero(values > 0)
    return some[np.argsort(values[some], kind="stable")]


def time_percentiles(
    group: Ints, values: Floats, hold_s: Floats, groups: int, percents: Sequence[float], order: Ints | None = None
) -> Floats:
    """[groups, percents]: the least value that a group was at or below for that share of its time; NaN without time.

    `group` names the group of each sample: its port, or what the port belongs to; then time is port-seconds. Samples of
    group -1 are in none. Values are at least 0. `order` is `rising(values)`, for who asks of several groupings.
    """
    total = np.bincount(group + 1, hold_s, minlength=groups + 1)[1:]
    order = rising(values) if order is None else order
    order = order[group[order] >= 0]
    narrow = group[order].astype(np.int16) if groups < 32_768 else group[order]
    order = order[np.argsort(narrow, kind="stable")]
    of, sizes = group[order], np.bincount(group[order], minlength=groups)
    ends = np.cumsum(sizes)
    running = np.cumsum(hold_s[order])
    before = np.r_[0.0, running][ends - sizes]  # seconds of groups that come first
    zero = total - (np.r_[0.0, running][ends] - before)
    found = np.full((groups, len(percents)), np.nan)
    sorted_values = values[order]
    # Within a group, its time at or below each of its values.
    reached = running - before[of] + zero[of]
    for column, percent in enumerate(percents):
        for index in np.flatnonzero(total > 0):
            wanted = percent / 100 * total[index] * (1 - 1e-12)
            first, end = ends[index] - sizes[index], ends[index]
            place = first + int(np.searchsorted(reached[first:end], wanted))
            at_zero = wanted <= zero[index] + 1e-12 * total[index] or first == end
            found[index, column] = 0.0 if at_zero else sorted_values[min(place, end - 1)]
    return found
