"""The scenario's transport: what stands for RDMA, and what each kind can not do."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scenario.fabric_section import FabricSection, RoutingSection
from scenario.faults_section import FaultsSection
from scenario.section import Section


class TransportSection(Section):
    """The transport that stands for RDMA."""

    kind: Literal["tcp", "udp", "mooncake"] = Field(
        "tcp",
        description="tcp: a connection per queue pair; udp: paced datagrams, selective repair, Swift; mooncake: writes"
        " of the Mooncake Transfer Engine over TCP (an extra: bash vagrant/setup.sh --mooncake)",
    )
    congestion_control: Literal["reno", "bbr", "cubic", "dctcp"] = Field(
        "reno",
        description="tcp, mooncake: of each connection; dctcp (tcp alone) needs a kernel that has it, and marks of"
        " flow_control.ecn, without which it is much as reno",
    )
    pacing_gbps: float | None = Field(
        None, gt=0, le=6400, description="line rate that one queue pair sends at most, headers included; default: none"
    )
    inflight_cap_frames: int = Field(16, ge=2, le=1024, description="frames in flight per connection at most")
    chunk_frames: int = Field(4, ge=1, le=64, description="what a port pulls at a time under adaptive striping")
    asic_buffer_frames: int = Field(16384, ge=64, description="queue limit of one switch ASIC, shared by its ports")


def refuse_for_mooncake(
    fabric: FabricSection, routing: RoutingSection, policy: str, transport: TransportSection, faults: FaultsSection
) -> None:
    """Raises ValueError for settings that do not hold where the Mooncake Transfer Engine carries handoffs: it chooses
    its ports, writes each part over one connection, and does not move a connection whose path is gone."""
    if policy not in ("unique", "ecmp_ovs"):
        raise ValueError(
            f"routing.policy = {policy} plans the ports of connections, and transport.kind = mooncake chooses its own:"
            " use auto (ZCube: unique paths, by address; elsewhere: ecmp_ovs, the switches' own hash)"
        )
    if policy == "unique" and fabric.bundle == "hashed":
        raise ValueError(
            "fabric.bundle = hashed plans the ports of connections, and transport.kind = mooncake chooses its own:"
            " use destination or trunk, or routing.policy: ecmp_ovs"
        )
    if transport.congestion_control == "dctcp":
        raise ValueError(
            "transport.congestion_control = dctcp cannot be had with transport.kind = mooncake: the kernel has it per"
            " socket, not as the default of a namespace; use reno or bbr"
        )
    own = TransportSection()
    for name, value, needed, why in (
        ("routing.striping", routing.striping, "static", "a handoff is one write of equal size for each port"),
        ("routing.queue_pairs", routing.queue_pairs, 1, "a pair of engines keeps one connection"),
        ("transport.pacing_gbps", transport.pacing_gbps, None, "the engine does not pace"),
        ("transport.chunk_frames", transport.chunk_frames, own.chunk_frames, "nothing is pulled in chunks"),
    ):
        if value != needed:
            shown = "no value (null)" if needed is None else needed
            raise ValueError(f"{name} = {value} cannot be had with transport.kind = mooncake: {why}; use {shown}")
    if faults.events:
        raise ValueError(
            f"faults.events ({len(faults.events)}) cannot be played with transport.kind = mooncake: the engine gives a"
            " write up when its connection breaks; use transport.kind: tcp or udp, which send the rest by other ways"
        )
