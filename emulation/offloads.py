"""Offloads of interfaces switched off by ioctl: an `ethtool` process for each of 1,500 ports takes very long."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Iterable

from emulation.netns import entered

_SIOCETHTOOL = 0x8946
#: Commands with a `struct ethtool_value` (linux/ethtool.h): transmit checksums, TCP segmentation, generic segmentation,
#: generic receive offload.
_SET = {"tx": 0x17, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}


def switch_off(pid: int, interfaces: Iterable[str]) -> None:
    """What `ethtool -K NAME tx off tso off gso off gro off` does, in the namespace of `pid`. Raises OSError.

    (AccECN's segmentation, newer than these commands, stays on; without TSO it means nothing.)"""
    with entered(pid), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for name in interfaces:
            for command in _SET.values():
                value = array.array("B", struct.pack("II", command, 0))
                request = struct.pack("16sP", name.encode(), value.buffer_info()[0])
                fcntl.ioctl(sock, _SIOCETHTOOL, request)
