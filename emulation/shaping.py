"""The qdisc of a port, as data, and its read-back. Ours, not Mininet's TCLink (whose burst and limits are fixed).

One TBF per egress: `burst` of two frames, so that a shaped port sends frame by frame, and a byte `limit` that is the
queue. It is set after Open vSwitch has the port, because add-port removes a root qdisc, and then read back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from emulation.netns import Batch, inside


@dataclass(frozen=True)
class PortShape:
    """What one egress port gets. Rates in emulated bit/s, sizes in bytes."""

    interface: str
    rate_bps: int
    burst_bytes: int
    limit_bytes: int


def port_shape(interface: str, rate_bps: float, frame_bytes: int, queue_limit_frames: int) -> PortShape:
    """The shape of a port of `rate_bps` whose queue holds `queue_limit_frames` full frames."""
    return PortShape(interface, round(rate_bps), 2 * frame_bytes, queue_limit_frames * frame_bytes)


def tc_line(shape: PortShape) -> str:
    """One line for `tc -batch`."""
    return (
        f"qdisc replace dev {shape.interface} root handle 1: tbf rate {shape.rate_bps}bit"
        f" burst {shape.burst_bytes}b limit {shape.limit_bytes}b"
    )


def apply(shapes: Mapping[int, Sequence[PortShape]]) -> None:
    """Set the qdiscs; keys are the PIDs whose namespaces hold the interfaces. Raises RuntimeError."""
    batch = Batch()
    for pid, ports in shapes.items():
        batch.start(inside(pid, ["tc", "-batch", "-"]), "\n".join(tc_line(p) for p in ports) + "\n")
    batch.finish()


def slow_down(shapes: Mapping[int, Sequence[PortShape]], share_by_interface: Mapping[str, float]) -> None:
    """Give some ports a share of their rate, and read that back. Raises RuntimeError."""
    slower = {
        pid: [replace(p, rate_bps=max(8, round(p.rate_bps * share_by_interface[p.interface]))) for p in mine]
        for pid, ports in shapes.items()
        if (mine := [p for p in ports if p.interface in share_by_interface])
    }
    if not slower:
        return
    apply(slower)
    if wrong := read_back(slower):
        raise RuntimeError(f"{len(wrong)} ports were not slowed down: {next(iter(wrong.items()))}")


def read_back(shapes: Mapping[int, Sequence[PortShape]]) -> dict[str, str]:
    """Differences between what was asked and what the kernel has, by interface; empty when all is well."""
    batch = Batch()
    for pid in shapes:
        batch.start(inside(pid, ["tc", "-j", "qdisc", "show"]))
    differences: dict[str, str] = {}
    for ports, text in zip(shapes.values(), batch.finish(), strict=True):
        found = {q["dev"]: q for q in json.loads(text) if q.get("root")}
        for port in ports:
            difference = _difference(port, found.get(port.interface))
            if difference:
                differences[port.interface] = difference
    return differences


def _difference(port: PortShape, qdisc: Mapping[str, object] | None) -> str:
    if qdisc is None or qdisc.get("kind") != "tbf":
        return f"root qdisc is {qdisc.get('kind') if qdisc else 'missing'}, not tbf: the port is not shaped"
    options = qdisc.get("options")
    options = options if isinstance(options, Mapping) else {}
    rate = 8 * int(str(options.get("rate", 0)))  # tc prints bytes per second
    if abs(rate - port.rate_bps) > max(8, port.rate_bps * 1e-4):
        return f"rate is {rate} bit/s, not {port.rate_bps}"
    return ""
