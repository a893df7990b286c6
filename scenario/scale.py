"""The scale model: how a 400 Gb/s fabric runs on a laptop, and back.

A fluid network keeps every ratio when all rates are multiplied by a, all times by d (dilation) and all bytes by a*d:

    emulated rate = a * rate        wall time = d * model time        emulated bytes = a*d * bytes

What does not scale is the frame: at a*d = 1.5e-4 a frame of 9,000 B stands for 60 MB of model bytes. Queue limits and
thresholds are therefore in frames. TCP's timers do not scale either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scenario.errors import InputError

#: Ethernet 14 + IPv4 20 + TCP 20 + timestamps option 12: bytes of a full frame that carry no payload.
HEADER_BYTES = 66
#: Frames per queue pair of the median handoff below which a run is INVALID, and what is aimed at.
MIN_RESOLUTION_FRAMES, GOOD_RESOLUTION_FRAMES = 20, 50
#: One ACK for two frames costs about as much to forward as a frame.
ACK_SHARE = 1.5


@dataclass(frozen=True)
class Scale:
    """a, d and the frame, with the conversions."""

    rate_factor: float
    dilation: float
    frame_bytes: int

    @property
    def mss_bytes(self) -> int:
        """TCP payload of a full frame."""
        return self.frame_bytes - HEADER_BYTES

    @property
    def byte_factor(self) -> float:
        """Emulated payload bytes per model byte, a*d."""
        return self.rate_factor * self.dilation

    @property
    def model_bytes_per_frame(self) -> float:
        """Model bytes that one full frame carries."""
        return self.mss_bytes / self.byte_factor

    def rate_bps(self, gbps: float) -> float:
        """Emulated bit/s of a model rate."""
        return gbps * 1e9 * self.rate_factor

    def frame_time_wall_s(self, gbps: float) -> float:
        """Wall seconds that a full frame takes on a port of that model rate."""
        return self.frame_bytes * 8 / self.rate_bps(gbps)

    def payload_bytes(self, model_bytes: float) -> int:
        """Emulated payload of a handoff of `model_bytes`."""
        return max(1, round(model_bytes * self.byte_factor))

    def wire_bytes(self, payload_bytes: int) -> int:
        """Emulated bytes with headers of a payload sent in full frames."""
        return payload_bytes + HEADER_BYTES * math.ceil(payload_bytes / self.mss_bytes)

    def goodput_gbps(self, gbps: float) -> float:
        """Model rate at which payload crosses a port: its rate less the share of headers."""
        return gbps * self.mss_bytes / self.frame_bytes

    def resolution_frames(self, median_handoff_bytes: float, queue_pairs: int) -> float:
        """Frames per queue pair of the median handoff."""
        return median_handoff_bytes / queue_pairs / self.model_bytes_per_frame

    def to_meta(self) -> dict[str, float]:
        """What meta.json says of the scale."""
        return {
            "rate_factor": self.rate_factor,
            "dilation": self.dilation,
            "frame_bytes": self.frame_bytes,
            "mss_bytes": self.mss_bytes,
            "model_bytes_per_frame": self.model_bytes_per_frame,
        }


def switch_hops_per_s(scale_rate_factor: float, senders_gbps: float, hops: int, frame_bytes: int) -> float:
    """Packet budget of a run: frames/s of all senders at line rate x switch hops x 1.5 for ACKs."""
    return senders_gbps * 1e9 * scale_rate_factor / (8 * frame_bytes) * hops * ACK_SHARE


def choose_scale(
    *,
    budget_hops_per_s: float,
    senders_gbps: float,
    hops: int,
    frame_bytes: int,
    median_handoff_bytes: float,
    queue_pairs: int,
    resolution_frames: int = GOOD_RESOLUTION_FRAMES,
    max_port_mbps: float,
    max_gpu_gbps: float,
) -> Scale:
    """The largest a within the machine's packet budget, and the smallest d that resolves the median handoff.

    `senders_gbps`: sum of the NIC rates that can send at once; `queue_pairs`: per handoff; `max_port_mbps`: emulated
    rate that a single port should not exceed. a is rounded down to two digits. Raises InputError when there is no
    budget at all.
    """
    if budget_hops_per_s <= 0:
        raise InputError("scale.rate_factor", None, "this machine forwarded no packets in the check", "zcube doctor")
    rate_factor = budget_hops_per_s / switch_hops_per_s(1.0, senders_gbps, hops, frame_bytes)
    rate_factor = floor_2_digits(min(rate_factor, max_port_mbps / (max_gpu_gbps * 1e3), 1.0))
    frame = Scale(rate_factor, 1.0, frame_bytes)
    needed_byte_factor = resolution_frames * queue_pairs * frame.mss_bytes / median_handoff_bytes
    return Scale(rate_factor, math.ceil(needed_byte_factor / rate_factor * 100) / 100, frame_bytes)


def floor_2_digits(value: float) -> float:
    """`value` rounded down to two digits: a rate factor that people can read and type."""
    exponent = math.floor(math.log10(value)) - 1
    return float(f"{math.floor(value / 10**exponent + 1e-9) * 10**exponent:.3g}")
