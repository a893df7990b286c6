"""What a scenario asks of the network, before anything starts: senders, handoff sizes, and the window that counts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from scenario.background_section import IperfBackground
from scenario.errors import InputError
from scenario.models import Scenario
from scenario.scale import Scale, switch_hops_per_s
from topologies.fabric import Fabric
from traffic.background import background_pairs
from traffic.flow_engine import crosses_fabric
from traffic.flow_sources import FlowSource
from traffic.kv import model_of
from traffic.nic_map import nic_map
from traffic.requests import Request, Source
from traffic.shapes import Flow, carried, decode_targets, handoff, planned_pairs, prefill_instances


@dataclass(frozen=True)
class Demand:
    """`senders_gbps`: sum of the NIC rates that can send at once; `hops`: switches on the longest path.

    `median_transfer_bytes`: model bytes of the median flow (GPU to GPU) of a measured handoff, or of the parts in which
    it is sent;
    `queue_pairs_per_transfer`: over how many it is split; `window_s`: first to last nominal measured arrival.
    """

    senders_gbps: float
    hops: int
    median_transfer_bytes: float
    queue_pairs_per_transfer: int
    window_s: tuple[float, float]

    def hops_per_s(self, scale: Scale) -> float:
        """Switch-hops a second with every sender at line rate, ACKs counted."""
        return switch_hops_per_s(scale.rate_factor, self.senders_gbps, self.hops, scale.frame_bytes)

    def resolution_frames(self, scale: Scale) -> float:
        """Frames per queue pair of the median handoff."""
        return scale.resolution_frames(self.median_transfer_bytes, self.queue_pairs_per_transfer)


def demand(scenario: Scenario, fabric: Fabric, source: Source) -> Demand:
    """Work it out from the plan and the fixed set of requests."""
    pairs = pairs_of(scenario, source)
    median_bytes = _median_flow(scenario, source)
    routing = scenario.paths
    one = replace(routing, per_port_pair=1) if scenario.routing.qp_policy == "round_robin" else routing
    # A sprayed port pair counts once: the paths of its connections share the frames, one by one.
    pieces = {
        (qp.src.port, qp.dst.port, 0 if routing.policy == "spray" else qp.index)
        for qp in one.queue_pairs(fabric, *pairs[0])
    }
    paced = _paced(scenario)
    hops = max(
        len(routing.path(fabric, qp).switches)
        for src, dst in [*pairs, *paced]
        for qp in routing.queue_pairs(fabric, src, dst)
    )
    gpu_gbps = scenario.fabric.gpu_gbps
    senders = {src for src, _ in pairs}
    beside: dict[str, float] = {}  # iperf3 from NICs that send nothing else
    for (src, _), gbps in paced.items():
        if src not in senders:
            beside[src] = min(gpu_gbps, beside.get(src, 0.0) + gbps)
    return Demand(
        senders_gbps=gpu_gbps * len(senders) + sum(beside.values()),
        hops=hops,
        median_transfer_bytes=median_bytes,
        queue_pairs_per_transfer=len(pieces),
        window_s=arrival_window_s(source),
    )


def pairs_of(scenario: Scenario, source: Source) -> list[tuple[str, str]]:
    """Every (source NIC, destination NIC), by GPU, that agents need connections for, each once: those of the workload
    first, then those of the background that are flows. Raises InputError where nothing crosses the fabric."""
    if isinstance(source, FlowSource):
        found = dict.fromkeys((f.src, f.dst) for f in source.plan.flows if crosses_fabric(scenario, f))
        if not found:
            raise InputError(
                "workload.in_server", getattr(scenario.workload, "in_server", "nvlink"),
                "no flow crosses the fabric: all stay in a server", "workload.in_server: fabric, or other GPUs",
            )  # fmt: skip
    else:
        found = dict.fromkeys(planned_pairs(scenario))
        if not found:
            serving = scenario.serving
            raise InputError(
                "serving.layout", serving.layout,
                f"no flow crosses the fabric: with shape {serving.shape} and pairing {serving.pairing} all handoffs"
                " stay in a server", "serving.pairing: any, serving.block_servers: 2 or more, or another layout",
            )  # fmt: skip
    for item in scenario.background:
        if not isinstance(item, IperfBackground):
            found |= dict.fromkeys(background_pairs(scenario, item))
    return list(found)


def _paced(scenario: Scenario) -> dict[tuple[str, str], float]:
    """Pair -> Gb/s of iperf3 between them."""
    found: dict[tuple[str, str], float] = {}
    for item in scenario.background:
        if isinstance(item, IperfBackground):
            for pair in background_pairs(scenario, item):
                found[pair] = found.get(pair, 0.0) + item.gbps
    return found


def _median_flow(scenario: Scenario, source: Source) -> float:
    """Model bytes of the median flow that is measured."""
    if isinstance(source, FlowSource):
        ids = source.plan.measured_ids
        measured_flows = (f for f in source.plan.flows if f.message in ids)
        return float(statistics.median(f.size_bytes for f in measured_flows if crosses_fabric(scenario, f)))
    model = model_of(scenario.serving)
    measured_ids = source.measured_ids
    measured = [r for r in source.requests if r.request_id in measured_ids]
    delta = scenario.serving.transfer_content == "delta"
    sent = (max(1, r.input_tokens - r.cached_tokens) if delta else r.input_tokens for r in measured)
    median_bytes = statistics.median(map(model.kv_bytes, sent))
    flows = _flows_of_one(scenario, int(median_bytes))
    parts = _parts(scenario, statistics.median(map(_computed, measured)))
    return float(statistics.median(flow.bytes for flow in flows)) / parts


def _computed(request: Request) -> int:
    return max(1, request.input_tokens - request.cached_tokens)


def _parts(scenario: Scenario, computed_tokens: float) -> int:
    """In how many parts, one after the other, a median handoff is sent: each is a transfer of its own."""
    serving = scenario.serving
    if serving.transfer_mode == "layerwise":
        return serving.layer_groups
    if serving.transfer_mode == "chunked" and serving.chunked_prefill:
        return max(1, -(-round(computed_tokens) // serving.prefill_batch_tokens))
    return 1


def _flows_of_one(scenario: Scenario, size: int) -> list[Flow]:
    """The flows of a handoff of `size` bytes between the first instances, as NICs carry them."""
    prefill = prefill_instances(scenario)[0]
    other = [target for target in decode_targets(scenario, prefill) if target.server != prefill.server]
    target = (other or decode_targets(scenario, prefill))[0]
    nics = nic_map(scenario.serving.nic_map, scenario.fabric.gpus_per_server)
    flows = handoff(scenario.serving.shape, prefill.gpus, target.gpus, size)
    return [part for flow in flows for part in carried(scenario, nics, flow, 0)]


def arrival_window_s(source: Source) -> tuple[float, float]:
    """First to last arrival of what is measured and waits for nothing; a second, where there is only one instant:
    throughput needs a stretch of time."""
    measured_ids = source.measured_ids
    arrivals = [at for at, request in source.initial() if request.request_id in measured_ids]
    first, last = (min(arrivals), max(arrivals)) if arrivals else (0.0, 0.0)
    return (first, last) if last > first else (first, first + 1.0)
