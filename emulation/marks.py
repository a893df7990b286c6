"""Congestion marks of a run: turned on in the kernel, and counted while serving, at each switch port and queue pair.

What comes back is TCP's own account (TCP_INFO, tcpi_delivered_ce): segments that were acknowledged with the echo of a
mark. It is TCP's analogue of the CNP that a RoCE receiver sends, and not one: it rides on acknowledgements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emulation.agents import AgentPool
from emulation.netns import Batch, inside, write_sysctls
from emulation.network import EmulatedNetwork
from emulation.qdisc_dump import QdiscDump, RedCounts, decode
from emulation.red import Red, difference, red_line, red_of
from results.schema import ECN_FLOWS, ECN_PORTS
from results.writer import write_table
from scenario.flow_control_section import FlowControlSection
from topologies.paths import QueuePair

#: TCP asks for ECN on every connection (1); the kernel's default (2) is to agree only.
ECN_SYSCTLS = {"net/ipv4/tcp_ecn": "1"}

_PortCounts = dict[tuple[str, int], tuple[int, RedCounts]]


def reds_of(network: EmulatedNetwork, flow_control: FlowControlSection) -> dict[int, list[Red]]:
    """The RED of every switch port, by the PID of its node; nothing where flow control is off. Raises InputError."""
    found = {}
    for switch in network.fabric.switches:
        pid = network.node_pid(switch.name)
        shapes = network.shapes[pid]
        if reds := [red for shape in shapes if (red := red_of(shape, flow_control, network.rates.frame_bytes))]:
            found[pid] = reds
    return found


def turn_on(network: EmulatedNetwork, flow_control: FlowControlSection) -> dict[int, list[Red]]:
    """Put RED into every switch port's shaper, read it back, and let the GPUs' TCP ask for ECN. With flow control off
    nothing is touched.

    After the link check, whose iperf3 is to find the shaper's rate and not its own answer to marks; before connections
    are opened, which agree on ECN as they are. Raises InputError, or RuntimeError where the kernel has something else.
    """
    reds = reds_of(network, flow_control)
    if not reds:
        return reds
    batch = Batch()
    for pid, ports in reds.items():
        batch.start(inside(pid, ["tc", "-batch", "-"]), "\n".join(map(red_line, ports)) + "\n")
    batch.finish()
    if wrong := read_back(reds):
        raise RuntimeError(f"RED was not accepted on {len(wrong)} ports: {next(iter(wrong.items()))}")
    for gpu in network.fabric.gpus:
        write_sysctls(network.node_pid(gpu.name), ECN_SYSCTLS)
    return reds


def read_back(reds: Mapping[int, Sequence[Red]]) -> dict[str, str]:
    """Differences between what was asked and what the kernel has, by interface; empty when all is well."""
    batch = Batch()
    for pid in reds:
        batch.start(inside(pid, ["tc", "-j", "-d", "qdisc", "show"]))
    wrong: dict[str, str] = {}
    for ports, text in zip(reds.values(), batch.finish(), strict=True):
        found = {q["dev"]: q for q in json.loads(text) if q.get("parent") == "1:1"}
        wrong |= {red.interface: text for red in ports if (text := difference(red, found.get(red.interface)))}
    return wrong


class Marks:
    """Counters from its making until `finish`, of a run whose switches mark; of others nothing is read or written."""

    def __init__(self, network: EmulatedNetwork, pool: AgentPool, flow_control: FlowControlSection) -> None:
        """Raises RunError when an agent does not answer."""
        self._network, self._pool, self._on = network, pool, flow_control.ecn != "off"
        if self._on:
            self._ports_before, self._flows_before = self._ports(), delivered(pool)

    def finish(self, folder: Path, *, at_once: bool) -> None:
        """Write what grew: the tables ecn_ports and ecn_flows. `at_once`: somebody who pressed Ctrl-C does not wait for
        agents, and no flow is told."""
        if not self._on:
            return
        write_table(folder / "ecn_ports.parquet", ECN_PORTS, port_rows(self._ports_before, self._ports()))
        flows = {} if at_once else delivered(self._pool)
        write_table(
            folder / "ecn_flows.parquet", ECN_FLOWS, flow_rows(self._pool.queue_pairs, self._flows_before, flows)
        )

    def _ports(self) -> _PortCounts:
        found: _PortCounts = {}
        for switch in self._network.fabric.switches:
            dump = QdiscDump(self._network.node_pid(switch.name))
            data = dump.read()
            layout, reds = dump.layout(data), dump.red_counts(data)
            for port in switch.ports:
                sent = int(decode(data, layout, port.name)["packets"].item())
                found[switch.name, port.number] = sent, reds[port.name]
        return found


def delivered(pool: AgentPool) -> dict[int, tuple[int, int]]:
    """Queue pair -> segments delivered since it was opened, and those of them that came back marked."""
    found: dict[int, tuple[int, int]] = {}
    for name in pool.sockets:
        start, total = 0, 1
        while start < total:
            answer: Mapping[str, Any] = pool.answer_to(name, "marks", start=start)
            found.update({number: (segments, marked) for number, segments, marked in answer["qps"]})
            start, total = start + max(1, len(answer["qps"])), int(answer["of"])
    return found


def port_rows(before: _PortCounts, after: _PortCounts) -> list[dict[str, object]]:
    """Rows of ecn_ports: what grew between two readings."""
    rows: list[dict[str, object]] = []
    for (node, port), (sent, counts) in after.items():
        sent_before, counts_before = before[node, port]
        grown = counts - counts_before
        rows.append(
            {
                "node": node,
                "port": port,
                "packets": sent - sent_before,
                "marked": grown.marked,
                "early": grown.early,
                "pdrop": grown.pdrop,
                "other": grown.other,
            }
        )
    return rows


def flow_rows(
    queue_pairs: Sequence[QueuePair], before: Mapping[int, tuple[int, int]], after: Mapping[int, tuple[int, int]]
) -> list[dict[str, object]]:
    """Rows of ecn_flows: what grew between two readings, a row a queue pair."""
    rows: list[dict[str, object]] = []
    for number, (segments, marked) in sorted(after.items()):
        qp, (segments_before, marked_before) = queue_pairs[number], before.get(number, (0, 0))
        rows.append(
            {
                "src_gpu": qp.src.node,
                "src_port": qp.src.port,
                "dst_gpu": qp.dst.node,
                "dst_port": qp.dst.port,
                "qp": qp.index,
                "delivered": segments - segments_before,
                "delivered_ce": marked - marked_before,
            }
        )
    return rows
