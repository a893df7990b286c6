"""What has come in of a handoff: which bytes, by whom, and whether any came twice. Standard library only."""

from __future__ import annotations

from bisect import bisect_left

#: (address, port) of the sender of a queue pair.
Peer = tuple[str, int]


class Arriving:
    """A handoff on its way in: ranges of it that are here, and what each queue pair brought."""

    __slots__ = ("_ends", "_starts", "missing", "parts", "total")

    def __init__(self, total: int) -> None:
        self.total = self.missing = total
        self.parts: dict[Peer, list[int]] = {}  # peer -> bytes, monotonic ns of the last
        self._starts: list[int] = []  # disjoint ranges that do not touch, in order
        self._ends: list[int] = []

    def add(self, peer: Peer, offset: int, size: int, now_ns: int) -> str | None:
        """Count a range. Returns what is wrong with it, and then counts nothing of it."""
        end = offset + size
        if not 0 <= offset <= end <= self.total:
            return f"bytes {offset} to {end} of a transfer of {self.total}"
        if self._ends and self._ends[-1] == offset:  # mostly: what follows the last range
            self._ends[-1] = end
        elif (problem := self._insert(offset, end)) is not None:
            return problem
        part = self.parts.get(peer)
        if part is None:
            part = self.parts[peer] = [0, 0]
        part[0] += size
        part[1] = now_ns
        self.missing -= size
        return None

    def _insert(self, offset: int, end: int) -> str | None:
        after = bisect_left(self._starts, offset)
        before = after - 1
        if (before >= 0 and self._ends[before] > offset) or (after < len(self._starts) and self._starts[after] < end):
            return f"bytes {offset} to {end} came twice, at least in part"
        joins_before = before >= 0 and self._ends[before] == offset
        joins_after = after < len(self._starts) and self._starts[after] == end
        if joins_before and joins_after:
            self._ends[before] = self._ends.pop(after)
            del self._starts[after]
        elif joins_before:
            self._ends[before] = end
        elif joins_after:
            self._starts[after] = offset
        elif end > offset:
            self._starts.insert(after, offset)
            self._ends.insert(after, end)
        return None
