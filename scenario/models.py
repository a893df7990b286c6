"""The scenario: one YAML file says everything. Unknown keys are errors; each value has a unit in its name.

All values are in model units (400 Gb/s ports, GB of KV cache, seconds of service time), except those whose
name ends in `_wall_s` or `_raw`. `scenario.scale` says how model units become emulated ones.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from scenario.background_section import BackgroundItem
from scenario.fabric_section import FabricSection, RoutingSection
from scenario.faults_section import (
    FaultEvent,
    FaultsSection,
    Miscable,
    MissingFault,
    SlowCable,
    SwapFault,
    WrongPortFault,
)
from scenario.fidelity_section import FidelitySection
from scenario.flow_control_section import FlowControlSection, refuse_unfit_marks
from scenario.section import Section
from scenario.serving_section import ServingSection
from scenario.simulation_section import SimulationSection
from scenario.transport_section import TransportSection, refuse_for_mooncake
from scenario.workload_section import CodingAgentWorkload, Workload
from topologies.paths import POLICIES, TCP, UDP, default_policy
from topologies.routing import Routing

__all__ = [
    "CodingAgentWorkload",
    "FabricSection",
    "FaultEvent",
    "FaultsSection",
    "FidelitySection",
    "FlowControlSection",
    "Miscable",
    "MissingFault",
    "RoutingSection",
    "ScaleSection",
    "Scenario",
    "Section",
    "ServingSection",
    "SimulationSection",
    "SlowCable",
    "SwapFault",
    "TelemetrySection",
    "TransportSection",
    "Workload",
    "WrongPortFault",
]


class ScaleSection(Section):
    """emulated rate = a * rate, wall time = d * model time, emulated bytes = a*d * bytes."""

    rate_factor: float | None = Field(None, ge=1e-9, le=1, description="a; default: from the check of the machine")
    dilation: float | None = Field(None, ge=0.01, le=1000, description="d; default: from a and the wanted resolution")
    resolution_frames: int = Field(
        50, ge=20, le=1000, description="frames per connection of the median handoff that d is chosen for"
    )
    frame_bytes: int = Field(9000, ge=576, le=9214, description="full Ethernet frame as the shaper counts it")


class TelemetrySection(Section):
    """What is sampled, and how often (per wall second, since switches run in wall time)."""

    samples_per_frame_time: float = Field(2.0, gt=0, le=20, description="per frame time at half the NIC rate")
    gpu_hz: float = Field(100.0, gt=0, le=1000, description="GPU ports")
    backlog_threshold_frames: int = Field(16, ge=1, description="what counts as excess backlog")
    xoff_frames: int = Field(
        16, ge=1, le=10**6, description="would-pause model: a port would pause its neighbours from this backlog on"
    )
    xon_frames: int = Field(8, ge=0, le=10**6, description="until it is at this or below; less than xoff_frames")
    openflow_hz: float = Field(1.0, ge=0, le=20, description="polls of every switch's OpenFlow counters; 0: none")

    @model_validator(mode="after")
    def _xon_below_xoff(self) -> TelemetrySection:
        if self.xon_frames >= self.xoff_frames:
            raise ValueError(
                f"telemetry.xon_frames = {self.xon_frames} must be below telemetry.xoff_frames = {self.xoff_frames}"
            )
        return self


class Scenario(Section):
    """Everything that defines a run."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="label; letters, digits, . _ -")
    seed: int = Field(1, ge=0, lt=2**63, description="each random draw is keyed by it")
    fabric: FabricSection = FabricSection()
    routing: RoutingSection = RoutingSection()
    scale: ScaleSection = ScaleSection()
    serving: ServingSection = ServingSection()
    workload: Workload = CodingAgentWorkload()
    transport: TransportSection = TransportSection()
    flow_control: FlowControlSection = FlowControlSection()
    telemetry: TelemetrySection = TelemetrySection()
    fidelity: FidelitySection = FidelitySection()
    faults: FaultsSection = FaultsSection()
    simulation: SimulationSection = SimulationSection()
    background: tuple[BackgroundItem, ...] = Field((), max_length=100, description="traffic beside the workload")

    @model_validator(mode="after")
    def _servers_fit(self) -> Scenario:
        gpus, per_server = self.fabric.gpus, self.fabric.gpus_per_server
        if gpus % per_server:
            below = gpus // per_server * per_server
            near = ", ".join(str(n) for n in (below, below + per_server) if n)
            raise ValueError(
                f"fabric.gpus = {gpus} is not a multiple of fabric.gpus_per_server = {per_server}; nearest: {near}"
            )
        return self

    @model_validator(mode="after")
    def _policy_fits(self) -> Scenario:
        policy, kind = self.routing.policy, self.fabric.kind
        if policy == "unique" and kind != "zcube":
            others = ", ".join(("auto", *POLICIES[1:]))
            raise ValueError(f"routing.policy = {policy} is ZCube's own; {kind} has {others}")
        if policy == "spray":
            for name, value, needed in (
                ("queue_pairs", self.routing.queue_pairs, 1),
                ("qp_policy", self.routing.qp_policy, "split"),
            ):
                if value != needed:
                    raise ValueError(
                        f"routing.{name} = {value} cannot be sprayed: spray makes a connection for each equal path"
                        f" itself; leave it at {needed}"
                    )
        return self

    @model_validator(mode="after")
    def _mooncake_fits(self) -> Scenario:
        if self.transport.kind == "mooncake":
            refuse_for_mooncake(self.fabric, self.routing, self.policy, self.transport, self.faults)
        return self

    @model_validator(mode="after")
    def _marks_fit(self) -> Scenario:
        refuse_unfit_marks(self.flow_control, self.transport)
        return self

    @model_validator(mode="after")
    def _data_plane_fits(self) -> Scenario:
        if self.fabric.switch == "linux" and self.faults.events:
            raise ValueError(
                f"faults.events ({len(self.faults.events)}) cannot be played with fabric.switch = linux: nobody repairs"
                " routes there without the controller; use fabric.switch: ovs"
            )
        return self

    @property
    def policy(self) -> str:
        """The path policy after `auto` is resolved. Where several paths are equal and nobody plans the ports of
        connections (mooncake), the switches' own hash picks one."""
        if self.routing.policy != "auto":
            return self.routing.policy
        own = default_policy(self.fabric.kind)
        return "ecmp_ovs" if self.transport.kind == "mooncake" and own == "ecmp" else own

    @property
    def paths(self) -> Routing:
        """What decides queue pairs and paths."""
        protocol = UDP if self.transport.kind == "udp" else TCP
        return Routing(self.policy, self.routing.queue_pairs, self.seed, self.routing.detour, protocol)
