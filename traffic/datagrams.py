"""What UDP queue pairs put on the wire, and the receiver's account of one. Standard library only; no sockets, no clock.

A datagram is one frame: 24 bytes of header, and a piece of a handoff that knows its place. With Ethernet, IPv4 and UDP
(42 B) that is what TCP with time stamps needs (66 B), so a full frame carries the same on both. An acknowledgement says
up to which packet number (`psn`) all have come, and which came beyond: what is between is missing. Messages are in FIFO
order: a piece that came early is kept (its place, not its bytes) until those before it have come, and counts only then.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

#: Port that names the queue pair, turn (15 bits; the highest bit asks for an answer at once), psn, transfer, low 32
#: bits of total and offset, high 16 bits of each.
DATA = struct.Struct("!HHIIIIHH")
#: Port that names the queue pair, turn, first psn that is missing, psn that this answers; then the bitmap of what came
#: beyond (bit 0: the psn after the first missing), low byte first.
ACK = struct.Struct("!HHII")
#: `psn` of a datagram that begins a turn, and of its answer.
HELLO = 0xFFFF_FFFF
ANSWER_NOW = 0x8000


class Piece(NamedTuple):
    """A datagram's place: `port` names the queue pair, `size` is what it carries of the transfer."""

    port: int
    turn: int
    psn: int
    transfer: int
    total: int
    offset: int
    size: int
    answer_now: bool


def pack(port: int, turn: int, psn: int, transfer: int, total: int, offset: int, *, answer_now: bool) -> bytes:
    """The header of a datagram."""
    flagged = turn | ANSWER_NOW if answer_now else turn
    return DATA.pack(port, flagged, psn, transfer, total & 0xFFFF_FFFF, offset & 0xFFFF_FFFF, total >> 32, offset >> 32)


def unpack(buffer: memoryview, size: int) -> Piece | None:
    """The header of a datagram of `size` bytes; None for one that is too short to be ours."""
    if size < DATA.size:
        return None
    port, turn, psn, transfer, total, offset, total_high, offset_high = DATA.unpack_from(buffer)
    return Piece(
        port,
        turn & ~ANSWER_NOW,
        psn,
        transfer,
        total_high << 32 | total,
        offset_high << 32 | offset,
        size - DATA.size,
        bool(turn & ANSWER_NOW),
    )


class Incoming:
    """One incoming queue pair: what has come of its packets, and what may be counted."""

    __slots__ = ("_early", "_seen", "next_psn", "turn", "unanswered")

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.next_psn = 0  # first that is missing
        self.unanswered = 0  # packets since the last acknowledgement
        self._early: dict[int, tuple[Piece, int]] = {}  # psn -> piece, source port
        self._seen = 0  # bitmap of `_early`, bit 0: next_psn + 1

    def has(self, psn: int) -> bool:
        """Whether a packet has come before."""
        return psn < self.next_psn or psn in self._early

    def next_is(self, psn: int) -> bool:
        """Take in a packet where it is the next one and none has come early: then it alone may be counted."""
        if psn != self.next_psn or self._early:
            return False
        self.next_psn += 1
        return True

    def take(self, piece: Piece, source_port: int) -> list[tuple[Piece, int]]:
        """Take in a packet that is new. Returns the pieces that may be counted now, in order, with source ports."""
        if piece.psn != self.next_psn:
            self._early[piece.psn] = piece, source_port
            self._seen |= 1 << (piece.psn - self.next_psn - 1)
            return []
        found = [(piece, source_port)]
        self.next_psn += 1
        while self.next_psn in self._early:
            found.append(self._early.pop(self.next_psn))
            self.next_psn += 1
            self._seen >>= 1
        self._seen >>= 1  # the first missing has no bit
        return found

    def answer(self, port: int, psn: int) -> bytes:
        """The acknowledgement that answers packet `psn`."""
        self.unanswered = 0
        seen = self._seen.to_bytes((self._seen.bit_length() + 7) // 8, "little")
        return ACK.pack(port, self.turn, self.next_psn, psn) + seen
