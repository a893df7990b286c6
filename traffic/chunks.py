"""What TCP queue pairs put into their stream. Standard library only; no sockets, no clock.

A chunk begins with a header, which counts as handoff bytes; a connection begins with its turn.
"""

from __future__ import annotations

import struct

from traffic.endpoint import LEAST_BYTES, Share

#: Total bytes, offset of the chunk in the transfer, transfer id, and bytes of this chunk with its header (upper 24
#: bits) with bytes of it that do not count (a rest may be shorter than a header; lower 8 bits).
HEADER = struct.Struct("!QQII")
assert HEADER.size == LEAST_BYTES
#: `bytes of this chunk` of the header that begins a connection: it has the turn in place of the total, and no bytes.
GREETING = 0


def header(transfer: int, total: int, offset: int, size: int, uncounted: int = 0) -> bytes:
    """The header of a chunk of `size` bytes, header included, of which `uncounted` (of the header) do not count."""
    return HEADER.pack(total, offset, transfer, size << 8 | uncounted)


def greeting(turn: int) -> bytes:
    """What begins a connection."""
    return HEADER.pack(turn, 0, 0, GREETING)


class Chunk:
    """A chunk that was sent: where it begins in the stream, and what it carries."""

    __slots__ = ("offset", "size", "start", "total", "transfer", "uncounted")

    def __init__(self, start: int, transfer: int, total: int, offset: int, size: int, uncounted: int) -> None:
        self.start, self.transfer, self.total, self.offset = start, transfer, total, offset
        self.size, self.uncounted = size, uncounted

    def lost(self, reached: int) -> Share | None:
        """What of it the receiver, who got to `reached` in the stream, did not count."""
        counted = 0 if reached - self.start < HEADER.size else min(reached - self.start, self.size) - self.uncounted
        left = self.size - self.uncounted - counted
        return Share(self.transfer, self.total, self.offset + counted, left, 1) if left > 0 else None
