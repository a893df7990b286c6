"""Samples every port's egress counters and backlog while a run goes on: a process of its own, beside the runner.

Input (one JSON object a line): the settings, then {"start_ns": t0}; the end of input ends it. It writes
parts of ports.parquet (`results.parts`; the runner joins them) and gaps.parquet, and prints one JSON object of
statistics about itself. Times are those at which a dump was taken, not those at which it was due.
"""

from __future__ import annotations

import json
import math
import os
import queue
import select
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from emulation.priority import SAMPLER, favour
from emulation.qdisc_dump import Layout, QdiscDump, counters_of, rows_of
from emulation.sampling_gaps import Watch, gap_rows
from results.parts import PART_S, PartsWriter
from results.schema import GAPS, PORTS
from results.writer import write_table

#: A node of which no counter moved is at rest: it is looked at every so many turns until one does. What a burst can
#: queue until it is seen is about two frames.
REST = 4
_LOOK_AT_INPUT_S = 0.1


@dataclass
class Node:
    """A namespace to sample: its port numbers by interface, and what was taken and not yet written."""

    name: str
    ports: dict[str, int]
    every: int  # ticks
    dump: QdiscDump
    layout: Layout
    store: bytearray
    watch: Watch
    times_ns: list[int] = field(default_factory=list)
    last: bytes = b""
    next_tick: int = 0

    def take(self, tick: int) -> bool:
        """Keep one more dump, and say when the next is due; False when it was not as expected."""
        at = len(self.times_ns) * self.layout.size
        if at == len(self.store):
            self.store = self.store + bytes(len(self.store))  # a flush was late
        view = memoryview(self.store)[at : at + self.layout.size]
        if not self.dump.read_into(view):
            return False
        taken_ns = time.monotonic_ns()
        self.times_ns.append(taken_ns)
        now = bytes(view)
        ticks = self.every * (REST if now == self.last else 1)
        self.watch.sampled(taken_ns, ticks)
        self.next_tick = tick + ticks
        self.last = now
        return True


class Sampler:
    """Takes dumps on schedule and writes them in blocks.

    One clock for all nodes: a tick is the period of the fastest, and the others are taken every so many ticks.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.dilation = float(settings["dilation"])
        self.byte_factor = float(settings["byte_factor"])
        self.table = PartsWriter(Path(settings["path"]), PORTS)
        self.gaps_path = Path(settings["path"]).with_name("gaps.parquet")
        fastest_hz = max(entry["hz"] for entry in settings["nodes"])
        self.period_s = 1 / fastest_hz
        self.nodes: list[Node] = []
        for entry in settings["nodes"]:
            dump = QdiscDump(entry["pid"])
            layout = dump.layout(dump.read())
            every = max(1, round(fastest_hz / entry["hz"]))
            room = bytearray(layout.size * (16 + int(1.5 * PART_S * fastest_hz / every)))
            after_s = entry["unseen_after_s"]
            watch = Watch(round(self.period_s * 1e9), math.inf if after_s is None else 1e9 * after_s)
            self.nodes.append(Node(entry["name"], entry["ports"], every, dump, layout, room, watch))
        self.blocks: queue.Queue[list[tuple[Node, bytearray, list[int]]] | None] = queue.Queue()
        self.writer = threading.Thread(target=self.write, daemon=True)
        self.writer.start()
        self.failure: Exception | None = None
        self.start_ns = 0
        self.lags_s: list[float] = []
        self.skipped_ticks = 0
        self.odd_dumps = 0

    def run(self) -> dict[str, object]:
        """Sample until the input ends; returns the statistics."""
        self.start_ns = int(json.loads(sys.stdin.readline())["start_ns"])
        for node in self.nodes:
            node.watch.begin(self.start_ns, node.every)
        cpu_before, began = time.process_time(), time.monotonic()
        poller = select.poll()
        poller.register(0, select.POLLIN | select.POLLHUP)
        tick, next_flush, next_look = 0, began + PART_S, began
        while True:
            due = began + tick * self.period_s
            now = time.monotonic()
            if now < due:
                time.sleep(due - now)
                now = time.monotonic()
            self.lags_s.append(now - due)
            self.take(tick)
            tick += 1
            behind = int((time.monotonic() - began) / self.period_s) - tick
            if behind > 0:  # leave samples out rather than take them in a bunch
                self.skipped_ticks += behind
                tick += behind
            if now >= next_look:
                if poller.poll(0) or self.failure is not None:
                    break
                next_look = now + _LOOK_AT_INPUT_S
            if now >= next_flush:
                self.flush()
                next_flush = now + PART_S
        ended_ns = time.monotonic_ns()
        self.flush()
        self.blocks.put(None)
        self.writer.join()
        if self.failure is not None:
            raise self.failure
        gaps = []
        for node in self.nodes:
            gaps += gap_rows(node.name, node.watch.finish(ended_ns), self.start_ns, self.dilation)
        write_table(self.gaps_path, GAPS, gaps)
        lags = np.array(self.lags_s)
        return {
            "wall_s": time.monotonic() - began,
            "cpu_s": time.process_time() - cpu_before,
            "samples": self.table.rows_written,
            "ticks": len(lags),
            "skipped_ticks": self.skipped_ticks,
            "lag_p99_ms": float(np.percentile(lags, 99) * 1e3),
            "lag_max_ms": float(lags.max() * 1e3),
            "odd_dumps": self.odd_dumps,
            "serving_s": max(0, ended_ns - self.start_ns) / 1e9,
            "unseen_s": max(node.watch.unseen_s for node in self.nodes),
            "gaps": len(gaps),
            "gaps_node_s": sum(float(row["length_wall_s"]) for row in gaps),
            "gap_max_ms": max((1e3 * float(row["length_wall_s"]) for row in gaps), default=0.0),
            "nodes": len(self.nodes),
        }

    def take(self, tick: int) -> None:
        """Take a dump of each node whose turn it is."""
        for node in self.nodes:
            if tick >= node.next_tick and not node.take(tick):
                self.odd_dumps += 1

    def flush(self) -> None:
        """Hand what was taken to the writer, and go on with empty stores."""
        self.blocks.put([(node, node.store, node.times_ns) for node in self.nodes if node.times_ns])
        for node in self.nodes:
            node.store, node.times_ns = bytearray(len(node.store)), []

    def write(self) -> None:
        """The writer's thread: writing takes many sample periods, and most of it runs beside the sampling."""
        while (block := self.blocks.get()) is not None:
            try:
                if block and self.failure is None:
                    self.table.write(pa.concat_tables([self.decoded(*part) for part in block]))
            except Exception as problem:  # told at the end: a full disk must not end the sampling of a run
                self.failure = problem

    def decoded(self, node: Node, store: bytearray, times_ns: list[int]) -> pa.Table:
        """Dumps of one node as rows of the ports table."""
        rows = rows_of(memoryview(store)[: len(times_ns) * node.layout.size], node.layout)
        t_wall_s = (np.array(times_ns, dtype=np.int64) - self.start_ns) / 1e9
        found = [counters_of(rows, node.layout, interface) for interface in node.ports]
        counters, count = np.concatenate(found), len(t_wall_s)
        return pa.table(
            {
                "t_s": np.tile(t_wall_s / self.dilation, len(found)),
                "t_wall_s": np.tile(t_wall_s, len(found)),
                "node": pa.array([node.name]).take(pa.array(np.zeros(len(counters), dtype=np.int8))),
                "port": np.repeat(np.array(list(node.ports.values()), dtype=np.int32), count),
                "tx_bytes_raw": counters["bytes"].astype(np.int64),
                "tx_packets": counters["packets"].astype(np.int64),
                "drops": counters["drops"].astype(np.int64),
                "backlog_bytes": counters["backlog"] / self.byte_factor,
                "backlog_bytes_raw": counters["backlog"].astype(np.int64),
                "backlog_packets": counters["qlen"].astype(np.int32),
            }
        )


def main() -> None:
    """Entry point: settings on standard input."""
    favour([os.getpid()], SAMPLER)  # a late sample is a missed peak
    try:
        sampler = Sampler(json.loads(sys.stdin.readline()))
        print(json.dumps({"ready": True}), flush=True)
        print(json.dumps(sampler.run()), flush=True)
    except Exception as problem:  # the log may be on the disk that is full
        print(json.dumps({"error": f"{type(problem).__name__}: {problem}"}), flush=True)
        raise


if __name__ == "__main__":
    main()
