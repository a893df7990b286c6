"""The receiving half of the UDP transport: datagrams are checked, counted in order, answered. Standard library only."""

from __future__ import annotations

import errno
import select
import socket
import time
from functools import partial

from traffic.agent_loop import Loop, Namespace
from traffic.arrivals import Peer
from traffic.datagrams import ANSWER_NOW, DATA, HELLO, Incoming, Piece, unpack
from traffic.endpoint import Endpoint

_SO_RCVBUFFORCE = 33
_RECEIVE_BYTES = 32 << 20
_READ_BYTES = 65_536
_ANSWER_EVERY = 2
#: The path is gone for a moment, the interface down: as if the packet had been lost on the way.
LOST_ON_THE_WAY = (errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENOBUFS, errno.EINVAL)


class UdpReceiver(Endpoint):
    """One GPU that receives datagrams; `traffic.agent_udp` adds what sends them."""

    def __init__(self, loop: Loop, control: socket.socket, namespace: Namespace) -> None:
        super().__init__(loop, control, namespace)
        self.receivers: dict[Peer, Incoming] = {}
        self.last_cut: dict[Peer, int] = {}  # peer -> turn of its last queue pair that was cut
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self.frame_bytes, self.cap, self.pacing_bytes_per_s = 4096, 16, 0
        self.listeners: list[socket.socket] = []
        self.duplicates = 0  # packets whose first had come: they were sent again for nothing

    def order_open(
        self,
        listen: list[str],
        port: int,
        window_bytes: int,
        frame_bytes: int,
        pacing_bytes_per_s: int = 0,
        **_: object,
    ) -> None:
        """Receive on these addresses. `frame_bytes` is the payload of a full frame."""
        self.frame_bytes, self.cap = frame_bytes, max(1, window_bytes // frame_bytes)
        self.pacing_bytes_per_s = pacing_bytes_per_s
        for ip in listen:
            with self.namespace.entered():
                sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
            sock.bind((ip, port))
            self.listeners.append(sock)
            self.loop.watch(sock.fileno(), select.EPOLLIN, partial(self.receive, sock))
        self.report(ev="open")

    def receive(self, sock: socket.socket, _: int = 0) -> bool:
        """Take one datagram; False when there was none. (Mostly one is there: a second look would be for nothing.)"""
        buffer = self.buffer
        try:
            size, source = sock.recvfrom_into(buffer)
        except BlockingIOError:
            return False
        if size < DATA.size:
            return True
        port, flagged, psn, transfer, total, offset, total_high, offset_high = DATA.unpack_from(buffer)
        incoming = self.receivers.get((source[0], port))
        if incoming is None or incoming.turn != flagged & ~ANSWER_NOW or not incoming.next_is(psn):
            if (piece := unpack(buffer, size)) is not None:
                self.take(sock, source, piece)
            return True
        # The next packet of a queue pair, as nearly always: `take` without what that does not need.
        incoming.unanswered += 1
        offset |= offset_high << 32
        self.check(transfer, source, offset, buffer[DATA.size : size])
        self.count(transfer, total_high << 32 | total, source, offset, size - DATA.size, time.monotonic_ns())
        if flagged & ANSWER_NOW or incoming.unanswered >= _ANSWER_EVERY:
            self.answer(sock, source, incoming, port, psn)
        return True

    def take(self, sock: socket.socket, source: Peer, piece: Piece) -> None:
        """Check and count a datagram that is not the next one, and answer it where that is due."""
        name = source[0], piece.port
        incoming = self.receivers.get(name)
        if piece.psn == HELLO:
            if piece.turn <= self.last_cut.get(name, -1):
                return
            if incoming is None or incoming.turn < piece.turn:
                incoming = self.receivers[name] = Incoming(piece.turn)
            if incoming.turn == piece.turn:
                self.answer(sock, source, incoming, piece.port, piece.psn)
            return
        if incoming is None or incoming.turn != piece.turn:
            return  # of a turn that is over
        incoming.unanswered += 1
        if incoming.has(piece.psn):
            self.duplicates += 1
            self.answer(sock, source, incoming, piece.port, piece.psn)
            return
        self.check(piece.transfer, source, piece.offset, self.buffer[DATA.size : DATA.size + piece.size])
        now = time.monotonic_ns()
        for ready, port in incoming.take(piece, source[1]):
            self.count(ready.transfer, ready.total, (source[0], port), ready.offset, ready.size, now)
        if piece.answer_now or incoming.unanswered >= _ANSWER_EVERY:
            self.answer(sock, source, incoming, piece.port, piece.psn)

    def answer(self, sock: socket.socket, source: Peer, incoming: Incoming, port: int, psn: int) -> None:
        try:
            sock.sendto(incoming.answer(port, psn), source)
        except BlockingIOError:  # the sender will ask again
            return
        except OSError as problem:
            if problem.errno not in (*LOST_ON_THE_WAY, errno.ECONNREFUSED):
                raise

    def order_cut_in(self, peers: list[list[object]]) -> None:
        """Take what has arrived from these peers, say up to which packet it counts, and give them up."""
        for sock in self.listeners:
            while self.receive(sock):
                pass
        offsets = []
        for ip, port, turn in peers:
            peer = (str(ip), int(str(port)))
            self.last_cut[peer] = int(str(turn))
            incoming = self.receivers.pop(peer, None)
            offsets.append([peer[0], peer[1], incoming.next_psn if incoming else 0])
        self.report(ev="offsets", offsets=offsets)
