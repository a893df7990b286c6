"""What the traffic of one GPU has in common whatever transport carries it. Standard library only.

Work waits in groups of queue pairs. The groups of a handoff get fixed equal shares of its bytes (static striping), and
the queue pairs of one group draw pieces from the group's share as they can send (adaptive). Handoffs in the same group
go in order. Each piece knows its place in the handoff; the receiver checks its content (`traffic.pattern`) and keeps
account of ranges (`traffic.arrivals`).
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence

from traffic.agent_loop import Loop, Namespace
from traffic.arrivals import Arriving, Peer
from traffic.pattern import mismatch

#: Least bytes of a group's share: a chunk on TCP begins with a header of this size, which counts as handoff bytes.
LEAST_BYTES = 24
#: Complaints about content that one GPU reports; a fault would repeat itself with every frame.
MOST_COMPLAINTS = 20


class Share:
    """Bytes of one handoff that one group of queue pairs has still to send: `left` of them from `offset` on."""

    __slots__ = ("left", "offset", "pullers", "total", "transfer_id")

    def __init__(self, transfer_id: int, total: int, offset: int, left: int, pullers: int) -> None:
        self.transfer_id, self.total, self.offset, self.left, self.pullers = transfer_id, total, offset, left, pullers


class Sender:
    """One outgoing queue pair, as far as work is concerned."""

    def __init__(self, number: int, turn: int) -> None:
        self.number, self.turn = number, turn
        self.lost = False  # the connection broke: what it carried waits for `cut`
        self.queue: deque[deque[Share]] = deque()  # groups with work for this queue pair, in order of arrival

    def work(self) -> deque[Share] | None:
        """The first group that has something left."""
        for group in self.queue:
            if group:
                return group
        return None


class Batch:
    """Queue pairs of one order `connect`; reported together, those that failed with the reason."""

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.made: list[tuple[int, int]] = []  # queue pair, turn
        self.failed: list[tuple[int, int, str]] = []


class Endpoint:
    """One GPU. A transport adds `order_connect`, `order_cut_in`, `order_cut`, `order_stats` and `ready`."""

    def __init__(self, loop: Loop, control: socket.socket, namespace: Namespace) -> None:
        self.loop, self.control, self.namespace = loop, control, namespace
        self.senders: dict[int, Sender] = {}  # by queue pair
        self.towards: dict[int, str] = {}  # queue pair -> destination GPU
        self.groups: dict[tuple[int, ...], deque[Share]] = {}
        self.arriving: dict[int, Arriving] = {}
        self.arrived: set[int] = set()  # transfers that are complete: whatever comes of them again came twice
        self.complaints = 0
        self.resent = 0  # packets, of queue pairs that are gone

    def report(self, **message: object) -> None:
        """Send one report; blocks for a moment when the runner is behind, rather than lose it."""
        report(self.control, **message)

    def report_if_whole(self, batch: Batch) -> None:
        """Report an order `connect` of which nothing is waited for any more."""
        if not batch.waiting:
            self.adopt()
            qps, turns = [qp for qp, _ in batch.made], [turn for _, turn in batch.made]
            self.report(ev="connected", n=len(self.senders), qps=qps, turns=turns, failed=batch.failed)

    def ready(self, sender: Sender) -> None:
        """There is new work for a queue pair that works."""
        raise NotImplementedError

    def order_send(self, id: int, bytes: int, lanes: list[list[int]]) -> None:
        """Start a handoff."""
        total = max(bytes, LEAST_BYTES * len(lanes))
        for number, qps in enumerate(lanes):
            start, end = total * number // len(lanes), total * (number + 1) // len(lanes)
            group = self.groups.setdefault(tuple(qps), deque())
            group.append(Share(id, total, start, end - start, len(qps)))
            for qp in qps:
                self.offer(qp, group)

    def offer(self, qp: int, group: deque[Share], *, first: bool = False) -> None:
        """Let a queue pair draw from a group. Without a connection the work waits for one."""
        sender = self.senders.get(qp)
        if sender is None or sender.lost:
            return
        if not any(known is group for known in sender.queue):
            (sender.queue.appendleft if first else sender.queue.append)(group)
        self.ready(sender)

    def offer_what_waited(self, number: int) -> None:
        """A queue pair has a connection (again)."""
        for members, group in self.groups.items():
            if number in members and group:
                self.offer(number, group)

    def hand_over(self, number: int, lost: Sequence[Share], instead: tuple[int, ...]) -> int:
        """Let `instead` send what a queue pair that is gone had taken (`lost`) or alone had to send. Returns bytes."""
        target = self.groups.setdefault(instead, deque())
        moved = sum(share.left for share in lost)
        for share in reversed(lost):
            share.pullers = len(instead)
            target.appendleft(share)
        alone = self.groups.get((number,))
        if alone is not None and alone is not target:  # a fixed share of this queue pair alone
            moved += sum(share.left for share in alone)
            target.extend(alone)
            alone.clear()
        for other in instead:
            self.offer(other, target, first=True)
        return moved

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

    def order_drop(self, id: int) -> None:
        """Send no further piece of a cancelled handoff; one that is half sent drains."""
        for group in self.groups.values():
            for share in [share for share in group if share.transfer_id == id]:
                group.remove(share)

    def check(self, transfer: int, peer: Peer, offset: int, data: memoryview) -> None:
        """Compare what came with what was sent."""
        wrong = mismatch(transfer, offset, data)
        if wrong is not None:
            self.complain(transfer, peer, wrong, "the content is not what was sent")

    def complain(self, transfer: int, peer: Peer, offset: int, text: str) -> None:
        """Report a handoff that is not what was sent."""
        self.complaints += 1
        if self.complaints <= MOST_COMPLAINTS:
            self.report(ev="corrupt", id=transfer, peer=list(peer), offset=offset, text=text)

    def count(self, transfer: int, total: int, peer: Peer, offset: int, size: int, now_ns: int) -> None:
        """Count bytes of a handoff that came in; report it when it is complete."""
        arriving = self.arriving.get(transfer)
        if arriving is None:
            if transfer in self.arrived:
                self.complain(transfer, peer, offset, f"{size} bytes came after the transfer was complete")
                return
            arriving = self.arriving[transfer] = Arriving(total)
        problem = arriving.add(peer, offset, size, now_ns)
        if problem is None and total != arriving.total:
            problem = f"a transfer of {arriving.total} bytes is one of {total}"
        if problem is not None:
            self.complain(transfer, peer, offset, problem)
        if not arriving.missing:
            del self.arriving[transfer]
            self.arrived.add(transfer)
            parts = [[ip, port, got, t_ns] for (ip, port), (got, t_ns) in arriving.parts.items()]
            self.report(ev="done", id=transfer, t_ns=now_ns, parts=parts)

    def report_stats(self, resent: Iterable[int], duplicates: int = 0) -> None:
        """Packets sent again; packets that came twice, where that is known; CPU time of the process; handoffs of which
        something has come in, something not yet."""
        total = self.resent + sum(resent)
        self.report(
            ev="stats",
            retransmits=total,
            duplicates=duplicates,
            cpu_s=time.process_time(),
            kernel_s=os.times().system,
            pid=os.getpid(),
            half_arrived=len(self.arriving),
            complaints=self.complaints,
        )


def report(control: socket.socket, **message: object) -> None:
    """One report to the runner, whole."""
    data = json.dumps(message).encode()
    while True:
        try:
            control.send(data)
            return
        except BlockingIOError:
            select.select([], [control], [], 1.0)
        except OSError:
            os._exit(0)  # the runner is gone
