"""The equality table: what the arms share, what they are meant to differ in, and what they should not differ
in.

A row that must match and does not is marked, and the comparison says on top that it is not like for like.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.arms import ArmResult
from analysis.fidelity import loosened_limits
from analysis.flows import is_flows
from analysis.formats import NONE, data_size, number, percent
from analysis.transfers import PathFigures, path_figures

#: Scenario settings that have a row of their own, or that are what the arms differ in.
_OWN_ROWS = {
    "serving": ("shape", "layout", "pairing", "placement", "block_servers"),
    "transport": ("congestion_control", "inflight_cap_frames", "asic_buffer_frames"),
}
_MAX_PAIR_GPUS = 4096


@dataclass(frozen=True)
class EqualityRow:
    """One property. `must_match`: a difference makes the comparison unfair. `values` follow the arms."""

    name: str
    values: tuple[str, ...]
    must_match: bool
    note: str = ""

    @property
    def same(self) -> bool:
        """Whether all arms that have the property have the same value."""
        return len({value for value in self.values if value != NONE}) <= 1

    @property
    def unequal(self) -> bool:
        """Whether the row breaks the comparison."""
        return self.must_match and not self.same

    @property
    def mark(self) -> str:
        """Short verdict for tables."""
        if sum(value != NONE for value in self.values) < 2:
            return ""
        if self.same:
            return "same"
        return "NOT EQUAL" if self.must_match else "differs"


def equality_rows(arms: Sequence[ArmResult]) -> tuple[EqualityRow, ...]:
    """Every row of the table, in the order in which a reader asks."""
    paths = [_paths(arm) for arm in arms]
    rows: list[EqualityRow] = []

    def row(name: str, value: Callable[[ArmResult], str], must_match: bool, note: str = "") -> None:
        rows.append(EqualityRow(name, tuple(value(arm) for arm in arms), must_match, note))

    def served(value: Callable[[ArmResult], str]) -> Callable[[ArmResult], str]:
        return lambda arm: NONE if is_flows(arm.data.requests) else value(arm)

    def fabric(value: Callable[[Mapping[str, Any]], str]) -> Callable[[ArmResult], str]:
        return lambda arm: NONE if arm.fabric is None or arm.is_bound else value(arm.fabric)

    def run(value: Callable[[ArmResult], str]) -> Callable[[ArmResult], str]:
        return lambda arm: NONE if arm.is_bound else value(arm)

    row("Fabric", lambda a: "infinite core" if a.is_bound else a.scenario.fabric.kind, False)
    row(
        "Data plane",
        run(data_plane),
        not _crossed(arms),
        "what forwards: Open vSwitch with an OpenFlow controller, or the kernel; a comparison of fabrics has one",
    )
    row("Policy", run(lambda a: a.scenario.policy), False)
    row("Bundle", run(_bundle), False, "several links between the same two switches: how a flow picks one")
    row("GPUs", lambda a: str(a.scenario.fabric.gpus), True)
    row("GPUs in a server", lambda a: str(a.scenario.fabric.gpus_per_server), True)
    row(
        "NIC bandwidth of a GPU, Gb/s",
        fabric(lambda f: "/".join(sorted({number(g) for g in _gpu_gbps(f)}))),
        True,
    )
    row("NIC ports of a GPU", fabric(_nic_ports), False)
    row("Switches", fabric(_switches), False)
    row("Ports of NIC speed on one ASIC", run(lambda a: str(a.scenario.fabric.asic_ports)), True)
    row(
        "Switch ports in use",
        fabric(_switch_ports),
        False,
        "a trunk of m links is one port of m times the rate",
    )
    row("Buffer of one ASIC, frames", run(lambda a: number(a.scenario.transport.asic_buffer_frames, 9)), True)
    row("Queue limit of a port, frames", run(_queue_limits), False, "equal buffers an ASIC are not equal a port")
    row("GPU pairs that share a switch", fabric(_sharing), False)
    rows.append(
        EqualityRow(
            "Switches on a path (mean over KV bytes)",
            tuple(number(p.switches_mean) if p else NONE for p in paths),
            False,
            "the ZCube policy `unique` crosses two switches even where one would do",
        )
    )
    row(
        "Workload",
        lambda a: a.summary["workload_hash"],
        True,
        "hash over (session, turn, tokens) of measured requests, or over messages, their sizes and their pairs",
    )
    row(
        "Requests measured",
        served(lambda a: f"{a.summary['requests']:,} in {a.summary['sessions']:,} sessions"),
        True,
    )
    row("Messages measured", lambda a: f"{a.summary['requests']:,}" if is_flows(a.data.requests) else NONE, True)
    row("Seed", lambda a: str(a.meta.get("seed", a.scenario.seed)), True)
    row(
        "Shape",
        served(lambda a: a.scenario.serving.shape),
        True,
        "which ranks send to which: decides the sign of the result",
    )
    row("Layout", served(lambda a: a.scenario.serving.layout), True, "which servers prefill")
    row("Pairing", served(lambda a: a.scenario.serving.pairing), True)
    row("Placement", served(lambda a: a.scenario.serving.placement), True)
    row(
        "Striping over a GPU's ports",
        run(lambda a: a.scenario.routing.striping),
        True,
        "decides the sign of the result",
    )
    row("Queue pairs", run(_queue_pairs), True)
    row("Congestion control", run(lambda a: str(_meta(a, "congestion_control"))), True)
    row(
        "In-flight cap, frames",
        run(lambda a: str(_meta(a, "inflight_cap_frames"))),
        True,
        "a connection at most",
    )
    row(
        "Rate factor a",
        run(lambda a: f"{a.data.scale.rate_factor:.4g}"),
        True,
        "emulated rate = a × model rate",
    )
    row("Dilation d", run(lambda a: f"{a.data.scale.dilation:.4g}"), True, "wall time = d × model time")
    row("Frame, bytes", run(lambda a: f"{a.data.scale.frame_bytes:,}"), True)
    row(
        "One frame stands for",
        run(lambda a: data_size(a.data.scale.model_bytes_per_frame)),
        True,
        "model bytes",
    )
    row("GPUs that send KV", run(_senders), True, "mean loads are over all ports of a kind, idle ones too")
    row("Switches that KV enters by", run(_entries), False, "few of them: the whole result hangs on their links")
    rows.append(
        EqualityRow(
            "Store-and-forward bias, ms",
            tuple(number(p.store_and_forward_ms) if p else NONE for p in paths),
            False,
            "one frame time at each switch, on average a handoff: against the fabric with more hops",
        )
    )
    row("Throughput window, s", served(lambda a: number(a.data.window.duration_s, 4)), True)
    row(
        "Fidelity limits loosened",
        run(lambda a: NONE if a.simulated else loosened_limits(a.scenario) or "none"),
        True,
        "limits beyond which a run is INVALID",
    )
    row("Executor", run(lambda a: str(a.meta["executor"])), True)
    row("Machine", run(_machine), True)
    rows.append(_other_settings(arms))
    return tuple(found for found in rows if any(value != NONE for value in found.values))


def _senders(arm: ArmResult) -> str:
    senders = {link.partition("--")[0].rpartition("-eth")[0] for link in _first_links(arm)}
    return f"{len(senders)} of {arm.scenario.fabric.gpus}"


def _first_links(arm: ArmResult) -> set[str]:
    """Ids of the cables by which KV leaves its GPUs: GPU end first."""
    return {str(path[0]) for path in arm.data.transfers["path"] if path is not None and len(path)}


def _entries(arm: ArmResult) -> str:
    switches = sorted({link.partition("--")[2].rpartition("-eth")[0] for link in _first_links(arm)}, key=_natural)
    return ", ".join(switches) if 0 < len(switches) <= 8 else f"{len(switches)} switches"


def _natural(name: str) -> tuple[str, int]:
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or 0)


def data_plane(arm: ArmResult) -> str:
    """`fabric.switch` of an emulated run. (Runs of before there were two are of Open vSwitch.)"""
    if arm.simulated:
        return NONE
    if _plane(arm) == "linux":
        return "linux (kernel)"
    version = str(arm.meta.get("ovs_version") or "").split()[-1:]
    return f"ovs ({' '.join(['Open vSwitch', *version])})"


def _plane(arm: ArmResult) -> str:
    return str(arm.meta.get("data_plane", "ovs"))


def _crossed(arms: Sequence[ArmResult]) -> bool:
    """Whether every fabric is there on every data plane: then a difference of planes is what is compared."""
    by_plane: dict[str, set[str]] = {}
    for arm in arms:
        if not (arm.is_bound or arm.simulated):
            wiring = json.dumps([arm.scenario.fabric.wiring, arm.scenario.policy])
            by_plane.setdefault(_plane(arm), set()).add(wiring)
    return len({frozenset(fabrics) for fabrics in by_plane.values()}) <= 1


def _bundle(arm: ArmResult) -> str:
    fabric = arm.fabric
    if fabric is None or arm.scenario.fabric.kind == "roft":
        return NONE
    tiers = {str(s["name"]): i for i, s in enumerate(fabric["switches"])}
    pairs = Counter(
        tuple(sorted((link["a"]["node"], link["b"]["node"])))
        for link in fabric["links"]
        if link["a"]["node"] in tiers and link["b"]["node"] in tiers
    )
    most = max(pairs.values(), default=0)
    return f"{arm.scenario.fabric.bundle} ({most} link{'s' if most != 1 else ''} a pair)"


def _meta(arm: ArmResult, key: str) -> object:
    """What was in force, or what the scenario asked for when the run did not say."""
    return arm.meta.get(key, getattr(arm.scenario.transport, key))


def _paths(arm: ArmResult) -> PathFigures | None:
    if arm.fabric is None or arm.is_bound or arm.data.transfers.empty:
        return None
    rates = {str(link["id"]): float(link["gbps"]) for link in arm.fabric["links"]}
    return path_figures(arm.data.transfers, rates, arm.data.scale)


def _gpu_gbps(fabric: Mapping[str, Any]) -> list[float]:
    return [sum(float(port["gbps"]) for port in gpu["ports"]) for gpu in fabric["gpus"]]


def _rates(values: Sequence[float]) -> str:
    return " + ".join(f"{count:,} × {rate:g}G" for rate, count in sorted(Counter(values).items()))


def _nic_ports(fabric: Mapping[str, Any]) -> str:
    return " or ".join(sorted({_rates([float(p["gbps"]) for p in gpu["ports"]]) for gpu in fabric["gpus"]}))


def _switches(fabric: Mapping[str, Any]) -> str:
    tiers = Counter(str(switch["tier"]) for switch in fabric["switches"])
    return f"{sum(tiers.values())} ({' + '.join(f'{count} {tier}' for tier, count in tiers.items())})"


def _switch_ports(fabric: Mapping[str, Any]) -> str:
    return _rates([float(port["gbps"]) for switch in fabric["switches"] for port in switch["ports"]])


def _sharing(fabric: Mapping[str, Any]) -> str:
    """Share of GPU pairs with a switch in common: these need one switch at least, all others two or more."""
    gpus = {str(gpu["name"]): i for i, gpu in enumerate(fabric["gpus"])}
    switches = {str(s["name"]): i for i, s in enumerate(fabric["switches"])}
    if not 2 <= len(gpus) <= _MAX_PAIR_GPUS:
        return NONE
    attached = np.zeros((len(gpus), len(switches)), dtype=np.float32)
    for link in fabric["links"]:
        ends = (link["a"]["node"], link["b"]["node"])
        for here, there in (ends, ends[::-1]):
            if here in gpus and there in switches:
                attached[gpus[here], switches[there]] = 1
    shared = int(np.count_nonzero(attached @ attached.T) - len(gpus)) // 2
    return percent(shared / (len(gpus) * (len(gpus) - 1) / 2))


def _queue_pairs(arm: ArmResult) -> str:
    routing = arm.scenario.routing
    if arm.scenario.policy == "spray":
        return "one for each equal path, frame by frame"
    return f"{routing.queue_pairs} a port pair, {routing.qp_policy}"


def _machine(arm: ArmResult) -> str:
    known = [arm.meta.get(key) for key in ("cpu_model", "cores", "kernel")]
    names = ("{}", "{} cores", "Linux {}")
    return ", ".join(n.format(v) for n, v in zip(names, known, strict=True) if v is not None) or NONE


def _queue_limits(arm: ArmResult) -> str:
    limits = arm.meta.get("queue_limit_frames")
    if not isinstance(limits, dict) or not limits:
        return NONE
    return ", ".join(f"{tier} {number(frames)}" for tier, frames in limits.items())


def _other_settings(arms: Sequence[ArmResult]) -> EqualityRow:
    """All serving, workload and transport settings without a row of their own; names those that differ."""
    flat: list[dict[str, str]] = []
    for arm in arms:
        dumped: dict[str, Any] = arm.scenario.model_dump(mode="json", include={"serving", "workload", "transport"})
        flat.append(
            {
                f"{section}.{key}": json.dumps(value)
                for section, settings in dumped.items()
                for key, value in settings.items()
                if key not in _OWN_ROWS.get(section, ())
            }
        )
    differing = sorted({key for key in set().union(*flat) if len({settings.get(key) for settings in flat}) > 1})
    values = tuple(
        ", ".join(f"{key} = {settings.get(key, NONE)}" for key in differing) or f"{len(settings)} settings"
        for settings in flat
    )
    return EqualityRow("Other serving, workload and transport settings", values, True)
