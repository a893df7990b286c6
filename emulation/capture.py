"""`zcube run --pcap PORT`: tcpdump on an interface of the fabric while a run serves, headers only, of bounded size."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emulation.netns import inside
from emulation.sandbox import tool
from results.writer import adopt, create_folder, open_log
from scenario.errors import InputError, MachineError, RunError
from topologies.fabric import Fabric

if TYPE_CHECKING:  # the command line checks names without loading Mininet
    from emulation.network import EmulatedNetwork

#: Ethernet 14 + IPv4 20 + TCP with all its options 60.
SNAP_BYTES = 94
#: A capture stops by itself at this size: about 600,000 packets.
MAX_FILE_BYTES = 64 << 20
MAX_PACKETS = MAX_FILE_BYTES // (SNAP_BYTES + 16)
#: tcpdump is handed packets in blocks, at the latest after a second; what it has not been handed is lost at its end.
_LAST_BLOCK_S = 1.1
_NOTED = re.compile(r"^(\d+) packets? (captured|dropped by kernel)", re.MULTILINE)


def check_ports(fabric: Fabric, ports: Iterable[str]) -> None:
    """Raise InputError for a name that is no port of the fabric, MachineError when tcpdump is missing."""
    names = {port.name: owner.name for owner in fabric.nodes for port in owner.ports}
    asked = list(ports)
    for name in asked:
        if name not in names:
            node = name.partition("-")[0]
            own = [port for port, owner in names.items() if owner == node]
            nodes = [owner.name for owner in fabric.nodes]
            allowed = (
                f"{node} has {', '.join(own)}"
                if own
                else f"must be NODE-ethNUMBER of {', '.join(nodes[:2])}, ... {', '.join(nodes[-2:])}"
            )
            raise InputError("--pcap", name, allowed, "zcube fabric show FABRIC --json lists nodes and ports")
    if asked and tool("tcpdump") is None:
        raise MachineError("Debian package(s) missing: tcpdump", "make setup    # or: bash vagrant/setup.sh")


@dataclass(frozen=True)
class _Running:
    port: str
    process: subprocess.Popen[bytes]
    partial: Path
    notes: Path
    clock_offset_s: float

    def noted(self) -> str:
        """What tcpdump has said so far."""
        return self.notes.read_text(errors="replace")


class Captures:
    """The captures of a run. They end with `finish`, or with the sandbox; files get their names when complete."""

    def __init__(self, network: EmulatedNetwork, ports: Sequence[str], folder: Path) -> None:
        """Start one tcpdump a port, writing below `folder`, and wait until all listen. Raises RunError."""
        self._running: list[_Running] = []
        if not ports:
            return
        create_folder(folder)
        owner_of = {port.name: owner.name for owner in network.fabric.nodes for port in owner.ports}
        for port in dict.fromkeys(ports):
            partial = folder / f"{port}.partial.pcap"  # distributions' profiles let tcpdump write to *.pcap only
            notes = folder / f"{port}.log"
            command = [
                # -p: the interface's flags stay as they are. The file is opened here, so it has the right owner.
                *("tcpdump", "-i", port, "-p", "-n", "-s", str(SNAP_BYTES), "-c", str(MAX_PACKETS), "-B", "4096"),
                *("-w", "-"),
            ]
            with open_log(partial) as target, open_log(notes) as said:
                process = subprocess.Popen(
                    inside(network.node_pid(owner_of[port]), command),
                    stdin=subprocess.DEVNULL,
                    stdout=target,
                    stderr=said,
                )
            self._running.append(_Running(port, process, partial, notes, time.time() - time.monotonic()))
        for one in self._running:
            self._wait_listening(one)

    def _wait_listening(self, one: _Running) -> None:
        deadline = time.monotonic() + 10
        while "listening on" not in one.noted():
            if one.process.poll() is not None or time.monotonic() > deadline:
                raise RunError(f"tcpdump does not listen on {one.port}: {one.noted().strip() or 'no message'}")
            time.sleep(0.01)

    def finish(self, *, at_once: bool = False) -> list[dict[str, object]]:
        """End the captures and return what each says of itself. `at_once` may lose packets of the last second."""
        if not self._running:
            return []
        if not at_once:
            time.sleep(_LAST_BLOCK_S)
        for one in self._running:
            one.process.send_signal(signal.SIGINT)
        accounts: list[dict[str, object]] = []
        for one in self._running:
            try:
                one.process.wait(5)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
            counts = {what: int(number) for number, what in _NOTED.findall(one.noted())}
            adopt(one.partial, one.partial.with_name(f"{one.port}.pcap"))
            accounts.append(
                {
                    "port": one.port,
                    "packets": counts.get("captured"),
                    "dropped_by_kernel": counts.get("dropped by kernel"),
                    "full": counts.get("captured", 0) >= MAX_PACKETS,
                    # Captures have wall-clock stamps: less this they are seconds of the run's monotonic clock.
                    "wall_clock_minus_monotonic_s": one.clock_offset_s,
                }
            )
        self._running = []
        return accounts
