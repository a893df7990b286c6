"""Samples every port's egress counters and backlog while a run goes on: a process of its own, beside the runner.

Input (one JSON object a line): the settings, then {"start_ns": t0}; the end of input ends it. It writes
ports.parquet and prints one JSON object of statistics about itself. Times are those at which a dump was taken, not
those at which it was due.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from emulation.qdisc_dump import Layout, QdiscDump, decode
from results.schema import PORTS
from results.writer import TableWriter

_FLUSH_S = 2.0


@dataclass
class Node:
    """A namespace to sample: its port numbers by interface, and what was taken and not yet written."""

    name: str
    ports: dict[str, int]
    period_s: float
    dump: QdiscDump
    layout: Layout
    next_due: float = 0.0
    times_ns: list[int] = field(default_factory=list)
    taken: list[bytes] = field(default_factory=list)


class Sampler:
    """Takes dumps on schedule and writes them in blocks."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.dilation = float(str(settings["dilation"]))
        self.byte_factor = float(str(settings["byte_factor"]))
        self.table = TableWriter(Path(str(settings["path"])), PORTS)
        self.nodes: list[Node] = []
        for entry in settings["nodes"]:  # type: ignore[attr-defined]
            dump = QdiscDump(entry["pid"])
            self.nodes.append(
                Node(entry["name"], entry["ports"], 1 / entry["hz"], dump, dump.layout(dump.read()))
            )
        self.start_ns = 0
        self.lags_s: list[float] = []
        self.skipped = 0
        self.odd_dumps = 0

    def run(self) -> dict[str, object]:
        """Sample until the input ends; returns the statistics."""
        self.start_ns = int(json.loads(sys.stdin.readline())["start_ns"])
        cpu_before, began = time.process_time(), time.monotonic()
        poller = select.poll()
        poller.register(0, select.POLLIN | select.POLLHUP)
        for node in self.nodes:
            node.next_due = began
        next_flush = began + _FLUSH_S
        while True:
            now = time.monotonic()
            due = min(node.next_due for node in self.nodes)
            if poller.poll(max(0, int((due - now) * 1000))):
                break
            self.take_due()
            if time.monotonic() >= next_flush:
                self.flush()
                next_flush += _FLUSH_S
        self.flush()
        self.table.close()
        wall_s = time.monotonic() - began
        lags = np.array(self.lags_s or [0.0])
        return {
            "wall_s": wall_s,
            "cpu_s": time.process_time() - cpu_before,
            "samples": self.table.rows_written,
            "lag_p99_ms": float(np.percentile(lags, 99) * 1e3),
            "lag_max_ms": float(lags.max() * 1e3),
            "skipped": self.skipped,
            "odd_dumps": self.odd_dumps,
        }

    def take_due(self) -> None:
        """Take a dump of each node that is due, then set when it is due next."""
        for node in self.nodes:
            now = time.monotonic()
            if node.next_due > now + 0.0002:
                continue
            lag = now - node.next_due
            self.lags_s.append(max(0.0, lag))
            data = node.dump.read()
            if len(data) == node.layout.size:
                node.times_ns.append(time.monotonic_ns())
                node.taken.append(data)
            else:
                self.odd_dumps += 1
            node.next_due += node.period_s
            if node.next_due < now:  # behind: leave samples out rather than take them in a bunch
                missed = int((now - node.next_due) / node.period_s) + 1
                self.skipped += missed
                node.next_due += missed * node.period_s

    def flush(self) -> None:
        """Decode what was taken and write it."""
        for node in self.nodes:
            if not node.taken:
                continue
            t_wall_s = (np.array(node.times_ns, dtype=np.int64) - self.start_ns) / 1e9
            count = len(t_wall_s)
            for interface, number in node.ports.items():
                counters = decode(node.taken, node.layout, interface)
                self.table.write(
                    pa.table(
                        {
                            "t_s": t_wall_s / self.dilation,
                            "t_wall_s": t_wall_s,
                            "node": pa.DictionaryArray.from_arrays(np.zeros(count, dtype=np.int8), [node.name]),
                            "port": np.full(count, number, dtype=np.int32),
                            "tx_bytes_raw": counters["bytes"].astype(np.int64),
                            "tx_packets": counters["packets"].astype(np.int64),
                            "drops": counters["drops"].astype(np.int64),
                            "backlog_bytes": counters["backlog"] / self.byte_factor,
                            "backlog_bytes_raw": counters["backlog"].astype(np.int64),
                            "backlog_packets": counters["qlen"].astype(np.int32),
                        }
                    )
                )
            node.times_ns, node.taken = [], []


def main() -> None:
    """Entry point: settings on standard input."""
    os.nice(-10)  # a late sample is a missed peak
    sampler = Sampler(json.loads(sys.stdin.readline()))
    print(json.dumps({"ready": True}), flush=True)
    print(json.dumps(sampler.run()), flush=True)


if __name__ == "__main__":
    main()
