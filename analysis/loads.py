"""How much each egress port, NIC and tier carried over a run, from its transfers: no samples needed.

Load: payload bytes of transfers that cross the port / goodput of the port / length of the stretch in which transfers
were under way (first submission to last byte). It is what the workload put on the port, where `analysis.ports` has what
was measured (headers and ACKs included, over the throughput window).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.handoff_flows import Flows
from analysis.ports import ROLES, port_infos
from topologies.fabric import End, port_name


@dataclass(frozen=True)
class Group:
    """Ports of one kind that carried something could have: `mean` and `busiest` load of them, and which is busiest."""

    by_port: Mapping[str, float]
    ports: int
    mean: float
    busiest: float
    busiest_port: str

    @property
    def imbalance(self) -> float:
        """Busiest over mean; 1 is even, NaN without traffic."""
        return self.busiest / self.mean if self.mean > 0 else float("nan")


@dataclass(frozen=True)
class Loads:
    """`by_port`: load of every egress port. `senders` and `receivers`: NIC ports, the idle ones too, of servers that
    send, or that receive or could. `core`: ports between switches that carried something. `nic_skew`: per server that
    sends, bytes of its busiest NIC over the mean of all its NICs; the mean over servers, weighted by bytes."""

    by_port: Mapping[str, float]
    senders: Group
    receivers: Group
    core: Group
    nic_skew: float
    busiest_nics: tuple[str, ...]
    span_s: float


def loads(flows: Flows, fabric: Mapping[str, Any], targets: Collection[str] = ()) -> Loads:
    """From the transfers of a run and its fabric. `targets`: GPUs and servers that could have received, and did not."""
    carried: defaultdict[str, float] = defaultdict(float)
    sent: defaultdict[str, float] = defaultdict(float)
    received: defaultdict[str, float] = defaultdict(float)
    infos = {port_name(End(*key)): info for key, info in port_infos(dict(fabric)).items()}
    node_of = {name: info.node for name, info in infos.items()}
    for flow in flows.flows:
        for lane, size in zip(flow.transfer.lanes, flow.lane_bytes, strict=True):
            for port in lane.ports:
                carried[port] += size
            sent[node_of[lane.ports[0]]] += size  # its NIC: over NVLink that of a neighbour
            received[lane.qp.dst.node] += size
    span = (
        max(flow.done_s for flow in flows.flows) - min(flow.submit_s for flow in flows.flows) if flows.flows else 0.0
    )
    by_port = {
        name: carried[name] / flows.capacities[name] / span if span > 0 else 0.0
        for name in infos
        if name in flows.capacities
    }
    server = {str(gpu["name"]): str(gpu["server"]) for gpu in fabric["gpus"]}
    servers: defaultdict[str, list[str]] = defaultdict(list)
    for gpu, name in server.items():
        servers[name].append(gpu)
    sending = {name for name in servers if any(sent[gpu] for gpu in servers[name])}
    aimed_at = {*targets, *(gpu for gpu, size in received.items() if size)}
    receiving = {name for name, gpus in servers.items() if aimed_at.intersection((name, *gpus))}
    skews, weights, busiest = 0.0, 0.0, []
    for name in sorted(sending):
        each = [sent[gpu] for gpu in servers[name]]
        skews += max(each) / (sum(each) / len(each)) * sum(each)
        weights += sum(each)
        busiest.append(max(servers[name], key=lambda gpu: sent[gpu]))
    return Loads(
        by_port=by_port,
        senders=_group(by_port, [n for n, i in infos.items() if i.role == ROLES[0] and server[i.node] in sending]),
        receivers=_group(by_port, [n for n, i in infos.items() if i.role == ROLES[2] and server[i.peer] in receiving]),
        core=_group(by_port, [n for n, i in infos.items() if i.role == ROLES[1] and carried[n]]),
        nic_skew=skews / weights if weights else float("nan"),
        busiest_nics=tuple(busiest),
        span_s=span,
    )


def _group(by_port: Mapping[str, float], names: list[str]) -> Group:
    found = {name: by_port[name] for name in names if name in by_port}
    if not found:
        return Group({}, 0, 0.0, 0.0, "")
    busiest = max(found, key=lambda name: (found[name], name))
    return Group(found, len(found), sum(found.values()) / len(found), found[busiest], busiest)
