"""Address plan: the address says where a port is plugged, so that prefixes do the routing.

Port 1 of a GPU is 198.18.s.h, port 2 is 198.19.s.h (RFC 2544's benchmarking range): s is the zero-based index of
the port's switch in its group, h = 1.. the GPU's index on that switch. Fabrics with more than 256 switches in a
group or more than two ports a GPU do not fit there; they use 10.0.0.0/8, with two bits for the port, 14 for s and
8 for h. In both a switch's GPU ports are one /24.
"""

from __future__ import annotations

from functools import lru_cache

from topologies.fabric import FabricError

#: Port number -> the range its addresses come from.
RANGE_OF_PORT = {1: "198.18", 2: "198.19"}
#: What the benchmarking range holds, and what 10.0.0.0/8 holds.
COMPACT_PORTS, COMPACT_SWITCHES = 2, 256
WIDE_PORTS, WIDE_SWITCHES = 4, 1 << 14
MAX_HOSTS = 254


def gpu_ip(port: int, switch_index: int, host: int, *, wide: bool = False) -> str:
    """Address of a GPU port; `switch_index` from 0, `host` from 1. Raises FabricError outside the plan."""
    ports, switches = (WIDE_PORTS, WIDE_SWITCHES) if wide else (COMPACT_PORTS, COMPACT_SWITCHES)
    if not 1 <= port <= ports:
        raise FabricError("ports per GPU", port, f"the address plan holds 1 to {ports}")
    if not 0 <= switch_index < switches:
        raise FabricError("switches per group", switch_index + 1, f"the address plan holds at most {switches}")
    if not 1 <= host <= MAX_HOSTS:
        raise FabricError("gpus_per_switch", host, f"the address plan holds 1 to {MAX_HOSTS} GPUs on a switch")
    if wide:
        return f"10.{(port - 1) << 6 | switch_index >> 8}.{switch_index & 255}.{host}"
    return f"{RANGE_OF_PORT[port]}.{switch_index}.{host}"


def port_range(port: int, ip: str) -> str:
    """The prefix that all addresses of GPU port `port` are in, where `ip` is one of them."""
    if ip.startswith(f"{RANGE_OF_PORT.get(port)}."):
        return f"{RANGE_OF_PORT[port]}.0.0/16"
    return f"10.{(port - 1) << 6}.0.0/10"


def gpu_mac(ip: str) -> str:
    """Locally administered MAC made of the address."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in ip.split("."))


@lru_cache(maxsize=1 << 16)
def ip_to_int(ip: str) -> int:
    """Dotted address -> 32-bit number."""
    a, b, c, d = (int(part) for part in ip.split("."))
    return a << 24 | b << 16 | c << 8 | d
