"""How a process that joins a live run's sandbox finds its nodes."""

from __future__ import annotations

import json
from dataclasses import dataclass

from emulation.sandbox import STATE_DIR
from emulation.watch import Nodes
from topologies.fabric import Fabric

#: In the folder that only the sandbox sees: it goes with the run, and the numbers mean something in there alone.
_FILE = STATE_DIR / "nodes.json"


def publish(net: Nodes) -> None:
    """Leave the PIDs of the nodes for who comes later."""
    part = _FILE.with_suffix(".part")
    part.write_text(json.dumps({node.name: net.node_pid(node.name) for node in net.fabric.nodes}))
    part.replace(_FILE)


@dataclass(frozen=True)
class Attached:
    """The nodes of a run that another process has brought up."""

    fabric: Fabric
    pids: dict[str, int]

    def node_pid(self, name: str) -> int:
        """PID whose network namespace is the node's."""
        return self.pids[name]


def attach(fabric: Fabric) -> Attached:
    """The nodes that the sandbox's run has published. Raises FileNotFoundError."""
    return Attached(fabric, json.loads(_FILE.read_text()))


def joining(pid: int, argv: list[str]) -> list[str]:
    """The argument list that runs `argv` in the sandbox of process `pid`, and gives way to what is measured there."""
    return ["nice", "-n", "10", "nsenter", "--target", str(pid), "--mount", "--pid", "--net", "--", *argv]
