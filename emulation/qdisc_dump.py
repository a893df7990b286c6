"""Counters of every root qdisc in a namespace by one raw netlink dump (RTM_GETQDISC, linux/rtnetlink.h).

A dump's layout does not change while the qdiscs stay, so the offsets are learned once and each later dump is kept as
bytes and decoded in bulk: 25 times cheaper than running `tc`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulation.netns import entered

_RTM_NEWQDISC, _RTM_GETQDISC = 36, 38
_NLM_F_REQUEST_DUMP = 0x0001 | 0x0300
_NLMSG_DONE = 3
_TCA_KIND, _TCA_STATS, _TCA_XSTATS = 1, 3, 4
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
        count = 0
        while count < len(view):  # once, unless the dump is more than the kernel puts into one message (32 kB)
            more = self._socket.recv_into(view[count:])
            if more == 20 and struct.unpack_from("IH", view, count) == (20, _NLMSG_DONE):
                return False
            count += more
        end = self._socket.recv_into(self._end)
        if end == 20:
            return True
        while not (end >= 20 and struct.unpack_from("IH", self._end, end - 20) == (20, _NLMSG_DONE)):
            end = self._socket.recv_into(self._end)
        return False

    def layout(self, dump: bytes) -> Layout:
        """Learn where the counters are. Raises ValueError on an error message."""
        offsets = {
            self._names[ifindex]: places[_TCA_STATS][0]
            for ifindex, parent, places in _qdiscs(dump)
            if parent == _TC_H_ROOT and _TCA_STATS in places
        }
        return Layout(len(dump), offsets)

    def red_counts(self, dump: bytes) -> dict[str, RedCounts]:
        """Counts of every RED by interface. Raises ValueError on an error message."""
        return red_counts(dump, self._names)


@dataclass(frozen=True)
class RedCounts:
    """struct tc_red_xstats (linux/pkt_sched.h), packets since the qdisc was made. `early`: dropped by RED; `pdrop`: by
    its limit; `other`: by others; `marked`: sent on with a congestion mark."""

    early: int
    pdrop: int
    other: int
    marked: int

    def __sub__(self, before: RedCounts) -> RedCounts:
        return RedCounts(
            self.early - before.early,
            self.pdrop - before.pdrop,
            self.other - before.other,
            self.marked - before.marked,
        )


def red_counts(dump: bytes, names: Mapping[int, str]) -> dict[str, RedCounts]:
    """Counts of every RED in a dump, root or not, by the interface's name; `names` by index. Raises ValueError."""
    found: dict[str, RedCounts] = {}
    for ifindex, _, places in _qdiscs(dump):
        at, size = places.get(_TCA_KIND, (0, 0))
        if dump[at : at + size].rstrip(b"\0") == b"red" and _TCA_XSTATS in places:
            found[names[ifindex]] = RedCounts(*struct.unpack_from("IIII", dump, places[_TCA_XSTATS][0]))
    return found


def _qdiscs(dump: bytes) -> Iterator[tuple[int, int, dict[int, tuple[int, int]]]]:
    """Each qdisc of a dump: interface index, parent, and where each attribute is (by type: offset, bytes)."""
    at = 0
    while at + 16 <= len(dump):
        length, kind = struct.unpack_from("IH", dump, at)
        if kind != _RTM_NEWQDISC or length < 36:
            raise ValueError(f"netlink answered with message type {kind}")
        _, ifindex, _, parent, _ = struct.unpack_from("BxxxiIII", dump, at + 16)
        places: dict[int, tuple[int, int]] = {}
        attribute = at + 36
        while attribute + 4 <= at + length:
            size, name = struct.unpack_from("HH", dump, attribute)
            places[name & 0x3FFF] = attribute + 4, size - 4
            attribute += max(4, (size + 3) & ~3)
        yield ifindex, parent, places
        at += (length + 3) & ~3


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
