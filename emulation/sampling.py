"""Starts and ends the queue sampler's process, and says how often each node is sampled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from emulation.network import EmulatedNetwork
from emulation.sampling_gaps import UNSEEN_PERIODS
from scenario.errors import RunError
from scenario.models import FabricSection, TelemetrySection
from scenario.scale import Scale
from topologies.fabric import Fabric
from topologies.paths import Path as FlowPath

#: For ports that no planned path leaves by, and for receivers' NICs, which send ACKs alone.
IDLE_HZ = 10.0


def sample_hz(fabric: FabricSection, telemetry: TelemetrySection, scale: Scale) -> float:
    """Samples per wall second of switch ports: by the frame time at half the NIC rate, ZCube's port.

    The same for every fabric of a comparison, whatever its port rate, since a peak is found by looking often.
    """
    return telemetry.samples_per_frame_time / scale.frame_time_wall_s(fabric.gpu_gbps / 2)


def rates_hz(fabric: Fabric, ways: Iterable[FlowPath], switch_hz: float, gpu_hz: float) -> dict[str, float]:
    """Node -> samples per second: full rates where a handoff's path leaves from, IDLE_HZ where only ACKs can pass."""
    senders = {end.node for way in ways for end in way.egress}
    full = {owner.name: gpu_hz if owner.name in fabric.gpu_by_name else switch_hz for owner in fabric.nodes}
    return {name: min(hz, switch_hz) if name in senders else IDLE_HZ for name, hz in full.items()}


class SamplerProcess:
    """The sampler, ready to start."""

    def __init__(
        self, network: EmulatedNetwork, rates: Mapping[str, float], table: Path, scale: Scale, log: IO[bytes]
    ) -> None:
        """Start the process; it waits. `rates` is that of `rates_hz`, `table` the file to write parts of. Raises
        RunError."""
        full = max(rates.values())
        unseen_after_s = UNSEEN_PERIODS / full
        settings = {
            "path": str(table),
            "dilation": scale.dilation,
            "byte_factor": scale.byte_factor * scale.frame_bytes / scale.mss_bytes,
            "nodes": [
                {
                    "name": owner.name,
                    "pid": network.node_pid(owner.name),
                    "ports": {port.name: port.number for port in owner.ports},
                    "hz": rates[owner.name],
                    # Ports at rest are looked at less often on purpose, and hosts as often as somebody asked for.
                    "unseen_after_s": unseen_after_s
                    if owner.name in network.fabric.switch_by_name and rates[owner.name] == full
                    else None,
                }
                for owner in network.fabric.nodes
            ],
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "emulation.sampler"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # a session of its own has its own share of the cores
        )
        self._say(settings)
        self._hear()

    def _say(self, message: object) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RunError("the sampler ended; see sampler.log in the run folder") from None

    def _hear(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RunError("the sampler ended; see sampler.log in the run folder")
        found: dict[str, float] = json.loads(line)
        if "error" in found:
            raise RunError(f"the sampler failed: {found['error']}")
        return found

    def check(self) -> None:
        """Raise RunError when it has ended by itself."""
        if self.process.poll() is not None:
            self._hear()
            raise RunError("the sampler ended; see sampler.log in the run folder")

    def start(self, start_ns: int) -> None:
        """Begin to sample; `start_ns` is model time 0 on the monotonic clock."""
        self._say({"start_ns": start_ns})

    def finish(self) -> dict[str, float]:
        """End it; all parts of the table are there. Returns its statistics about itself. Raises RunError."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        statistics = self._hear()
        self.process.wait(10)
        return statistics
