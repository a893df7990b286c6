"""The sending end of a UDP queue pair: its packets that are not counted yet, its sockets, its window. Standard library
only."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections import deque

from traffic.endpoint import Batch
from traffic.endpoint import Sender as AnySender
from traffic.swift import Swift

_SIOCOUTQ = 0x5411
FLYING, ACKED, MISSING = 0, 1, 2


class Packet:
    """A packet that its receiver has not yet counted."""

    __slots__ = ("again", "offset", "psn", "sent_ns", "size", "state", "total", "transfer")

    def __init__(self, psn: int, transfer: int, total: int, offset: int, size: int) -> None:
        self.psn, self.transfer, self.total, self.offset, self.size = psn, transfer, total, offset, size
        self.state = FLYING
        self.sent_ns = 0
        self.again = False


class Sender(AnySender):
    """One outgoing queue pair. Its sockets differ in the source port."""

    def __init__(self, number: int, turn: int, port: int, sockets: list[socket.socket], swift: Swift) -> None:
        super().__init__(number, turn)
        self.port, self.sockets, self.swift = port, sockets, swift
        self.unanswered = set(range(len(sockets)))  # hellos
        self.packets: dict[int, Packet] = {}  # by psn, in order
        self.missing: deque[Packet] = deque()  # to be sent again
        self.flying = 0
        self.next_psn = 0
        self.resent = 0
        self.next_socket = number % len(sockets)
        self.in_nic: deque[int] = deque()  # sockets of the last packets, where there are several
        self.waits_for: int | None = None  # socket that must drain first
        self.armed: set[int] = set()  # sockets of which epoll says when they can take a packet
        self.next_ns = 0  # not before
        self.timer_ns = 0  # a timer runs out then
        self.progress_ns = 0
        self.alarm = False  # a timer for silence runs
        self.probing = False  # nothing came back: one packet at a time
        self.opening: Batch | None = None

    def window(self, cap: int) -> int:
        """Packets that may be on their way."""
        most = self.swift.cwnd
        if most > cap:
            most = cap
        return int(most) if most >= 1 and not self.probing else 1

    @property
    def open(self) -> bool:
        """Whether every hello was answered, and it still works."""
        return not self.unanswered and not self.lost


def in_queue(sock: socket.socket) -> int:
    """Bytes, with the kernel's overhead, that a socket has in its NIC's queue."""
    return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), _SIOCOUTQ, b"\0" * 4))[0])
