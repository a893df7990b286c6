"""Sends probe packets over a fabric that is up, and says for each flow where they were planned and where they went.

A packet is known by its 5-tuple and by a marker at the start of its payload (an ICMP error quotes the packet it is
about, so the marker alone will not do).
"""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from dataclasses import asdict, dataclass

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from controller.rules import hashed_ports
from emulation.netns import entered
from emulation.probe_path import Observed, Sighting, follow
from emulation.watch import Instruction, Nodes, Watch
from topologies import paths
from topologies.fabric import End
from topologies.paths import FiveTuple, QueuePair, five_tuple, flow_path, shares
from topologies.routes import NONE, Failures
from topologies.tables import Tables

#: A probe that is on its way is there within milliseconds; the first one waits for the switches to set up its flow.
ARRIVES_WITHIN_S = 3.0
#: Copies that went elsewhere may be a little later.
STRAYS_WITHIN_S = 0.05
#: Identification field of every probe's IPv4 header.
IPV4_ID = 0x5A43


@dataclass(frozen=True)
class Probe:
    """A flow to probe between the ports of `qp`. `planned`: the controller has been told of it; `seed` is that of its
    hash. `failures`: what the routes go round now."""

    qp: QueuePair
    flow: FiveTuple
    planned: bool
    seed: int
    count: int
    failures: Failures = NONE
    detour: bool = False


def gather(watch: Watch, flow: FiveTuple, markers: list[bytes], last: End) -> dict[bytes, list[Sighting]]:
    """Marker -> where its packet was seen. Waits until all are at `last`, or ARRIVES_WITHIN_S."""
    found: dict[bytes, list[Sighting]] = defaultdict(list)
    missing = set(markers)
    deadline = time.monotonic() + ARRIVES_WITHIN_S
    while (left_s := deadline - time.monotonic()) > 0:
        for end, way, data in watch.frames(left_s):
            marker = next((marker for marker in markers if marker in data), None)
            if marker is None or (mac := _mac_if_of(data, flow, marker)) is None:
                continue
            found[marker].append(Sighting(end, way, mac))  # type: ignore[arg-type]
            if end == last and way == "in" and marker in missing:
                missing.discard(marker)
                if not missing:
                    deadline = time.monotonic() + STRAYS_WITHIN_S
    return found


def packet(flow: FiveTuple, marker: bytes) -> Packet:
    """A probe: a lone data segment or datagram, with IPV4_ID. Hosts send without ARP, so its destination MAC is zero at
    first. Its TCP or UDP checksum is wrong: switches do not look, the destination's kernel drops it, and no socket of a
    flow that is there gets bytes which its peer never sent."""
    layer_4 = (
        TCP(sport=flow.src_port, dport=flow.dst_port, flags="PA", seq=1, ack=1)
        if flow.protocol == paths.TCP
        else UDP(sport=flow.src_port, dport=flow.dst_port)
    )
    made = Ether(dst="00:00:00:00:00:00") / IP(id=IPV4_ID, src=flow.src_ip, dst=flow.dst_ip) / layer_4 / Raw(marker)
    right = Ether(bytes(made)).getlayer(type(layer_4)).chksum
    made.getlayer(type(layer_4)).chksum = right ^ 1 or 2  # not 0: that is "none" in UDP
    return made


def only_probes(protocol: int) -> tuple[Instruction, ...]:
    """A filter for probes of a protocol among everything else on an interface, by IPV4_ID. A packet of somebody else's
    may pass, once in 65,536; it has no marker."""
    return (
        (0x28, 0, 0, 12), (0x15, 0, 5, 0x0800),
        (0x30, 0, 0, 23), (0x15, 0, 3, protocol),
        (0x28, 0, 0, 18), (0x15, 0, 1, IPV4_ID),
        (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0),
    )  # fmt: skip


def _mac_if_of(data: bytes, flow: FiveTuple, marker: bytes) -> str | None:
    """Destination MAC of a frame that is a probe of `flow` with this marker; None for anything else."""
    frame = Ether(data)
    kind = TCP if flow.protocol == paths.TCP else UDP
    ip, layer_4 = frame.getlayer(IP), frame.getlayer(kind)
    if ip is None or layer_4 is None or ip.payload is not layer_4:
        return None
    seen = FiveTuple(ip.src, ip.dst, ip.proto, layer_4.sport, layer_4.dport)
    return str(frame.dst) if seen == flow and bytes(layer_4.payload).startswith(marker) else None


def observe(net: Nodes, watch: Watch, qp: QueuePair, flow: FiveTuple, count: int) -> list[Observed]:
    """Send `count` probes of a flow from the source GPU's namespace and follow each."""
    markers = [b"zcube-probe-" + os.urandom(12).hex().encode() for _ in range(count)]
    nic = net.fabric.port(qp.src.node, qp.src.port)
    with entered(net.node_pid(qp.src.node)):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with sender:
        sender.bind((nic.name, 0))
        for marker in markers:
            sender.send(bytes(packet(flow, marker)))
    seen = gather(watch, flow, markers, qp.dst)
    return [follow(net.fabric, qp.src, qp.dst, seen[marker]) for marker in markers]


def probe(net: Nodes, watch: Watch, what: Probe) -> dict[str, object]:
    """Send it, and compare; JSON, see docs/controller.md."""
    fabric, qp, flow = net.fabric, what.qp, what.flow
    observed = observe(net, watch, qp, flow, what.count)
    possible = frozenset(shares(fabric, qp.src, qp.dst, failures=what.failures, detour=what.detour))
    tables = [Tables(fabric), Tables(fabric, what.failures, detour=what.detour)]
    hashed = possible & {End(*end) for each in tables for end in hashed_ports(fabric, each.switch_tables())}
    problems = list(dict.fromkeys(one.problem for one in observed if one.problem))
    ways = list(dict.fromkeys(one.egress for one in observed))
    if len(ways) > 1:
        problems.append(f"{len(observed)} packets of one flow took {len(ways)} paths")
    expected = None
    if what.planned or not hashed:
        way = flow_path(fabric, qp.src, qp.dst, flow, what.seed, failures=what.failures, detour=what.detour)
        expected = way.egress
    equal = ways == [expected] if expected is not None else set(ways[0]) <= possible
    return {
        "src_gpu": qp.src.node,
        "src_port": qp.src.port,
        "dst_gpu": qp.dst.node,
        "dst_port": qp.dst.port,
        "qp": qp.index if flow == five_tuple(fabric, qp, flow.protocol) else None,
        "five_tuple": asdict(flow),
        "packets": len(observed),
        "chosen_by": _chosen_by(bool(hashed), what.planned),
        "planned": None if expected is None else [asdict(end) for end in expected],
        "observed": [asdict(end) for end in ways[0]],
        "problem": "; ".join(problems),
        "equal": equal and not problems,
    }


def _chosen_by(hashed: bool, planned: bool) -> str:
    if not hashed:
        return "address rules: the only path"
    return "exact rules of the plan" if planned else "the switches' own hash, select groups (ecmp_ovs)"
