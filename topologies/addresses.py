"""Address plan. Port 1 of a GPU is 198.18.s.h, port 2 is 198.19.s.h (RFC 2544's benchmarking range).

s is the zero-based index of the port's switch in its group and h = 1..k the GPU's index on that switch: the
address says where the port is plugged, so that prefixes do the routing.
"""

from __future__ import annotations

from topologies.fabric import FabricError

#: Port number -> the range its addresses come from.
RANGE_OF_PORT = {1: "198.18", 2: "198.19"}


def gpu_ip(port: int, switch_index: int, host: int) -> str:
    """Address of a GPU port; `switch_index` from 0, `host` from 1. Raises FabricError outside the plan."""
    if not 0 <= switch_index <= 255:
        raise FabricError("switches per group", switch_index + 1, "the address plan holds at most 256")
    if not 1 <= host <= 254:
        raise FabricError("GPUs per switch", host, "the address plan holds 1 to 254")
    return f"{RANGE_OF_PORT[port]}.{switch_index}.{host}"


def gpu_mac(ip: str) -> str:
    """Locally administered MAC made of the address."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in ip.split("."))


def ip_to_int(ip: str) -> int:
    """Dotted address -> 32-bit number."""
    a, b, c, d = (int(part) for part in ip.split("."))
    return a << 24 | b << 16 | c << 8 | d
