"""The runner's side of `controller.statistics`: gives the orders, and makes tables of the log."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from controller.statistics_log import (
    FLOW,
    GROUP,
    GROUP_DESC,
    PORT,
    Reply,
    bucket_ports,
    flow_entries,
    group_entries,
    match_fields,
    match_text,
    port_entries,
    replies,
)
from results.schema import OF_FLOWS, OF_GROUPS, OF_PORTS
from results.writer import open_log, write_table
from scenario.errors import RunError
from scenario.scale import Scale
from topologies.fabric import Fabric

#: Column -> counter of the OpenFlow reply, each with rx_ or tx_ before it.
_PORT_COUNTERS = {"bytes_raw": "bytes", "packets": "packets", "drops": "dropped", "errors": "errors"}
#: Longer than the application waits for switches.
_ANSWER_WITHIN_S = 10.0
_AT_ONCE_S = 0.5


class Polls:
    """Orders to the statistics application, which logs to `log` (a new file) `hz` times a second (0: on order only)."""

    def __init__(self, log: Path, hz: float) -> None:
        self.log, self.hz = log, hz
        open_log(log).close()
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(_ANSWER_WITHIN_S)

    @property
    def arguments(self) -> list[str]:
        """For `controller.launch`."""
        settings = {"": self.log.resolve(), "-hz": self.hz, "-fd": self._theirs.fileno()}
        return [text for name, value in settings.items() for text in (f"--statistics{name}", str(value))]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the controller's process must inherit."""
        return (self._theirs.fileno(),)

    def start(self) -> dict[str, Any]:
        """Poll everything once, then go on at the rate."""
        return self._order("start")

    def resume(self, since_s: float) -> None:
        """Go on with a new controller, which has just been started: it finds the order when it listens, and polls each
        switch from the moment that it connects. `since_s` (monotonic) is when the one before ended.

        Does not wait: it is called while serving.
        """
        with contextlib.suppress(OSError):  # the next order says that nobody answers
            self._ours.send(json.dumps({"op": "start", "since_s": since_s}).encode())

    def poll(self) -> dict[str, Any]:
        """Poll everything once more; the answers are in the log when this returns."""
        return self._order("poll")

    def finish(self, at_once: bool = False) -> dict[str, Any]:
        """Poll everything a last time and stop; `at_once` waits no longer than somebody does who has pressed Ctrl-C.
        Returns the application's account of itself; never raises, since what was served is worth more than its
        statistics."""
        if at_once:
            self._ours.settimeout(_AT_ONCE_S)
        try:
            return self._order("finish")
        except RunError as problem:
            return {"failure": str(problem)}

    def _order(self, operation: str) -> dict[str, Any]:
        try:
            self._ours.send(json.dumps({"op": operation}).encode())
            while True:  # past answers to `resume`, or to an order of which the wait was given up
                found: dict[str, Any] = json.loads(self._ours.recv(1 << 16))
                if found.pop("op") == operation:
                    return found
        except OSError as problem:
            raise RunError(f"the controller does not answer orders for statistics ({problem})") from None


def write_tables(log: Path, folder: Path, fabric: Fabric, scale: Scale, start_ns: int) -> None:
    """Turn a log into of_ports, of_flows and of_groups.parquet; `start_ns` is model time 0 on the monotonic clock."""
    with log.open("rb") as file:
        tables = Tables(fabric, scale, start_ns, file)
    write_table(folder / "of_ports.parquet", OF_PORTS, tables.ports())
    write_table(folder / "of_flows.parquet", OF_FLOWS, tables.flows())
    write_table(folder / "of_groups.parquet", OF_GROUPS, tables.groups())


class Tables:
    """The entries of a log as the run folder's tables."""

    def __init__(self, fabric: Fabric, scale: Scale, start_ns: int, file: BinaryIO) -> None:
        self.fabric, self.scale, self.start_ns = fabric, scale, start_ns
        self._name_of = {switch.dpid: switch.name for switch in fabric.switches}
        self._described: dict[bytes, dict[str, object]] = {}
        self._ports: list[dict[str, Any]] = []
        self._rows: dict[int, list[dict[str, object]]] = {FLOW: [], GROUP: []}
        outputs: dict[tuple[int, int], tuple[int, ...]] = {}
        for reply in replies(file):
            if reply.kind == PORT:
                self._ports.append(self._port_columns(reply))
            elif reply.kind == FLOW:
                self._rows[FLOW] += self._flow_rows(reply)
            elif reply.kind == GROUP_DESC:
                outputs.update({(reply.dpid, group): ports for group, ports in bucket_ports(reply.body)})
            elif reply.kind == GROUP:
                self._rows[GROUP] += self._group_rows(reply, outputs)

    def ports(self) -> pd.DataFrame:
        """of_ports."""
        if not self._ports:
            return pd.DataFrame()
        columns = {name: np.concatenate([block[name] for block in self._ports]) for name in self._ports[0]}
        frame = pd.DataFrame(columns)
        for way in ("rx", "tx"):
            frame = self._with_rates(frame, ["node", "port"], f"{way}_")
        return frame

    def flows(self) -> pd.DataFrame:
        """of_flows."""
        frame = pd.DataFrame(self._rows[FLOW])
        if not frame.empty:
            frame["group_id"] = frame["group_id"].astype("Int64")  # null where a rule leads to a port
        return self._with_rates(frame, ["node", "priority", "match"])

    def groups(self) -> pd.DataFrame:
        """of_groups."""
        return self._with_rates(pd.DataFrame(self._rows[GROUP]), ["node", "group_id", "bucket"])

    def _time(self, reply: Reply) -> dict[str, Any]:
        t_wall_s = (reply.t_ns - self.start_ns) / 1e9
        return {"t_s": t_wall_s / self.scale.dilation, "t_wall_s": t_wall_s, "node": self._name_of[reply.dpid]}

    def _port_columns(self, reply: Reply) -> dict[str, Any]:
        found = port_entries(reply.body)
        common = self._time(reply)
        node = common["node"]
        numbers = found["port"].astype(np.int64)
        ends = [self.fabric.far_end(node, int(port)) for port in numbers]
        columns: dict[str, Any] = {name: np.full(len(found), value) for name, value in common.items()}
        columns |= {
            "port": numbers,
            "link": np.array([self.fabric.link_at[node, int(port)].id for port in numbers]),
            "peer": np.array([end.node for end in ends]),
            "peer_port": np.array([end.port for end in ends]),
            "duration_s": found["duration_sec"] + found["duration_nsec"] / 1e9,
        }
        for way in ("rx", "tx"):
            for ours, theirs in _PORT_COUNTERS.items():
                columns[f"{way}_{ours}"] = found[f"{way}_{theirs}"].astype(np.int64)
        return columns

    def _flow_rows(self, reply: Reply) -> Iterator[dict[str, object]]:
        common = self._time(reply)
        for entry in flow_entries(reply.body):
            described = self._described.get(entry.match)
            if described is None:  # thousands of rows a rule: each match is read once
                described = self._described[entry.match] = self._describe(entry.match)
            yield {
                **common,
                "kind": entry.kind,
                "priority": entry.priority,
                **described,
                "group_id": entry.group_id,
                "duration_s": entry.duration_s,
                "bytes_raw": entry.bytes,
                "packets": entry.packets,
            }

    def _describe(self, match: bytes) -> dict[str, object]:
        fields = match_fields(match)
        found: dict[str, object] = {"match": match_text(match)}
        for side in ("src", "dst"):
            end = self.fabric.gpu_port_by_ip.get(str(fields.get(f"ipv4_{side}", "")))
            found |= {f"{side}_gpu": end.node if end else None, f"{side}_port": end.port if end else None}
        return found

    def _group_rows(self, reply: Reply, outputs: dict[tuple[int, int], tuple[int, ...]]) -> Iterator[dict[str, object]]:
        common = self._time(reply)
        for entry in group_entries(reply.body):
            ports = outputs.get((reply.dpid, entry.group_id), ())
            for bucket, (packets, octets) in enumerate(entry.buckets):
                port = ports[bucket] if bucket < len(ports) else 0
                link = self.fabric.link_at.get((str(common["node"]), port))
                yield {
                    **common,
                    "group_id": entry.group_id,
                    "bucket": bucket,
                    "port": port,
                    "link": link.id if link else None,
                    "duration_s": entry.duration_s,
                    "group_bytes_raw": entry.bytes,
                    "group_packets": entry.packets,
                    "bytes_raw": octets,
                    "packets": packets,
                }

    def _with_rates(self, frame: pd.DataFrame, keys: list[str], prefix: str = "") -> pd.DataFrame:
        """Add rates: counter differences over the switch's own elapsed time, never over the time between polls."""
        if frame.empty:
            return frame
        series = frame.groupby(keys, sort=False)
        elapsed_s = series["duration_s"].diff()
        octets, packets = series[f"{prefix}bytes_raw"].diff(), series[f"{prefix}packets"].diff()
        # A duration or a counter that falls is a rule, group or port that was made anew: nothing to compare with.
        usable = (elapsed_s > 0) & (octets >= 0) & (packets >= 0)
        rate: Callable[[pd.Series], pd.Series] = lambda grown: (grown / elapsed_s).where(usable)  # noqa: E731
        frame[f"{prefix}bps_raw"] = 8 * rate(octets)
        frame[f"{prefix}gbps"] = frame[f"{prefix}bps_raw"] / self.scale.rate_bps(1)
        frame[f"{prefix}packets_per_wall_s"] = rate(packets)
        return frame
