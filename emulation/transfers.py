"""Rows of the transfers table, and the actual transfers replayed through the max-min reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from emulation.serve import SentTransfer
from scenario.models import Scenario
from scenario.scale import Scale
from topologies.fabric import Fabric
from topologies.fluid import BYTES_PER_S_PER_GBPS, Lane, Transfer, isolated_s, lanes, replay
from topologies.paths import path


@dataclass(frozen=True)
class Reference:
    """Durations in model seconds: in the replay with everyone else, and alone."""

    ideal_s: float
    isolated_s: float


def goodput_capacities(fabric: Fabric, scale: Scale) -> dict[str, float]:
    """Model bytes/s of payload that each egress port can carry, headers taken off."""
    return {
        port.name: scale.goodput_gbps(port.gbps) * BYTES_PER_S_PER_GBPS
        for owner in fabric.nodes
        for port in owner.ports
    }


def references(
    fabric: Fabric, scenario: Scenario, scale: Scale, sent: Iterable[SentTransfer]
) -> dict[int, Reference]:
    """Replay the transfers that finished, with their actual start times and queue pairs.

    What the replay leaves out: store-and-forward (one frame time a hop) and TCP. A transfer that was cancelled or did
    not finish is not in it, so a run with time-outs compares less.
    """
    capacities = goodput_capacities(fabric, scale)
    cache: dict[tuple[str, str], tuple[Lane, ...]] = {}
    starts: list[tuple[Transfer, float]] = []
    alone: dict[tuple[str, str], float] = {}
    for item in sent:
        if item.done is None:
            continue
        pair = item.order.src_gpu, item.order.dst_gpu
        if pair not in cache:
            cache[pair] = lanes(fabric, *pair, scenario.routing.queue_pairs, scenario.seed)
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
            "attempt": 1,
        }
        if item.done is None:
            found.append({**common, "bytes": order.bytes, "t_done_s": math.nan, "path": [], "status": "unfinished"})
            continue
        ideal = reference.get(order.transfer_id, Reference(math.nan, math.nan))
        payload = sum(part.payload_bytes for part in item.done.parts)
        for part in item.done.parts:
            found.append(
                {
                    **common,
                    "src_port": part.queue_pair.src.port,
                    "dst_port": part.queue_pair.dst.port,
                    "qp": part.queue_pair.index,
                    "path": list(path(fabric, part.queue_pair, scenario.seed).links),
                    "bytes": round(order.bytes * part.payload_bytes / payload),
                    "wire_bytes_raw": scale.wire_bytes(part.payload_bytes),
                    "t_done_s": (part.t_ns - start_ns) / 1e9 / scale.dilation,
                    "ideal_s": ideal.ideal_s,
                    "isolated_s": ideal.isolated_s,
                    "status": "ok",
                }
            )
    return found
