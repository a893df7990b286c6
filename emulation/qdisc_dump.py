"""Counters of every root qdisc in a namespace by one raw netlink dump (RTM_GETQDISC, linux/rtnetlink.h).

A dump's layout does not change while the qdiscs stay, so the offsets are learned once and each later dump is kept as
bytes and decoded in bulk: 25 times cheaper than running `tc`.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulation.netns import entered

_RTM_NEWQDISC, _RTM_GETQDISC = 36, 38
_NLM_F_REQUEST_DUMP = 0x0001 | 0x0300
_NLMSG_DONE = 3
_TCA_STATS = 3
_TC_H_ROOT = 0xFFFFFFFF
_REQUEST = struct.pack("IHHII", 36, _RTM_GETQDISC, _NLM_F_REQUEST_DUMP, 1, 0) + struct.pack("BxHiIII", 0, 0, 0, 0, 0, 0)

#: struct tc_stats: u64 bytes, u32 packets, drops, overlimits, bps, pps, qlen, backlog.
COUNTERS = np.dtype(
    [
        ("bytes", "<u8"),
        ("packets", "<u4"),
        ("drops", "<u4"),
        ("overlimits", "<u4"),
        ("bps", "<u4"),
        ("pps", "<u4"),
        ("qlen", "<u4"),
        ("backlog", "<u4"),
    ]
)


@dataclass(frozen=True)
class Layout:
    """Where in a dump of `size` bytes the counters of each interface are."""

    size: int
    offset_by_interface: dict[str, int]


class QdiscDump:
    """A netlink socket in the namespace of process `pid`."""

    def __init__(self, pid: int) -> None:
        with entered(pid):
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
            self._names = dict(socket.if_nameindex())
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._buffer = bytearray(1 << 17)
        self._end = bytearray(4096)

    def read(self) -> bytes:
        """One dump."""
        self._socket.send(_REQUEST)
        at, view = 0, memoryview(self._buffer)
        while True:
            count = self._socket.recv_into(view[at:])
            at += count
            length, kind = struct.unpack_from("IH", self._buffer, at - 20)
            if length == 20 and kind == _NLMSG_DONE:
                return bytes(view[: at - 20])

    def read_into(self, view: memoryview) -> bool:
        """One dump straight into `view`, which has the size of the layout; False when the dump had another size.

        The cheap way, for a sampler: a dump of up to 4 kB comes as one message and an end mark. (A small buffer also
        keeps the kernel from making room for 32 kB each time.)
        """
        self._socket.send(_REQUEST)
        count = self._socket.recv_into(view)
        end = self._socket.recv_into(self._end)
        if count == len(view) and end == 20:
            return True
        while not (end >= 20 and struct.unpack_from("IH", self._end, end - 20) == (20, _NLMSG_DONE)):
            end = self._socket.recv_into(self._end)
        return False

    def layout(self, dump: bytes) -> Layout:
        """Learn where the counters are. Raises ValueError on an error message."""
        offsets: dict[str, int] = {}
        at = 0
        while at + 16 <= len(dump):
            length, kind = struct.unpack_from("IH", dump, at)
            if kind != _RTM_NEWQDISC or length < 36:
                raise ValueError(f"netlink answered with message type {kind}")
            _, ifindex, _, parent, _ = struct.unpack_from("BxxxiIII", dump, at + 16)
            attribute = at + 36
            while parent == _TC_H_ROOT and attribute + 4 <= at + length:
                size, name = struct.unpack_from("HH", dump, attribute)
                if name & 0x3FFF == _TCA_STATS:
                    offsets[self._names[ifindex]] = attribute + 4
                attribute += (size + 3) & ~3
            at += (length + 3) & ~3
        return Layout(len(dump), offsets)


def rows_of(dumps: bytes | bytearray | memoryview, layout: Layout) -> npt.NDArray[np.uint8]:
    """Dumps of one layout, one after the other, as rows of bytes."""
    return np.frombuffer(dumps, dtype=np.uint8).reshape(-1, layout.size)


def counters_of(rows: npt.NDArray[np.uint8], layout: Layout, interface: str) -> npt.NDArray[np.void]:
    """Counters of one interface over the rows of `rows_of`, as a structured array of COUNTERS."""
    at = layout.offset_by_interface[interface]
    return np.ascontiguousarray(rows[:, at : at + COUNTERS.itemsize]).view(COUNTERS)[:, 0]


def decode(dump: bytes, layout: Layout, interface: str) -> np.void:
    """Counters of one interface in one dump: a record of COUNTERS."""
    record: np.void = counters_of(rows_of(dump, layout), layout, interface)[0]
    return record
