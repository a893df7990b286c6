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
#: A flow has begun when its NIC has sent so many bytes; on a busy machine dozens of clients need a while to start.
_BEGUN_BYTES, _BEGIN_WITHIN_S = 60_000, 6.0
#: What a client that is killed may leave in its socket, which keeps the planned port until it is delivered.
_WINDOW_BYTES = 400_000
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
    flows = [qp for qp, _ in candidates]
    crossed = [egress for _, egress in candidates]
    ends = list(dict.fromkeys(end for egress in crossed for end in egress))
    number = {end: at for at, end in enumerate(ends)}
    # One row a flow, its links by number; shorter paths are filled up with a link that is never full nor judged.
    links = np.full((len(flows), max(map(len, crossed), default=1)), len(ends))
    for at, egress in enumerate(crossed):
        links[at, : len(egress)] = [number[end] for end in egress]
    gbps = np.array([fabric.port(qp.src.node, qp.src.port).gbps for qp in flows])
    cost = gbps * np.array([len(egress) - 1 for egress in crossed])
    capacity = np.array([*(fabric.port(end.node, end.port).gbps for end in ends), np.inf])
    unjudged = np.array([True] * len(ends) + [False])
    unseen = {switch.name for switch in fabric.switches}
    rounds: list[Round] = []
    while unjudged.any() and (unseen or not sample):
        left = capacity.copy()
        room = switch_hop_gbps_per_round
        chosen: list[int] = []
        # Room only shrinks: what does not fit now does not fit later in the round.
        able = np.flatnonzero(unjudged[links].any(axis=1))
        while True:
            now, rate = left[links[able]], gbps[able, None]
            fits = (now >= rate - _EPSILON).all(axis=1)
            if chosen:
                fits &= cost[able] <= room
            able, now, rate = able[fits], now[fits], rate[fits]
            wanted = unjudged[links[able]]
            completes = np.where(now - rate < _EPSILON, 1.0, 0.4)
            begun = np.where(now < capacity[links[able]], 0.5, 0.0)
            gain = np.where(wanted, completes + begun, 0.0).sum(axis=1)
            if not gain.any():
                break
            best = int(able[gain.argmax()])
            room -= cost[best]
            chosen.append(best)
            left[links[best]] -= gbps[best]
        full = [at for at in np.flatnonzero(unjudged) if left[at] < _EPSILON]
        if not full:
            break
        judged = sorted((ends[at] for at in full), key=lambda e: (e.node, e.port))
        rounds.append(Round(tuple(flows[at] for at in chosen), tuple(judged)))
        unjudged[full] = False
        unseen -= {end.node for end in judged}
    return rounds


def _candidates(
    fabric: Fabric, seed: int, qp_index: int, per_switch: int | None
) -> list[tuple[QueuePair, tuple[End, ...]]]:
    """Flows to choose among, shuffled: queue pair, egress ends. `per_switch`: how many that cross a switch are
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
        found.append((qp, egress))
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
            _drop_sockets(network, {qp.src.node for qp in one.flows})
            slowest = min(network.fabric.port(qp.src.node, qp.src.port).gbps for qp in one.flows)
            drained_s = 2 * _WINDOW_BYTES * 8 / (slowest * network.rates.bps_per_gbps)
            time.sleep(min(max(wait_s, drained_s), 10.0))  # what the last client had not sent still holds its port
    raise RunError(f"the link check did not get through: {reason}\n  is the machine busy with something else?")


def _drop_sockets(network: EmulatedNetwork, nodes: Iterable[str]) -> None:
    """End what killed clients have left in the kernel (data that nobody reads any more holds a planned port for
    minutes), where the kernel lets `ss -K` do that."""
    command = ["ss", "-K", "dport", "=", f":{QP_SERVER_PORT}"]
    for process in [network.net[node].popen(command, **_QUIET) for node in nodes]:
        process.wait()


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
                *("--cport", str(flow.src_port), "-C", "reno", "-w", f"{_WINDOW_BYTES // 1000}K"),
                *("-t", "60", "--connect-timeout", "5000"),
            ]
            clients.append(network.net[qp.src.node].popen(command, **{**_QUIET, "stderr": subprocess.PIPE}))
        _wait_begun(network, one)
        time.sleep(max(_SETTLE_S, _SETTLE_FRAMES * frame_time_s))
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


def _wait_begun(network: EmulatedNetwork, one: Round) -> None:
    """Wait until every flow's NIC has sent some of its data, at most _BEGIN_WITHIN_S."""
    sources = {qp.src for qp in one.flows}
    dumps = {end.node: QdiscDump(network.node_pid(end.node)) for end in sources}

    def sent(end: End) -> int:
        dump = dumps[end.node]
        data = dump.read()
        return int(decode(data, dump.layout(data), network.fabric.port(end.node, end.port).name)["bytes"].item())

    waiting = {end: sent(end) + _BEGUN_BYTES for end in sources}
    deadline = time.monotonic() + _BEGIN_WITHIN_S
    while waiting and time.monotonic() < deadline:
        time.sleep(_READ_EVERY_S)
        waiting = {end: least for end, least in waiting.items() if sent(end) < least}


def rate_bps(dump: QdiscDump, readings: Sequence[tuple[int, bytes]], interface: str) -> float:
    """Slope of a line through all readings: two readings alone would hang on when single frames left."""
    layout = dump.layout(readings[0][1])
    times_s = np.array([t_ns for t_ns, _ in readings]) / 1e9
    sent_bits = np.array([8.0 * decode(data, layout, interface)["bytes"].item() for _, data in readings])
    return float(np.polyfit(times_s - times_s[0], sent_bits - sent_bits[0], 1)[0])
