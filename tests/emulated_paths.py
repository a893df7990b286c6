"""Runs inside a sandbox: proves by port counters that TCP of every GPU pair takes exactly the planned path.

    python tests/emulated_paths.py KIND GPUS PORTS_PER_ASIC BUNDLE

For each queue pair: connect from the planned source port, reset. SYN, ACK and RST go the queue pair's path, the
SYN-ACK goes the path of the reversed 5-tuple; every egress port of every switch must have counted exactly that.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable

from emulation import network
from emulation.control import Controller, make_plan
from emulation.netns import entered
from emulation.qdisc_dump import QdiscDump, decode
from emulation.sandbox import STATE_DIR
from scenario.models import FabricSection, Scenario
from topologies.build import build
from topologies.fabric import End, Fabric
from topologies.paths import QueuePair, five_tuple, flow_path, path, reversed_flow, walk_all_pairs
from topologies.routes import NONE, Failures

FORWARD_PACKETS, BACKWARD_PACKETS = 3, 1


class Counters:
    """Packets sent by every port of the fabric."""

    def __init__(self, net: network.EmulatedNetwork) -> None:
        self.net = net
        self.dumps = {owner.name: QdiscDump(net.node_pid(owner.name)) for owner in net.fabric.nodes}
        self.layouts = {name: dump.layout(dump.read()) for name, dump in self.dumps.items()}

    def read(self) -> Counter[End]:
        found: Counter[End] = Counter()
        for owner in self.net.fabric.nodes:
            data = self.dumps[owner.name].read()
            for port in owner.ports:
                counters = decode(data, self.layouts[owner.name], port.name)
                found[End(owner.name, port.number)] = counters["packets"].item()
        return found


def listen(net: network.EmulatedNetwork) -> list[socket.socket]:
    """A listener on every GPU port."""
    listeners = []
    for gpu in net.fabric.gpus:
        with entered(net.node_pid(gpu.name)):
            listeners += [socket.create_server((port.ip, 19_000), backlog=4096) for port in gpu.ports]
    return listeners


def check_all(
    net: network.EmulatedNetwork,
    seed: int,
    pairs: Iterable[QueuePair],
    counters: Counters,
    failures: Failures = NONE,
    *,
    detour: bool = False,
    most_wrong: int = 5,
) -> dict[str, object]:
    fabric: Fabric = net.fabric
    wrong: list[str] = []
    checked = 0
    before = counters.read()
    for qp in pairs:
        flow = five_tuple(fabric, qp)
        expected: Counter[End] = Counter()
        for end in path(fabric, qp, seed, failures=failures, detour=detour).egress:
            expected[end] += FORWARD_PACKETS
        back = flow_path(fabric, qp.dst, qp.src, reversed_flow(flow), seed, failures=failures, detour=detour)
        for end in back.egress:
            expected[end] += BACKWARD_PACKETS
        with entered(net.node_pid(qp.src.node)):
            sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close sends a reset
        sock.settimeout(3)
        sock.bind((flow.src_ip, flow.src_port))
        try:
            sock.connect((flow.dst_ip, flow.dst_port))
        except OSError as error:
            wrong.append(f"{qp}: {error}")
        sock.close()
        deadline = time.monotonic() + 1.0
        while True:
            after = counters.read()
            sent = after - before
            if sent == expected or time.monotonic() > deadline:
                break
        if sent != expected:
            wrong.append(f"{qp}: expected {dict(expected)}, sent {dict(sent)}")
        before = after
        checked += 1
        if len(wrong) >= most_wrong:
            break
    return {"checked": checked, "wrong": wrong}


def main(kind: str, gpus: int, ports: int, bundle: str, sabotage: str = "") -> dict[str, object]:
    scenario = Scenario(
        fabric=FabricSection(kind=kind, gpus=gpus, asic_ports=ports, bundle=bundle)  # type: ignore[arg-type]
    )
    fabric = build(scenario.fabric)
    network.make_management_bridge()
    with tempfile.TemporaryFile() as log:
        controller = Controller(make_plan(scenario, walk_all_pairs(fabric)), STATE_DIR, log)
        net = network.build(fabric, network.EmulatedRates(1e6, 9000, 4096))
        network.start_switches(net)
        controller.wait_confirmed()
    if sabotage:  # one prefix rule or one exact rule now sends by another port: the check must notice
        switch = net.switches[0]
        switch.ovs("ovs-ofctl", "-O", "OpenFlow13", "add-flow", switch.name, sabotage)
    # Mininet's own way to ask, through its own objects; before the counters are read.
    dropped = net.net.ping(net.net.hosts[:6], timeout="5")
    said = net.net["gpu1"].cmd("ip -o -4 addr show dev gpu1-eth1")
    assert str(fabric.gpus[0].ports[0].ip) in said, said
    listeners = listen(net)
    checked = check_all(net, scenario.seed, walk_all_pairs(fabric), Counters(net), most_wrong=1 if sabotage else 5)
    return {**checked, "pings_lost": dropped, "listeners": len(listeners)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], *sys.argv[5:])), flush=True)
