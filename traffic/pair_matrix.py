"""Who sends to whom in a log, and whether that changes: rows of each (prefill, decode) pair, by thirds of the log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

Pair = tuple[str, str]

#: The log is kept as so many parts at most; full, neighbours are joined. Thirds are exact to 1/192 of the log.
PARTS = 384


@dataclass
class PairMatrix:
    """Rows and bytes of each pair of GPUs, in memory that does not grow with the log."""

    rows: Counter[Pair] = field(default_factory=Counter)
    bytes: Counter[Pair] = field(default_factory=Counter)
    _parts: list[Counter[Pair]] = field(default_factory=list)
    _part_rows: int = 1
    _in_last: int = 0

    def add(self, pairs: Iterable[tuple[Pair, int]]) -> None:
        """Count rows: ((prefill, decode), bytes) each."""
        for pair, size in pairs:
            self.rows[pair] += 1
            self.bytes[pair] += size
            if not self._parts or self._in_last == self._part_rows:
                if len(self._parts) == PARTS:
                    parts = iter(self._parts)
                    self._parts = [a + b for a, b in zip(parts, parts, strict=True)]
                    self._part_rows *= 2
                self._parts.append(Counter())
                self._in_last = 0
            self._parts[-1][pair] += 1
            self._in_last += 1

    def thirds(self) -> list[Counter[Pair]]:
        """Rows of each pair in the first, second and last third of the log's rows."""
        total = self.rows.total()
        found: list[Counter[Pair]] = [Counter(), Counter(), Counter()]
        seen = 0
        for part in self._parts:
            size = part.total()
            found[min(2, int(3 * (seen + size / 2) / total))].update(part)
            seen += size
        return found

    def moves(self) -> list[tuple[float, float]]:
        """Between successive thirds: (total-variation distance of the shares of the pairs, what chance alone gives).

        Distance: half the sum of the differences of shares; 0 = the same, 1 = no pair in common. By chance: the mean
        for two samples of one distribution, each difference taken as normal: sqrt(2/pi) * standard deviation.
        """
        thirds = self.thirds()
        found = []
        for a, b in pairwise(thirds):
            n, m = a.total(), b.total()
            if not n or not m:
                continue
            pairs = a.keys() | b.keys()
            distance = sum(abs(a[pair] / n - b[pair] / m) for pair in pairs) / 2
            shares = [(a[pair] + b[pair]) / (n + m) for pair in pairs]
            deviation = sum(math.sqrt(max(0.0, p * (1 - p)) * (1 / n + 1 / m)) for p in shares)
            found.append((distance, min(1.0, math.sqrt(2 / math.pi) * deviation / 2)))
        return found
