"""RED that marks: the child of a switch port's shaper, as data, and its read-back.

The port's chain is TBF, which gives the rate, with RED as the queue inside it: RED keeps an average of the queue and
marks packets (ECN) from a threshold on, some between `min` and `max`, all above. `nodrop`: what cannot be marked is
queued and not dropped early, as on a fabric without loss; only a full queue drops. The average moves by the weight
that tc computes from `burst`. GPU ports have none: marks are the switches'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from emulation.shaping import PortShape, port_shape, queue_limit_frames, tc_line
from scenario.errors import InputError
from scenario.flow_control_section import FlowControlSection
from scenario.models import Scenario
from topologies.fabric import Fabric


@dataclass(frozen=True)
class Red:
    """What one switch port marks by. Sizes in bytes; `burst_packets` as tc-red(8) wants it, rate in emulated bit/s."""

    interface: str
    rate_bps: int
    limit_bytes: int
    min_bytes: int
    max_bytes: int
    packet_bytes: int
    burst_packets: int
    probability: float


def red_of(shape: PortShape, flow_control: FlowControlSection, frame_bytes: int) -> Red | None:
    """The RED inside a port of this shape; None where flow control marks nothing.

    Thresholds are frames x `frame_bytes`; burst = (2 min + max) / (3 avpkt), tc-red(8)'s rule. Raises InputError for
    thresholds that do not fit the port's queue or the kernel's arithmetic.
    """
    if flow_control.ecn == "off":
        return None
    low, high = flow_control.ecn_min_frames, flow_control.ecn_max_frames
    limit_frames = shape.limit_bytes // frame_bytes
    if high >= limit_frames:
        raise InputError(
            "flow_control.ecn_max_frames",
            high,
            f"must be below the queue limit of a port, {limit_frames} frames at {shape.interface}",
            "that is transport.asic_buffer_frames over the ports of the switch, at least 16",
        )
    red = Red(
        shape.interface,
        shape.rate_bps,
        shape.limit_bytes,
        low * frame_bytes,
        high * frame_bytes,
        frame_bytes,
        (2 * low + high) // 3,
        flow_control.ecn_probability,
    )
    if red.min_bytes.bit_length() + weight_log(red) >= 32:
        raise InputError(
            "flow_control.ecn_min_frames",
            low,
            f"with ecn_max_frames = {high} is more than the kernel's RED can average ({red.min_bytes:,} bytes)",
            "use lower thresholds, or an ecn_max_frames nearer to ecn_min_frames",
        )
    return red


def weight_log(red: Red) -> int:
    """-log2 of the weight of a packet in the average, as tc computes it (iproute2, tc_red_eval_ewma): the least W for
    which burst + 1 - min / avpkt <= (1 - (1 - 2^-W)^burst) / 2^-W."""
    room = red.burst_packets + 1 - red.min_bytes / red.packet_bytes
    for log in range(1, 32):
        weight = 2.0**-log
        if room <= (1 - (1 - weight) ** red.burst_packets) / weight:
            return log
    return 32


def red_line(red: Red) -> str:
    """One line for `tc -batch`. Adaptive RED is off, since it is not asked for: thresholds stay what they are."""
    return (
        f"qdisc replace dev {red.interface} parent 1:1 handle 10: red limit {red.limit_bytes} min {red.min_bytes}"
        f" max {red.max_bytes} avpkt {red.packet_bytes} burst {red.burst_packets} probability {red.probability:g}"
        f" bandwidth {red.rate_bps}bit ecn nodrop"
    )


def chain(shape: PortShape, red: Red | None) -> tuple[str, ...]:
    """The qdiscs of a port, root first, as lines for `tc -batch`. Without RED it is the shaper's line alone."""
    return (tc_line(shape),) if red is None else (tc_line(shape), red_line(red))


def check_thresholds(scenario: Scenario, fabric: Fabric) -> None:
    """Raises InputError for thresholds that do not fit the queue of some switch port of the fabric."""
    frame_bytes = scenario.scale.frame_bytes
    for switch in fabric.switches:
        limit = queue_limit_frames(scenario.transport.asic_buffer_frames, len(switch.ports))
        red_of(port_shape(switch.name, 1e9, frame_bytes, limit), scenario.flow_control, frame_bytes)


def difference(red: Red, qdisc: Mapping[str, object] | None) -> str:
    """What `tc -j -d qdisc show` says of a port's child against what was asked; empty when it is the same."""
    if qdisc is None or qdisc.get("kind") != "red":
        return f"inside the shaper is {qdisc.get('kind') if qdisc else 'nothing'}, not red: nothing is marked"
    options = qdisc.get("options")
    options = options if isinstance(options, Mapping) else {}
    for name, wanted in (
        ("limit", red.limit_bytes),
        ("min", red.min_bytes),
        ("max", red.max_bytes),
        ("ecn", True),
        ("nodrop", True),
        ("harddrop", False),
        ("adaptive", False),
        ("ewma", weight_log(red)),
    ):
        if options.get(name, False) != wanted:
            return f"{name} is {options.get(name)}, not {wanted}"
    probability = float(str(options.get("probability", math.nan)))
    if not math.isclose(probability, red.probability, rel_tol=0.01):
        return f"probability is {probability}, not {red.probability}"
    return ""
