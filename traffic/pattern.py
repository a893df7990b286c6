"""The content of a handoff: a function of (transfer, offset), so that a receiver can check it. Standard library only.

Byte `o` of transfer `t` is byte (t * 2654435761 + o) mod 65521 of one table of pseudo-random bytes (SHAKE-256). A piece
that is damaged, that stands at another offset or that belongs to another transfer is not what the receiver expects
there. (Offsets that differ by a multiple of 65521, the largest prime below 2^16, look alike; those are told apart by
the account of ranges in `traffic.arrivals`.) The table is there several times over, so that any piece is one stretch of
it: it is sent from there and compared with what stands there, without a copy. So nothing is sampled.
"""

from __future__ import annotations

import hashlib

PERIOD = 65_521
#: Knuth's multiplicative hash: neighbours in transfer id begin far apart.
_SPREAD = 2_654_435_761
#: Longest piece that is made or checked at once.
LONGEST = 1 << 20
_ONCE = hashlib.shake_256(b"zcube testbed").digest(PERIOD)
_TABLE = _ONCE * (2 + LONGEST // PERIOD)
_VIEW = memoryview(_TABLE)


def view(transfer: int, offset: int, size: int) -> memoryview:
    """Bytes `offset` to `offset + size` of a transfer where they stand in the table; `size` is at most LONGEST."""
    start = place(transfer, offset)
    return _VIEW[start : start + size]


def content(transfer: int, offset: int, size: int) -> bytes:
    """The same as bytes of their own."""
    return bytes(view(transfer, offset, size))


def place(transfer: int, offset: int) -> int:
    """Where in the table byte `offset` of a transfer is; those after it follow, PERIOD after PERIOD."""
    return (transfer * _SPREAD + offset) % PERIOD


def mismatch(transfer: int, offset: int, data: memoryview) -> int | None:
    """Offset in the transfer of the first byte that is not what was sent; None when all are."""
    if _TABLE.startswith(data, place(transfer, offset)):  # memcmp; `==` of views goes byte by byte
        return None
    expected = view(transfer, offset, len(data))
    return offset + next(at for at, (a, b) in enumerate(zip(data, expected, strict=True)) if a != b)
