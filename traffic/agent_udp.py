"""Queue pairs as paced datagrams of a frame each, with selective repair and Swift. Standard library only.

What limits a queue pair, in this order: the in-flight cap and Swift's window (`traffic.swift`), the pacing asked for,
and the NIC: a socket's send buffer holds two or three frames, which is charged until the shaper has let them go, so
that a queue pair never has more than that in its NIC's queue and those of one port take turns. (TCP's small queues do
the same.) Packets that came out of order are not lost at once: one is sent again when another that left `reorder` later
has been acknowledged, or when nothing has come back for a timeout.

With several source ports (`spray`) each packet takes the next one, so that switches choose its path anew; then one
frame waits per socket, and two in all.

A queue pair begins with a hello from each of its source ports, which must be answered. Its turns are those of TCP
(`traffic.agent_tcp`); when its path is gone, the receiver says up to which packet it has counted, and the sender sends
what lies beyond over others. What had come early counts for nothing.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections import deque
from functools import partial

from traffic.agent_loop import Loop, Namespace
from traffic.datagrams import ACK, ANSWER_NOW, DATA, HELLO, pack
from traffic.endpoint import Batch, Share
from traffic.endpoint import Sender as AnySender
from traffic.pattern import view
from traffic.swift import Swift
from traffic.udp_receiver import LOST_ON_THE_WAY, UdpReceiver
from traffic.udp_sender import ACKED, FLYING, MISSING, Packet, Sender, in_queue

_SO_SNDBUFFORCE = 32
#: Send buffer in frames: the kernel doubles it, counts its own overhead and lets a packet in while it is not full.
_BUFFER_FRAMES, _SPRAY_BUFFER_FRAMES = 1.25, 0.62
_HELLO_AGAIN_NS, _CONNECT_NS = 250_000_000, 20_000_000_000
#: Least time until a packet is sent again for silence: as TCP's here, since round trips jump with queues.
_TIMEOUT_NS, _MOST_BACKOFF = 1_000_000_000, 3
#: Round trips that a packet may be later than one sent after it. Paths that are sprayed over have queues of their own,
#: and nothing is lost on a healthy fabric: patience costs nothing, haste costs packets.
_REORDER, _REORDER_SPRAYED = 0.25, 4.0
#: What pacing makes good at most when a timer was late, and so what may leave at once after a pause.
_CAUGHT_UP_FRAMES = 4


class UdpEndpoint(UdpReceiver):
    """One GPU whose queue pairs are datagrams."""

    senders: dict[int, Sender]  # type: ignore[assignment]

    def __init__(self, loop: Loop, control: socket.socket, namespace: Namespace) -> None:
        super().__init__(loop, control, namespace)
        self.waiting: dict[int, Sender] = {}  # by queue pair: hellos that have not all been answered

    def order_connect(self, qps: list[list[object]], port: int) -> None:
        """Open queue pairs: [qp, source, port, destination, GPU, turn, {"ports": [...], "frame_ns": t, "hops": h}].

        `ports` are all its source ports (default: the one), `frame_ns` a frame's time on its port, `hops` switches.
        """
        opening = Batch()
        for qp, src_ip, src_port, dst_ip, dst_gpu, turn, *rest in qps:
            number, more = int(str(qp)), dict(rest[0]) if rest else {}  # type: ignore[call-overload]
            ports = more.get("ports") or [src_port]
            sockets = [self.connected_socket(str(src_ip), one, str(dst_ip), port, len(ports)) for one in ports]
            swift = Swift(more.get("frame_ns", 1_000_000), more.get("hops", 3), self.cap)
            sender = Sender(number, int(str(turn)), int(str(src_port)), sockets, swift)
            sender.opening = opening
            self.towards[number] = str(dst_gpu)
            for at, sock in enumerate(sockets):
                self.loop.watch(sock.fileno(), select.EPOLLIN, partial(self.on_event, sender, at))
            opening.waiting.add(number)
            self.waiting[number] = sender
        self.hello(opening, time.monotonic_ns() + _CONNECT_NS)

    def hello(self, opening: Batch, deadline_ns: int) -> None:
        """Greet (again) where no answer has come."""
        if not opening.waiting:
            return
        now = time.monotonic_ns()
        if now > deadline_ns:
            for number in sorted(opening.waiting):
                sender = self.waiting[number]
                self.stop_waiting(sender)
                self.close_sockets(sender)
                text = f"queue pair {number}: no answer to its hello"
                opening.failed.append((number, sender.turn, text))
            self.report_if_whole(opening)
            return
        for number in sorted(opening.waiting):
            sender = self.waiting[number]
            for at in sender.unanswered:
                self.transmit(sender, at, pack(sender.port, sender.turn, HELLO, 0, 0, 0, answer_now=True))
        self.loop.call_at(now + _HELLO_AGAIN_NS, lambda: self.hello(opening, deadline_ns))

    def stop_waiting(self, sender: Sender) -> Batch:
        """Wait no longer for the answers to its hellos; the order that it was in."""
        opening = sender.opening
        assert opening is not None
        sender.opening = None
        opening.waiting.discard(sender.number)
        del self.waiting[sender.number]
        return opening

    def close_sockets(self, sender: Sender) -> None:
        """A queue pair is gone."""
        sender.lost = True
        for sock in sender.sockets:
            self.loop.forget(sock.fileno())
            sock.close()

    def has_opened(self, sender: Sender) -> None:
        """Every hello of a queue pair was answered."""
        opening = self.stop_waiting(sender)
        opening.made.append((sender.number, sender.turn))
        self.senders[sender.number] = sender
        self.offer_what_waited(sender.number)
        self.report_if_whole(opening)

    def connected_socket(self, src_ip: str, src_port: int, dst_ip: str, port: int, ports: int) -> socket.socket:
        """A socket for one source port of a queue pair."""
        with self.namespace.entered():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        frames = _SPRAY_BUFFER_FRAMES if ports > 2 else _BUFFER_FRAMES
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, int(frames * self.frame_bytes))
        sock.bind((src_ip, src_port))
        sock.connect((dst_ip, port))
        return sock

    def transmit(self, sender: Sender, at: int, header: bytes, body: bytes | memoryview = b"") -> bool:
        """Hand a datagram to the NIC; False when that is full."""
        try:
            sender.sockets[at].sendmsg((header, body))
        except BlockingIOError:
            return False
        except OSError as problem:
            if problem.errno == errno.ECONNREFUSED:
                self.lose(sender, "nobody receives at the other end")
            elif problem.errno not in LOST_ON_THE_WAY:
                raise
        return True

    def lose(self, sender: Sender, text: str) -> None:
        """The other end is gone: say so once. Whether that was to be expected, the runner knows."""
        if not sender.lost and not sender.unanswered:
            sender.lost = True
            self.report(ev="lost", qp=sender.number, text=f"queue pair lost: {text}")

    def ready(self, sender: AnySender) -> None:
        """There is work."""
        assert isinstance(sender, Sender)
        self.pump(sender)

    def on_event(self, sender: Sender, at: int, mask: int) -> None:
        """A socket has answers, or can take a packet."""
        if mask & select.EPOLLIN:
            self.take_answer(sender, at)
        elif mask & select.EPOLLERR:
            code = sender.sockets[at].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == errno.ECONNREFUSED:
                self.lose(sender, "nobody receives at the other end")
        if mask & select.EPOLLOUT:
            if sender.waits_for == at:
                sender.waits_for = None
                self.pump(sender)
            if sender.waits_for != at:  # mostly it is full again: then nothing is to be changed
                sender.armed.discard(at)
                self.loop.change(sender.sockets[at].fileno(), select.EPOLLIN)

    def wait_for_nic(self, sender: Sender, at: int) -> None:
        sender.waits_for = at
        if at not in sender.armed:
            sender.armed.add(at)
            self.loop.change(sender.sockets[at].fileno(), select.EPOLLIN | select.EPOLLOUT)

    def pump(self, sender: Sender) -> None:
        """Send as much as window, pacing and NIC allow."""
        missing, several = sender.missing, len(sender.sockets) > 2
        if not sender.open:
            return
        group = sender.work()
        while sender.waits_for is None and not sender.lost:
            if not group:
                group = sender.work()
                if group is None and not missing:
                    sender.queue.clear()
                    return
            flying, window = sender.flying, sender.window(self.cap)
            if flying >= window:
                return
            now = time.monotonic_ns()
            if now < sender.next_ns:
                if sender.timer_ns <= now:
                    sender.timer_ns = sender.next_ns
                    self.loop.call_at(sender.next_ns, lambda: self.pump(sender))
                return
            if several and len(sender.in_nic) >= 2:
                oldest = sender.in_nic.popleft()
                if in_queue(sender.sockets[oldest]):
                    sender.in_nic.appendleft(oldest)
                    self.wait_for_nic(sender, oldest)
                    return
            if missing:
                packet = missing.popleft()
                if packet.state == ACKED:
                    continue
            else:
                assert group is not None
                packet = self.draw(sender, group)
            is_last = not missing and not group and sender.work() is None
            self.send(sender, packet, now, is_last or flying + 1 >= window)

    def draw(self, sender: Sender, group: deque[Share]) -> Packet:
        """The next frame of the first share of a group."""
        share = group[0]
        size = self.frame_bytes
        if size > share.left:
            size = share.left
        psn = sender.next_psn
        sender.packets[psn] = packet = Packet(psn, share.transfer_id, share.total, share.offset, size)
        sender.next_psn = psn + 1
        share.left -= size
        share.offset += size
        if not share.left:
            group.popleft()
        return packet

    def send(self, sender: Sender, packet: Packet, now: int, answer_now: bool) -> None:
        """Send one packet, again or for the first time."""
        transfer, total, offset = packet.transfer, packet.total, packet.offset
        header = DATA.pack(
            sender.port,
            sender.turn | ANSWER_NOW if answer_now else sender.turn,
            packet.psn,
            transfer,
            total & 0xFFFF_FFFF,
            offset & 0xFFFF_FFFF,
            total >> 32,
            offset >> 32,
        )
        at = sender.next_socket
        if not self.transmit(sender, at, header, view(transfer, offset, packet.size)):
            packet.state = MISSING
            sender.missing.appendleft(packet)
            self.wait_for_nic(sender, at)
            return
        if packet.state == MISSING and packet.sent_ns:
            packet.again = True
            sender.resent += 1
        packet.state, packet.sent_ns = FLYING, now
        sender.flying += 1
        ports = len(sender.sockets)
        if ports > 1:
            if ports > 2:
                sender.in_nic.append(at)
            sender.next_socket = (at + 1) % ports
        if self.pacing_bytes_per_s:
            # From when it should have left, so that a late timer costs no rate.
            own_ns = packet.size * 1_000_000_000 // self.pacing_bytes_per_s
            sender.next_ns = max(sender.next_ns, now - _CAUGHT_UP_FRAMES * own_ns) + own_ns
        if sender.swift.cwnd < 1:
            sender.next_ns = max(sender.next_ns, now + int(sender.swift.gap_ns()))
        if sender.flying == 1:
            sender.progress_ns = now
        if not sender.alarm:
            sender.alarm = True
            self.loop.call_at(now + _TIMEOUT_NS, lambda: self.on_silence(sender))

    def take_answer(self, sender: Sender, at: int) -> None:
        """Read an acknowledgement."""
        try:
            data = sender.sockets[at].recv(2048)
        except BlockingIOError:
            return
        except OSError as problem:
            if problem.errno != errno.ECONNREFUSED:
                raise
            self.lose(sender, "nobody receives at the other end")
            return
        if len(data) < ACK.size:
            return
        port, turn, cumulative, psn = ACK.unpack_from(data)
        if port != sender.port or turn != sender.turn:
            return
        if psn != HELLO:
            self.acknowledge(sender, cumulative, psn, int.from_bytes(data[ACK.size :], "little"))
        elif at in sender.unanswered:
            sender.unanswered.discard(at)
            if not sender.unanswered:
                self.has_opened(sender)
        self.pump(sender)

    def acknowledge(self, sender: Sender, cumulative: int, psn: int, beyond: int) -> None:
        """Book what an acknowledgement says; find what is missing."""
        now = time.monotonic_ns()
        packets = sender.packets
        answered = packets.get(psn)
        delay_ns = now - answered.sent_ns if answered and answered.state == FLYING and not answered.again else 0
        acked, newest_ns, out_of_order = 0, 0, beyond != 0
        come: list[Packet] = []
        first = cumulative - 1
        while (packet := packets.pop(first, None)) is not None:  # what is left lies together, up to the next psn
            come.append(packet)
            first -= 1
        at = cumulative + 1
        while beyond:
            if beyond & 1 and (early := packets.get(at)):
                come.append(early)
            beyond >>= 1
            at += 1
        for packet in come:
            if packet.state == ACKED:
                continue
            sender.flying -= packet.state == FLYING
            packet.state = ACKED
            if packet.sent_ns > newest_ns:
                newest_ns = packet.sent_ns
            out_of_order = out_of_order or packet.again
            acked += 1
        if not acked:
            return
        sender.progress_ns, sender.swift.timeouts, sender.probing = now, 0, False
        if delay_ns:
            sender.swift.on_ack(delay_ns, acked, now)
        reorder_ns = sender.swift.rtt_ns * (_REORDER_SPRAYED if len(sender.sockets) > 1 else _REORDER)
        if not out_of_order:  # what is left was sent after all that has come
            return
        lost = [p for p in sender.packets.values() if p.state == FLYING and p.sent_ns + reorder_ns < newest_ns]
        if lost:
            self.mark_missing(sender, lost)
            sender.swift.on_loss(now)

    def mark_missing(self, sender: Sender, packets: list[Packet]) -> None:
        for packet in packets:
            packet.state = MISSING
            sender.flying -= 1
            sender.missing.append(packet)

    def on_silence(self, sender: Sender) -> None:
        """Look whether anything came back; if not, all that is on its way counts as lost, and the oldest goes again
        alone: its acknowledgement tells which of the others have come."""
        sender.alarm = False
        if not sender.open or not sender.packets:
            return
        now = time.monotonic_ns()
        patience_ns = max(_TIMEOUT_NS, int(4 * sender.swift.rtt_ns)) << min(sender.swift.timeouts, _MOST_BACKOFF)
        if sender.flying and now >= sender.progress_ns + patience_ns:
            again = {p.psn: p for p in (*sender.missing, *sender.packets.values()) if p.state != ACKED}
            self.mark_missing(sender, [p for p in again.values() if p.state == FLYING])
            sender.missing = deque(again[psn] for psn in sorted(again))
            sender.swift.on_timeout(now)
            sender.probing, sender.progress_ns = True, now
        if not sender.alarm:
            sender.alarm = True
            again_ns = max(sender.progress_ns + patience_ns, now + _TIMEOUT_NS // 4)
            self.loop.call_at(again_ns, lambda: self.on_silence(sender))
        self.pump(sender)

    def order_cut(self, qps: list[list[object]]) -> None:
        """Give up outgoing queue pairs and send what their receivers did not count over others."""
        moved, stopped = 0, list[Batch]()
        for qp, reached, others in qps:
            number = int(str(qp))
            instead = tuple(int(other) for other in others) or (number,)  # type: ignore[attr-defined]
            sender = self.senders.pop(number, None) or self.waiting.get(number)
            if sender is None:
                continue
            if sender.opening is not None:  # it is no longer wanted
                stopped.append(self.stop_waiting(sender))
            self.close_sockets(sender)
            self.resent += sender.resent
            left = [packet for packet in sender.packets.values() if packet.psn >= int(str(reached))]
            lost = [Share(p.transfer, p.total, p.offset, p.size, 1) for p in left]
            moved += self.hand_over(number, lost, instead)
        self.adopt()
        self.report(ev="moved", bytes=moved)
        for opening in dict.fromkeys(stopped):
            self.report_if_whole(opening)

    def order_stats(self) -> None:
        """Report what was sent again, and what of others' came twice."""
        self.report_stats((sender.resent for sender in self.senders.values()), self.duplicates)
