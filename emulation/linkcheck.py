"""The link check before a run: every directed link carries its configured rate (iperf3 flows, kernel counters).

The flows are chosen (`plan_rounds`, pure) so that in each round the links they cross are either full or not judged:
each flow alone can fill its NIC port, and a link is judged when the flows through it add up to exactly its capacity
and none of them is held back elsewhere.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from emulation.network import EmulatedNetwork
from emulation.qdisc_dump import QdiscDump, decode
from scenario.errors import RunError
from topologies.fabric import End, Fabric
from topologies.paths import QP_SERVER_PORT, QueuePair, five_tuple, path, walk_all_pairs

#: Up to here all links are measured, in a handful of rounds; above, planning and measuring all would take a minute.
ALL_LINKS_UP_TO_GPUS = 32
#: Flows that a sample may choose among, for each switch.
_SAMPLE_FLOWS_PER_SWITCH = 24
_SETTLE_S, _MEASURE_S, _READ_EVERY_S = 0.35, 1.2, 0.04
#: Where frames last long, both take as many of the slowest port's frame times as a window needs to open, and so many
#: that one frame more or less is within the tolerance.
_SETTLE_FRAMES, _MEASURE_FRAMES = 25, 60
#: Programs take their time to start, one after the other.
_SETTLE_PER_FLOW_S = 0.015
#: How often a round is run again at most.
REPEATS = 4
_QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
_EPSILON = 1e-9


@dataclass(frozen=True)
class Round:
    """Flows that run at the same time, and the directed links (egress ends) that they fill."""

    flows: tuple[QueuePair, ...]
    judged: tuple[End, ...]


@dataclass(frozen=True)
class LinkRate:
    """Measured against configured, both in emulated bit/s."""

    end: End
    configured_bps: float
    measured_bps: float

    @property
    def deviation(self) -> float:
        """Relative deviation of the measured rate."""
        return self.measured_bps / self.configured_bps - 1


def plan_rounds(
    fabric: Fabric, seed: int, *, qp_index: int, switch_hop_gbps_per_round: float, sample: bool = False
) -> list[Round]:
    """Rounds of flows that together fill every directed link that a planned flow can fill; with `sample`, at least one
    link out of every switch and as many more as the flows and rounds for it fill.

    `switch_hop_gbps_per_round`: sum over flows of rate x switches crossed that a round may have (the packet budget,
    in model Gb/s); `qp_index`: index of the flows' queue pairs, one that the run itself does not use. Greedy: each
    step takes the flow that completes or covers most links not yet judged.
    """
    candidates = _candidates(fabric, seed, qp_index, _SAMPLE_FLOWS_PER_SWITCH if sample else None)
    unseen = {switch.name for switch in fabric.switches}
    capacity = {end: fabric.port(end.node, end.port).gbps for _, egress, _ in candidates for end in egress}
    unjudged = set(capacity)
    rounds: list[Round] = []
    while unjudged and (unseen or not sample):
        left = dict(capacity)
        room = switch_hop_gbps_per_round
        chosen: list[QueuePair] = []
        while True:
            best, best_gain = None, 0.0
            for qp, egress, gbps in candidates:
                cost = gbps * (len(egress) - 1)
                if (cost > room and chosen) or any(left[end] < gbps - _EPSILON for end in egress):
                    continue
                gain = sum(
                    (1.0 if left[end] - gbps < _EPSILON else 0.4) + (0.5 if left[end] < capacity[end] else 0.0)
                    for end in egress
                    if end in unjudged
                )
                if gain > best_gain:
                    best, best_gain = (qp, egress, gbps), gain
            if best is None:
                break
            qp, egress, gbps = best
            room -= gbps * (len(egress) - 1)
            chosen.append(qp)
            for end in egress:
                left[end] -= gbps
        judged = tuple(sorted((e for e in unjudged if left[e] < _EPSILON), key=lambda e: (e.node, e.port)))
        if not judged:
            break
        rounds.append(Round(tuple(chosen), judged))
        unjudged -= set(judged)
        unseen -= {end.node for end in judged}
    return rounds


def _candidates(
    fabric: Fabric, seed: int, qp_index: int, per_switch: int | None
) -> list[tuple[QueuePair, tuple[End, ...], float]]:
    """Flows to choose among, shuffled: queue pair, egress ends, Gb/s. `per_switch`: how many that cross a switch are
    enough; by default all flows."""
    found = []
    wanted = {switch.name: per_switch or 0 for switch in fabric.switches}
    pairs = list(walk_all_pairs(fabric))
    random.Random(seed).shuffle(pairs)
    for pair in pairs:
        qp = replace(pair, index=qp_index)
        egress = path(fabric, qp, seed).egress
        if per_switch is not None:
            crossed = [end.node for end in egress if end.node in wanted]
            if not any(wanted[node] > 0 for node in crossed):
                continue
            for node in crossed:
                wanted[node] -= 1
        found.append((qp, egress, fabric.port(qp.src.node, qp.src.port).gbps))
        if per_switch is not None and max(wanted.values()) <= 0:
            break
    return found


def planned_flows(rounds: Sequence[Round]) -> list[QueuePair]:
    """The flows of all rounds, for the controller to install."""
    return [qp for one in rounds for qp in one.flows]


def check_links(network: EmulatedNetwork, rounds: Sequence[Round], tolerance: float) -> tuple[list[LinkRate], int]:
    """Run the rounds; returns the rates, and how many rounds were run twice. Raises RunError.

    The rate of a link does not change, but the scheduler can spoil a second of measuring: a round with a link beyond
    `tolerance` (a share) is run again, up to REPEATS times, and for each of its links the closest measurement counts.
    """
    rates: list[LinkRate] = []
    again = 0
    with _servers(network, {qp.dst for qp in planned_flows(rounds)}):
        for one in rounds:
            found = _run_patiently(network, one)
            for _ in range(REPEATS):
                if max(abs(rate.deviation) for rate in found) <= tolerance:
                    break
                again += 1
                pairs = zip(found, _run_patiently(network, one), strict=True)
                found = [min(pair, key=lambda rate: abs(rate.deviation)) for pair in pairs]
            rates += found
    return rates, again


def _run_patiently(network: EmulatedNetwork, one: Round) -> list[LinkRate]:
    """A round; again when an iperf3 server had not yet noticed that its last client was gone. Raises RunError."""
    for wait_s in (0.5, 1.0, 2.0, 4.0):
        try:
            return _run_round(network, one)
        except RuntimeError as problem:
            reason = problem
            time.sleep(wait_s)  # what the last client had not sent is still on its way, and holds its port
    raise RunError(f"the link check did not get through: {reason}\n  is the machine busy with something else?")


@contextmanager
def _servers(network: EmulatedNetwork, ends: Iterable[End]) -> Iterator[None]:
    """An iperf3 server on each GPU port, while the block lasts."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for end in ends:
            address = str(network.fabric.port(end.node, end.port).ip)
            command = ["iperf3", "-s", "-B", address, "-p", str(QP_SERVER_PORT)]
            processes.append(network.net[end.node].popen(command, **_QUIET))
        time.sleep(0.2)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _run_round(network: EmulatedNetwork, one: Round) -> list[LinkRate]:
    fabric = network.fabric
    slowest_gbps = min(fabric.port(end.node, end.port).gbps for end in one.judged)
    frame_time_s = 8 * network.rates.frame_bytes / (slowest_gbps * network.rates.bps_per_gbps)
    nodes = sorted({end.node for end in one.judged})
    dumps = {node: QdiscDump(network.node_pid(node)) for node in nodes}
    clients: list[subprocess.Popen[bytes]] = []
    try:
        for qp in one.flows:
            flow = five_tuple(fabric, qp)
            command = [
                *("iperf3", "-c", flow.dst_ip, "-p", str(flow.dst_port), "-B", flow.src_ip),
                *("--cport", str(flow.src_port), "-C", "reno", "-w", "400K", "-t", "60", "--connect-timeout", "5000"),
            ]
            clients.append(network.net[qp.src.node].popen(command, **{**_QUIET, "stderr": subprocess.PIPE}))
        time.sleep(max(_SETTLE_S, _SETTLE_FRAMES * frame_time_s) + _SETTLE_PER_FLOW_S * len(clients))
        readings: dict[str, list[tuple[int, bytes]]] = {node: [] for node in nodes}
        until = time.monotonic() + max(_MEASURE_S, _MEASURE_FRAMES * frame_time_s)
        while time.monotonic() < until:
            for node, dump in dumps.items():
                readings[node].append((time.monotonic_ns(), dump.read()))
            time.sleep(_READ_EVERY_S)
        for client in clients:
            if client.poll() is not None:
                message = client.stderr.read().decode(errors="replace") if client.stderr else ""
                raise RuntimeError(f"iperf3 ended early: {message.strip()[:200] or client.returncode}")
    finally:
        for client in clients:
            client.kill()
            client.wait()
            if client.stderr:
                client.stderr.close()
    return [
        LinkRate(
            end,
            fabric.port(end.node, end.port).gbps * network.rates.bps_per_gbps,
            rate_bps(dumps[end.node], readings[end.node], fabric.port(end.node, end.port).name),
        )
        for end in one.judged
    ]


def rate_bps(dump: QdiscDump, readings: Sequence[tuple[int, bytes]], interface: str) -> float:
    """Slope of a line through all readings: two readings alone would hang on when single frames left."""
    layout = dump.layout(readings[0][1])
    times_s = np.array([t_ns for t_ns, _ in readings]) / 1e9
    sent_bits = np.array([8.0 * decode(data, layout, interface)["bytes"].item() for _, data in readings])
    return float(np.polyfit(times_s - times_s[0], sent_bits - sent_bits[0], 1)[0])
