"""The raw log of statistics replies, and what is in it. Pure: no SDN library, no clock.

While switches serve, the controller only appends each reply as it came, with its time; whoever wants numbers decodes
the log afterwards. A record is RECORD, then the OpenFlow 1.3 message (multipart reply; section 7.3.5 of the
specification, whose layouts the formats below are).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from controller.ruleset import COOKIE_KIND, masked_text

#: CLOCK_MONOTONIC nanoseconds at arrival, DPID, bytes of the message that follows.
RECORD = struct.Struct("<QQI")
#: Message header (version, type, length, xid), then multipart type and flags.
_MULTIPART = struct.Struct("!BBHIHH4x")
REPLY_MORE = 1
FLOW, PORT, GROUP, GROUP_DESC = 1, 4, 6, 7
#: Port numbers from here on are reserved ones, such as a bridge's own (OFPP_LOCAL).
_FIRST_RESERVED_PORT = 0xFFFFFF00

_COUNTERS = ("packets", "bytes", "dropped", "errors")
PORT_STATS = np.dtype(
    [("port", ">u4"), ("", ">u4")]
    + [(f"{way}_{what}", ">u8") for what in _COUNTERS for way in ("rx", "tx")]
    + [(name, ">u8") for name in ("frame_errors", "overruns", "crc_errors", "collisions")]
    + [("duration_sec", ">u4"), ("duration_nsec", ">u4")]
)
_FLOW_STATS = struct.Struct("!HBxIIHHHH4xQQQ")
_MATCH = struct.Struct("!HH")
_GROUP_STATS = struct.Struct("!H2xII4xQQII")
_BUCKET_COUNTER = struct.Struct("!QQ")
_GROUP_DESC = struct.Struct("!HBxI")
_BUCKET = struct.Struct("!HHII4x")
_ACTION_OUTPUT = struct.Struct("!HHI")
_INSTRUCTION = struct.Struct("!HH4x")
_KIND_OF_COOKIE = {number: kind for kind, number in COOKIE_KIND.items()}


class LogError(ValueError):
    """A log that does not hold what it should."""


@dataclass(frozen=True)
class Reply:
    """One reply, or one part of it: multipart type, and the entries behind the two headers."""

    t_ns: int
    dpid: int
    kind: int
    body: bytes


@dataclass(frozen=True, slots=True)
class FlowEntry:
    """Counters of one rule since it was installed; `match` is the OXM list as sent, `group_id` the group that it
    leads to."""

    cookie: int
    priority: int
    match: bytes
    duration_s: float
    packets: int
    bytes: int
    group_id: int | None = None

    @property
    def kind(self) -> str:
        """Why the rule is there; a key of COOKIE_KIND, or `other`."""
        return _KIND_OF_COOKIE.get(self.cookie & 0xFF, "other")


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """Counters of one group and (packets, bytes) of each of its buckets, since it was installed."""

    group_id: int
    duration_s: float
    packets: int
    bytes: int
    buckets: tuple[tuple[int, int], ...]


def replies(file: BinaryIO) -> Iterator[Reply]:
    """The records in order. A last one that was cut short is left out. Raises LogError."""
    while len(head := file.read(RECORD.size)) == RECORD.size:
        t_ns, dpid, length = RECORD.unpack(head)
        message = file.read(length)
        if len(message) < length:
            return
        _, _, stated, _, kind, _ = _MULTIPART.unpack_from(message)
        if stated != length:
            raise LogError(f"a message of {length} B says that it has {stated}")
        yield Reply(t_ns, dpid, kind, message[_MULTIPART.size :])


def whole_records_bytes(file: BinaryIO) -> int:
    """How long a log is without a last record that was cut short."""
    size = file.seek(0, 2)
    at = 0
    while at + RECORD.size <= size:
        file.seek(at)
        end = at + RECORD.size + RECORD.unpack(file.read(RECORD.size))[2]
        if end > size:
            break
        at = end
    return at


def port_entries(body: bytes) -> NDArray[np.void]:
    """Entries of a port reply as records of PORT_STATS, reserved ports left out."""
    found = np.frombuffer(body, dtype=PORT_STATS)
    return found[found["port"] < _FIRST_RESERVED_PORT]


def flow_entries(body: bytes) -> Iterator[FlowEntry]:
    """Entries of a flow reply."""
    at = 0
    while at < len(body):
        length, _, sec, nsec, priority, _, _, _, cookie, packets, octets = _FLOW_STATS.unpack_from(body, at)
        start = at + _FLOW_STATS.size
        _, match_length = _MATCH.unpack_from(body, start)  # with its own four bytes, without padding
        match = body[start + _MATCH.size : start + match_length]
        group_id = _group_of(body, start + (match_length + 7) // 8 * 8, at + length)
        yield FlowEntry(cookie, priority, match, sec + nsec / 1e9, packets, octets, group_id)
        at += length


def _group_of(body: bytes, at: int, end: int) -> int | None:
    """The group that a rule's instructions lead to."""
    while at < end:
        kind, length = _INSTRUCTION.unpack_from(body, at)
        action, last = at + _INSTRUCTION.size, at + length
        while kind == 4 and action < last:  # OFPIT_APPLY_ACTIONS
            what, size, number = _ACTION_OUTPUT.unpack_from(body, action)
            if what == 22:  # OFPAT_GROUP
                return int(number)
            action += size
        at = last
    return None


def group_entries(body: bytes) -> Iterator[GroupEntry]:
    """Entries of a group reply."""
    at = 0
    while at < len(body):
        length, group_id, _, packets, octets, sec, nsec = _GROUP_STATS.unpack_from(body, at)
        buckets = tuple(_BUCKET_COUNTER.iter_unpack(body[at + _GROUP_STATS.size : at + length]))
        yield GroupEntry(group_id, sec + nsec / 1e9, packets, octets, buckets)
        at += length


def bucket_ports(body: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Group and the output port of each bucket, from a group description reply; 0 for a bucket without output."""
    at = 0
    while at < len(body):
        length, _, group_id = _GROUP_DESC.unpack_from(body, at)
        ports, bucket = [], at + _GROUP_DESC.size
        while bucket < at + length:
            bucket_length = _BUCKET.unpack_from(body, bucket)[0]
            ports.append(_output_port(body, bucket + _BUCKET.size, bucket + bucket_length))
            bucket += bucket_length
        yield group_id, tuple(ports)
        at += length


def _output_port(body: bytes, at: int, end: int) -> int:
    while at < end:
        kind, length, port = _ACTION_OUTPUT.unpack_from(body, at)
        if kind == 0:  # OFPAT_OUTPUT
            return int(port)
        at += length
    return 0


#: OXM field number of the basic class -> name as in rules.json.
_FIELDS = {
    0: "in_port", 3: "eth_dst", 4: "eth_src", 5: "eth_type", 10: "ip_proto", 11: "ipv4_src", 12: "ipv4_dst",
    13: "tp_src", 14: "tp_dst", 15: "tp_src", 16: "tp_dst",
}  # fmt: skip
_BASIC_CLASS = 0x8000


def match_fields(oxm: bytes) -> dict[str, int | str]:
    """Fields of a match by the names of rules.json: addresses as text (with a mask where there is one)."""
    found: dict[str, int | str] = {}
    at = 0
    while at + 4 <= len(oxm):
        oxm_class, field, length = struct.unpack_from("!HBB", oxm, at)
        value = oxm[at + 4 : at + 4 + length]
        name = _FIELDS.get(field >> 1, f"field{field >> 1}") if oxm_class == _BASIC_CLASS else f"class{oxm_class:#x}"
        if name.startswith("ipv4"):
            parts = [".".join(map(str, value[i : i + 4])) for i in range(0, length, 4)]
            found[name] = masked_text(*parts) if len(parts) == 2 else parts[0]
        elif name.startswith("eth_") and name != "eth_type":
            found[name] = value.hex(":")
        else:
            found[name] = int.from_bytes(value, "big")
        at += 4 + length
    return found


def match_text(oxm: bytes) -> str:
    """A match as text, `name=value` joined by commas; the Ethernet type of IPv4 goes without saying."""
    fields = match_fields(oxm)
    return ",".join(
        f"{name}={value}" for name, value in fields.items() if not (name == "eth_type" and "ipv4_dst" in fields)
    )
