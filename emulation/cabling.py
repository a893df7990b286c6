"""Is the emulated fabric wired as planned? Asked before traffic, so that a mis-wired fabric never gives numbers.

Switches are asked by the controller (`controller.discovery`); GPU ports announce themselves and listen through a raw
socket each, as a small lldpd would. `python -m emulation.cabling FOLDER` in a sandbox only observes: it brings up the
fabric of FOLDER/scenario.yaml and writes FOLDER/cabling.json.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from emulation import lldp, network
from emulation.control import Controller, make_plan
from emulation.netns import Batch, entered, inside
from emulation.network import EmulatedNetwork
from emulation.sandbox import STATE_DIR, telling_errors
from emulation.takeover import ControllerKeeper
from results.reader import RunFolder
from results.writer import open_log, write_json
from scenario.errors import RunError
from scenario.models import Scenario
from scenario.wiring import as_wired
from topologies.build import build
from topologies.cabling_files import observed_from_text
from topologies.cabling_model import Plug, Report, Sighting, planned_cables
from topologies.cabling_neighbours import Neighbours, document
from topologies.cabling_verify import verify
from topologies.fabric import Fabric, FabricError

FILE = "cabling.json"
#: GPU ports announce themselves this often while the controller listens.
ANNOUNCE_EVERY_S = 0.2
#: For announcements that are on their way when the controller has heard all; a healthy fabric needs none of it.
GRACE_S = 1.0
TIMEOUT_S = 30.0
_CLOSING_THREADS = 32
SHOWN_FAULTS = 10
#: Emulated rate where there is no traffic: 400 Gb/s become 400 Mb/s.
IDLE_BPS_PER_GBPS = 1e6


class GpuPorts:
    """All GPU ports, each with a raw socket for LLDP in its namespace. To be closed."""

    def __init__(self, net: EmulatedNetwork) -> None:
        self._sockets: dict[Plug, socket.socket] = {}
        self._frames: dict[Plug, bytes] = {}
        for gpu in net.fabric.gpus:
            with entered(net.node_pid(gpu.name)):
                for port in gpu.ports:
                    here = Plug(gpu.name, port.name)
                    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
                    sock.bind((port.name, lldp.ETHERTYPE))
                    self._sockets[here] = sock
                    self._frames[here] = lldp.frame(here, str(port.mac))
        self.neighbours = Neighbours(self._sockets)

    def announce(self) -> None:
        """One frame from every port."""
        for here, sock in self._sockets.items():
            with contextlib.suppress(OSError):  # a port without a cable
                sock.send(self._frames[here])

    def listen(self) -> None:
        """Take what has arrived."""
        for here, sock in self._sockets.items():
            while True:
                try:
                    data = sock.recv(2048)
                except BlockingIOError:
                    break
                if (remote := lldp.sender(data)) is not None:
                    self.neighbours.hear(here, remote)

    def close(self) -> None:
        """Close the sockets: all at once, since the kernel takes some 10 ms for each (it waits for readers, RCU)."""
        with ThreadPoolExecutor(_CLOSING_THREADS) as pool:
            for sock in self._sockets.values():
                pool.submit(sock.close)


def observe(net: EmulatedNetwork, keeper: ControllerKeeper) -> dict[str, object]:
    """What every port of the running fabric says about its neighbour: the content of cabling.json. Raises RunError.

    A controller that dies meanwhile is replaced, and the new one begins again.
    """
    controller = keeper.controller
    keeper.discovering = True
    ports = GpuPorts(net)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        announced = 0.0
        while (heard := controller.cabling())["state"] != "done":
            keeper.step()
            now = time.monotonic()
            if now > deadline:
                raise RunError(f"the controller did not discover the cabling within {TIMEOUT_S:.0f} s")
            if heard["state"] == "listening" and now - announced > ANNOUNCE_EVERY_S:
                ports.announce()
                announced = now
            time.sleep(0.01)
        deadline = time.monotonic() + GRACE_S
        ports.listen()
        while ports.neighbours.silent and time.monotonic() < deadline:
            time.sleep(0.01)
            ports.listen()
        keeper.discovering = False
        keeper.finish()
        return document([*heard["neighbors"], *ports.neighbours.rows()])
    finally:
        keeper.discovering = False
        ports.close()


def observe_peers(net: EmulatedNetwork) -> dict[str, object]:
    """The same content without LLDP: a veth pair's end knows the interface index of the other end (iflink), and the
    ends of cables have indices of their own. Raises RunError where two have the same."""
    batch = Batch()
    for node in net.fabric.nodes:
        batch.start(inside(net.node_pid(node.name), ["ip", "-j", "link", "show"]))
    own: dict[int, Plug] = {}
    peer: dict[Plug, int] = {}
    for node, text in zip(net.fabric.nodes, batch.finish(timeout_s=120), strict=True):
        names = {port.name for port in node.ports}
        for row in json.loads(text):
            if row["ifname"] not in names:
                continue
            here = Plug(node.name, row["ifname"])
            if own.setdefault(row["ifindex"], here) != here:
                raise RunError(f"the cabling cannot be verified: {own[row['ifindex']]} and {here} have one index")
            if "NO-CARRIER" not in row["flags"]:
                peer[here] = row["link_index"]
    neighbours = Neighbours(own.values())
    for here, index in peer.items():
        if index in own:
            neighbours.hear(here, own[index])
    return document(neighbours.rows())


def sightings(content: dict[str, object]) -> list[Sighting]:
    """The content of cabling.json as `verify` takes it. Raises RunError where no port has heard anybody."""
    try:
        return observed_from_text(json.dumps(content).encode(), FILE)
    except FabricError as error:
        raise RunError(f"the cabling cannot be verified: {error}") from None


def require_planned(
    net: EmulatedNetwork, plan: Fabric, folder: Path, look: Callable[[], dict[str, object]], how: str
) -> dict[str, object]:
    """Observe, keep FOLDER/cabling.json, and raise RunError with every fault and its fix unless all is as planned.

    `look` is `observe` or `observe_peers`, `how` says so. Returns what meta.json says about it.
    """
    began = time.monotonic()
    content = look()
    write_json(folder / FILE, content)
    report = verify(planned_cables(plan), sightings(content), "both")
    if not report.clean:
        raise RunError(refusal(report))
    wall_s = round(time.monotonic() - began, 3)
    net.bringup_wall_s["cabling verified"] = wall_s
    return {"verified": True, "how": how, "cables": report.agreeing}


def refusal(report: Report) -> str:
    """Why the run does not start."""
    counts = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in report.counts().items())
    lines = [
        f"not started: the fabric is not cabled as planned ({report.agreeing} of {report.planned} cables are; {counts})"
    ]
    for fault in report.faults[:SHOWN_FAULTS]:
        lines.append(f"{fault.kind.replace('_', ' ')} {', '.join(fault.cables)}: {fault.seen}; {fault.fix}")
    if len(report.faults) > SHOWN_FAULTS:
        lines.append(f"and {len(report.faults) - SHOWN_FAULTS} more: `zcube cabling verify --live SCENARIO` shows all")
    return "\n  ".join(lines)


def _note(text: str) -> None:
    print(json.dumps({"note": text}), flush=True)


def _rates(scenario: Scenario) -> network.EmulatedRates:
    buffer = scenario.transport.asic_buffer_frames
    return network.EmulatedRates(IDLE_BPS_PER_GBPS, scenario.scale.frame_bytes, buffer)


def _observe_only(folder: Path, scenario: Scenario) -> None:
    fabric = build(scenario.fabric)
    if scenario.fabric.switch == "linux":
        net = network.build(as_wired(scenario.faults, fabric), _rates(scenario), "linux")
        write_json(folder / FILE, observe_peers(net))
        return
    network.make_management_bridge()
    with open_log(folder / "controller.log") as log:
        controller = Controller(make_plan(scenario, []), STATE_DIR, log, discover=True, keep_standby=True)
        net = network.build(as_wired(scenario.faults, fabric), _rates(scenario))
        network.start_switches(net)
        controller.wait_confirmed()
        began = time.monotonic()
        keeper = ControllerKeeper(controller, net.switches, say=_note)
        content = observe(net, keeper)
        print(json.dumps({"phase": "discovered", "wall_s": round(time.monotonic() - began, 3)}), flush=True)
        write_json(folder / FILE, content)
        controller.close()


def main(argv: list[str]) -> int:
    """Observe for `zcube cabling verify --live`; exit codes of the command line."""
    folder = Path(argv[0])
    print(json.dumps({"phase": "starting controller, switches and hosts"}), flush=True)
    return telling_errors(lambda: _observe_only(folder, RunFolder(folder).scenario()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
