"""Inside the sandbox: brings a fabric up, sends probe packets and watches every interface on which they pass.

    python -m emulation.probe_run SETTINGS      (JSON: the fields of emulation.probe.Settings)

So the path of each single packet is known exactly (`emulation.watch`). A packet is known by its 5-tuple and by a marker
at the start of its payload (an ICMP error quotes the packet it is about, so the marker alone will not do). The last
line of output is {"probe": result}.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections import defaultdict
from dataclasses import asdict

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from controller.plan import FabricPlan, Plan
from controller.rules import hashed_ports
from emulation import network
from emulation.control import Controller
from emulation.netns import entered
from emulation.probe import Settings
from emulation.probe_path import Observed, Sighting, follow
from emulation.sandbox import STATE_DIR
from emulation.watch import Watch
from scenario.errors import TestbedError
from topologies import paths
from topologies.build import build
from topologies.fabric import End, Fabric
from topologies.paths import FiveTuple, QueuePair, five_tuple, flow_path, queue_pairs, shares
from topologies.tables import Tables

#: A probe that is on its way is there within milliseconds; the first one waits for the switches to set up its flow.
ARRIVES_WITHIN_S = 3.0
#: Copies that went elsewhere may be a little later.
STRAYS_WITHIN_S = 0.05
#: Emulated bit/s per Gb/s: rates do not matter here.
_BPS_PER_GBPS = 1e6


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
    """A probe: a lone data segment or datagram. Hosts send without ARP, so its destination MAC is zero at first."""
    layer_4 = (
        TCP(sport=flow.src_port, dport=flow.dst_port, flags="PA", seq=1, ack=1)
        if flow.protocol == paths.TCP
        else UDP(sport=flow.src_port, dport=flow.dst_port)
    )
    return Ether(dst="00:00:00:00:00:00") / IP(src=flow.src_ip, dst=flow.dst_ip) / layer_4 / Raw(marker)


def _mac_if_of(data: bytes, flow: FiveTuple, marker: bytes) -> str | None:
    """Destination MAC of a frame that is a probe of `flow` with this marker; None for anything else."""
    frame = Ether(data)
    kind = TCP if flow.protocol == paths.TCP else UDP
    ip, layer_4 = frame.getlayer(IP), frame.getlayer(kind)
    if ip is None or layer_4 is None or ip.payload is not layer_4:
        return None
    seen = FiveTuple(ip.src, ip.dst, ip.proto, layer_4.sport, layer_4.dport)
    return str(frame.dst) if seen == flow and bytes(layer_4.payload).startswith(marker) else None


def observe(net: network.EmulatedNetwork, watch: Watch, qp: QueuePair, flow: FiveTuple, count: int) -> list[Observed]:
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


def bring_up(fabric: Fabric, plan: Plan) -> tuple[network.EmulatedNetwork, Controller]:
    """The fabric with the plan's rules confirmed. Raises RunError."""
    network.make_management_bridge()
    controller = Controller(plan, STATE_DIR, sys.stderr.buffer)
    net = network.build(fabric, network.EmulatedRates(_BPS_PER_GBPS, 9000, 4096))
    network.start_switches(net)
    controller.wait_confirmed()
    return net, controller


def plan_of(settings: Settings, fabric: Fabric) -> tuple[Plan, list[QueuePair]]:
    """The rules for the queue pairs that are probed, and these: one a port pair."""
    pairs = [
        qp
        for qp in queue_pairs(fabric, settings.src_gpu, settings.dst_gpu, settings.queue_pair + 1)
        if qp.index == settings.queue_pair
    ]
    plan = Plan(
        FabricPlan(**settings.fabric),
        seed=settings.seed,
        planned=tuple(pairs),
        protocols=(settings.protocol_number,),
    )
    return plan, pairs


def probe(settings: Settings, net: network.EmulatedNetwork, pairs: list[QueuePair]) -> dict[str, object]:
    """Probe every port pair; the result as JSON (see docs/controller.md)."""
    watch = Watch(net)
    found = [_one(settings, net, watch, qp) for qp in pairs]
    watch.close()
    return {
        "fabric": settings.fabric,
        "seed": settings.seed,
        "probes": found,
        "equal": all(bool(one["equal"]) for one in found),
    }


def _one(settings: Settings, net: network.EmulatedNetwork, watch: Watch, qp: QueuePair) -> dict[str, object]:
    fabric = net.fabric
    flow = five_tuple(fabric, qp, settings.protocol_number)
    if settings.source_port is not None:
        flow = FiveTuple(flow.src_ip, flow.dst_ip, flow.protocol, settings.source_port, flow.dst_port)
    observed = observe(net, watch, qp, flow, settings.count)
    possible = frozenset(shares(fabric, qp.src, qp.dst))
    hashed = possible & {End(*end) for end in hashed_ports(fabric, Tables(fabric).switch_tables())}
    planned = flow == five_tuple(fabric, qp, settings.protocol_number)
    problems = list(dict.fromkeys(one.problem for one in observed if one.problem))
    ways = list(dict.fromkeys(one.egress for one in observed))
    if len(ways) > 1:
        problems.append(f"{len(observed)} packets of one flow took {len(ways)} paths")
    expected = None if hashed and not planned else flow_path(fabric, qp.src, qp.dst, flow, settings.seed).egress
    equal = ways == [expected] if expected is not None else set(ways[0]) <= possible
    return {
        "src_gpu": qp.src.node,
        "src_port": qp.src.port,
        "dst_gpu": qp.dst.node,
        "dst_port": qp.dst.port,
        "qp": qp.index if planned else None,
        "five_tuple": asdict(flow),
        "packets": len(observed),
        "chosen_by": _chosen_by(bool(hashed), planned),
        "planned": None if expected is None else [asdict(end) for end in expected],
        "observed": [asdict(end) for end in ways[0]],
        "problem": "; ".join(problems),
        "equal": equal and not problems,
    }


def _chosen_by(hashed: bool, planned: bool) -> str:
    if not hashed:
        return "address rules: the only path"
    return "exact rules of the plan (ecmp)" if planned else "the switches' own hash, select groups (ecmp_ovs)"


def main(argv: list[str]) -> int:
    """Probe as the settings say; the exit status. What went wrong is one message for the caller."""
    try:
        _main(argv)
    except TestbedError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return error.exit_code
    return 0


def _main(argv: list[str]) -> None:
    settings = Settings.from_json(argv[0])
    fabric = build(FabricPlan(**settings.fabric))
    plan, pairs = plan_of(settings, fabric)
    net, controller = bring_up(fabric, plan)
    print(json.dumps({"probe": probe(settings, net, pairs)}), flush=True)
    controller.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
