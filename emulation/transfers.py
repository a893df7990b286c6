"""Rows of the transfers table, and the actual transfers replayed through the max-min reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from emulation.serve import SentTransfer
from scenario.fault_names import slow_ports
from scenario.models import Scenario
from scenario.scale import Scale
from topologies.fabric import Fabric, FabricError
from topologies.fluid import BYTES_PER_S_PER_GBPS, Lane, Transfer, isolated_s, lanes, paced, replay, slowed
from topologies.paths import Path, QueuePair
from topologies.routes import NONE, Failures
from topologies.routing import Routing


@dataclass(frozen=True)
class Reference:
    """Durations in model seconds: in the replay with everyone else, and alone."""

    ideal_s: float
    isolated_s: float


@dataclass
class PathHistory:
    """Which path a queue pair had when. `ways`: while nothing fails; `failures_since`: (monotonic ns, failures)."""

    fabric: Fabric
    routing: Routing
    ways: Mapping[QueuePair, Path]
    failures_since: Sequence[tuple[int, Failures]]

    def links(self, qp: QueuePair, submitted_ns: int, ended_ns: int) -> list[str]:
        """Cables of the path at the start of a handoff, or at its end where the queue pair came in later. Empty where
        nobody knows it: after a failure, a switch's own hash (`ecmp_ovs`) may have picked again."""
        for t_ns in (submitted_ns, ended_ns):
            failures = next((f for since_ns, f in reversed(self.failures_since) if since_ns <= t_ns), NONE)
            whole = self.ways.get(qp)
            if whole is not None and not self._hit(whole, failures):
                return list(whole.links)
            if failures and self.routing.planned:
                try:
                    return list(self.routing.path(self.fabric, qp, failures).links)
                except FabricError:
                    continue
        return []

    def _hit(self, way: Path, failures: Failures) -> bool:
        return bool(failures.links.intersection(way.links) or failures.switches.intersection(way.switches))


def goodput_capacities(fabric: Fabric, scale: Scale) -> dict[str, float]:
    """Model bytes/s of payload that each egress port can carry, headers taken off."""
    return {
        port.name: scale.goodput_gbps(port.gbps) * BYTES_PER_S_PER_GBPS
        for owner in fabric.nodes
        for port in owner.ports
    }


def references(
    fabric: Fabric,
    scenario: Scenario,
    scale: Scale,
    sent: Iterable[SentTransfer],
    ways: Mapping[QueuePair, Path],
) -> dict[int, Reference]:
    """Replay the transfers that finished, with their actual start times, queue pairs and paths (`ways`).

    What the replay leaves out: store-and-forward (one frame time a hop) and TCP. A transfer that was cancelled or did
    not finish is not in it, so a run with time-outs compares less.
    """
    capacities = slowed(goodput_capacities(fabric, scale), slow_ports(scenario, fabric))
    pacing_gbps = scenario.transport.pacing_gbps
    pace = scale.goodput_gbps(pacing_gbps) * BYTES_PER_S_PER_GBPS if pacing_gbps else None
    cache: dict[tuple[str, str], tuple[Lane, ...]] = {}
    starts: list[tuple[Transfer, float]] = []
    alone: dict[tuple[str, str], float] = {}
    for item in sent:
        if item.done is None:
            continue
        pair = item.order.src_gpu, item.order.dst_gpu
        if pair not in cache:
            cache[pair] = paced(lanes(fabric, *pair, scenario.paths, ways), capacities, pace)
        used = {part.queue_pair for part in item.done.parts}
        chosen = cache[pair]
        if scenario.routing.qp_policy == "round_robin":
            turns = {qp.index for qp in used}
            chosen = tuple(lane for lane in chosen if lane.qp.index in turns)
        transfer = Transfer(item.order.transfer_id, item.order.bytes, chosen, scenario.routing.striping)
        starts.append((transfer, item.t_submit_s))
        if pair not in alone:
            one_gb = Transfer(0, 1e9, chosen, scenario.routing.striping)
            alone[pair] = isolated_s(capacities, one_gb) / 1e9
    done_s = replay(capacities, starts)
    return {
        transfer.transfer_id: Reference(
            done_s[transfer.transfer_id] - start_s,
            alone[transfer.lanes[0].qp.src.node, transfer.lanes[0].qp.dst.node] * transfer.bytes,
        )
        for transfer, start_s in starts
    }


def rows(
    fabric: Fabric,
    scenario: Scenario,
    scale: Scale,
    sent: Iterable[SentTransfer],
    reference: Mapping[int, Reference],
    start_ns: int,
    history: PathHistory,
) -> list[dict[str, object]]:
    """One row per handoff and queue pair; an unfinished handoff has one row without path and end."""
    found: list[dict[str, object]] = []
    for item in sent:
        order = item.order
        common: dict[str, object] = {
            "transfer_id": order.transfer_id,
            "request_id": order.request_id,
            "src_gpu": order.src_gpu,
            "dst_gpu": order.dst_gpu,
            "t_submit_s": item.t_submit_s,
            "attempt": order.attempt,
            "kind": order.kind,
            "piece": order.piece,
        }
        if item.done is None:
            found.append({**common, "bytes": order.bytes, "t_done_s": math.nan, "path": [], "status": "unfinished"})
            continue
        ideal = reference.get(order.transfer_id, Reference(math.nan, math.nan))
        payload = sum(part.payload_bytes for part in item.done.parts)
        submitted_ns = start_ns + round(item.t_submit_s * scale.dilation * 1e9)
        for part in item.done.parts:
            found.append(
                {
                    **common,
                    "src_port": part.queue_pair.src.port,
                    "dst_port": part.queue_pair.dst.port,
                    "qp": part.queue_pair.index,
                    "path": history.links(part.queue_pair, submitted_ns, part.t_ns),
                    "bytes": round(order.bytes * part.payload_bytes / payload),
                    "wire_bytes_raw": scale.wire_bytes(part.payload_bytes),
                    "t_done_s": (part.t_ns - start_ns) / 1e9 / scale.dilation,
                    "ideal_s": ideal.ideal_s,
                    "isolated_s": ideal.isolated_s,
                    "status": "ok",
                }
            )
    return found
