"""Why first tokens are late: the questions of a network engineer in their order, each with numbers, and named causes.

The slowest requests are the slowest 5 % by TTFT, ten at least. A TTFT is split into parts that sum to it: gateway,
prefill wait, prefill, decode wait, the handoff alone on the fabric, what it lost to the sender's NIC, to incast, to
avoidable congestion and to transport (`analysis.congestion`), first step. *Work* is what would be left without any
waiting: prefill, handoff alone, first step. A wait counts when it is `WAIT` of the work or more, in the mean of the
slowest or in that of all: against the work and not against TTFT, so that one cause does not hide another. What the
fabric takes counts when it is half of the time alone or more, and a tenth of the work; a kind of it from `KIND` of all
that the fabric takes. The thresholds are constants here; they were chosen on other runs than those that
`python -m cli.diagnosis_check` draws.

| cause | named when |
|---|---|
| gateway delay | gateway counts |
| slow prefill | waiting for prefill counts, and `QUEUED` times prefill or more: requests come faster than it serves |
| slow decode | waiting for decode KV space or slots counts |
| slow link | lanes over one port are slower than links of the configured rate allow (`analysis.slow_links`) |
| bandwidth short | fabric losses count; all NICs of a side, or the links between switches, are `BUSY` loaded |
| one-NIC skew | losses at senders' own NICs count, and a server's busiest NIC sends `SKEW` times the mean of its NICs |
| placement hot spot | incast counts, and the scheduler piled handoffs up at targets (`analysis.placement_skew`) |
| incast | incast counts otherwise, and is twice what even arrivals at this load would meet |
| mapping | losses of flows that part later count: ECMP collisions, members of a bundle |

Even arrivals: processor sharing at load r takes 1 / (1 - r) of the time alone (Kleinrock, Queueing Systems II, 4.4), so
r / (1 - r) of it is lost at any NIC, however well everything is balanced.

A run without any of these is healthy as far as this can tell: compute alone sets its TTFT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis import requests as rq
from analysis.congestion import Congestion, congestion
from analysis.loads import Loads, loads
from analysis.placement_skew import PlacementSkew, candidate_targets, placement_skew
from analysis.slow_links import SlowLink, slow_links
from results.reader import RunFolder
from scenario.errors import InputError
from scenario.hidden_causes import CAUSES

SLOWEST_SHARE, SLOWEST_LEAST = 0.05, 10
WAIT, KIND = 0.25, 0.4
OF_ALONE, OF_WORK = 0.5, 0.1
QUEUED = 0.75
BUSY, SKEW = 0.5, 1.6

#: Parts of TTFT, in the order of a request's way.
PARTS = (
    "gateway", "prefill_wait", "prefill", "decode_wait", "isolated", "sender", "incast", "avoidable", "transport",
    "first_step",
)  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """A named cause: its ms in the mean TTFT of the slowest, the evidence, and what would help."""

    name: str
    ms: float
    evidence: str
    remedy: str


@dataclass(frozen=True)
class Diagnosis:
    """Of one run. `slowest_ms` and `all_ms`: mean ms of each of PARTS; `what_if`: TTFT at other NIC rates, if known."""

    slowest: int
    completed: int
    slowest_ms: Mapping[str, float]
    all_ms: Mapping[str, float]
    loads: Loads
    skew: PlacementSkew
    links: tuple[SlowLink, ...]
    causes: tuple[Cause, ...]
    congestion: Congestion
    #: hot_leaf_* and hot_port_* of summary.json (docs/telemetry.md), where there is one.
    hot_leaf: Mapping[str, Any] = field(default_factory=dict)

    @property
    def slowest_ttft_ms(self) -> float:
        """Mean TTFT of the slowest."""
        return sum(self.slowest_ms.values())

    def part(self, *names: str) -> float:
        """Share of the slowest requests' TTFT."""
        whole = self.slowest_ttft_ms
        return sum(self.slowest_ms[name] for name in names) / whole if whole > 0 else 0.0

    @property
    def fabric_part(self) -> float:
        """What the fabric took beyond the handoff alone, as a share of the slowest requests' TTFT."""
        return self.part("sender", "incast", "avoidable", "transport")

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "slowest": self.slowest,
            "completed": self.completed,
            "slowest_ms": dict(self.slowest_ms),
            "all_ms": dict(self.all_ms),
            "fabric_part_of_slowest": self.fabric_part,
            "loads": {name: asdict(getattr(self.loads, name)) for name in ("senders", "receivers", "core")},
            "nic_skew": self.loads.nic_skew,
            "placement": asdict(self.skew),
            "hot_leaf": dict(self.hot_leaf),
            "slow_links": [
                {"port": one.port, "share": one.share, "lanes": one.lanes, "same": list(one.same)} for one in self.links
            ],
            "causes": [asdict(cause) for cause in self.causes],
            **self.congestion.totals(),
        }


def diagnose(run: RunFolder) -> Diagnosis:
    """Diagnose a run. Raises InputError for a run that served nothing, or has no transfers."""
    if run.meta().get("infinite_core"):
        raise InputError(
            "run folder", str(run.path), "is the bound on an infinite core: it has no fabric to diagnose",
            "give the folder of a run on a fabric",
        )  # fmt: skip
    requests = run.requests()
    if not len(requests) or requests["operation"].notna().any():
        raise InputError(
            "run folder", str(run.path), "has no requests: it played flows without serving",
            "`zcube report` shows completion times and loads of such a run",
        )  # fmt: skip
    completed = rq.completed(requests)
    if completed.empty:
        raise InputError(
            "run folder", str(run.path), "has no request that got its first token",
            "look at requests.parquet: status says why; a longer serving.timeout_s or a lower load may help",
        )  # fmt: skip
    found = congestion(run)
    parts = parts_ms(completed, found.requests)
    order = rq.ttft_ms(completed).sort_values(ascending=False, kind="stable").index
    chosen = order[: max(SLOWEST_LEAST, round(SLOWEST_SHARE * len(order)))]
    load = loads(found.flows, run.fabric(), candidate_targets(completed))
    skew = placement_skew(completed)
    links = tuple(slow_links(found.flows, found.accounts))
    slowest_ms = {str(name): float(value) for name, value in parts.loc[chosen].mean().items()}
    all_ms = {str(name): float(value) for name, value in parts.mean().items()}
    return Diagnosis(
        slowest=len(chosen),
        completed=len(completed),
        slowest_ms=slowest_ms,
        all_ms=all_ms,
        loads=load,
        skew=skew,
        links=links,
        causes=tuple(causes(slowest_ms, all_ms, load, skew, links, run.scenario().policy)),
        congestion=found,
        hot_leaf={
            key: value
            for key, value in (run.summary() if run.has("summary.json") else {}).items()
            if key.startswith(("hot_leaf_", "hot_port_"))
        },
    )


def parts_ms(completed: pd.DataFrame, handoffs: pd.DataFrame) -> pd.DataFrame:
    """One row a request, columns PARTS, ms; they sum to TTFT. `handoffs` is `Congestion.requests`."""
    stages = rq.stage_seconds(completed) * 1e3
    aligned = handoffs.reindex(completed["request_id"]).set_axis(completed.index)
    return pd.DataFrame(
        {
            "gateway": stages["arrival"],
            "prefill_wait": stages["prefill_waiting"],
            "prefill": stages["prefill_forward"],
            "decode_wait": stages["decode_alloc"] + stages["decode_waiting"],
            **{name: aligned[f"{name}_ms"] for name in ("isolated", "sender", "incast", "avoidable", "transport")},
            "first_step": stages["decode_first_step"],
        }
    )[list(PARTS)]


class _Waits:
    """Which waits count, in the slowest or in all."""

    def __init__(self, slowest_ms: Mapping[str, float], all_ms: Mapping[str, float]) -> None:
        self.means = (slowest_ms, all_ms)
        self.slowest_ms = slowest_ms

    def share(self, *names: str) -> float:
        """Of the work, the larger of both means; infinite where there was no work, 0 where nothing was lost either."""
        found = []
        for mean in self.means:
            lost = sum(max(0.0, mean[name]) for name in names)
            work = mean["prefill"] + mean["isolated"] + mean["first_step"]
            found.append(lost / work if work > 0 else float("inf") if lost > 0 else 0.0)
        return max(found)

    def counts(self, *names: str) -> bool:
        return self.share(*names) >= WAIT

    def fabric_counts(self) -> bool:
        kinds = ("sender", "incast", "avoidable")
        alone = any(sum(mean[name] for name in kinds) >= OF_ALONE * mean["isolated"] for mean in self.means)
        return alone and self.share(*kinds) >= OF_WORK


def causes(
    slowest_ms: Mapping[str, float],
    all_ms: Mapping[str, float],
    load: Loads,
    skew: PlacementSkew,
    links: tuple[SlowLink, ...],
    policy: str,
) -> list[Cause]:
    """The rules of the table above, in the order of CAUSES."""
    waits = _Waits(slowest_ms, all_ms)
    found: list[Cause] = []
    if waits.counts("gateway"):
        found.append(
            Cause("gateway delay", slowest_ms["gateway"], f"{slowest_ms['gateway']:,.0f} ms before the prefill queue",
                  "look at the gateway, tokeniser and router: nothing after them can win this back")
        )  # fmt: skip
    if waits.counts("prefill_wait") and any(mean["prefill_wait"] > QUEUED * mean["prefill"] for mean in waits.means):
        found.append(
            Cause("slow prefill", slowest_ms["prefill_wait"],
                  f"{slowest_ms['prefill_wait']:,.0f} ms in the prefill queue, {slowest_ms['prefill']:,.0f} in prefill",
                  "more or faster prefill GPUs, a higher prefix hit rate, or less load")
        )  # fmt: skip
    if waits.counts("decode_wait"):
        found.append(
            Cause("slow decode", slowest_ms["decode_wait"],
                  f"{slowest_ms['decode_wait']:,.0f} ms waiting for decode KV space or a slot",
                  "more decode GPUs or KV memory, shorter outputs, or another prefill:decode ratio")
        )  # fmt: skip
    found += [_slow_link(link) for link in links]
    if waits.fabric_counts():
        found += _fabric_causes(waits, load, skew, policy)
    return sorted(found, key=lambda cause: CAUSES.index(cause.name))


def _slow_link(link: SlowLink) -> Cause:
    also = f" (or {', '.join(link.same[:3])}: the same lanes cross both)" if link.same else ""
    late_ms = float(np.mean(list(link.late_ms.values()))) if link.late_ms else 0.0
    return Cause(
        "slow link", late_ms,
        f"{link.port}{also} sends at some {100 * link.share:.0f} % of its rate: {link.lanes} lanes; their"
        f" handoffs end {late_ms:,.0f} ms later than they should",
        "check the optics, the negotiated rate and error counters of that cable",
    )  # fmt: skip


def _fabric_causes(waits: _Waits, load: Loads, skew: PlacementSkew, policy: str) -> list[Cause]:
    ms = waits.slowest_ms
    lost = {name: waits.share(name) for name in ("sender", "incast", "avoidable")}
    named = {name for name, value in lost.items() if value >= KIND * sum(lost.values())}
    skewed = "sender" in named and load.nic_skew >= SKEW
    hot = "incast" in named and skew.hot
    busy = [
        f"{name} are {100 * group.mean:.0f} % loaded on average"
        for name, group, even in (
            ("senders' NICs", load.senders, True),
            ("receivers' NICs", load.receivers, True),
            ("links between switches", load.core, not (skewed or hot)),
        )
        if group.mean >= BUSY and even
    ]
    found: list[Cause] = []
    if busy:
        found.append(
            Cause("bandwidth short", sum(ms[name] for name in lost), "; ".join(busy),
                  "faster NICs and links, smaller KV (MLA, FP8), or less load")
        )  # fmt: skip
    if skewed:
        found.append(
            Cause("one-NIC skew", ms["sender"],
                  f"a server's busiest NIC sends {load.nic_skew:.1f} times the mean of its NICs"
                  f" ({', '.join(load.busiest_nics[:4])})",
                  "spread a handoff over the server's NICs (nic_map, ranks that send): no topology helps here")
        )  # fmt: skip
    if hot:
        found.append(
            Cause("placement hot spot", ms["incast"], skew.sentence(),
                  "a scheduler that sees what is on its way to each target, or a limit (max_inbound)")
        )  # fmt: skip
    even = load.receivers.mean / (1 - load.receivers.mean) if load.receivers.mean < 1 else float("inf")
    beyond = any(mean["incast"] > 2 * even * mean["isolated"] for mean in waits.means)
    if "incast" in named and beyond and not (hot or busy or skewed):
        found.append(
            Cause("incast", ms["incast"],
                  f"several senders at once to one NIC, where targets were chosen evenly and receivers' NICs are"
                  f" {100 * load.receivers.mean:.0f} % loaded on average",
                  "pace or queue senders (max_inbound), more decode NICs; no topology removes it")
        )  # fmt: skip
    if "avoidable" in named and load.core.mean < BUSY:
        how = {
            "ecmp": "hash collisions of ECMP", "ecmp_ovs": "hash collisions in the switches",
            "unique": "members of bundles, or paths that meet",
        }.get(policy, f"paths of policy {policy} that meet")  # fmt: skip
        found.append(
            Cause("mapping", ms["avoidable"],
                  f"{how}; links between switches are {100 * load.core.mean:.0f} % loaded on average, the busiest"
                  f" ({load.core.busiest_port}) {100 * load.core.busiest:.0f} %",
                  "more queue pairs, spraying or adaptive routing, trunks, or a fabric with unique paths")
        )  # fmt: skip
    return found
