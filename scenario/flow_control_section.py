"""The scenario's flow control: what switches do to keep queues short. Off by default: queues are deep and silent."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from scenario.section import Section
from scenario.transport_section import TransportSection

#: Congestion controls of the kernel that lower their rate when packets come back marked (RFC 3168, RFC 8257).
ECN_CAPABLE = ("dctcp", "reno", "cubic")


class FlowControlSection(Section):
    """Marks that switches set. Thresholds are of the average queue of one switch port, in full frames."""

    ecn: Literal["off", "red"] = Field(
        "off",
        description="red: switch ports mark packets by RED (tc-red(8)) instead of dropping them; needs a kernel with"
        " sch_red, which the virtual machine has (cd vagrant && vagrant up), and transport.kind tcp",
    )
    ecn_min_frames: int = Field(  # of 1, tc finds no weight for the average
        8, ge=2, le=65535, description="average queue from which on some packets are marked"
    )
    ecn_max_frames: int = Field(24, ge=3, le=65535, description="average queue from which on every packet is marked")
    ecn_probability: float = Field(
        0.1, gt=0, le=1, description="share that is marked just below ecn_max_frames; it rises evenly from 0"
    )

    @field_validator("ecn", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        """YAML reads a plain `off` as false."""
        return "off" if value is False else value


def refuse_unfit_marks(flow_control: FlowControlSection, transport: TransportSection) -> None:
    """Raises ValueError for thresholds out of order, and for transports that would not hear the marks."""
    low, high = flow_control.ecn_min_frames, flow_control.ecn_max_frames
    if low >= high:
        raise ValueError(f"flow_control.ecn_min_frames = {low} must be below flow_control.ecn_max_frames ({high})")
    if flow_control.ecn == "off":
        return
    if transport.kind != "tcp":
        why = {
            "udp": "its datagrams are not ECN-capable, since Swift goes by delay",
            "mooncake": "the engine's connections cannot be told apart, and the kernel gives them no dctcp",
        }[transport.kind]
        raise ValueError(
            f"flow_control.ecn = red does nothing for transport.kind = {transport.kind}: {why};"
            " use transport.kind: tcp, or ecn: off"
        )
    if transport.congestion_control not in ECN_CAPABLE:
        raise ValueError(
            f"transport.congestion_control = {transport.congestion_control} does not act on ECN marks, and"
            f" flow_control.ecn is red: use {' or '.join(ECN_CAPABLE)}, or ecn: off"
        )
    if high >= transport.asic_buffer_frames:
        raise ValueError(
            f"flow_control.ecn_max_frames = {high} must be below transport.asic_buffer_frames"
            f" ({transport.asic_buffer_frames}), and below one port's part of it"
        )
