"""The runner's side of the traffic agents: opens queue pairs, sends handoffs, and moves flows when paths are gone. It
talks to each GPU on a socket of its own (`emulation.agent_processes`)."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from emulation.agent_processes import AgentProcesses, by_process
from emulation.network import EmulatedNetwork
from scenario.errors import RunError
from scenario.models import Scenario
from scenario.scale import Scale
from topologies.fabric import End
from topologies.paths import QP_SERVER_PORT, FiveTuple, QueuePair, five_tuple
from topologies.routes import NONE, Failures
from traffic.endpoint import LEAST_BYTES

#: A connection with fewer frames in flight waits for acknowledgements on the longest paths.
MIN_WINDOW_FRAMES = 4
#: A connect that fails although the path is there (it may have gone and come back unseen) is tried again: after, most.
_AGAIN_S, _MOST_TRIES = 0.5, 6
#: Queue pairs in one order, which must fit into one packet of the control socket.
ROWS_AN_ORDER = 200
AGENT = Path(__file__).resolve().parent.parent / "traffic" / "agent.py"


@dataclass(frozen=True)
class Part:
    """What one queue pair carried of a handoff: emulated payload bytes and the time of its last byte."""

    queue_pair: QueuePair
    payload_bytes: int
    t_ns: int


@dataclass(frozen=True)
class Done:
    """A handoff whose last byte arrived at `t_ns` (CLOCK_MONOTONIC, at the receiver)."""

    transfer_id: int
    t_ns: int
    parts: tuple[Part, ...]


class AgentPool:
    """All agents of a run. Queue pairs are opened once and stay open."""

    def __init__(
        self,
        network: EmulatedNetwork,
        queue_pairs: Sequence[QueuePair],
        scale: Scale,
        scenario: Scenario,
        log: IO[bytes],
    ) -> None:
        """Start the agents and open every queue pair. Raises RunError when one does not connect."""
        self.network, self.routing, self.paths = network, scenario.routing, scenario.paths
        self.transport, self.scale = scenario.transport, scale
        #: With UDP the sprayed queue pairs of a port pair are the source ports of one, the first.
        self._one_carries = self.paths.policy == "spray" and self.transport.kind == "udp"
        self._source_ports: dict[tuple[End, End], list[int]] = {}
        self.queue_pairs: list[QueuePair] = []  # those that carry, by number
        self._ids_by_pair: dict[tuple[str, str], list[int]] = {}
        self._by_addresses: dict[tuple[str, str, int], QueuePair] = {}
        self._sent_by_pair: dict[tuple[str, str], int] = {}
        self.cut: set[int] = set()  # queue pairs whose path is gone
        self.moved_bytes = 0
        self._turns: dict[int, int] = {}  # queue pair -> how often it was connected
        self._failures = NONE
        self.failures_since: list[tuple[int, Failures]] = []  # monotonic ns at which flows were moved
        self._came_back = False  # a queue pair had a path again before its receiver had answered
        self._asked: dict[tuple[str, str, int], int] = {}  # receiver, address, port -> cut queue pair
        self._connecting: set[int] = set()  # queue pairs that their sender was told to connect, and that have a path
        self._failed_connects: Counter[int] = Counter()  # one after the other
        self._again_s: dict[int, float] = {}  # queue pair -> when it is to be connected again
        # On the wire each transfer has a number of its own, whatever ids the caller uses, and uses again.
        self._numbers = itertools.count(1)
        self._transfer_of: dict[int, int] = {}  # number -> id
        self._number_of: dict[int, int] = {}  # id -> its last number
        self._sent_bytes: dict[int, int] = {}  # number -> emulated bytes that must arrive
        self.verified = 0  # transfers of which every byte came once, and was what was sent
        self.complaints: list[str] = []  # about those that were not
        self._doubted: set[int] = set()
        for qp in queue_pairs:
            self._register(qp)
        names = sorted({end.node for qp in self.queue_pairs for end in (qp.src, qp.dst)}, key=lambda n: int(n[3:]))
        self.agents = AgentProcesses(network)
        self.sockets, self.poller = self.agents.sockets, self.agents.poller
        self._start_all(names, log)
        self._open(names)

    def _start_all(self, names: Sequence[str], log: IO[bytes]) -> None:
        by_server: dict[str, list[str]] = {}
        for name in names:
            by_server.setdefault(self.network.fabric.gpu_by_name[name].server, []).append(name)
        for gpus in by_process(list(by_server.values()), len(os.sched_getaffinity(0))):
            self.agents.start(gpus, log, ("-S", str(AGENT)))

    def _open(self, names: Sequence[str]) -> None:
        scale, transport = self.scale, self.transport
        window_frames, chunk_frames = transport.inflight_cap_frames, transport.chunk_frames
        if self.paths.policy == "spray" and not self._one_carries:
            # The connections of a port pair share its cap, and each frame its path anew.
            a_port_pair = Counter((qp.src, qp.dst) for qp in self.queue_pairs)
            window_frames = max(MIN_WINDOW_FRAMES, window_frames // max(a_port_pair.values()))
            chunk_frames = 1
        for name in names:
            self._order(
                name,
                op="open",
                kind=transport.kind,
                listen=[port.ip for port in self.network.fabric.gpu_by_name[name].ports],
                port=QP_SERVER_PORT,
                cc=transport.congestion_control,
                window_bytes=window_frames * scale.mss_bytes,
                chunk_bytes=chunk_frames * scale.mss_bytes,
                frame_bytes=scale.mss_bytes,
                pacing_bytes_per_s=round(
                    scale.rate_bps(scale.goodput_gbps(transport.pacing_gbps)) / 8 if transport.pacing_gbps else 0
                ),
            )
        for name in names:
            self._answer(name)
        wanted: dict[str, list[list[object]]] = {}
        for number, qp in enumerate(self.queue_pairs):
            wanted.setdefault(qp.src.node, []).append(self._next_turn(number))
        for at in range(0, max(map(len, wanted.values()), default=0), ROWS_AN_ORDER):  # all agents at a time
            batch = {name: rest for name, qps in wanted.items() if (rest := qps[at : at + ROWS_AN_ORDER])}
            for name, qps in batch.items():
                self._order(name, op="connect", port=QP_SERVER_PORT, qps=qps)
            for name in batch:
                for _, _, text in self._answer(name)["failed"]:  # type: ignore[attr-defined]
                    raise RunError(f"{name}: {text}")

    def _order(self, name: str, **message: object) -> None:
        self.sockets[name].send(json.dumps(message).encode())

    def _answer(self, name: str) -> dict[str, object]:
        """The next report of one agent. Raises RunError on a reported or real failure."""
        try:
            data = self.sockets[name].recv(1 << 20)
        except TimeoutError:
            raise RunError(f"the agent of {name} did not answer in time; see agents.log in the run folder") from None
        return self._checked(name, data)

    def _checked(self, name: str, data: bytes) -> dict[str, object]:
        if not data:
            raise RunError(f"the agent of {name} ended; see agents.log in the run folder")
        message: dict[str, object] = json.loads(data)
        if message["ev"] == "error" or (message["ev"] == "lost" and message["qp"] not in self.cut):
            raise RunError(f"{name}: {message['text']}")
        return message

    def send(self, transfer_id: int, src_gpu: str, dst_gpu: str, payload_bytes: int) -> None:
        """Start a handoff, striped as the scenario's routing says."""
        lanes = self.lane_groups(src_gpu, dst_gpu)
        number = self._number_of[transfer_id] = next(self._numbers)
        self._transfer_of[number] = transfer_id
        self._sent_bytes[number] = max(payload_bytes, LEAST_BYTES * len(lanes))
        self._order(src_gpu, op="send", id=number, bytes=payload_bytes, lanes=lanes)

    def flow(self, qp: QueuePair) -> FiveTuple:
        """Addresses and ports of a queue pair's packets."""
        return five_tuple(self.network.fabric, qp, self.paths.protocol)

    def lane_groups(self, src_gpu: str, dst_gpu: str) -> list[list[int]]:
        """Groups of queue pairs with fixed shares; inside a group queue pairs pull as they drain."""
        ids = self.usable(src_gpu, dst_gpu) or self._ids_by_pair[src_gpu, dst_gpu]
        if self.routing.qp_policy == "round_robin":
            turn = self._sent_by_pair.get((src_gpu, dst_gpu), 0) % self.routing.queue_pairs
            self._sent_by_pair[src_gpu, dst_gpu] = turn + 1
            # Failures may have taken that one alone.
            ids = [number for number in ids if self.queue_pairs[number].index == turn] or ids[:1]
        return [ids] if self.routing.striping == "adaptive" else [[number] for number in ids]

    def usable(self, src_gpu: str, dst_gpu: str) -> list[int]:
        """Queue pairs of a GPU pair that have a path and a connection."""
        return [number for number in self._ids_by_pair[src_gpu, dst_gpu] if number not in self.cut]

    def set_failures(self, failures: Failures) -> int:
        """Move flows: queue pairs whose path is gone are cut, those that have one again, or only now, are connected.

        Returns how many queue pairs were cut. What their receivers did not get follows when they have said how far
        they got (`poll`).
        """
        fabric = self.network.fabric
        self._failures, self._came_back = failures, False
        self.failures_since.append((time.monotonic_ns(), failures))
        to_cut: dict[str, list[list[object]]] = {}
        to_connect: dict[str, list[int]] = {}
        for (src, dst), ids in list(self._ids_by_pair.items()):
            left = self.paths.queue_pairs(fabric, src, dst, failures)
            known = {self.queue_pairs[number]: number for number in ids}
            for qp in left:
                if qp not in known and (number := self._register(qp)) is not None:
                    known[qp] = number
                    self.cut.add(number)  # until it is connected
            for qp, number in known.items():
                flow = five_tuple(fabric, qp)
                peer = qp.dst.node, flow.src_ip, flow.src_port
                if qp not in left:
                    self._again_s.pop(number, None)
                    del self._failed_connects[number]
                if qp not in left and (number not in self.cut or number in self._connecting):
                    self.cut.add(number)
                    self._connecting.discard(number)
                    self._asked[peer] = number
                    to_cut.setdefault(qp.dst.node, []).append([flow.src_ip, flow.src_port, self._turns[number]])
                elif qp in left and number in self.cut and not {number} & (self._connecting | self._again_s.keys()):
                    if peer in self._asked:
                        self._came_back = True
                    else:
                        to_connect.setdefault(qp.src.node, []).append(number)
        for name, peers in to_cut.items():
            self._order(name, op="cut_in", peers=peers)
        for name, numbers in to_connect.items():
            self._connect(name, numbers)
        return sum(map(len, to_cut.values()))

    def _register(self, qp: QueuePair) -> int | None:
        """Learn of a queue pair; its number, if it is one that carries (see `_one_carries`)."""
        flow = five_tuple(self.network.fabric, qp)
        self._by_addresses[qp.dst.node, flow.src_ip, flow.src_port] = qp
        ports = self._source_ports.setdefault((qp.src, qp.dst), [])
        if flow.src_port not in ports:
            ports.append(flow.src_port)
        if self._one_carries and qp.index:
            return None
        number = len(self.queue_pairs)
        self.queue_pairs.append(qp)
        self._ids_by_pair.setdefault((qp.src.node, qp.dst.node), []).append(number)
        return number

    def _connect(self, name: str, numbers: list[int]) -> None:
        self._connecting.update(numbers)
        self._order(name, op="connect", port=QP_SERVER_PORT, qps=[self._next_turn(number) for number in numbers])

    def _next_turn(self, number: int) -> list[object]:
        """A queue pair as the order `connect` names it."""
        qp = self.queue_pairs[number]
        flow = five_tuple(self.network.fabric, qp)
        self._turns[number] = self._turns.get(number, 0) + 1
        row: list[object] = [number, flow.src_ip, flow.src_port, flow.dst_ip, qp.dst.node, self._turns[number]]
        if self.transport.kind == "udp":
            fabric = self.network.fabric
            frame_s = self.scale.frame_time_wall_s(fabric.port(qp.src.node, qp.src.port).gbps)
            hops = len(self.paths.path(fabric, qp, self._failures).switches)
            ports = self._source_ports[qp.src, qp.dst] if self._one_carries else [flow.src_port]
            row.append({"ports": ports, "frame_ns": round(frame_s * 1e9), "hops": hops})
        return row

    def _take_offsets(self, receiver: str, offsets: Iterable[tuple[str, int, int]]) -> None:
        """A receiver has said how far cut queue pairs got: their senders send the rest by others."""
        orders: dict[str, list[list[object]]] = {}
        for ip, port, offset in offsets:
            number = self._asked.pop((receiver, str(ip), int(port)))
            qp = self.queue_pairs[number]
            orders.setdefault(qp.src.node, []).append([number, offset, self.usable(qp.src.node, qp.dst.node)])
        for name, qps in orders.items():
            self._order(name, op="cut", qps=qps)
        if self._came_back and not self._asked:
            self.set_failures(self._failures)

    def drop(self, transfer_id: int, src_gpu: str) -> None:
        """Send no more of a handoff that was given up."""
        self._order(src_gpu, op="drop", id=self._number_of[transfer_id])

    def poll(self, timeout_s: float) -> Iterator[Done]:
        """Handoffs that finished; waits at most `timeout_s`. Raises RunError when an agent failed."""
        if self._again_s:
            self._connect_again()
        for fd, _ in self.poller.poll(max(0.0, timeout_s), 64):
            name = self.agents.name_by_fd[fd]
            message = self._checked(name, self.sockets[name].recv(1 << 20))
            if message["ev"] == "done":
                yield self._done(name, message)
            else:
                self._hear(name, message)

    def _hear(self, name: str, message: dict[str, object]) -> None:
        """Take any other report."""
        if message["ev"] == "offsets":
            self._take_offsets(name, message["offsets"])  # type: ignore[arg-type]
        elif message["ev"] == "moved":
            self.moved_bytes += int(str(message["bytes"]))
        elif message["ev"] == "connected":
            self._has_connected(message)
        elif message["ev"] == "corrupt":
            self._complain(name, message)

    def _has_connected(self, message: Mapping[str, Any]) -> None:
        """Queue pairs have a connection, or could not be connected. Those that were cut meanwhile are not meant: that
        their connect failed was to be expected, and if it did not, their sender has been told to give them up.

        Raises RunError for one that cannot be connected though it has a path.
        """
        for number, turn in zip(message["qps"], message["turns"], strict=True):
            if self._is_awaited(number, turn):
                self._connecting.discard(number)
                self.cut.discard(number)
                del self._failed_connects[number]
        for number, turn, text in message["failed"]:
            if self._is_awaited(number, turn):
                self._connecting.discard(number)
                self._failed_connects[number] += 1
                if self._failed_connects[number] >= _MOST_TRIES:
                    raise RunError(f"{self.queue_pairs[number].src.node}: {text}, {_MOST_TRIES} times")
                self._again_s[number] = time.monotonic() + _AGAIN_S

    def _is_awaited(self, number: int, turn: int) -> bool:
        return number in self._connecting and self._turns[number] == turn

    def _connect_again(self) -> None:
        """Connect what failed some time ago, if it still has a path."""
        due = [number for number, at_s in self._again_s.items() if at_s <= time.monotonic()]
        for number in due:
            del self._again_s[number]
        if due:
            self.set_failures(self._failures)

    def _complain(self, receiver: str, message: dict[str, object]) -> None:
        number = int(str(message["id"]))
        self._doubted.add(number)
        ip, port = map(str, message["peer"])  # type: ignore[call-overload]
        qp = self._by_addresses.get((receiver, ip, int(port)))
        way = f"{ip}:{port} to {receiver}"
        if qp:
            way = f"{qp.src.node} port {qp.src.port} to {qp.dst.node} port {qp.dst.port}, index {qp.index}"
        transfer = self._transfer_of.get(number, "that nobody sent")
        self.complaints.append(f"transfer {transfer}, queue pair {way}, offset {message['offset']}: {message['text']}")

    def _done(self, receiver: str, message: dict[str, object]) -> Done:
        parts = tuple(
            Part(self._by_addresses[receiver, str(ip), int(port)], int(size), int(t_ns))
            for ip, port, size, t_ns in message["parts"]  # type: ignore[attr-defined]
        )
        number = int(str(message["id"]))
        arrived, sent = sum(part.payload_bytes for part in parts), self._sent_bytes.pop(number, None)
        if arrived != sent:
            self.complaints.append(
                f"transfer {self._transfer_of[number]}: {arrived} bytes arrived at {receiver}, {sent} were sent"
            )
        elif number not in self._doubted:
            self.verified += 1
        return Done(self._transfer_of[number], int(str(message["t_ns"])), parts)

    def transfer_alone(self, src_gpu: str, dst_gpu: str, payload_bytes: int, timeout_s: float) -> float:
        """Wall seconds of one handoff on the idle fabric. Raises RunError after `timeout_s`."""
        began_ns = time.monotonic_ns()
        self.send(0, src_gpu, dst_gpu, payload_bytes)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for done in self.poll(0.1):
                return (done.t_ns - began_ns) / 1e9
        raise RunError(f"a lone transfer {src_gpu} -> {dst_gpu} did not arrive within {timeout_s:.0f} s")

    def exercise(self, frames: int, timeout_s: float) -> None:
        """Send so many frames over every queue pair, all at once, outside every account. Raises RunError after
        `timeout_s`."""
        lanes = Counter((qp.src.node, qp.dst.node) for qp in self.queue_pairs)
        open_ids = set()
        for number, ((src, dst), count) in enumerate(lanes.items(), 1):
            self.send(-number, src, dst, frames * count * self.scale.mss_bytes)
            open_ids.add(-number)
        deadline = time.monotonic() + timeout_s
        while open_ids:
            if time.monotonic() > deadline:
                raise RunError(f"first frames did not arrive within {timeout_s:.0f} s over {len(open_ids)} GPU pairs")
            open_ids -= {done.transfer_id for done in self.poll(0.1)}
        self.verified -= len(lanes)

    def answer_to(self, name: str, question: str, **message: object) -> dict[str, Any]:
        """The report that answers an order of the same name. Reports of handoffs that come meanwhile are lost."""
        self._order(name, op=question, **message)
        while (answer := self._answer(name))["ev"] != question:
            if answer["ev"] == "corrupt":
                self._complain(name, answer)
        return answer

    def statistics(self, patience_s: float | None = None) -> dict[str, float]:
        """Packets sent again, those that came twice (known of UDP only), CPU seconds and handoffs half arrived, summed
        over agents. When every handoff has been reported, one that is half arrived is made of bytes that came twice.
        Raises RunError when one does not answer, within `patience_s` if given."""
        if patience_s is not None:
            for sock in self.sockets.values():
                sock.settimeout(patience_s)
        totals = {"retransmits": 0.0, "duplicates": 0.0, "half_arrived": 0.0}
        cpu_s: dict[object, tuple[float, float]] = {}  # by process: all, in the kernel
        for name in self.sockets:
            message = self.answer_to(name, "stats")
            for key in totals:
                totals[key] += float(str(message.get(key, 0)))
            cpu_s[message["pid"]] = float(str(message["cpu_s"])), float(str(message["kernel_s"]))
        total, kernel = (sum(one) for one in zip(*cpu_s.values(), strict=True))
        return {**totals, "cpu_s": total, "kernel_s": kernel}

    def close(self) -> None:
        """End the agents."""
        self.agents.close()
