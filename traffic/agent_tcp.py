"""Queue pairs as TCP connections. Standard library only.

A handoff's bytes travel in chunks that begin with a header (which counts as handoff bytes). TCP_NOTSENT_LOWAT of one
chunk is what makes queue pairs drain at the pace of the network rather than of the socket buffer. Towards the end of a
share chunks get smaller, down to a frame: a whole last chunk would keep one port busy after the others, for a time that
is nothing in a real handoff (a frame there is 4 kB of gigabytes) and would be 4 % of one of a hundred frames.

When the path of a queue pair is gone, its receiver says how far it got in the stream (`offset`) and gives the
connection up; the sender then sends what lies beyond over the other queue pairs given, or, where there are none, over
the first of that GPU pair that is connected (again). Nothing is sent twice and nothing is lost. For that the receiver
must never take one connection of a queue pair for another: a connection may exist at the sender alone (the end of its
handshake was lost with the path), or wait to be accepted while the receiver is asked how far it got. So each begins
with its number, `turn`, and one that comes to light after it was given up is dropped unread.

A receiver that knows from a header what is to come lets itself be woken (SO_RCVLOWAT) for several frames, or when the
chunk is whole: the last byte of each chunk, and so of each handoff, still has its own time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections import deque
from functools import partial

from traffic.agent_loop import Loop, Namespace
from traffic.arrivals import Peer
from traffic.chunks import GREETING, HEADER, Chunk, greeting, header
from traffic.endpoint import Batch, Endpoint, Share
from traffic.endpoint import Sender as AnySender
from traffic.pattern import LONGEST, view
from traffic.tcp_sockets import abort, marked, retransmits, unacknowledged

#: Chunks that a sender remembers before it asks the kernel which have arrived.
_REMEMBERED = 256
_TCP_WINDOW_CLAMP, _TCP_NOTSENT_LOWAT, _SO_RCVBUFFORCE, _SO_MAX_PACING_RATE = 10, 25, 33, 47
_READ_BYTES = 256 * 1024
#: Receive buffer, in window clamps.
_BUFFER_WINDOWS = 8
#: Chunks at once where a share has one puller: nobody else could take what is left.
_ALONE_CHUNKS = 4
#: A receiver is woken for this many frames of a chunk at a time, or for its end.
_WAKE_FRAMES = 8
_CONNECT_NS = 20_000_000_000
#: Queue pairs in one report.
_ROWS_A_REPORT = 1000


class Sender(AnySender):
    """One outgoing connection."""

    def __init__(self, number: int, sock: socket.socket, turn: int) -> None:
        super().__init__(number, turn)
        self.sock = sock
        self.unsent: list[memoryview] = []  # of the chunk that is being sent
        self.written = 0  # bytes of the stream that the socket has taken
        self.chunks: deque[Chunk] = deque()

    def forget_arrived(self, unread_bytes: int) -> None:
        """Forget chunks that the peer's process has read: what its kernel has acknowledged, less what its receive
        buffer may hold, which is gone when it gives the connection up."""
        read = self.written - unacknowledged(self.sock) - unread_bytes
        while self.chunks and self.chunks[0].start + self.chunks[0].size <= read:
            self.chunks.popleft()


class Receiver:
    """One incoming connection: where in a chunk it is."""

    __slots__ = ("at", "header", "left", "offset", "peer", "sock", "total", "transfer", "wake_bytes")

    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        self.sock, self.peer = sock, peer
        self.left = 0
        self.wake_bytes = 1
        self.transfer = self.total = 0
        self.at = 0  # offset in the transfer of the next byte
        self.header = b""
        self.offset = 0  # bytes of the stream that were read


class TcpEndpoint(Endpoint):
    """One GPU whose queue pairs are TCP connections."""

    senders: dict[int, Sender]  # type: ignore[assignment]

    def __init__(self, loop: Loop, control: socket.socket, namespace: Namespace) -> None:
        super().__init__(loop, control, namespace)
        self.receivers: dict[int, Receiver] = {}  # by file descriptor
        self.listeners: dict[int, socket.socket] = {}
        self.connecting: dict[int, tuple[Sender, Batch, str]] = {}  # by queue pair; text: its name in complaints
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self.chunk_bytes = self.chunk_alone_bytes = self.frame_bytes = self.wake_bytes = 4096
        self.congestion_control = b"reno"
        self.window_bytes = self.pacing_bytes_per_s = 0
        self.marked_before: dict[int, tuple[int, int]] = {}  # by queue pair, of connections that are gone
        self.given_up: dict[Peer, int] = {}  # peer -> offset of a connection that is gone, until asked for
        self.last_cut: dict[Peer, int] = {}  # peer -> turn of its last connection that was cut

    def order_open(
        self,
        listen: list[str],
        port: int,
        cc: str,
        window_bytes: int,
        chunk_bytes: int,
        frame_bytes: int,
        pacing_bytes_per_s: int = 0,
    ) -> None:
        """Listen. `pacing_bytes_per_s` counts payload; 0: none."""
        self.congestion_control, self.window_bytes = cc.encode(), window_bytes
        self.chunk_bytes, self.frame_bytes = min(chunk_bytes, LONGEST), frame_bytes
        self.chunk_alone_bytes = min(_ALONE_CHUNKS * chunk_bytes, LONGEST)
        self.wake_bytes = min(_WAKE_FRAMES * frame_bytes, window_bytes)
        self.pacing_bytes_per_s = pacing_bytes_per_s
        for ip in listen:
            sock = self.prepared()
            sock.bind((ip, port))
            sock.listen(1024)
            self.listeners[sock.fileno()] = sock
            self.loop.watch(sock.fileno(), select.EPOLLIN, lambda _, sock=sock: self.accept(sock))  # type: ignore[misc]
        self.report(ev="open")

    def order_connect(self, qps: list[list[object]], port: int) -> None:
        """Connect queue pairs; reported when each has been connected, has failed or is given up again (`cut`)."""
        batch = Batch()
        for qp, src_ip, src_port, dst_ip, dst_gpu, turn, *_ in qps:
            sock = self.prepared()
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, self.chunk_bytes)
            if self.pacing_bytes_per_s:
                sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("Q", self.pacing_bytes_per_s))
            sender = Sender(int(str(qp)), sock, int(str(turn)))
            self.towards[sender.number] = str(dst_gpu)
            text = f"queue pair {qp} {src_ip} -> {dst_ip}"
            try:
                sock.bind((src_ip, src_port))
                sock.connect((dst_ip, port))
            except BlockingIOError:
                pass
            except OSError as problem:
                batch.failed.append((sender.number, sender.turn, f"{text}: {problem}"))
                sock.close()
                continue
            batch.waiting.add(sender.number)
            self.connecting[sender.number] = sender, batch, text
            self.loop.watch(sock.fileno(), select.EPOLLOUT, lambda _, s=sender: self.answered(s))  # type: ignore[misc]
        self.loop.call_at(time.monotonic_ns() + _CONNECT_NS, lambda: self.late(batch))
        self.report_if_whole(batch)

    def answered(self, sender: Sender) -> None:
        """The peer's kernel has said yes or no."""
        batch, text = self.stop_waiting(sender.number)
        code = sender.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            sender.sock.close()
            batch.failed.append((sender.number, sender.turn, f"{text}: {os.strerror(code)}"))
        else:
            self.senders[sender.number] = sender
            self.loop.watch(sender.sock.fileno(), 0, partial(self.on_event, sender))
            batch.made.append((sender.number, sender.turn))
            self.offer_what_waited(sender.number)
        self.report_if_whole(batch)

    def late(self, batch: Batch) -> None:
        """Give up what has not been answered."""
        late = sorted(batch.waiting)
        for number in late:
            sender = self.connecting[number][0]
            _, text = self.stop_waiting(number)
            sender.sock.close()
            batch.failed.append((number, sender.turn, f"{text}: timed out"))
        if late:
            self.report_if_whole(batch)

    def stop_waiting(self, number: int) -> tuple[Batch, str]:
        """Wait no longer for the answer to a connect: its order, and what to call it in complaints."""
        sender, batch, text = self.connecting.pop(number)
        batch.waiting.discard(number)
        self.loop.forget(sender.sock.fileno())
        return batch, text

    def prepared(self) -> socket.socket:
        """A socket with our options; window clamp and buffers are inherited by accepted sockets."""
        with self.namespace.entered():
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self.congestion_control)
        # A fixed, ample receive buffer turns window autotuning off, so that the clamp alone is the in-flight cap.
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_WINDOWS * self.window_bytes)
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_WINDOW_CLAMP, self.window_bytes)
        return sock

    def accept(self, listener: socket.socket) -> bool:
        """Take one incoming connection; False when there is none (more)."""
        try:
            sock, peer = listener.accept()
        except BlockingIOError:
            return False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_WINDOW_CLAMP, self.window_bytes)
        receiver = self.receivers[sock.fileno()] = Receiver(sock, (peer[0], peer[1]))
        self.loop.watch(sock.fileno(), select.EPOLLIN, partial(self.receive, receiver))
        return True

    def ready(self, sender: AnySender) -> None:
        """Push when the socket can take something."""
        assert isinstance(sender, Sender)
        self.loop.change(sender.sock.fileno(), select.EPOLLOUT)

    def on_event(self, sender: Sender, mask: int) -> None:
        """A connection can take something, or broke."""
        if mask & (select.EPOLLHUP | select.EPOLLERR):
            self.lose(sender)
        else:
            self.push(sender)

    def push(self, sender: Sender) -> None:
        """Send one chunk, or what is left of one."""
        if not sender.unsent:
            group = sender.work()
            if group is None:
                sender.queue.clear()
                self.loop.change(sender.sock.fileno(), 0)
                return
            self.draw(sender, group)
        try:
            sent = sender.sock.sendmsg(sender.unsent)
        except BlockingIOError:
            return
        except OSError as problem:
            self.lose(sender, problem)
            return
        sender.written += sent
        unsent = sender.unsent
        while unsent and sent >= len(unsent[0]):
            sent -= len(unsent.pop(0))
        if sent:
            unsent[0] = unsent[0][sent:]

    def draw(self, sender: Sender, group: deque[Share]) -> None:
        """Take the next chunk from the first share of a group."""
        share = group[0]
        if share.pullers == 1:
            counted = min(self.chunk_alone_bytes, share.left)
        else:
            fair = share.left // (2 * share.pullers) // self.frame_bytes * self.frame_bytes
            counted = min(self.chunk_bytes, max(fair, self.frame_bytes), share.left)
        if share.left - counted < HEADER.size:
            counted = share.left  # no tail too short for a header
        offset = share.offset
        share.left -= counted
        share.offset += counted
        if not share.left:
            group.popleft()
        uncounted = max(0, HEADER.size - counted)
        size = counted + uncounted
        hello = b"" if sender.written else greeting(sender.turn)
        begin = memoryview(hello + header(share.transfer_id, share.total, offset, size, uncounted))
        body = size - HEADER.size
        sender.unsent = [begin, view(share.transfer_id, offset + HEADER.size, body)] if body else [begin]
        if len(sender.chunks) >= _REMEMBERED:
            sender.forget_arrived(2 * _BUFFER_WINDOWS * self.window_bytes)  # the kernel doubles it
        start = sender.written + len(hello)
        sender.chunks.append(Chunk(start, share.transfer_id, share.total, offset, size, uncounted))

    def order_cut_in(self, peers: list[list[object]]) -> None:
        """Read what has arrived from these peers, say how far that is, and give the connections up."""
        for listener in self.listeners.values():
            while self.accept(listener):  # the kernel has acknowledged what such a connection brought
                pass
        by_peer = {receiver.peer: receiver for receiver in self.receivers.values()}
        offsets = []
        for ip, port, turn in peers:
            peer = (str(ip), int(str(port)))
            self.last_cut[peer] = int(str(turn))
            receiver = by_peer.get(peer)
            if receiver is not None:
                while self.receive(receiver):
                    pass
                if receiver.sock.fileno() in self.receivers:
                    self.give_up(receiver)
            # Once: if the next connection never gets here, this one's offset is not its offset.
            offsets.append([peer[0], peer[1], self.given_up.pop(peer, 0)])
        self.report(ev="offsets", offsets=offsets)

    def give_up(self, receiver: Receiver) -> None:
        """Close an incoming connection and remember how far it got; a header that is not whole does not count."""
        self.given_up[receiver.peer] = receiver.offset - len(receiver.header)
        self.forget(receiver)

    def forget(self, receiver: Receiver) -> None:
        """Close an incoming connection."""
        self.loop.forget(receiver.sock.fileno())
        del self.receivers[receiver.sock.fileno()]
        abort(receiver.sock)

    def order_cut(self, qps: list[list[object]]) -> None:
        """Give up outgoing queue pairs and send what their receivers did not get over others."""
        moved, stopped = 0, list[Batch]()
        for qp, offset, others in qps:
            number, reached = int(str(qp)), int(str(offset))
            instead = tuple(int(other) for other in others) or (number,)  # type: ignore[attr-defined]
            if number in self.connecting:  # it is no longer wanted
                sock = self.connecting[number][0].sock
                stopped.append(self.stop_waiting(number)[0])
                abort(sock)
                moved += self.hand_over(number, [], instead)
            sender = self.senders.pop(number, None)
            if sender is None:
                continue
            with contextlib.suppress(OSError):
                if not sender.lost:
                    self.loop.forget(sender.sock.fileno())
                self.resent += retransmits(sender.sock)
                self.marked_before[number] = self.marked(sender)
            abort(sender.sock)
            lost = [share for chunk in sender.chunks if (share := chunk.lost(reached))]
            moved += self.hand_over(number, lost, instead)
        self.adopt()
        self.report(ev="moved", bytes=moved)
        for batch in dict.fromkeys(stopped):
            self.report_if_whole(batch)

    def lose(self, sender: Sender, problem: OSError | None = None) -> None:
        """A connection failed: say so once. Whether that was to be expected, the runner knows."""
        self.loop.forget(sender.sock.fileno())
        sender.lost = True
        code = sender.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        reason = problem or (os.strerror(code) if code else "closed")
        self.report(ev="lost", qp=sender.number, text=f"queue pair lost: {reason}")

    def receive(self, receiver: Receiver, _: int = 0) -> bool:
        """Check and count what came in. False when there was nothing (more)."""
        try:
            size = receiver.sock.recv_into(self.buffer)
        except BlockingIOError:
            return False
        except OSError as problem:
            if problem.errno not in (errno.ECONNRESET, errno.ETIMEDOUT):
                raise
            size = 0
        now = time.monotonic_ns()
        if not size:
            self.give_up(receiver)
            return False
        receiver.offset += size
        at = 0
        while at < size:
            come = 0  # of the header, as far as it counts
            if not receiver.left:
                need = HEADER.size - len(receiver.header)
                receiver.header += self.buffer[at : min(size, at + need)]
                at += min(need, size - at)
                if len(receiver.header) < HEADER.size:
                    break
                counted = self.begin_chunk(receiver)
                if counted is None:
                    return False
                come = counted
            taken = min(receiver.left, size - at)
            if taken:
                place = receiver.at + come
                self.check(receiver.transfer, receiver.peer, place, self.buffer[at : at + taken])
                receiver.left -= taken
                at += taken
            if come or taken:
                self.count(receiver.transfer, receiver.total, receiver.peer, receiver.at, come + taken, now)
                receiver.at += come + taken
        # The kernel resets the clamp whenever its estimate of buffer overhead changes: set it again.
        receiver.sock.setsockopt(socket.IPPROTO_TCP, _TCP_WINDOW_CLAMP, self.window_bytes)
        self.wake_for(receiver, min(receiver.left, self.wake_bytes) or 1)
        return True

    def wake_for(self, receiver: Receiver, size: int) -> None:
        """Be woken when this many bytes are there."""
        if size != receiver.wake_bytes:
            receiver.wake_bytes = size
            receiver.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def begin_chunk(self, receiver: Receiver) -> int | None:
        """Obey a header that is whole: how many of its bytes count, or None when the connection was given up."""
        total, offset, transfer, sizes = HEADER.unpack(receiver.header)
        receiver.header = b""
        size, uncounted = sizes >> 8, sizes & 0xFF
        if size == GREETING:
            if total <= self.last_cut.get(receiver.peer, -1):
                self.forget(receiver)
                return None
            return 0
        receiver.transfer, receiver.total, receiver.left = transfer, total, size - HEADER.size
        receiver.at = offset
        return HEADER.size - uncounted

    def marked(self, sender: Sender) -> tuple[int, int]:
        """Segments of a queue pair that were delivered, and those of them with a congestion mark."""
        before, now = self.marked_before.get(sender.number, (0, 0)), marked(sender.sock)
        return before[0] + now[0], before[1] + now[1]

    def order_marks(self, start: int) -> None:
        """Report what congestion marks came back, a row a queue pair, from row `start` on what fits into a packet."""
        found = {**self.marked_before, **{s.number: self.marked(s) for s in self.senders.values()}}
        rows = [[number, *counts] for number, counts in sorted(found.items())]
        self.report(ev="marks", qps=rows[start : start + _ROWS_A_REPORT], of=len(rows))

    def order_stats(self) -> None:
        """Report what TCP sent again."""
        self.report_stats(retransmits(sender.sock) for sender in self.senders.values())
