"""Places for handoffs in the memory that a GPU has registered. Pure: a list of gaps, first fit."""

from __future__ import annotations

#: Places begin at multiples of it (a cache line).
ALIGNMENT_BYTES = 64


class Arena:
    """`size` bytes of which pieces are taken and given back; they never overlap while they are taken."""

    def __init__(self, size: int, reserved: int = 0) -> None:
        """The first `reserved` bytes are not given out."""
        self._gaps = [(reserved, size)]  # begin, end: in order, apart from each other

    def take(self, size: int) -> int | None:
        """Offset of a piece; None when no gap is large enough."""
        needed = -(-max(size, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        for number, (begin, end) in enumerate(self._gaps):
            if end - begin >= needed:
                self._gaps[number : number + 1] = [(begin + needed, end)] if end - begin > needed else []
                return begin
        return None

    def give_back(self, offset: int, size: int) -> None:
        """The piece of `take(size)`. Raises ValueError for one that was not taken."""
        end = offset + -(-max(size, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        at = next((number for number, gap in enumerate(self._gaps) if gap[0] >= offset), len(self._gaps))
        if (at < len(self._gaps) and self._gaps[at][0] < end) or (at and self._gaps[at - 1][1] > offset):
            raise ValueError(f"bytes {offset} to {end} were not taken")
        first, last = at, at
        begin = offset
        if at and self._gaps[at - 1][1] == offset:
            first, begin = at - 1, self._gaps[at - 1][0]
        if at < len(self._gaps) and self._gaps[at][0] == end:
            last, end = at + 1, self._gaps[at][1]
        self._gaps[first:last] = [(begin, end)]
