"""The scenario's fabric, and how queue pairs find their way over it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from scenario.section import Section

#: Data planes; the first is the default.
SWITCHES = ("ovs", "linux")


class FabricSection(Section):
    """Which fabric, and its free parameters."""

    kind: Literal["zcube", "zcube_recursive", "roft", "rail_only", "hpn", "clos", "fat_tree"] = Field(
        "zcube", description="which wiring rule; docs/fabrics.md explains each"
    )
    gpus: int = Field(32, ge=2, le=16384, description="N, numbered from 1")
    gpus_per_server: Literal[1, 2, 4, 8, 16] = Field(4, description="GPUs that share a server")
    gpu_gbps: float = Field(400.0, ge=1, le=6400, description="NIC bandwidth of one GPU, one direction")
    asic_ports: int = Field(
        8, ge=2, le=512, description="R: ports of NIC speed on one switch ASIC; zcube uses 2R ports of half speed"
    )
    gpus_per_switch: int | None = Field(
        None, ge=1, le=254, description="k, zcube only; default R, which is what one ASIC carries at 1:1"
    )
    links_per_pair: int | None = Field(
        None, ge=1, le=128, description="m, zcube only: parallel links per odd-even pair; default k*k/N (1:1)"
    )
    gpus_per_leaf: int | None = Field(
        None, ge=1, le=254, description="roft, clos: GPU ports of a leaf; default R/2; above uplinks: oversubscribed"
    )
    uplinks_per_leaf: int | None = Field(None, ge=1, le=511, description="roft, clos: default R/2 (1:1)")
    tiers: Literal[1, 2, 3] | None = Field(
        None, description="roft: 2 or 3, default 2 where it fits; rail_only: 1 or 2, default 2 where it fits"
    )
    levels: Literal[2, 3] = Field(2, description="zcube_recursive: levels of ZCube(n, levels) of n^levels GPUs")
    partial: bool = Field(False, description="zcube_recursive with 3 levels: the partial form (no GPU port on top)")
    equal_cost: bool = Field(
        False, description="roft: two tiers oversubscribed to about the switch count of ZCube (2N/R)"
    )
    bundle: Literal["destination", "hashed", "trunk"] = Field(
        "destination",
        description="zcube with m > 1: member by destination, by queue pair, or one link of m times the rate",
    )
    switch: Literal["ovs", "linux"] = Field(
        "ovs",
        description="data plane of an emulation: Open vSwitch with an OpenFlow controller, or the kernel's own IP"
        " forwarding with static routes (docs/dataplanes.md)",
    )

    @property
    def wiring(self) -> dict[str, Any]:
        """All settings but the data plane: what makes the graph, as the controller's plan takes it."""
        return self.model_dump(exclude={"switch"})


class RoutingSection(Section):
    """How a queue pair finds its path, and how a handoff is spread over queue pairs."""

    policy: Literal["auto", "unique", "shortest", "ecmp", "ecmp_ovs", "spray"] = Field(
        "auto",
        description="auto: unique on zcube, ecmp elsewhere; ecmp_ovs: the switches' own hash; spray: frame by frame"
        " over all equal paths",
    )
    detour: bool = Field(
        False, description="after failures a pair without any of its own paths takes whatever way is left, however long"
    )
    queue_pairs: int = Field(1, ge=1, le=16, description="queue pairs per (source port, destination port)")
    qp_policy: Literal["split", "round_robin"] = Field(
        "split", description="split: a handoff over all queue pairs; round_robin: one queue pair per handoff"
    )
    striping: Literal["adaptive", "static"] = Field(
        "adaptive",
        description="over a GPU's ports: adaptive = ports pull chunks of 4 frames; static = equal shares",
    )
