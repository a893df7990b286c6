"""The traffic agent of one GPU: keeps its queue pairs open and moves handoffs over them. Standard library only.

It is started inside the GPU's namespace (`python -I -S agent.py`) with a Unix SEQPACKET socket as its standard input,
on which it takes orders and gives reports, one JSON object a packet. When that socket closes, it ends.

Orders
    {"op": "open", "listen": [ip], "port": n, "cc": name, "window_bytes": w, "chunk_bytes": c, "frame_bytes": f}
    {"op": "connect", "port": n, "qps": [[qp, src_ip, src_port, dst_ip, dst_gpu, turn], ...]}
    {"op": "send", "id": t, "bytes": b, "lanes": [[qp, ...], ...]}
    {"op": "stats"}        {"op": "drop", "id": t}
    {"op": "cut_in", "peers": [[ip, port, turn], ...]}               to the receiver of queue pairs whose path is gone
    {"op": "cut", "qps": [[qp, offset, [other qp, ...]], ...]}       then to their sender
Reports
    {"ev": "open"}  {"ev": "connected", "n": n}  {"ev": "error", "text": ...}  {"ev": "lost", "qp": q, "text": ...}
    {"ev": "done", "id": t, "t_ns": last byte, "parts": [[peer_ip, peer_port, bytes, t_ns], ...]}   from the receiver
    {"ev": "stats", ...}   {"ev": "offsets", "offsets": [[ip, port, offset], ...]}   {"ev": "moved", "bytes": n}

A handoff's bytes travel in chunks that begin with a header (which counts as handoff bytes). `lanes` is a list of
groups of queue pairs: the groups get fixed equal shares of the bytes (static striping), and the queue pairs of one
group pull chunks from the group's share as their sockets drain (adaptive). TCP_NOTSENT_LOWAT of one chunk is what
makes them drain at the pace of the network rather than of the socket buffer. Towards the end of a share chunks get
smaller, down to a frame: a whole last chunk would keep one port busy after the others, for a time that is nothing in a
real handoff (a frame there is 4 kB of gigabytes) and would be 4 % of one of a hundred frames. Handoffs in the same
group go in order.
When the path of a queue pair is gone, its receiver says how far it got in the stream (`offset`) and gives the
connection up; the sender then sends what lies beyond over the other queue pairs given, or, where there are none, over
the first of that GPU pair that is connected (again). Nothing is sent twice and nothing is lost. For that the receiver
must never take one connection of a queue pair for another: a connection may exist at the sender alone (the end of its
handshake was lost with the path), or wait to be accepted while the receiver is asked how far it got. So each begins
with its number, `turn`, and one that comes to light after it was given up is dropped unread.

Time stamps are CLOCK_MONOTONIC, which all processes of the machine share.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import socket
import struct
import sys
import time
from collections import deque

#: Transfer id, total bytes, bytes of this chunk with its header, bytes of it that do not count (a rest may be shorter
#: than a header).
HEADER = struct.Struct("!QQII")
#: `bytes of this chunk` of the header that begins a connection: it has the turn in place of the total, and no bytes.
_GREETING = 0
_SIOCOUTQ = 0x5411
#: Chunks that a sender remembers before it asks the kernel which have arrived.
_REMEMBERED = 256
_TCP_WINDOW_CLAMP, _TCP_NOTSENT_LOWAT, _SO_RCVBUFFORCE = 10, 25, 33
_READ_BYTES = 256 * 1024
#: Receive buffer, in window clamps.
_BUFFER_WINDOWS = 8


class Share:
    """Bytes of one handoff that one group of queue pairs has still to send."""

    __slots__ = ("left", "pullers", "total", "transfer_id")

    def __init__(self, transfer_id: int, total: int, left: int, pullers: int) -> None:
        self.transfer_id, self.total, self.left, self.pullers = transfer_id, total, left, pullers


class Sender:
    """One outgoing queue pair."""

    __slots__ = ("chunks", "lost", "number", "queue", "sock", "turn", "unsent", "written")

    def __init__(self, number: int, sock: socket.socket, turn: int) -> None:
        self.number, self.sock, self.turn = number, sock, turn
        self.lost = False  # the connection broke: what it carried waits for `cut`
        self.queue: deque[deque[Share]] = deque()  # groups with work for this queue pair, in order of arrival
        self.unsent = memoryview(b"")
        self.written = 0  # bytes of the stream that the socket has taken
        self.chunks: deque[tuple[int, int, int, int, int]] = deque()  # stream offset, transfer, total, size, uncounted

    def forget_arrived(self, unread_bytes: int) -> None:
        """Forget chunks that the peer's process has read: what its kernel has acknowledged, less what its receive
        buffer may hold, which is gone when it gives the connection up."""
        pending = struct.unpack("i", fcntl.ioctl(self.sock.fileno(), _SIOCOUTQ, b"\0" * 4))[0]
        while self.chunks and self.chunks[0][0] + self.chunks[0][3] <= self.written - pending - unread_bytes:
            self.chunks.popleft()


class Receiver:
    """One incoming queue pair: where in a chunk it is."""

    __slots__ = ("header", "left", "offset", "peer", "sock", "transfer")

    def __init__(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        self.sock, self.peer = sock, peer
        self.left = 0
        self.transfer = 0
        self.header = b""
        self.offset = 0  # bytes of the stream that were read


class Arriving:
    """A handoff on its way in: bytes still missing, and what each queue pair brought."""

    __slots__ = ("missing", "parts")

    def __init__(self, total: int) -> None:
        self.missing = total
        self.parts: dict[tuple[str, int], list[int]] = {}


class Agent:
    """The event loop. All sockets are non-blocking; epoll is level-triggered."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.epoll = select.epoll()
        self.epoll.register(control.fileno(), select.EPOLLIN)
        self.senders: dict[int, Sender] = {}  # by queue pair
        self.towards: dict[int, str] = {}  # queue pair -> destination GPU
        self.sender_at: dict[int, Sender] = {}  # by file descriptor
        self.receivers: dict[int, Receiver] = {}
        self.listeners: dict[int, socket.socket] = {}
        self.groups: dict[tuple[int, ...], deque[Share]] = {}
        self.arriving: dict[int, Arriving] = {}
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self.chunk_bytes = self.frame_bytes = 4096
        self.payload = memoryview(b"")
        self.congestion_control = b"reno"
        self.window_bytes = 0
        self.given_up: dict[tuple[str, int], int] = {}  # peer -> offset of a connection that is gone, until asked for
        self.last_cut: dict[tuple[str, int], int] = {}  # peer -> turn of its last connection that was cut
        self.retransmits = 0  # of connections that are gone

    def report(self, **message: object) -> None:
        """Send one report; blocks for a moment when the runner is behind, rather than lose it."""
        data = json.dumps(message).encode()
        while True:
            try:
                self.control.send(data)
                return
            except BlockingIOError:
                select.select([], [self.control], [], 1.0)
            except OSError:
                os._exit(0)  # the runner is gone

    def run(self) -> None:
        """Serve until the control socket closes."""
        while True:
            for fd, mask in self.epoll.poll():
                if fd == self.control.fileno():
                    if not self.take_order():
                        return
                elif fd in self.receivers:
                    self.receive(self.receivers[fd])
                elif fd in self.listeners:
                    self.accept(self.listeners[fd])
                elif fd in self.sender_at:
                    if mask & (select.EPOLLHUP | select.EPOLLERR):
                        self.lost(fd)
                    else:
                        self.push(self.sender_at[fd])

    def take_order(self) -> bool:
        """Read and obey one order; False when the runner is gone."""
        try:
            data = self.control.recv(1 << 20)
        except BlockingIOError:
            return True
        except ConnectionResetError:  # the runner is gone, and did not read our last report
            return False
        if not data:
            return False
        order = json.loads(data)
        getattr(self, "order_" + order.pop("op"))(**order)
        return True

    def order_open(
        self, listen: list[str], port: int, cc: str, window_bytes: int, chunk_bytes: int, frame_bytes: int
    ) -> None:
        self.congestion_control, self.window_bytes = cc.encode(), window_bytes
        self.chunk_bytes, self.frame_bytes = chunk_bytes, frame_bytes
        self.payload = memoryview(bytes(chunk_bytes + HEADER.size))
        for ip in listen:
            sock = self.prepared()
            sock.bind((ip, port))
            sock.listen(1024)
            self.listeners[sock.fileno()] = sock
            self.epoll.register(sock.fileno(), select.EPOLLIN)
        self.report(ev="open")

    def order_connect(self, qps: list[list[object]], port: int) -> None:
        for qp, src_ip, src_port, dst_ip, dst_gpu, turn in qps:
            sock = self.prepared()
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, self.chunk_bytes)
            sock.bind((src_ip, src_port))
            sock.setblocking(True)
            sock.settimeout(20)
            try:
                sock.connect((dst_ip, port))
            except OSError as problem:
                self.report(ev="error", text=f"queue pair {qp} {src_ip} -> {dst_ip}: {problem}")
                continue
            sock.setblocking(False)
            number = int(str(qp))
            self.towards[number] = str(dst_gpu)
            sender = Sender(number, sock, int(str(turn)))
            self.senders[number] = self.sender_at[sock.fileno()] = sender
            self.epoll.register(sock.fileno(), 0)
            for members, group in self.groups.items():  # what waited for this queue pair
                if number in members and group:
                    self.offer(number, group)
        self.adopt()
        self.report(ev="connected", n=len(self.senders))

    def prepared(self) -> socket.socket:
        """A socket with our options; window clamp and buffers are inherited by accepted sockets."""
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
        self.receivers[sock.fileno()] = Receiver(sock, (peer[0], peer[1]))
        self.epoll.register(sock.fileno(), select.EPOLLIN)
        return True

    def order_send(self, id: int, bytes: int, lanes: list[list[int]]) -> None:
        smallest = HEADER.size * len(lanes)
        total = max(bytes, smallest)
        for number, qps in enumerate(lanes):
            left = total * (number + 1) // len(lanes) - total * number // len(lanes)
            share = Share(id, total, left, len(qps))
            group = self.groups.setdefault(tuple(qps), deque())
            group.append(share)
            for qp in qps:
                self.offer(qp, group)

    def offer(self, qp: int, group: deque[Share], *, first: bool = False) -> None:
        """Let a queue pair draw from a group. Without a connection the work waits for one."""
        sender = self.senders.get(qp)
        if sender is None or sender.lost:
            return
        if not sender.queue and not sender.unsent:
            self.epoll.modify(sender.sock.fileno(), select.EPOLLOUT)
        if not any(known is group for known in sender.queue):
            (sender.queue.appendleft if first else sender.queue.append)(group)

    def push(self, sender: Sender) -> None:
        """Send one chunk, or what is left of one."""
        if not sender.unsent:
            group = next((g for g in sender.queue if g), None)
            if group is None:
                sender.queue.clear()
                self.epoll.modify(sender.sock.fileno(), 0)
                return
            share = group[0]
            fair = share.left // (2 * share.pullers) // self.frame_bytes * self.frame_bytes
            size = min(self.chunk_bytes, max(fair, self.frame_bytes), share.left)
            if share.left - size < HEADER.size:
                size = share.left  # no tail too short for a header
            share.left -= size
            if not share.left:
                group.popleft()
            uncounted = max(0, HEADER.size - size)
            size += uncounted
            greeting = b"" if sender.written else HEADER.pack(0, sender.turn, _GREETING, 0)
            header = HEADER.pack(share.transfer_id, share.total, size, uncounted)
            sender.unsent = memoryview(greeting + header + self.payload[: size - HEADER.size])
            if len(sender.chunks) >= _REMEMBERED:
                sender.forget_arrived(2 * _BUFFER_WINDOWS * self.window_bytes)  # the kernel doubles it
            start = sender.written + len(greeting)
            sender.chunks.append((start, share.transfer_id, share.total, size, uncounted))
        try:
            sent = sender.sock.send(sender.unsent)
        except BlockingIOError:
            return
        except OSError as problem:
            self.lost(sender.sock.fileno(), problem)
            return
        sender.written += sent
        sender.unsent = sender.unsent[sent:]

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
        self.epoll.unregister(receiver.sock.fileno())
        del self.receivers[receiver.sock.fileno()]
        abort(receiver.sock)

    def order_cut(self, qps: list[list[object]]) -> None:
        """Give up outgoing queue pairs and send what their receivers did not get over others."""
        moved = 0
        for qp, offset, others in qps:
            number, reached = int(str(qp)), int(str(offset))
            instead = tuple(int(other) for other in others) or (number,)  # type: ignore[attr-defined]
            sender = self.senders.pop(number, None)
            if sender is None:
                continue
            self.sender_at.pop(sender.sock.fileno(), None)
            with contextlib.suppress(OSError):
                if not sender.lost:
                    self.epoll.unregister(sender.sock.fileno())
                self.retransmits += tcp_retransmits(sender.sock)
            abort(sender.sock)
            target = self.groups.setdefault(instead, deque())
            lost = [share for chunk in sender.chunks if (share := lost_of(chunk, reached, len(instead)))]
            for share in reversed(lost):
                target.appendleft(share)
                moved += share.left
            alone = self.groups.get((number,))
            if alone is not None and alone is not target:  # a fixed share of this queue pair alone
                moved += sum(share.left for share in alone)
                target.extend(alone)
                alone.clear()
            for other in instead:
                self.offer(other, target, first=True)
        self.adopt()
        self.report(ev="moved", bytes=moved)

    def adopt(self) -> None:
        """Work whose queue pairs have all lost their connection goes to what else leads to that GPU.

        Either order may come first, `connect` of a queue pair that stands in (or is back) or `cut` of the others; those
        may never be connected again.
        """
        for members, group in self.groups.items():
            if group and not any(map(self.connected, members)):
                for number in self.senders:
                    if self.connected(number) and self.towards[number] == self.towards.get(members[0]):
                        self.offer(number, group)

    def connected(self, qp: int) -> bool:
        """Whether a queue pair has a connection that works."""
        return qp in self.senders and not self.senders[qp].lost

    def lost(self, fd: int, problem: OSError | None = None) -> None:
        """A connection failed: say so once. Whether that was to be expected, the runner knows."""
        self.epoll.unregister(fd)
        sender = self.sender_at.pop(fd)
        sender.lost = True
        code = sender.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        reason = problem or (os.strerror(code) if code else "closed")
        self.report(ev="lost", qp=sender.number, text=f"queue pair lost: {reason}")

    def receive(self, receiver: Receiver) -> bool:
        """Count what came in; report handoffs that are complete. False when there was nothing (more)."""
        try:
            count = receiver.sock.recv_into(self.buffer)
        except BlockingIOError:
            return False
        except OSError as problem:
            if problem.errno not in (errno.ECONNRESET, errno.ETIMEDOUT):
                raise
            count = 0
        now = time.monotonic_ns()
        if not count:
            self.give_up(receiver)
            return False
        receiver.offset += count
        at = 0
        while at < count:
            if not receiver.left:
                need = HEADER.size - len(receiver.header)
                receiver.header += bytes(self.buffer[at : min(count, at + need)])
                at += min(need, count - at)
                if len(receiver.header) < HEADER.size:
                    return True
                transfer, total, size, uncounted = HEADER.unpack(receiver.header)
                receiver.header = b""
                if size == _GREETING:
                    if total <= self.last_cut.get(receiver.peer, -1):
                        self.forget(receiver)
                        return False
                    continue
                receiver.transfer, receiver.left = transfer, size - HEADER.size
                # The kernel resets the clamp whenever its estimate of buffer overhead changes: set it again.
                receiver.sock.setsockopt(socket.IPPROTO_TCP, _TCP_WINDOW_CLAMP, self.window_bytes)
                if transfer not in self.arriving:
                    self.arriving[transfer] = Arriving(total)
                self.count(receiver, HEADER.size - uncounted, now)
            taken = min(receiver.left, count - at)
            receiver.left -= taken
            at += taken
            if taken:
                self.count(receiver, taken, now)
        return True

    def count(self, receiver: Receiver, size: int, now_ns: int) -> None:
        arriving = self.arriving[receiver.transfer]
        part = arriving.parts.setdefault(receiver.peer, [0, 0])
        part[0] += size
        part[1] = now_ns
        arriving.missing -= size
        if not arriving.missing:
            del self.arriving[receiver.transfer]
            parts = [[ip, port, got, t_ns] for (ip, port), (got, t_ns) in arriving.parts.items()]
            self.report(ev="done", id=receiver.transfer, t_ns=now_ns, parts=parts)

    def order_drop(self, id: int) -> None:
        """Send no further chunk of a cancelled handoff; one that is half sent drains."""
        for group in self.groups.values():
            for share in [share for share in group if share.transfer_id == id]:
                group.remove(share)

    def order_stats(self) -> None:
        """Report what TCP saw: retransmitted segments over all outgoing queue pairs; CPU time used; handoffs of which
        something has come in, and something not yet."""
        retransmits = self.retransmits + sum(tcp_retransmits(sender.sock) for sender in self.senders.values())
        self.report(ev="stats", retransmits=retransmits, cpu_s=time.process_time(), half_arrived=len(self.arriving))


def abort(sock: socket.socket) -> None:
    """Close with a reset: nothing more is sent, and the addresses are free for the next connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def lost_of(chunk: tuple[int, int, int, int, int], reached: int, pullers: int) -> Share | None:
    """What of a chunk the receiver, who got to `reached` in the stream, did not count."""
    start, transfer, total, size, uncounted = chunk
    counted = 0 if reached - start < HEADER.size else min(reached - start, size) - uncounted
    left = size - uncounted - counted
    return Share(transfer, total, left, pullers) if left > 0 else None


def tcp_retransmits(sock: socket.socket) -> int:
    """tcpi_total_retrans of struct tcp_info (linux/tcp.h): the u32 after 8 bytes and 23 u32s."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("I", info, 100)[0])


if __name__ == "__main__":
    control_socket = socket.socket(fileno=os.dup(0))
    control_socket.setblocking(False)
    try:
        Agent(control_socket).run()
    except KeyboardInterrupt:
        sys.exit(130)
