"""Independent flows with start times, played by a network of ours or by SimGrid: equal questions for both.

SimGrid (https://simgrid.org) is a simulator of distributed systems with a max-min solver of its own. It is optional.
Debian has it for the system's Python, and a process can hold one simulation only, so each runs in a process of its own
(`tests/simgrid_flows.py`).

Units: bytes, seconds, bytes per second.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scenario.errors import InputError, MachineError, RunError
from topologies.fabric import End
from topologies.fluid import Completion, FluidNetwork, Lane, Transfer
from topologies.paths import QueuePair

SYSTEM_PYTHON = "/usr/bin/python3"
SCRIPT = Path(__file__).resolve().parent.parent / "tests" / "simgrid_flows.py"
HOW_TO_INSTALL = (
    f"SimGrid is not there for {SYSTEM_PYTHON}: it is optional, install it with `apt-get install python3-simgrid`"
)
#: Name -> (module, class): our networks, the preferred one first.
NETWORKS = {"flow": ("simulation.network", "FlowNetwork"), "fluid": ("topologies.fluid", "FluidNetwork")}


class Network(Protocol):
    """What `FluidNetwork` and `FlowNetwork` both do."""

    def start(self, transfer: Transfer, t_s: float) -> None: ...
    def next_completion(self) -> float | None: ...
    def advance(self, t_s: float) -> list[Completion]: ...


NetworkClass = Callable[[Mapping[str, float]], Network]


@dataclass(frozen=True)
class Flow:
    """`bytes`, whole and at least 1, over the egress ports `route` from `start_s` on, beside whatever else there is."""

    route: tuple[str, ...]
    bytes: int
    start_s: float


@dataclass(frozen=True)
class Played:
    """When each flow ended, in the order given, and the processor time that it took without set-up."""

    done_s: tuple[float, ...]
    cpu_s: float
    version: str = ""


def networks() -> dict[str, NetworkClass]:
    """Our networks that can be imported here, the preferred one first."""
    found: dict[str, NetworkClass] = {}
    for name, (module, cls) in NETWORKS.items():
        try:
            found[name] = getattr(importlib.import_module(module), cls)
        except ModuleNotFoundError:
            continue
    return found


def network_class(name: str | None) -> tuple[str, NetworkClass]:
    """The network of this name, or the preferred one. Raises InputError for one that is not there."""
    found = networks()
    chosen = name or next(iter(found))
    if chosen not in found:
        raise InputError("network", chosen, f"must be one of {', '.join(found)}")
    return chosen, found[chosen]


def play(capacities: Mapping[str, float], flows: Sequence[Flow], network: NetworkClass = FluidNetwork) -> Played:
    """Play the flows in one of our networks, each on a queue pair of its own so that none waits for another."""
    order = sorted(range(len(flows)), key=lambda n: flows[n].start_s)
    count: Counter[tuple[str, str]] = Counter()
    transfers = []
    for number in order:
        flow = flows[number]
        ends = flow.route[0], flow.route[-1]
        qp = QueuePair(End(ends[0], 1), End(ends[1], 1), count[ends])
        count[ends] += 1
        transfers.append((Transfer(number, flow.bytes, (Lane(qp, flow.route),)), flow.start_s))
    done_s = [0.0] * len(flows)
    net = network(capacities)
    began = time.process_time()
    for transfer, start_s in transfers:
        for end in net.advance(start_s):
            done_s[end.transfer.transfer_id] = end.done_s
        net.start(transfer, start_s)
    while (event_s := net.next_completion()) is not None:
        for end in net.advance(event_s):
            done_s[end.transfer.transfer_id] = end.done_s
    return Played(tuple(done_s), time.process_time() - began)


def has_simgrid() -> bool:
    """Whether the system's Python has SimGrid, and this is a checkout that holds the script for it."""
    if not (SCRIPT.exists() and Path(SYSTEM_PYTHON).exists()):
        return False
    tried = subprocess.run([SYSTEM_PYTHON, "-I", "-c", "import simgrid"], capture_output=True, env=_environment())
    return tried.returncode == 0


def play_in_simgrid(capacities: Mapping[str, float], flows: Sequence[Flow]) -> Played:
    """Play the flows in SimGrid. Raises MachineError where it is missing, RunError with what it says if it fails."""
    used = {name for flow in flows for name in flow.route}
    asked = {
        "links": {name: rate for name, rate in capacities.items() if name in used},
        "flows": [{"links": flow.route, "bytes": flow.bytes, "start_s": flow.start_s} for flow in flows],
    }
    if not Path(SYSTEM_PYTHON).exists():
        raise MachineError("SimGrid", HOW_TO_INSTALL)
    ran = subprocess.run(
        [SYSTEM_PYTHON, "-I", str(SCRIPT)], input=json.dumps(asked), capture_output=True, text=True, env=_environment()
    )
    if ran.returncode:
        if not has_simgrid():
            raise MachineError("SimGrid", HOW_TO_INSTALL)
        raise RunError(f"SimGrid ended with {ran.returncode}: {ran.stderr.strip()[-1000:]}")
    answer = json.loads(ran.stdout)
    return Played(tuple(answer["done_s"]), answer["cpu_s"], answer["version"])


def _environment() -> dict[str, str]:
    """Without what belongs to .venv."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
