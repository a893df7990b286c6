"""What forwards in a run, behind one interface: Open vSwitch with its controller, or the kernel with static routes.

The runner brings the plane up, lets it look after itself while serving, and asks it at the end what to keep.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO

from controller.ruleset import rules_json
from controller.status_socket import NAME as SOCKET_NAME
from emulation import cabling, network, openflow_polls, sockbuf
from emulation.attach import publish
from emulation.control import Controller, make_plan
from emulation.kernel_routes import kernel_routes, routes_json
from emulation.launch import POLLS_LOG
from emulation.network import EmulatedNetwork, EmulatedRates
from emulation.sandbox import STATE_DIR
from emulation.takeover import ControllerKeeper, Restart
from results.writer import write_json
from scenario.errors import RunError
from scenario.models import Scenario
from scenario.scale import Scale
from scenario.wiring import as_wired
from topologies.fabric import Fabric
from topologies.paths import QueuePair


@dataclass(frozen=True)
class Site:
    """What a plane is brought up from. `log` opens a log by name, `events` and `say` take what happens."""

    folder: Path
    scenario: Scenario
    fabric: Fabric
    scale: Scale
    log: Callable[[str], IO[bytes]]
    events: Callable[[dict[str, object]], None]
    say: Callable[..., None]

    @property
    def rates(self) -> EmulatedRates:
        """For the network."""
        buffer = self.scenario.transport.asic_buffer_frames
        return EmulatedRates(self.scale.rate_bps(1), self.scale.frame_bytes, buffer)


class Plane:
    """A data plane of a run. `restarts`: of its controller; `status_path`: where that tells of failures."""

    starting = "starting switches and hosts"
    net: EmulatedNetwork
    restarts: Sequence[Restart] = ()
    status_path: Path | None = None

    def __init__(self, site: Site) -> None:
        self.site = site

    def bring_up(self, queue_pairs: Sequence[QueuePair]) -> EmulatedNetwork:
        """The fabric as wired, forwarding, with the paths of `queue_pairs` as planned. Raises RunError."""
        raise NotImplementedError

    def verify_cabling(self) -> dict[str, object]:
        """What meta.json says of it. Raises RunError where the fabric is not cabled as planned."""
        raise NotImplementedError

    def settle(self, at_once: bool = False) -> None:
        """Wait for what is under way, unless `at_once`. Raises RunError."""

    def start_serving(self) -> None:
        """Just before the clock starts. Raises RunError."""

    def look_after(self) -> None:
        """While serving, often; returns at once. Raises RunError."""

    @property
    def processes(self) -> Mapping[str, int]:
        """Name -> PID of what must live while serving: else the run would go on, and be wrong."""
        return {}

    def finish_serving(self, interrupted: bool) -> None:
        """Just after serving."""

    def write_tables(self, start_ns: int) -> None:
        """Tables that only this plane has, into the run folder."""

    def clear(self) -> None:
        """Remove what is of use only while the run's process lives, however it ends."""

    def close(self) -> None:
        """End what was started."""

    def meta(self) -> Mapping[str, object]:
        """Its own entries of meta.json."""
        raise NotImplementedError

    def first_packets(self) -> None:
        """Ping over every switch. Raises RunError."""
        fabric, net = self.site.fabric, self.net
        count = len(fabric.gpus)
        pings = []
        for at, gpu in enumerate(fabric.gpus):
            for port in fabric.gpus[(at + count // 2 + 1) % count].ports:
                ping = ["ping", "-c", "1", "-W", "5", str(port.ip)]
                pings.append((gpu.name, port.ip, net.net[gpu.name].popen(ping, stdout=subprocess.DEVNULL)))
        failed = [(src, dst) for src, dst, process in pings if process.wait()]
        if failed:
            raise RunError(f"{len(failed)} of {len(pings)} first pings failed: {failed[0][0]} -> {failed[0][1]} ...")

    def _ready(self, what: str, began: float, **more: object) -> None:
        now = time.monotonic()
        self.net.bringup_wall_s[f"all {what}"] = now - began
        self.site.events({"event": what, "t_monotonic_s": now, **more})
        self.site.say(phase=what, wall_s=round(now - began, 2))
        write_json(self.site.folder / "fabric.json", self.site.fabric.to_json())


class OvsPlane(Plane):
    """One Open vSwitch a switch, rules from the controller."""

    starting = "starting controller, switches and hosts"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        hz = site.scenario.telemetry.openflow_hz
        self._polls = openflow_polls.Polls(site.folder / POLLS_LOG, hz) if hz else None

    def bring_up(self, queue_pairs: Sequence[QueuePair]) -> EmulatedNetwork:
        """Switches, controller, all rules confirmed."""
        began, site = time.monotonic(), self.site
        plan = make_plan(site.scenario, queue_pairs)
        network.make_management_bridge()
        self._controller = Controller(
            plan,
            STATE_DIR,
            site.log("controller"),
            discover=True,
            socket_folder=site.folder,
            polls=self._polls,
            keep_standby=True,
        )
        self.net = network.build(as_wired(site.scenario.faults, site.fabric), site.rates)
        network.start_switches(self.net)
        publish(self.net)
        status = self._controller.wait_confirmed()
        self._ready("rules confirmed", began, status=status)
        write_json(site.folder / "rules.json", rules_json(plan.rules(site.fabric)))
        say = partial(_say_note, site.say)
        self._keeper = ControllerKeeper(self._controller, self.net.switches, None, site.events, say)
        self.restarts, self.status_path = self._keeper.restarts, self._controller.status_path
        return self.net

    def verify_cabling(self) -> dict[str, object]:
        """By LLDP."""
        return cabling.require_planned(
            self.net,
            self.site.fabric,
            self.site.folder,
            lambda: cabling.observe(self.net, self._keeper),
            "LLDP at both ends of every cable, before traffic",
        )

    def settle(self, at_once: bool = False) -> None:
        """A controller that takes over."""
        self._keeper.finish(at_once)

    def first_packets(self) -> None:
        """So that the daemons' sockets exist; then give those deep buffers."""
        super().first_packets()
        for switch in self.net.switches:
            if not sockbuf.deepen(switch.daemon_pid):
                raise RunError(f"{switch.name} has no packet sockets to enlarge")

    def start_serving(self) -> None:
        """OpenFlow counters are polled from now on."""
        if self._polls:
            self._keeper.start_polls(self._polls)

    def look_after(self) -> None:
        """A controller that died is replaced."""
        self._keeper.step()

    @property
    def processes(self) -> Mapping[str, int]:
        """Every daemon."""
        return {f"the Open vSwitch daemon of {switch.name}": switch.daemon_pid for switch in self.net.switches}

    def finish_serving(self, interrupted: bool) -> None:
        """The account of the polls."""
        if self._polls:
            quiet = {"failure": "the controller had ended"}
            account = quiet if self._keeper.quiet else self._polls.finish(interrupted)
            self.site.events({"event": "openflow polls", **account})

    def write_tables(self, start_ns: int) -> None:
        """of_*.parquet."""
        if self._polls:
            openflow_polls.write_tables(self._polls.log, self.site.folder, self.site.fabric, self.site.scale, start_ns)

    def meta(self) -> Mapping[str, object]:
        """Controller and takeovers."""
        return {
            "controller": self._controller.status().get("sdn"),
            "controller_restarts": [asdict(restart) for restart in self.restarts],
        }

    def clear(self) -> None:
        """The controller's socket, the log of polls."""
        (self.site.folder / SOCKET_NAME).unlink(missing_ok=True)
        if self._polls:
            self._polls.log.unlink(missing_ok=True)

    def close(self) -> None:
        """The controller."""
        self._controller.close()


class KernelPlane(Plane):
    """Each switch forwards in its own namespace, by static routes."""

    def bring_up(self, queue_pairs: Sequence[QueuePair]) -> EmulatedNetwork:
        """Links, cabling verified, then routes: next hops need the cables that they are to be on."""
        began, site = time.monotonic(), self.site
        plan = make_plan(site.scenario, queue_pairs)
        routes = kernel_routes(site.fabric, plan.rules(site.fabric))
        self.net = network.build(as_wired(site.scenario.faults, site.fabric), site.rates, "linux")
        self._cabling = self._verified()
        network.start_switches(self.net, routes)
        publish(self.net)
        self._ready("routes confirmed", began)
        write_json(site.folder / "routes.json", routes_json(routes, plan.seed))
        return self.net

    def _verified(self) -> dict[str, object]:
        return cabling.require_planned(
            self.net,
            self.site.fabric,
            self.site.folder,
            lambda: cabling.observe_peers(self.net),
            "the far end that the kernel gives for each port's veth (iflink), before traffic; no LLDP",
        )

    def verify_cabling(self) -> dict[str, object]:
        """Done already: routes need it."""
        return self._cabling

    def meta(self) -> Mapping[str, object]:
        """There is no controller, and nothing that OpenFlow counts."""
        return {"controller": None, "openflow": "none: the kernel forwards, so there are no of_*.parquet"}


def _say_note(say: Callable[..., None], text: str) -> None:
    say(note=text)


def plane_of(site: Site) -> Plane:
    """The data plane that the scenario asks for."""
    return KernelPlane(site) if site.scenario.fabric.switch == "linux" else OvsPlane(site)
