"""LLDP for GPU ports, which have no lldpd: one frame to send, and what a received one says (IEEE 802.1AB).

A TLV is 7 bits of type, 9 of length, then the value. Frames here carry the three that must be there, in their order:
chassis ID (the device's name), port ID (the interface's name), time to live. Pure.
"""

from __future__ import annotations

import struct

from topologies.cabling_model import Plug

ETHERTYPE = 0x88CC
#: Nearest bridge: no bridge passes it on.
MULTICAST_MAC = "01:80:c2:00:00:0e"
#: Shortest Ethernet frame without its checksum.
MIN_FRAME_BYTES = 60

_END, _CHASSIS_ID, _PORT_ID, _TTL = 0, 1, 2, 3
_LOCALLY_ASSIGNED, _INTERFACE_NAME = 7, 5  # subtypes of chassis ID and of port ID
_TTL_S = 120


def frame(port: Plug, mac: str) -> bytes:
    """The frame with which a port of that MAC address announces itself; `port` has an interface name."""
    header = _mac(MULTICAST_MAC) + _mac(mac) + struct.pack("!H", ETHERTYPE)
    body = (
        _tlv(_CHASSIS_ID, bytes([_LOCALLY_ASSIGNED]) + port.device.encode())
        + _tlv(_PORT_ID, bytes([_INTERFACE_NAME]) + port.port.encode())
        + _tlv(_TTL, struct.pack("!H", _TTL_S))
        + _tlv(_END, b"")
    )
    return (header + body).ljust(MIN_FRAME_BYTES, b"\0")


def sender(data: bytes) -> Plug | None:
    """Device and interface that sent a frame; None for a frame that is not such an announcement."""
    if len(data) < 14 or data[12:14] != struct.pack("!H", ETHERTYPE):
        return None
    values: dict[int, bytes] = {}
    at = 14
    while at + 2 <= len(data):
        (head,) = struct.unpack_from("!H", data, at)
        kind, length = head >> 9, head & 0x1FF
        value = data[at + 2 : at + 2 + length]
        if kind == _END or len(value) < length:
            break
        values.setdefault(kind, value)
        at += 2 + length
    chassis, port = values.get(_CHASSIS_ID, b""), values.get(_PORT_ID, b"")
    if chassis[:1] != bytes([_LOCALLY_ASSIGNED]) or port[:1] != bytes([_INTERFACE_NAME]):
        return None
    try:
        return Plug(chassis[1:].decode(), port[1:].decode())
    except UnicodeDecodeError:
        return None


def _tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("!H", kind << 9 | len(value)) + value


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))
