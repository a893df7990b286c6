"""Reads a capture of a run (`zcube run --pcap PORT`): packets and bytes of every queue pair, in constant memory.

scapy's RawPcapReader gives one packet after the other without dissecting it; the three headers that matter are read
here (a full dissection takes about thirty times as long). Captures hold headers only, so lengths are those in the
headers, and those of the frame on the wire that tcpdump noted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from results.reader import RunFolder
from scenario.errors import InputError
from topologies.build import build
from topologies.fabric import Fabric
from topologies.flows import queue_pair_of
from topologies.paths import TCP, UDP, FiveTuple, QueuePair, reversed_flow

_IP = struct.Struct("!BxHxxHxBxx4s4s")
_PORTS = struct.Struct("!HH")
_TCP = struct.Struct("!HHIxxxxB")
_ETHERNET_BYTES = 14


@dataclass
class Traffic:
    """One direction of a queue pair at one port. `payload_bytes` counts what was sent again twice; `stream_bytes` is
    the stretch of TCP sequence numbers that was seen, so counts it once (0 for UDP)."""

    packets: int = 0
    wire_bytes: int = 0
    payload_bytes: int = 0
    stream_bytes: int = 0


@dataclass(frozen=True)
class CaptureTotals:
    """What crossed a port, both directions of the cable.

    `data` goes from the queue pair's source to its destination, `acks` come back; `other_packets` belong to no queue
    pair of the plan.
    """

    data: Mapping[QueuePair, Traffic]
    acks: Mapping[QueuePair, Traffic]
    other_packets: int


class _Stream:
    """Traffic of one 5-tuple; sequence numbers wrap at 2^32, so the furthest is kept relative to the first."""

    __slots__ = ("base", "furthest", "traffic")

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.base: int | None = None
        self.furthest = 0

    def add(self, wire_bytes: int, payload_bytes: int, sequence: int | None) -> None:
        self.traffic.packets += 1
        self.traffic.wire_bytes += wire_bytes
        self.traffic.payload_bytes += payload_bytes
        if sequence is None or not payload_bytes:
            return
        if self.base is None:
            self.base = sequence
        # Distance to the furthest byte so far, as a signed 32-bit number: a packet sent again lies behind it.
        ahead = (sequence + payload_bytes - self.base - self.furthest + 2**31) % 2**32 - 2**31
        self.furthest += max(0, ahead)
        self.traffic.stream_bytes = self.furthest


def totals(path: Path, fabric: Fabric, queue_pairs: int = 16) -> CaptureTotals:
    """Sum a capture up. `queue_pairs` per port pair were in use. Raises InputError for a file that is no capture."""
    from scapy.error import Scapy_Exception
    from scapy.utils import RawPcapReader

    streams: dict[FiveTuple, _Stream] = {}
    other = 0
    try:
        with RawPcapReader(str(path)) as reader:
            for data, meta in reader:
                parsed = _parse(data)
                if parsed is None:
                    other += 1
                    continue
                flow, payload_bytes, sequence = parsed
                stream = streams.get(flow)
                if stream is None:
                    stream = streams[flow] = _Stream()
                stream.add(meta.wirelen, payload_bytes, sequence)
    except FileNotFoundError:
        raise InputError("capture", str(path), "does not exist", "a run makes it with --pcap PORT") from None
    except Scapy_Exception as error:
        raise InputError("capture", str(path), f"cannot be read: {error}") from None
    data_of: dict[QueuePair, Traffic] = {}
    acks_of: dict[QueuePair, Traffic] = {}
    for flow, stream in streams.items():
        forward = queue_pair_of(fabric, flow, queue_pairs)
        backward = queue_pair_of(fabric, reversed_flow(flow), queue_pairs)
        if forward is not None:
            data_of[forward] = stream.traffic
        elif backward is not None:
            acks_of[backward] = stream.traffic
        else:
            other += stream.traffic.packets
    return CaptureTotals(data_of, acks_of, other)


def totals_of_run(run: RunFolder, port: str) -> CaptureTotals:
    """The capture of one port in a run folder. Raises InputError, also for a port that was not captured."""
    scenario = run.scenario()
    path = run.path / "pcap" / f"{port}.pcap"
    if not path.exists():
        there = ", ".join(sorted(entry.stem for entry in path.parent.glob("*.pcap"))) or "none"
        raise InputError("port", port, f"was not captured in this run; captured: {there}")
    return totals(path, build(scenario.fabric), scenario.routing.queue_pairs)


def _parse(frame: bytes) -> tuple[FiveTuple, int, int | None] | None:
    """5-tuple, payload bytes and TCP sequence number of a frame of which at least the headers are there."""
    if len(frame) < _ETHERNET_BYTES + 20 or frame[12:14] != b"\x08\x00":
        return None
    version_ihl, total, fragment, protocol, src, dst = _IP.unpack_from(frame, _ETHERNET_BYTES)
    at = _ETHERNET_BYTES + (version_ihl & 15) * 4
    if protocol not in (TCP, UDP) or fragment & 0x1FFF or len(frame) < at + (14 if protocol == TCP else 8):
        return None
    if protocol == TCP:
        src_port, dst_port, sequence, offset = _TCP.unpack_from(frame, at)
        header = (offset >> 4) * 4
    else:
        (src_port, dst_port), sequence, header = _PORTS.unpack_from(frame, at), None, 8
    payload = total - (version_ihl & 15) * 4 - header
    flow = FiveTuple(".".join(map(str, src)), ".".join(map(str, dst)), protocol, src_port, dst_port)
    return flow, payload, sequence
