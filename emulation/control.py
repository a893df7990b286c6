"""The SDN controller as a process of the sandbox: started with a plan, waited for until every barrier has answered."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from controller.plan import FabricPlan, Plan
from controller.standby import Line, Order
from controller.status import state_of
from controller.status_socket import NAME as SOCKET_NAME
from emulation.adopted import Adopted
from emulation.network import MANAGEMENT_IP, OPENFLOW_PORTS
from emulation.openflow_polls import Polls
from scenario.errors import RunError
from scenario.models import Scenario
from topologies.paths import TCP, UDP, QueuePair

#: State of a listening socket in /proc/net/tcp (include/net/tcp_states.h).
_LISTEN = "0A"


def make_plan(scenario: Scenario, queue_pairs: Iterable[QueuePair]) -> Plan:
    """The controller's plan for a scenario."""
    return Plan(
        fabric=FabricPlan(**scenario.fabric.wiring),
        seed=scenario.seed,
        planned=tuple(dict.fromkeys(queue_pairs)),
        detour=scenario.routing.detour,
        # The link check's flows are TCP whatever carries the handoffs.
        protocols=(TCP, UDP) if scenario.transport.kind == "udp" else (TCP,),
    )


class Controller:
    """The controller's process. `sdn` chooses the library: ryu or os-ken; `discover`: it asks for the cabling too."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        log: IO[bytes],
        sdn: str | None = None,
        *,
        discover: bool = False,
        socket_folder: Path | None = None,
        polls: Polls | None = None,
        keep_standby: bool = False,
    ) -> None:
        """Start it on the management network; in `socket_folder` a private socket tells its state, with `polls` it
        answers orders for statistics, and with `keep_standby` another one is always ready to take over."""
        self._socket = socket_folder / SOCKET_NAME if socket_folder else None
        self.status_path = folder / "controller-status.json"
        self._cabling_path = folder / "controller-cabling.json"
        plan.save(folder / "plan.json")
        self._environment = dict(os.environ)
        if sdn is not None:
            self._environment["ZCUBE_SDN"] = sdn
        name = Path(os.readlink(f"/proc/self/fd/{log.fileno()}")).name  # `log.name` may be its number
        self._where = f"; see {name}" if name.endswith(".log") else ""
        self._log, self._descriptors = log, polls.descriptors if polls else ()
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0)
        self._argv = [
            *(sys.executable, "-m", "controller.launch", "--plan", str(folder / "plan.json")),
            *("--status", str(self.status_path), "--listen", MANAGEMENT_IP),
            *(("--socket", str(self._socket)) if self._socket else ()),
            *(polls.arguments if polls else ()),
        ]
        self._starts = 0
        self._standby = Line() if keep_standby else None
        self.process: subprocess.Popen[bytes] | Adopted = self._start(self._next_port(), discover)

    def _next_port(self) -> int:
        self.port = OPENFLOW_PORTS[self._starts % len(OPENFLOW_PORTS)]
        self._starts += 1
        return self.port

    def _start(self, port: int, discover: bool) -> subprocess.Popen[bytes]:
        more = ["--cabling", str(self._cabling_path)] if discover else []
        descriptors = list(self._descriptors)
        if self._standby:
            more += ["--standby-fd", str(self._standby.descriptor)]
            descriptors.append(self._standby.descriptor)
        return subprocess.Popen(
            [*self._argv, "--port", str(port), *more],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=self._environment,
            pass_fds=descriptors,
        )

    def restart(self, *, discover: bool = False) -> bool:
        """Another in place of one that has ended, with the same plan, at another `target`, which the switches must be
        told when it is `listening`. The one that stands by, if there is one: then True.

        The status file stays: the new controller begins with the failures that it finds there.
        """
        self._cabling_path.unlink(missing_ok=True)
        port = self._next_port()
        pid = self._standby.call(Order(port, discover)) if self._standby else None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process = Adopted(pid)
                return True
        if self._standby:  # with a line of its own: an order that nobody has read must not reach its standby
            self._standby.close()
            self._standby = Line()
        self.process = self._start(port, discover)
        # The runner has raised its own priority since; a controller that starts must not hold up the traffic agents.
        os.setpriority(os.PRIO_PROCESS, self.process.pid, self._niceness)
        return False

    @property
    def target(self) -> str:
        """Where switches find it."""
        return f"tcp:{MANAGEMENT_IP}:{self.port}"

    @property
    def listening(self) -> bool:
        """Whether it accepts connections: asked of the kernel, since a connection would be taken for a switch."""
        address = f"{int.from_bytes(socket.inet_aton(MANAGEMENT_IP), sys.byteorder):08X}:{self.port:04X}"
        lines = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
        return any(line.split()[1] == address and line.split()[3] == _LISTEN for line in lines)

    def status(self) -> dict[str, object]:
        """The state of the installation as this process tells it; see `controller.status`."""
        return state_of(self.status_path, self.process.pid)

    def wait_confirmed(self, timeout_s: float = 30.0) -> dict[str, object]:
        """Wait until all rules are confirmed. Raises RunError when one is refused, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.status()
            if status["state"] == "confirmed":
                return status
            if status["state"] == "failed":
                raise RunError(f"the controller reports a failure: {first_error(status)}")
            if self.process.poll() is not None:
                raise RunError(f"the controller ended with status {self.process.returncode}{self._where}")
            if time.monotonic() > deadline:
                raise RunError(f"the switches did not confirm their rules within {timeout_s:.0f} s: {status}")
            time.sleep(0.02)

    def cabling(self) -> dict[str, Any]:
        """What its discovery of the cabling has come to; see `controller.discovery`. Raises RunError when it failed."""
        try:
            found: dict[str, Any] = json.loads(self._cabling_path.read_text())
        except FileNotFoundError:
            return {"state": "starting"}
        if found["state"] == "failed":
            raise RunError(f"the controller cannot discover the cabling: {found['error']}")
        return found

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            self.process.kill()
        if self._standby:
            self._standby.close()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)


def first_error(status: dict[str, object]) -> object:
    """What a status with the state `failed` complains about."""
    switches = status.get("switches")
    for switch in switches.values() if isinstance(switches, dict) else ():
        if switch["errors"]:
            return switch["errors"][0]
    errors = status.get("errors")
    return errors[0] if isinstance(errors, list) and errors else "unknown"
