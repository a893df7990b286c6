"""ECN on one port, where the kernel has RED and DCTCP: sender -> router -> receiver, with the testbed's own modules.

In the VM of tests/vm/boot.sh: `PYTHONPATH=. .venv/bin/python tests/vm/ecn_by_hand.py`. Ends with 0 when the port's
chain is accepted and read back equal, the root's backlog is the child's too, marks are counted and come back to the
sender; and none with ECN off.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

from emulation.marks import ECN_SYSCTLS, read_back
from emulation.netns import inside, write_sysctls
from emulation.network import OFFLOADS_OFF
from emulation.qdisc_dump import QdiscDump, RedCounts, decode
from emulation.red import chain, red_of
from emulation.shaping import PortShape, port_shape, slow_down
from scenario.flow_control_section import FlowControlSection

FRAME_BYTES, RATE_BPS, QUEUE_FRAMES = 1514, 4e6, 200
RED = FlowControlSection(ecn="red", ecn_min_frames=4, ecn_max_frames=8, ecn_probability=0.5)
SENT_BYTES = 3_000_000


def shell(pid: int, *commands: str) -> None:
    """Commands in the network namespace of `pid`."""
    for command in commands:
        subprocess.run(inside(pid, command.split()), check=True, stdout=subprocess.DEVNULL)


def line_of_three() -> list[subprocess.Popen[bytes]]:
    """Namespaces a -- r -- b; r forwards."""
    nodes = [subprocess.Popen(["unshare", "--net", "sleep", "600"]) for _ in range(3)]
    time.sleep(1)
    a, r, b = (node.pid for node in nodes)
    for left, right, one, other in ((a, r, "a0", "r0"), (r, b, "r1", "b0")):
        pair = f"ip link add {one} netns {left} type veth peer name {other} netns {right}"
        subprocess.run(pair.split(), check=True)
    shell(a, "ip link set a0 up", "ip addr add 10.9.1.1/24 dev a0", "ip route add default via 10.9.1.254")
    shell(b, "ip link set b0 up", "ip addr add 10.9.2.1/24 dev b0", "ip route add default via 10.9.2.254")
    shell(r, "ip link set r0 up", "ip link set r1 up", "ip addr add 10.9.1.254/24 dev r0")
    shell(r, "ip addr add 10.9.2.254/24 dev r1", "sysctl -qw net.ipv4.ip_forward=1")
    for pid, name in ((a, "a0"), (r, "r0"), (r, "r1"), (b, "b0")):
        shell(pid, f"ethtool -K {name} {' '.join(OFFLOADS_OFF)}")
    return nodes


class Agent:
    """A traffic agent in the namespace of `pid`."""

    def __init__(self, pid: int) -> None:
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(120)
        space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        handed = (theirs.fileno(), space)
        program = [sys.executable, "-I", "-S", "traffic/agent.py", f"{handed[0]}:{space}"]
        self.process = subprocess.Popen(program, pass_fds=handed)
        theirs.close()

    def ask(self, op: str, ev: str = "", **order: object) -> dict[str, Any]:
        """Give an order and wait for a report, by default of the same name."""
        self.sock.send(json.dumps({"op": op, **order}).encode())
        return self.wait(ev or op)

    def wait(self, ev: str) -> dict[str, Any]:
        """The next report of a kind."""
        while (report := json.loads(self.sock.recv(1 << 20)))["ev"] != ev:
            print("  ", report)
        return report  # type: ignore[no-any-return]


def backlogs(pid: int, interface: str) -> tuple[int, int]:
    """Backlog in bytes of the root and of its child, from one listing."""
    listing = subprocess.run(inside(pid, ["tc", "-s", "-j", "qdisc", "show", "dev", interface]), capture_output=True)
    found = {q.get("parent", "root"): int(q["backlog"]) for q in json.loads(listing.stdout)}
    return found["root"], found.get("1:1", -1)


def play(flow_control: FlowControlSection, cc: str) -> tuple[RedCounts, int, int]:
    """One transfer; what the port marked, and segments delivered and marked as the sender's TCP counts them."""
    nodes = line_of_three()
    a, r, b = (node.pid for node in nodes)
    shape: PortShape = port_shape("r1", RATE_BPS, FRAME_BYTES, QUEUE_FRAMES)
    red = red_of(shape, flow_control, FRAME_BYTES)
    lines = chain(shape, red)
    print("\n".join(lines))
    subprocess.run(inside(r, ["tc", "-batch", "-"]), input="\n".join(lines), text=True, check=True)
    if red:
        wrong = read_back({r: [red]})
        assert not wrong, wrong
        for pid in (a, b):
            write_sysctls(pid, ECN_SYSCTLS)
    sender, receiver = Agent(a), Agent(b)
    setting = {"kind": "tcp", "port": 4791, "cc": cc, "window_bytes": 16 * 1448, "chunk_bytes": 4 * 1448}
    receiver.ask("open", listen=["10.9.2.1"], frame_bytes=1448, **setting)
    sender.ask("open", listen=["10.9.1.1"], frame_bytes=1448, **setting)
    connected = sender.ask("connect", "connected", port=4791, qps=[[0, "10.9.1.1", 50000, "10.9.2.1", "gpu2", 1]])
    assert not connected["failed"], connected
    sender.sock.send(json.dumps({"op": "send", "id": 1, "bytes": SENT_BYTES, "lanes": [[0]]}).encode())
    dump = QdiscDump(r)
    layout = dump.layout(dump.read())
    seen = []
    for _ in range(8):
        time.sleep(0.3)
        seen.append((*backlogs(r, "r1"), int(decode(dump.read(), layout, "r1")["backlog"].item())))
    print("backlog of root, of child (one listing), of root (the sampler's dump):", seen)
    if red:
        assert any(root for root, *_ in seen)
        assert all(child <= root <= child + 2 * FRAME_BYTES for root, child, _ in seen), seen
    receiver.wait("done")
    (row,) = sender.ask("marks", start=0)["qps"]
    counts = dump.red_counts(dump.read()).get("r1", RedCounts(0, 0, 0, 0))
    if red:  # a slow cable changes the shaper alone
        slow_down({r: [shape]}, {"r1": 0.5})
        assert not read_back({r: [red]}) and dump.red_counts(dump.read())["r1"].marked == counts.marked
    for process in (*(agent.process for agent in (sender, receiver)), *nodes):
        process.kill()
        process.wait()
    return counts, row[1], row[2]


def main() -> None:
    """All arms."""
    for flow_control, cc in ((RED, "dctcp"), (RED, "reno"), (FlowControlSection(), "dctcp")):
        counts, delivered, delivered_ce = play(flow_control, cc)
        print(f"ecn {flow_control.ecn}, {cc}: {counts}; delivered {delivered}, marked {delivered_ce}", flush=True)
        if flow_control.ecn == "red":
            assert counts.marked and delivered_ce and not counts.early
        else:
            assert not counts.marked and not delivered_ce


if __name__ == "__main__":
    main()
