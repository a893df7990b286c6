"""When and where the fabric was congested, of which kind, and which requests paid for it.

* A *congested interval* of an egress port: a stretch of time in which at least `telemetry.backlog_threshold_frames`
  full frames waited there (measured samples; shorter pauses than `join_s` do not end it). In a simulation, which has no
  queues, and without ports.parquet it is a stretch in which the port held some transfer back.
* Its flows are the transfers that cross the port (planned or observed paths) and were under way. The class:
  `incast`: they share the final port, the one into the destination GPU, so no topology removes it; `avoidable`: they
  part later, so another mapping of flows to ports would; `one flow`: a single sender, for which the port is too slow.
* What was lost: the max-min replay of the actual transfers (`topologies.held_back`) says for each second of a transfer
  which port held it back, and whether as `sender` (its own NIC or queue pair), `incast` or `avoidable`. A port that
  carries both kinds is `avoidable` as an interval, and its losses are split.
* TTFT lost by a request: the losses of its last transfer to arrive, as far as they fall into the exposed part of the
  handoff (after prefill). `transport`: what the transfer took beyond the replay (TCP, frames, a link slower than
  configured), negative where it was faster.

A GPU's own egress queue is not congestion of the fabric: it is full whenever the GPU sends at line rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis import requests as rq
from analysis.handoff_flows import Flow, Flows, flows_of
from analysis.in_time import InTime
from analysis.ports import ROLES, port_infos
from results.reader import RunFolder
from topologies.fabric import End, port_name
from topologies.held_back import CAUSES, Account, Held, account

Kind = Literal["incast", "avoidable", "one flow"]
KINDS: tuple[Kind, ...] = ("incast", "avoidable", "one flow")
_PORT_COLUMNS = ["t_s", "node", "port", "backlog_bytes_raw"]


@dataclass(frozen=True)
class Interval:
    """A congested interval. `lost_s`: transfer-seconds lost at the port in it, by cause; `ttft_lost_ms`: of requests
    that count, the part that their first token was later for it."""

    port: str
    tier: str
    start_s: float
    end_s: float
    peak_frames: float
    kind: Kind
    final_ports: tuple[str, ...]
    transfers: tuple[int, ...]
    requests: tuple[int, ...]
    lost_s: Mapping[str, float]
    ttft_lost_ms: float

    def to_json(self) -> dict[str, Any]:
        """As a mapping; NaN becomes null when it is written."""
        return {**asdict(self), "lost_s": dict(self.lost_s)}


@dataclass(frozen=True)
class Congestion:
    """Of one run: its congested intervals by start, a row a measured completed request (index request_id; columns
    ttft_ms, exposed_ms, isolated_ms, sender_ms, incast_ms, avoidable_ms, transport_ms), what every port cost
    (columns port, cause, lost_s), and the replay."""

    #: Why queues were not measured; empty where they were.
    unmeasured: str
    intervals: tuple[Interval, ...]
    requests: pd.DataFrame
    ports: pd.DataFrame
    accounts: Mapping[int, Account]
    flows: Flows

    @property
    def measured(self) -> bool:
        """Whether the intervals are of queues that were sampled."""
        return not self.unmeasured

    def totals(self) -> dict[str, Any]:
        """For summary.json."""
        found: dict[str, Any] = {
            "congestion_measured": self.measured,
            "congestion_unmeasured": self.unmeasured or None,
            "congested_intervals": dict.fromkeys(KINDS, 0),
            "congested_port_s": dict.fromkeys(KINDS, 0.0),
        }
        for item in self.intervals:
            found["congested_intervals"][item.kind] += 1
            found["congested_port_s"][item.kind] += item.end_s - item.start_s
        parts = ("isolated", *CAUSES, "transport")
        found["mean_kv_transfer_parts_ms"] = {
            part: float(self.requests[f"{part}_ms"].mean()) if len(self.requests) else float("nan") for part in parts
        }
        return found


def congestion(run: RunFolder) -> Congestion:
    """Everything about one run. Raises InputError for a folder without transfers or fabric."""
    flows = flows_of(run)
    accounts = {item.transfer.transfer_id: item for item in account(flows.capacities, flows.starts)}
    requests, exposed = request_losses(rq.completed(run.requests()), flows, accounts)
    names = {port_name(End(*key)): info for key, info in port_infos(run.fabric()).items()}
    switch_ports = {name: info.tier for name, info in names.items() if info.role != ROLES[0]}
    measured = run.has("ports.parquet")
    if measured:
        scale, threshold = run.scale(), run.scenario().telemetry.backlog_threshold_frames
        frame_s = {name: scale.frame_time_s(names[name].gbps) for name in switch_ports}
        found = measured_stretches(run.ports(_PORT_COLUMNS), scale.frame_bytes, threshold, frame_s)
        pad_s = {name: threshold * frame_s[name] for name in switch_ports}
    else:
        found = held_stretches(accounts.values(), switch_ports)
        pad_s = dict.fromkeys(switch_ports, 0.0)
    return Congestion(
        unmeasured="" if measured else unmeasured(run),
        intervals=classified(found, switch_ports, flows.flows, accounts.values(), exposed, pad_s),
        requests=requests,
        ports=_by_port(accounts.values()),
        accounts=accounts,
        flows=flows,
    )


def unmeasured(run: RunFolder) -> str:
    """Why a run folder has no whole ports.parquet."""
    if run.meta().get("executor") == "simulation":
        return "a simulation has no queues"
    return str(run.left_of("ports") or "ports.parquet is missing from the run folder of this emulation")


@dataclass(frozen=True)
class Stretch:
    """A port and a stretch of time; `peak_frames` is NaN where queues do not exist."""

    port: str
    start_s: float
    end_s: float
    peak_frames: float = float("nan")


def measured_stretches(
    samples: pd.DataFrame, frame_bytes: int, threshold_frames: float, frame_s: Mapping[str, float]
) -> list[Stretch]:
    """Stretches over the threshold from samples (columns t_s, node, port, backlog_bytes_raw), of the ports in
    `frame_s`, which has the model seconds of a frame. A sample holds until the next. Two frame times or less below the
    threshold do not end a stretch. By start."""
    found: list[Stretch] = []
    over = samples["backlog_bytes_raw"] >= threshold_frames * frame_bytes
    ports = samples.loc[over, ["node", "port"]].drop_duplicates()
    some = samples[samples["node"].isin(ports["node"]) & samples["port"].isin(ports["port"])]
    by_port = some.groupby(["node", "port"], observed=True, sort=False).indices
    t_s, frames = (some[name].to_numpy(dtype=np.float64) for name in ("t_s", "backlog_bytes_raw"))
    for node, number in ports.itertuples(index=False):
        name = port_name(End(str(node), int(number)))
        if name in frame_s:
            rows = np.asarray(by_port[node, number], dtype=np.int64)
            rows = rows[np.argsort(t_s[rows], kind="stable")]
            found += _stretches(name, t_s[rows], frames[rows] / frame_bytes, threshold_frames, 2 * frame_s[name])
    return sorted(found, key=lambda item: (item.start_s, item.port))


def _stretches(
    port: str, t_s: NDArray[np.float64], frames: NDArray[np.float64], threshold: float, join_s: float
) -> list[Stretch]:
    over = frames >= threshold
    edges = np.flatnonzero(np.diff(np.r_[False, over, False].astype(np.int8)))
    found: list[Stretch] = []
    for first, past in zip(edges[::2], edges[1::2], strict=True):
        end_s = float(t_s[past]) if past < len(t_s) else float(t_s[-1])
        start_s, peak = float(t_s[first]), float(frames[first:past].max())
        if found and start_s - found[-1].end_s <= join_s:
            before = found.pop()
            start_s, peak = before.start_s, max(peak, before.peak_frames)
        found.append(Stretch(port, start_s, end_s, peak))
    return found


def held_stretches(accounts: Iterable[Account], switch_ports: Mapping[str, str]) -> list[Stretch]:
    """The same from the replay: when a switch port held anything back. By start."""
    times: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for item in accounts:
        for row in item.held:
            if row.port in switch_ports:
                times[row.port].append((row.start_s, row.end_s))
    found = []
    for port, pairs in times.items():
        merged: list[list[float]] = []
        for start_s, end_s in sorted(pairs):
            if merged and start_s <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end_s)
            else:
                merged.append([start_s, end_s])
        found += [Stretch(port, start_s, end_s) for start_s, end_s in merged]
    return sorted(found, key=lambda item: (item.start_s, item.port))


def classified(
    stretches: Sequence[Stretch],
    tiers: Mapping[str, str],
    flows: Sequence[Flow],
    accounts: Iterable[Account],
    exposed: Mapping[int, tuple[int, float, float]],
    pad_s: Mapping[str, float],
) -> tuple[Interval, ...]:
    """Each stretch with its flows, its class and what it cost.

    `exposed`: transfer_id -> (request_id, from, to) of the transfers that a first token waited for; `pad_s`: how much
    before and after the stretch a loss at its port is still its own (the queue fills before it is over the threshold).
    A stretch over which nobody is known to cross the port (traffic without a plan) is left out.
    """
    crossing: defaultdict[str, list[tuple[Flow, set[str]]]] = defaultdict(list)
    for flow in flows:
        finals: defaultdict[str, set[str]] = defaultdict(set)
        for lane in flow.transfer.lanes:
            ports = lane.ports
            for port in ports:
                finals[port].add(ports[-1])
        for port, ends in finals.items():
            crossing[port].append((flow, ends))
    held: defaultdict[str, list[Held]] = defaultdict(list)
    for item in accounts:
        for row in item.held:
            held[row.port].append(row)
    ports_in_question = {stretch.port for stretch in stretches}
    crossed = {
        port: InTime(crossing[port], [(flow.submit_s, flow.done_s) for flow, _ in crossing[port]])
        for port in ports_in_question
    }
    rows_of = {port: InTime(held[port], [(row.start_s, row.end_s) for row in held[port]]) for port in ports_in_question}
    found = []
    for stretch in stretches:
        pad = pad_s[stretch.port]
        here = crossed[stretch.port].between(stretch.start_s, stretch.end_s)
        if not here:
            continue
        final = set().union(*(ends for _, ends in here))
        kind: Kind = "one flow" if len(here) == 1 else "incast" if len(final) == 1 else "avoidable"
        lost = dict.fromkeys(CAUSES, 0.0)
        ttft_s = 0.0
        for row in rows_of[stretch.port].between(stretch.start_s - pad, stretch.end_s + pad):
            part = _overlap_share(row, stretch.start_s - pad, stretch.end_s + pad)
            lost[row.cause] += part * row.lost_s
            if part and row.transfer_id in exposed:
                ttft_s += part * _overlap_share(row, *exposed[row.transfer_id][1:]) * row.lost_s
        found.append(
            Interval(
                port=stretch.port,
                tier=tiers[stretch.port],
                start_s=stretch.start_s,
                end_s=stretch.end_s,
                peak_frames=stretch.peak_frames,
                kind=kind,
                final_ports=tuple(sorted(final)),
                transfers=tuple(flow.transfer.transfer_id for flow, _ in here),
                requests=tuple(sorted({flow.request_id for flow, _ in here if flow.kind in ("kv", "flow")})),
                lost_s={str(cause): value for cause, value in lost.items()},
                ttft_lost_ms=ttft_s * 1e3,
            )
        )
    return tuple(found)


def _overlap_share(row: Held, start_s: float, end_s: float) -> float:
    """Share of a row's time that lies between the two instants."""
    length = row.end_s - row.start_s
    return max(0.0, min(row.end_s, end_s) - max(row.start_s, start_s)) / length if length > 0 else 0.0


def request_losses(
    completed: pd.DataFrame, flows: Flows, accounts: Mapping[int, Account]
) -> tuple[pd.DataFrame, dict[int, tuple[int, float, float]]]:
    """Where the exposed handoff time of each request went, and transfer_id -> (request_id, exposed from, to).

    Requests without a handoff on the fabric (inside a server) have zeros. exposed_ms = isolated_ms + sender_ms +
    incast_ms + avoidable_ms + transport_ms.
    """
    last: dict[int, Flow] = {}
    for flow in flows.flows:
        if flow.kind == "kv" and (flow.request_id not in last or flow.done_s > last[flow.request_id].done_s):
            last[flow.request_id] = flow
    facts = {
        "request_id": completed["request_id"].to_numpy(dtype=np.int64),
        "ttft_ms": rq.ttft_ms(completed).to_numpy(dtype=np.float64),
        "exposed_ms": rq.stage_seconds(completed)["kv_transfer"].to_numpy(dtype=np.float64) * 1e3,
    }
    begins = completed["t_kv_transfer_s"].to_numpy(dtype=np.float64)
    rows: list[dict[str, float]] = []
    exposed: dict[int, tuple[int, float, float]] = {}
    for at, begins_s in enumerate(begins.tolist()):
        row = {name: values[at].item() for name, values in facts.items()}
        row |= {f"{cause}_ms": 0.0 for cause in (*CAUSES, "transport")}
        mine = last.get(int(row["request_id"]))
        if mine is not None and row["exposed_ms"] > 0:
            number = mine.transfer.transfer_id
            item = accounts[number]
            exposed[number] = (mine.request_id, begins_s, item.done_s)
            for held in item.held:
                row[f"{held.cause}_ms"] += _overlap_share(held, begins_s, item.done_s) * held.lost_s * 1e3
            # Where the replay ends before prefill does, none of its losses is exposed.
            row["transport_ms"] = (mine.done_s - max(item.done_s, begins_s)) * 1e3
        row["isolated_ms"] = row["exposed_ms"] - sum(row[f"{cause}_ms"] for cause in (*CAUSES, "transport"))
        rows.append(row)
    columns = ["request_id", "ttft_ms", "exposed_ms", "isolated_ms", *(f"{c}_ms" for c in CAUSES), "transport_ms"]
    return pd.DataFrame(rows, columns=columns).set_index("request_id"), exposed


def _by_port(accounts: Iterable[Account]) -> pd.DataFrame:
    lost: defaultdict[tuple[str, str], float] = defaultdict(float)
    for item in accounts:
        for row in item.held:
            lost[row.port, row.cause] += row.lost_s
    rows = [{"port": port, "cause": cause, "lost_s": value} for (port, cause), value in lost.items()]
    table = pd.DataFrame(rows, columns=["port", "cause", "lost_s"])
    return table.sort_values(["lost_s", "port", "cause"], ascending=[False, True, True], ignore_index=True)
