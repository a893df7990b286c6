"""`zcube fabric probe`, from outside the sandbox: what to probe, and who does it in there.

On a fabric of its own that is `emulation.probe_run`, on that of a live run `emulation.probe_live`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from emulation.attach import joining
from emulation.launch import sandboxed
from emulation.sandbox import REPOSITORY, require_machine
from scenario.errors import InputError, RunError
from scenario.models import FabricSection, Scenario
from topologies.build import build
from topologies.fabric import Fabric
from topologies.paths import QP_SERVER_PORT, TCP, UDP, FiveTuple, QueuePair, queue_pairs
from topologies.routes import NONE, Failures

#: A node is a namespace, a switch two daemons more; beyond this a laptop runs out of memory.
MAX_GPUS, MAX_SWITCHES = 256, 80
#: A port pair has at most so many queue pairs, less one; a live run that sprays has more.
MAX_QUEUE_PAIR = 15


@dataclass(frozen=True)
class Settings:
    """`fabric` holds the settings of a scenario's fabric section; `source_port` None: that of the plan."""

    fabric: dict[str, Any]
    src_gpu: str
    dst_gpu: str
    queue_pair: int = 0
    seed: int = 1
    protocol: Literal["tcp", "udp"] = "tcp"
    source_port: int | None = None
    count: int = 3

    @property
    def protocol_number(self) -> int:
        """6 or 17."""
        return TCP if self.protocol == "tcp" else UDP

    def flow(self, own: FiveTuple) -> FiveTuple:
        """What is sent, where `own` is the queue pair's."""
        return own if self.source_port is None else replace(own, src_port=self.source_port)

    def result(self, probes: list[dict[str, object]]) -> dict[str, object]:
        """What `zcube fabric probe --json` prints."""
        equal = all(bool(one["equal"]) for one in probes)
        return {"fabric": self.fabric, "seed": self.seed, "probes": probes, "equal": equal}

    def to_json(self) -> str:
        """One line for the command line of `emulation.probe_run`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The inverse."""
        return cls(**json.loads(text))


def check(section: FabricSection, settings: Settings) -> Fabric:
    """The fabric, if it can be emulated and the pair can be probed. Raises InputError, FabricError."""
    fabric = build(section)
    check_flow(fabric, settings)
    if settings.queue_pair > MAX_QUEUE_PAIR:
        raise InputError("--queue-pair", settings.queue_pair, f"must be from 0 to {MAX_QUEUE_PAIR}")
    if len(fabric.gpus) > MAX_GPUS or len(fabric.switches) > MAX_SWITCHES:
        raise InputError(
            "fabric",
            f"{len(fabric.gpus)} GPUs, {len(fabric.switches)} switches",
            f"a probe brings the fabric up: at most {MAX_GPUS} GPUs and {MAX_SWITCHES} switches",
            "zcube fabric paths computes the paths of any size",
        )
    return fabric


def check_flow(fabric: Fabric, settings: Settings) -> None:
    """Raise InputError for what cannot be probed on the fabric."""
    for option, name in (("--from", settings.src_gpu), ("--to", settings.dst_gpu)):
        if name not in fabric.gpu_by_name:
            raise InputError(option, name, f"must be one of gpu1 to gpu{len(fabric.gpus)}")
    if settings.src_gpu == settings.dst_gpu:
        raise InputError("--to", settings.dst_gpu, "must be another GPU than --from")
    if settings.protocol not in ("tcp", "udp"):
        raise InputError("--protocol", settings.protocol, "must be tcp or udp")
    if settings.source_port is not None and not 1 <= settings.source_port <= 65_535:
        raise InputError("--source-port", settings.source_port, "must be from 1 to 65535")
    if settings.source_port == QP_SERVER_PORT:
        raise InputError("--source-port", settings.source_port, "is the port that queue pairs go to; choose another")
    if not queue_pairs(fabric, settings.src_gpu, settings.dst_gpu):
        raise InputError(
            "--to", settings.dst_gpu, f"is in the server of {settings.src_gpu}: only NVLink joins them on {fabric.kind}"
        )


def run(section: FabricSection, settings: Settings) -> dict[str, Any]:
    """Bring the fabric up in a sandbox, probe, and return the result. Raises InputError, MachineError, RunError."""
    check(section, settings)
    require_machine()
    heard: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="zcube-probe-"))
    code = sandboxed(["-m", "emulation.probe_run", settings.to_json()], folder, heard.update)
    shutil.rmtree(folder)  # after a failure the log stays, and the error names it
    if code:
        raise KeyboardInterrupt
    if "probe" not in heard:
        raise RunError("the probe ended without a result")
    result: dict[str, Any] = heard["probe"]
    return result


def pairs_of(scenario: Scenario, fabric: Fabric, settings: Settings, failures: Failures = NONE) -> list[QueuePair]:
    """Of every port pair that has a path, the queue pair asked for: the n-th, where indices are chosen so that each has
    a path of its own (`spray`). Empty where there is no path at all. Raises InputError where there are fewer."""
    by_ports: dict[tuple[int, int], list[QueuePair]] = {}
    for qp in scenario.paths.queue_pairs(fabric, settings.src_gpu, settings.dst_gpu, failures):
        by_ports.setdefault((qp.src.port, qp.dst.port), []).append(qp)
    most = max(map(len, by_ports.values()), default=0)
    if by_ports and settings.queue_pair >= most:
        raise InputError("--queue-pair", settings.queue_pair, f"the run has {most} a port pair, counted from 0")
    return [found[settings.queue_pair] for found in by_ports.values() if settings.queue_pair < len(found)]


def run_live(
    folder: Path, scenario: Scenario, controller_pid: int, down: list[str], settings: Settings
) -> dict[str, Any]:
    """Probe the fabric of the run in `folder` beside its traffic, from the sandbox of its controller, which counts
    `down` as failed. Raises InputError, MachineError, RunError."""
    fabric = build(scenario.fabric)
    check_flow(fabric, settings)
    whole, left = (pairs_of(scenario, fabric, settings, each) for each in (NONE, Failures.of(fabric, down)))
    require_machine()
    # What a repair falls back to is among `left` and not of the whole; what is not left has no path.
    ports_left = {(qp.src.port, qp.dst.port) for qp in left}
    cut = [(qp.src.port, qp.dst.port) for qp in whole if (qp.src.port, qp.dst.port) not in ports_left]
    more = {"down": down, "cut": cut}
    if not left:
        return {**settings.result([]), **more}
    try:  # the one who started it, or the sandbox's first process: it lives as long as the run
        resident = int(Path(f"/proc/{controller_pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        raise RunError("the run's controller was being replaced, or the run ended; probe again") from None
    inside = [str(folder.resolve()), settings.to_json(), json.dumps(down)]
    done = subprocess.run(
        joining(resident, [sys.executable, "-m", "emulation.probe_live", *inside]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for message in lines:
        if "error" in message:
            raise RunError(str(message["error"]))
        if "probe" in message:
            return {**message["probe"], **more}
    if done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL) or not Path(f"/proc/{resident}").exists():
        raise RunError("the run ended while it was probed")
    raise RunError(f"the probe ended with status {done.returncode}: {done.stderr.strip()[-300:] or 'no reason given'}")
