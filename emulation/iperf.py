"""iperf3 beside the workload: TCP streams paced to a rate, in the namespaces of the GPUs (`background`, kind iperf3).

A pair is one stream for each of its port pairs, with an equal part of the rate. Their 5-tuples are nobody's plan: where
a fabric has equal paths the switches' own hash picks one. The servers run from before serving; clients start when they
are due, and everything ends with the run.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from dataclasses import dataclass

from emulation.network import EmulatedNetwork
from scenario.background_section import IperfBackground
from scenario.errors import InputError, RunError
from scenario.models import Scenario
from scenario.scale import Scale
from topologies.fabric import End, Fabric
from traffic.background import background_pairs

#: Streams at most: each is two processes.
MOST_STREAMS = 128
#: TCP ports of the servers, and of the clients: apart from those of queue pairs.
SERVER_PORT, CLIENT_PORT = 5201, 6201
#: Longest that a client runs by itself; the end of the run comes before.
_ENDLESS_S = 86_400
_NO_OUTPUT = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@dataclass(frozen=True)
class IperfStream:
    """One TCP connection. Times in model seconds, `gbps` its model rate on the wire, headers included."""

    item: int
    number: int
    src: End
    dst: End
    gbps: float
    start_s: float
    stop_s: float | None


def iperf_streams(scenario: Scenario, fabric: Fabric) -> list[IperfStream]:
    """All streams of the scenario. Raises InputError for GPUs that do not exist and for too many streams."""
    found: list[IperfStream] = []
    for item, settings in enumerate(scenario.background):
        if not isinstance(settings, IperfBackground):
            continue
        for src, dst in background_pairs(scenario, settings):
            ends = dict.fromkeys((qp.src, qp.dst) for qp in scenario.paths.queue_pairs(fabric, src, dst))
            for a, b in ends:
                share = settings.gbps / len(ends)
                found.append(IperfStream(item, len(found), a, b, share, settings.start_s, settings.stop_s))
    if len(found) > MOST_STREAMS:
        raise InputError(
            "background", len(found), f"at most {MOST_STREAMS} iperf3 streams (one for each port of each pair) are run",
            "fewer pairs, or kind: flows, which needs no processes of its own",
        )  # fmt: skip
    return found


class IperfPlayer:
    """Starts the clients when they are due, and ends them."""

    def __init__(self, network: EmulatedNetwork, streams: list[IperfStream], scale: Scale) -> None:
        """The servers start here, before model time 0, which is `start_ns` (monotonic) once it is known."""
        self._network, self._scale = network, scale
        self.start_ns = time.monotonic_ns()
        self._waiting = sorted(streams, key=lambda stream: stream.start_s)
        self._servers = [self._server(stream) for stream in streams]
        self._clients: list[tuple[IperfStream, subprocess.Popen[bytes]]] = []

    def _server(self, stream: IperfStream) -> subprocess.Popen[bytes]:
        address = str(self._network.fabric.port(stream.dst.node, stream.dst.port).ip)
        command = ["iperf3", "-s", "-1", "-B", address, "-p", str(SERVER_PORT + stream.number)]
        process: subprocess.Popen[bytes] = self._network.net[stream.dst.node].popen(command, **_NO_OUTPUT)
        return process

    def step(self) -> None:
        """Start what is due; to be called often. Raises RunError when a client ended before its time."""
        now_s = (time.monotonic_ns() - self.start_ns) / 1e9
        while self._waiting and self._waiting[0].start_s * self._scale.dilation <= now_s:
            stream = self._waiting.pop(0)
            self._clients.append((stream, self._client(stream)))
        for stream, client in self._clients:
            if client.poll():
                raise RunError(f"iperf3 {stream.src.node} -> {stream.dst.node} ended early: {_reason(client)}")

    def _client(self, stream: IperfStream) -> subprocess.Popen[bytes]:
        fabric, scale = self._network.fabric, self._scale
        addresses = [str(fabric.port(end.node, end.port).ip) for end in (stream.src, stream.dst)]
        lasts_s = _ENDLESS_S
        if stream.stop_s is not None:
            lasts_s = max(1, round((stream.stop_s - stream.start_s) * scale.dilation))
        # -b counts payload; a block a frame, so that the pace is that of frames.
        payload_bps = round(scale.rate_bps(scale.goodput_gbps(stream.gbps)))
        command = [
            *("iperf3", "-c", addresses[1], "-p", str(SERVER_PORT + stream.number), "-B", addresses[0]),
            *("--cport", str(CLIENT_PORT + stream.number), "-C", "reno", "-w", "400K", "-b", str(max(1, payload_bps))),
            *("-l", str(scale.mss_bytes), "-t", str(lasts_s), "-i", "0", "-J", "--connect-timeout", "5000"),
        ]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process: subprocess.Popen[bytes] = self._network.net[stream.src.node].popen(command, **pipes)
        return process

    def finish(self) -> list[dict[str, object]]:
        """End everything. What each stream sent: model bytes (None where iperf3 did not say), model Gb/s asked for."""
        for _, client in self._clients:
            if client.poll() is None:
                client.send_signal(signal.SIGINT)
        account = [self._account(stream, client) for stream, client in self._clients]
        for server in self._servers:
            server.kill()
            server.wait()
        for stream in self._waiting:
            account.append(self._row(stream, None))
        return account

    def _account(self, stream: IperfStream, client: subprocess.Popen[bytes]) -> dict[str, object]:
        raw: int | None = None
        try:
            report = json.loads(client.communicate(timeout=5)[0])
            raw = int(report["end"]["sum_sent"]["bytes"])
        except (subprocess.TimeoutExpired, ValueError, KeyError):
            client.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.communicate(timeout=5)
        return self._row(stream, None if raw is None else round(raw / self._scale.byte_factor))

    def _row(self, stream: IperfStream, sent: int | None) -> dict[str, object]:
        return {
            "item": stream.item,
            "kind": "iperf3",
            "pair": f"{stream.src.node}->{stream.dst.node}",
            "ports": [stream.src.port, stream.dst.port],
            "gbps_asked": stream.gbps,
            "bytes_sent": sent,
        }


def _reason(client: subprocess.Popen[bytes]) -> str:
    text = client.stdout.read().decode(errors="replace") if client.stdout else ""
    try:
        return str(json.loads(text).get("error"))
    except ValueError:
        return text.strip()[:200] or f"status {client.returncode}"
