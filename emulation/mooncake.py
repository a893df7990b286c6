"""Handoffs as writes of the Mooncake Transfer Engine (`transport.kind: mooncake`), an optional extra.

The runner's side: starts an agent with engines in each GPU's namespace, says where in the receiver's memory a handoff
belongs, and lets the receiver compare it when its sender has reported it done. docs/transports.md says what the engine
does by itself and what is therefore not planned.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from emulation.agents import ROWS_AN_ORDER, AgentPool, Done, Part
from emulation.arena import Arena
from emulation.netns import Batch, inside, write_sysctls
from scenario.errors import RunError
from scenario.scale import Scale
from topologies.paths import TCP, FiveTuple, QueuePair
from topologies.routes import Failures
from traffic.endpoint import LEAST_BYTES

AGENT = Path(__file__).resolve().parent.parent / "traffic" / "agent_mooncake.py"

#: Memory of a GPU for what is on its way to it or not yet compared. Only what is touched takes memory.
ARENA_BYTES = 1 << 30
#: Of it, for the first write of each queue pair.
_RESERVED_BYTES = 4096
#: How often a sender looks whether a write has ended: so often in a frame time, but not again before.
_LOOKS_PER_FRAME, _LOOK_AFTER_NS = 4, 500_000
#: What the kernel adds to a frame's bytes when it charges a send buffer (struct sk_buff and its head).
_CHARGED_BYTES_PER_FRAME = 1280
#: Receive buffer in windows: never what limits.
_RECEIVE_WINDOWS = 8
_CHECK_PATIENCE_S = 60.0
#: The engine's own settings. One connection for each pair of engines, kept open: what a queue pair is. TCP also where
#: there are RDMA devices. No deadlines in wall time, which a run stretches.
ENGINE_SETTINGS = {
    "MC_FORCE_TCP": "1",
    "MC_TCP_ENABLE_CONNECTION_POOL": "1",
    "MC_TCP_LANES_PER_PEER": "1",
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
    "MC_TCP_ADMISSION_TIMEOUT_MS": "600000",
    "MC_TCP_STATUS_TIMEOUT_SEC": "86400",
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "86400",
    "MC_LOG_LEVEL": "WARNING",
}


#: Sysctls of a GPU's namespace that `sysctls` sets.
SYSCTLS = ("net/ipv4/tcp_wmem", "net/ipv4/tcp_rmem", "net/ipv4/tcp_congestion_control")


def sysctls(scale: Scale, inflight_cap_frames: int, congestion_control: str) -> dict[str, str]:
    """Settings of a GPU's namespace. The engine's sockets have the kernel's defaults, so the cap on frames in flight is
    the send buffer's: a sender has no more than that unacknowledged or waiting."""
    window = inflight_cap_frames * (scale.mss_bytes + _CHARGED_BYTES_PER_FRAME)
    received = _RECEIVE_WINDOWS * window
    values = f"4096 {window} {window}", f"4096 {received} {received}", congestion_control
    return dict(zip(SYSCTLS, values, strict=True))


@dataclass
class Handoff:
    """One on its way or not yet compared: where it is in its receiver's arena. `parts`: queue pair, offset, bytes."""

    receiver: str
    offset: int
    size: int
    parts: list[tuple[int, int, int]]


class MooncakePool(AgentPool):
    """Agents with engines. A queue pair is the connection that an engine of the sender keeps to one of the receiver."""

    def _start_all(self, names: Sequence[str], log: IO[bytes]) -> None:
        transport = self.transport
        settings = sysctls(self.scale, transport.inflight_cap_frames, transport.congestion_control)
        chunk = transport.inflight_cap_frames * self.scale.mss_bytes  # whole frames, where the default is 64 KiB
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MC_")}
        environment.update(ENGINE_SETTINGS, MC_TCP_SLICE_SIZE=str(chunk))
        batch = Batch()
        for name in names:
            # A frame at a time: else the last piece that fits into a send buffer is one of seven frames.
            lines = [
                f"link set dev {port.name} gso_max_segs 1\n" for port in self.network.fabric.gpu_by_name[name].ports
            ]
            batch.start(inside(self.network.node_pid(name), ["ip", "-batch", "-"]), "".join(lines))
            write_sysctls(self.network.node_pid(name), settings)
        batch.finish()
        for name in names:
            self.agents.start([name], log, [str(AGENT)], environment)

    def _open(self, names: Sequence[str]) -> None:
        self._handoffs: dict[int, Handoff] = {}  # by number
        self._arenas = {name: Arena(ARENA_BYTES, _RESERVED_BYTES) for name in names}
        self._flows: dict[int, FiveTuple] = {}  # by queue pair's number
        self._number_by_queue_pair = {qp: number for number, qp in enumerate(self.queue_pairs)}
        fabric = self.network.fabric
        frame_ns = 1e9 * self.scale.frame_time_wall_s(fabric.gpus[0].ports[0].gbps)
        look_ns = max(round(frame_ns / _LOOKS_PER_FRAME), _LOOK_AFTER_NS)
        for name in names:
            ips = [port.ip for port in fabric.gpu_by_name[name].ports]
            self._order(name, op="open", kind="mooncake", listen=ips, arena_bytes=ARENA_BYTES, look_ns=look_ns)
        rpc_ports: dict[str, int] = {}
        self._arena_address: dict[str, int] = {}
        for name in names:
            answer = self._answer(name)
            rpc_ports.update(answer["engines"])  # type: ignore[call-overload]
            self._arena_address[name] = int(str(answer["arena"]))
        wanted: dict[str, list[list[object]]] = {}
        for number, qp in enumerate(self.queue_pairs):
            src_ip, dst_ip = (str(fabric.port(end.node, end.port).ip) for end in (qp.src, qp.dst))
            row = [number, src_ip, dst_ip, rpc_ports[dst_ip], self._arena_address[qp.dst.node]]
            wanted.setdefault(qp.src.node, []).append(row)
        for at in range(0, max(map(len, wanted.values()), default=0), ROWS_AN_ORDER):  # all agents at a time
            batch = {name: rest for name, qps in wanted.items() if (rest := qps[at : at + ROWS_AN_ORDER])}
            for name, qps in batch.items():
                self._order(name, op="connect", qps=qps)
            for name in batch:
                answer = self._answer(name)
                for _, text in answer["failed"]:  # type: ignore[attr-defined]
                    raise RunError(f"{name}: {text}")
                self._flows.update(_flows(answer))

    def flow(self, qp: QueuePair) -> FiveTuple:
        """Addresses and ports of the engine's connection."""
        return self._flows[self._number_by_queue_pair[qp]]

    def send(self, transfer_id: int, src_gpu: str, dst_gpu: str, payload_bytes: int) -> None:
        """Start a handoff: a write of equal size over each queue pair. Raises RunError when the receiver is full."""
        lanes = [number for (number,) in self.lane_groups(src_gpu, dst_gpu)]
        total = max(payload_bytes, LEAST_BYTES * len(lanes))
        cuts = [total * n // len(lanes) for n in range(len(lanes) + 1)]
        parts = [(qp, cuts[n], cuts[n + 1] - cuts[n]) for n, qp in enumerate(lanes)]
        offset = self._arenas[dst_gpu].take(total)
        if offset is None:
            raise RunError(
                f"more than {ARENA_BYTES >> 20} MiB of handoffs are on their way to {dst_gpu} at once"
                f" (transfer {transfer_id} has {total} bytes); lower scale.resolution_frames, or the load"
            )
        number = self._number_of[transfer_id] = next(self._numbers)
        self._transfer_of[number] = transfer_id
        self._sent_bytes[number] = total
        self._handoffs[number] = Handoff(dst_gpu, offset, total, parts)
        self._order(src_gpu, op="send", id=number, address=self._arena_address[dst_gpu] + offset, parts=parts)

    def drop(self, transfer_id: int, src_gpu: str) -> None:
        """Nothing: the engine cannot take a write back. The handoff goes on to its end, and counts as carried."""

    def set_failures(self, failures: Failures) -> int:
        """Raises RunError: the scenario's check lets no failure be played with this transport."""
        raise RunError("transport.kind: mooncake cannot move its connections after a failure")

    def _done(self, sender: str, message: dict[str, object]) -> Done:
        """Reported by the sender; what is in the receiver's memory is compared from now on."""
        number = int(str(message["id"]))
        handoff = self._handoffs[number]
        address = self._arena_address[handoff.receiver] + handoff.offset
        self._order(handoff.receiver, op="check", id=number, address=address, parts=handoff.parts)
        parts = tuple(
            Part(self.queue_pairs[qp], size, t_ns)
            for qp, size, t_ns in message["parts"]  # type: ignore[attr-defined]
        )
        arrived, sent = sum(part.payload_bytes for part in parts), self._sent_bytes.pop(number)
        if arrived != sent:
            self._doubted.add(number)
            self.complaints.append(f"transfer {self._transfer_of[number]}: {sent} bytes sent, {arrived} reported")
        return Done(self._transfer_of[number], int(str(message["t_ns"])), parts)

    def _hear(self, name: str, message: dict[str, object]) -> None:
        if message["ev"] == "checked":
            number = int(str(message["id"]))
            handoff = self._handoffs.pop(number)
            self._arenas[name].give_back(handoff.offset, handoff.size)
            self.verified += number not in self._doubted
        else:
            super()._hear(name, message)

    def _complain(self, receiver: str, message: dict[str, object]) -> None:
        number, qp = int(str(message["id"])), self.queue_pairs[int(str(message["qp"]))]
        self._doubted.add(number)
        self.complaints.append(
            f"transfer {self._transfer_of[number]}, queue pair {qp.src.node} port {qp.src.port} to {qp.dst.node} port"
            f" {qp.dst.port}, index {qp.index}, offset {message['offset']}: {message['text']}"
        )

    def statistics(self, patience_s: float | None = None) -> dict[str, float]:
        """As those of other agents, when all handoffs that were reported have been compared. A connection that is not
        the one whose path was observed is a complaint."""
        deadline = time.monotonic() + (_CHECK_PATIENCE_S if patience_s is None else patience_s)
        if patience_s is not None:
            for sock in self.sockets.values():
                sock.settimeout(patience_s)
        while any(number not in self._sent_bytes for number in self._handoffs) and time.monotonic() < deadline:
            for _ in self.poll(0.1):
                pass
        for name in dict.fromkeys(qp.src.node for qp in self.queue_pairs):
            self._order(name, op="connections")
            while (message := self._answer(name))["ev"] != "connections":
                self._hear(name, message)
            now = _flows(message)
            for number, qp in enumerate(self.queue_pairs):
                if qp.src.node == name and now.get(number) != self._flows[number]:
                    self.complaints.append(f"queue pair {qp.src} -> {qp.dst}: the engine has made another connection")
        return super().statistics(patience_s)


def _flows(message: Mapping[str, object]) -> dict[int, FiveTuple]:
    return dict(_each_flow(message))


def _each_flow(message: Mapping[str, object]) -> Iterator[tuple[int, FiveTuple]]:
    for number, src_ip, src_port, dst_ip, dst_port in message["flows"]:  # type: ignore[attr-defined]
        yield number, FiveTuple(src_ip, dst_ip, TCP, src_port, dst_port)
