"""The scenario: one YAML file says everything. Unknown keys are errors; each value has a unit in its name.

All values are in model units (400 Gb/s ports, GB of KV cache, seconds of service time), except those whose
name ends in `_wall_s` or `_raw`. `scenario.scale` says how model units become emulated ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from topologies.paths import POLICIES, default_policy
from topologies.routing import Routing


class Section(BaseModel):
    """A part of the scenario: frozen, and strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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


class ScaleSection(Section):
    """emulated rate = a * rate, wall time = d * model time, emulated bytes = a*d * bytes."""

    rate_factor: float | None = Field(None, ge=1e-9, le=1, description="a; default: from the check of the machine")
    dilation: float | None = Field(None, ge=0.01, le=1000, description="d; default: from a and the wanted resolution")
    resolution_frames: int = Field(
        50, ge=20, le=1000, description="frames per connection of the median handoff that d is chosen for"
    )
    frame_bytes: int = Field(9000, ge=576, le=9214, description="full Ethernet frame as the shaper counts it")


class ServingSection(Section):
    """The serving system: prefill and decode are timers (a compute model); their handoffs are real traffic."""

    model: str = Field("glm-5.1-fp8", description="KV preset, see `zcube kv --list`")
    shape: Literal["A", "D"] = Field(
        "D", description="A: rank i sends 1/TP to rank i (GQA); D: rank 0 sends all to one decode GPU (MLA)"
    )
    layout: Literal["split", "interleaved"] = Field(
        "split", description="split: first half of the servers prefill; interleaved: each block half and half"
    )
    block_servers: int = Field(4, ge=1, description="servers in a block (for interleaved and same_block)")
    pairing: Literal["any", "same_block"] = Field("any", description="which decode targets a prefill server may use")
    placement: Literal["round_robin", "least_loaded"] = Field(
        "round_robin", description="how the gateway picks the prefill server and the decode target"
    )
    transfer_mode: Literal["whole"] = Field("whole", description="whole: the prompt's KV is sent when prefill ends")
    prefix_cache: Literal["assumed"] = Field(
        "assumed", description="assumed: hits are drawn per request from a global store without fabric traffic"
    )
    prefill_base_ms: float = Field(30.0, ge=0, le=1e6, description="fixed time of a prefill batch")
    prefill_tokens_per_s_per_gpu: float = Field(5000.0, ge=1, le=1e9, description="uncached tokens/s of a prefill GPU")
    prefill_batch_tokens: int = Field(8192, ge=1, description="uncached tokens that one prefill batch may hold")
    prefill_kv_gb_per_gpu: float = Field(100.0, ge=0.001, le=1e6, description="KV memory, held until the handoff ends")
    decode_kv_gb_per_gpu: float = Field(160.0, ge=0.001, le=1e6, description="KV memory of a decode GPU")
    decode_slots_per_gpu: int = Field(64, ge=1, description="requests that a decode GPU serves at once")
    decode_step_ms: float = Field(20.0, gt=0, le=1e6, description="time per output token (compute model only)")
    decode_first_step_ms: float = Field(0.0, ge=0, le=1e6, description="0 where prefill makes the first token")
    gateway_delay_ms: float = Field(0.0, ge=0, le=1e6, description="from arrival to the prefill queue")
    transfer_overhead_ms: float = Field(0.0, ge=0, le=1e6, description="software constant added before each handoff")
    timeout_s: float = Field(120.0, ge=0.001, le=1e6, description="a request without first token by then has failed")


class CodingAgentWorkload(Section):
    """Closed loop of synthetic coding-agent sessions (statistics: traffic/coding_agent.py names each source)."""

    kind: Literal["coding_agent"] = "coding_agent"
    utilisation: float = Field(
        0.8, ge=0.001, le=1.5, description="offered prefill load as a share of prefill compute; sets the session count"
    )
    requests: int = Field(300, ge=1, le=1_000_000, description="measured requests")
    warmup_requests: int = Field(40, ge=0, le=1_000_000, description="served before them, not measured")
    max_input_tokens: int = Field(202_752, ge=1, description="context limit of the model; longer prompts are cut")
    think_scale: float = Field(1.0, ge=0.001, le=1000, description="multiplies every think time")


class AzureWorkload(Section):
    """Open-loop replay of a window of an Azure LLM inference trace (TIMESTAMP,ContextTokens,GeneratedTokens)."""

    kind: Literal["azure"] = "azure"
    path: Path = Field(description="CSV file")
    skip: int = Field(0, ge=0, description="rows to leave out at the start")
    requests: int = Field(300, ge=1, le=1_000_000, description="measured requests")
    warmup_requests: int = Field(0, ge=0, le=1_000_000, description="replayed before them, not measured")
    speedup: float = Field(1.0, ge=1e-6, le=1e6, description="divides every gap between arrivals")


Workload = Annotated[CodingAgentWorkload | AzureWorkload, Field(discriminator="kind")]


class TransportSection(Section):
    """The transport that stands for RDMA."""

    congestion_control: Literal["reno", "bbr", "cubic"] = Field("reno", description="set on each socket")
    inflight_cap_frames: int = Field(16, ge=2, le=1024, description="frames in flight per connection at most")
    chunk_frames: int = Field(4, ge=1, le=64, description="what a port pulls at a time under adaptive striping")
    asic_buffer_frames: int = Field(16384, ge=64, description="queue limit of one switch ASIC, shared by its ports")


class FaultEvent(Section):
    """Cables and switches that go down or come back at one moment; a switch is all its cables."""

    at_s: float = Field(ge=0, le=1e6, description="model seconds from the start of serving")
    down: tuple[str, ...] = Field((), description="names of cables and switches (`zcube fabric show`)")
    up: tuple[str, ...] = Field((), description="the same, to come back")


class TelemetrySection(Section):
    """What is sampled, and how often (per wall second, since switches run in wall time)."""

    samples_per_frame_time: float = Field(2.0, gt=0, le=20, description="per frame time at half the NIC rate")
    gpu_hz: float = Field(100.0, gt=0, le=1000, description="GPU ports")
    backlog_threshold_frames: int = Field(16, ge=1, description="what counts as excess backlog")
    openflow_hz: float = Field(1.0, ge=0, le=20, description="polls of every switch's OpenFlow counters; 0: none")


class SwapFault(Section):
    """Two plugs exchanged."""

    kind: Literal["swap"] = "swap"
    a: str = Field(description="interface that holds one of the plugs, such as odd1-eth9")
    b: str = Field(description="interface that holds the other")


class WrongPortFault(Section):
    """One plug in another port."""

    kind: Literal["wrong_port"] = "wrong_port"
    cable: str = Field(description="cable id, such as odd1-eth9--even2-eth9, or the interface whose plug moves")
    to: str = Field(description="interface without a cable: one of a missing cable, or one past a switch's last")


class MissingFault(Section):
    """A cable that was not laid."""

    kind: Literal["missing"] = "missing"
    cable: str = Field(description="cable id, or the interface at either of its ends")


Miscable = Annotated[SwapFault | WrongPortFault | MissingFault, Field(discriminator="kind")]


class FaultsSection(Section):
    """What is wrong from the start, and what breaks while serving."""

    events: tuple[FaultEvent, ...] = Field((), max_length=1000, description="in any order")
    miscable: tuple[Miscable, ...] = Field(
        (), description="cables plugged otherwise than planned, one after another: a run must find them, and not start"
    )


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
    telemetry: TelemetrySection = TelemetrySection()
    faults: FaultsSection = FaultsSection()

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

    @property
    def policy(self) -> str:
        """The path policy after `auto` is resolved."""
        return default_policy(self.fabric.kind) if self.routing.policy == "auto" else self.routing.policy

    @property
    def paths(self) -> Routing:
        """What decides queue pairs and paths."""
        return Routing(self.policy, self.routing.queue_pairs, self.seed, self.routing.detour)
