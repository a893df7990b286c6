"""What is asked of a TCP socket beyond reading and writing. Standard library only."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCOUTQ = 0x5411


def abort(sock: socket.socket) -> None:
    """Close with a reset: nothing more is sent, and the addresses are free for the next connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def retransmits(sock: socket.socket) -> int:
    """tcpi_total_retrans of struct tcp_info (linux/tcp.h): the u32 after 8 bytes and 23 u32s."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("I", info, 100)[0])


def marked(sock: socket.socket) -> tuple[int, int]:
    """tcpi_delivered and tcpi_delivered_ce of struct tcp_info: segments that the peer has acknowledged, and those of
    them acknowledged with the echo of a congestion mark (Linux 4.18 and later)."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 200)
    delivered, delivered_ce = struct.unpack_from("II", info, 192)
    return int(delivered), int(delivered_ce)


def unacknowledged(sock: socket.socket) -> int:
    """Bytes that were written and that the peer's kernel has not acknowledged."""
    return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), _SIOCOUTQ, b"\0" * 4))[0])
