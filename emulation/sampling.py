"""Starts and ends the queue sampler's process, and says how often each node is sampled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from emulation.network import EmulatedNetwork
from scenario.errors import RunError
from scenario.models import FabricSection, TelemetrySection
from scenario.scale import Scale


def sample_hz(fabric: FabricSection, telemetry: TelemetrySection, scale: Scale) -> float:
    """Samples per wall second of switch ports: by the frame time at half the NIC rate, ZCube's port.

    The same for every fabric of a comparison, whatever its port rate, since a peak is found by looking often.
    """
    return telemetry.samples_per_frame_time / scale.frame_time_wall_s(fabric.gpu_gbps / 2)


class SamplerProcess:
    """The sampler, ready to start."""

    def __init__(
        self,
        network: EmulatedNetwork,
        gpus: Iterable[str],
        path: Path,
        scale: Scale,
        switch_hz: float,
        gpu_hz: float,
        log: IO[bytes],
    ) -> None:
        """Start the process; it waits. `gpus` are those whose NICs are sampled. Raises RunError."""
        fabric = network.fabric
        owners = [(switch, switch_hz) for switch in fabric.switches]
        owners += [(fabric.gpu_by_name[name], min(gpu_hz, switch_hz)) for name in gpus]  # type: ignore[misc]
        settings = {
            "path": str(path),
            "dilation": scale.dilation,
            "byte_factor": scale.byte_factor * scale.frame_bytes / scale.mss_bytes,
            "nodes": [
                {
                    "name": owner.name,
                    "pid": network.node_pid(owner.name),
                    "ports": {port.name: port.number for port in owner.ports},
                    "hz": hz,
                }
                for owner, hz in owners
            ],
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "emulation.sampler"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
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
        return found

    def start(self, start_ns: int) -> None:
        """Begin to sample; `start_ns` is model time 0 on the monotonic clock."""
        self._say({"start_ns": start_ns})

    def finish(self) -> dict[str, float]:
        """End it; the table is complete. Returns its statistics about itself. Raises RunError."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        statistics = self._hear()
        self.process.wait(10)
        return statistics
