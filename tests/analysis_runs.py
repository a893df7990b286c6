"""Makes run folders of MADE-UP data for the tests and for looking at reports. Nothing here was measured.

Transfers queue first-in-first-out at the links of their real paths, so that loads and backlogs look
plausible; every scenario is named `made-up-*`, and meta.json says so too.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from results import schema, writer
from scenario.models import FabricSection, Scenario
from topologies.build import build
from topologies.fabric import Fabric, Gpu, Switch
from topologies.paths import path as path_of
from topologies.paths import queue_pairs

RATE_FACTOR, DILATION, FRAME_BYTES = 5e-5, 3.0, 9000
KV_BYTES_PER_TOKEN = 61_464


@dataclass(frozen=True)
class Plan:
    """What the made-up run should look like."""

    kind: Literal["roft", "zcube"] = "zcube"
    bundle: Literal["destination", "hashed", "trunk"] = "destination"
    requests: int = 300
    warmup: int = 40
    seed: int = 1
    bound: bool = False
    invalid: bool = False
    timeouts: int = 0
    sample_hz_wall: float = 20.0
    striping: Literal["adaptive", "static"] = "adaptive"


def make_run(folder: Path, plan: Plan) -> Path:
    """Writes one made-up run folder."""
    writer.create_folder(folder)
    scenario = Scenario(
        name=f"made-up-{plan.kind}-{plan.bundle}",
        seed=plan.seed,
        fabric=FabricSection(kind=plan.kind, bundle=plan.bundle),
    )
    scenario = scenario.model_copy(update={"routing": scenario.routing.model_copy(update={"striping": plan.striping})})
    fabric = build(scenario.fabric)
    requests, transfers, busy = _serve(plan, fabric)
    end_s = float(requests["t_first_token_s"].max())
    dumped = scenario.model_dump(mode="json")
    writer.write_yaml(folder / "scenario.yaml", dumped)
    writer.write_table(folder / "requests.parquet", schema.REQUESTS, requests)
    writer.write_table(folder / "gpus.parquet", schema.GPUS, _states(requests, end_s))
    writer.write_json(folder / "fabric.json", fabric.to_json())
    window = {"t_start_s": float(requests.loc[~requests["warmup"], "t_arrival_s"].min()), "t_end_s": 300.0}
    if plan.bound:
        writer.write_table(folder / "transfers.parquet", schema.TRANSFERS, transfers)
    else:
        writer.write_table(folder / "transfers.parquet", schema.TRANSFERS, transfers)
        _write_ports(folder, plan, fabric, busy, end_s)
        writer.write_json(folder / "fidelity.json", _fidelity(plan.invalid))
    digest = hashlib.sha256(json.dumps(dumped, sort_keys=True).encode()).hexdigest()
    writer.write_json(folder / "meta.json", _meta(plan, scenario, digest, window))
    return folder


def _serve(plan: Plan, fabric: Fabric) -> tuple[pd.DataFrame, pd.DataFrame, dict[tuple[str, int], list[Any]]]:
    random = np.random.default_rng(plan.seed)
    total = plan.warmup + plan.requests
    sessions = max(total // 6, 2)
    arrival = np.cumsum(random.exponential(0.9, total))
    tokens = np.clip(random.lognormal(11.2, 0.9, total), 500, 200_000).astype(int)
    cached = (tokens * np.clip(random.beta(12, 1, total), 0, 0.99)).astype(int)
    output = np.clip(random.lognormal(5.5, 0.8, total), 2, 4000).astype(int)
    half = len(fabric.gpus) // 2
    servers = half // 4
    free = np.zeros(servers)
    link_free: dict[str, float] = {}
    busy: dict[tuple[str, int], list[Any]] = {}
    rows: list[dict[str, Any]] = []
    flows: list[dict[str, Any]] = []
    for i in range(total):
        server = int(np.argmin(free))
        start = max(arrival[i] + 0.002, free[server])
        computed = start + 0.03 + (tokens[i] - cached[i]) / 20_000
        free[server] = computed
        src = fabric.gpus[server * 4]
        dst = fabric.gpus[half + int(random.integers(half))]
        size = int(tokens[i]) * KV_BYTES_PER_TOKEN
        ends = []
        pairs = queue_pairs(fabric, src.name, dst.name)
        for pair in pairs:
            way = path_of(fabric, pair, seed=plan.seed)
            rate = min(fabric.link_at[e.node, e.port].gbps for e in way.egress) * 1e9 / 8
            share = size / len(pairs)
            contended = () if plan.bound else way.links
            begin = max([computed, *(link_free.get(link, 0.0) for link in contended)])
            done = begin + share / rate * 1.02
            for link in contended:
                link_free[link] = done
            for egress in way.egress:
                busy.setdefault((egress.node, egress.port), []).append((computed, begin, done, share))
            ends.append(done)
            flows.append(
                {
                    "transfer_id": len(flows),
                    "request_id": i,
                    "src_gpu": src.name,
                    "src_port": pair.src.port,
                    "dst_gpu": dst.name,
                    "dst_port": pair.dst.port,
                    "qp": pair.index,
                    "path": list(way.links),
                    "bytes": int(share),
                    "wire_bytes_raw": int(share * RATE_FACTOR * DILATION * 1.02),
                    "t_submit_s": computed,
                    "t_done_s": done,
                    "ideal_s": (done - computed) * 0.98,
                    "isolated_s": share / rate,
                    "attempt": 1,
                    "status": "ok",
                }
            )
        first = max(ends) + 0.004
        waits = random.exponential(0.02) if random.random() < 0.1 else 0.0
        failed = plan.warmup <= i < plan.warmup + plan.timeouts
        rows.append(
            {
                "request_id": i,
                "session_id": int(random.integers(sessions)),
                "tenant": "default",
                "turn": i,
                "phase": "warmup" if i < plan.warmup else "measured",
                "warmup": i < plan.warmup,
                "status": "timeout" if failed else "ok",
                "input_tokens": int(tokens[i]),
                "cached_tokens": int(cached[i]),
                "output_tokens": int(output[i]),
                "batch": i,
                "prefill_instance": f"p{server}",
                "decode_instance": dst.server,
                "prefill_gpu": src.name,
                "decode_gpu": dst.name,
                "candidates": json.dumps({"decode": {gpu.name: 0.0 for gpu in fabric.gpus[half:]}}),
                "t_arrival_s": arrival[i],
                "t_prefill_waiting_s": arrival[i] + 0.002,
                "t_prefill_forward_s": start,
                "t_decode_alloc_s": computed,
                "t_kv_transfer_s": computed,
                "t_decode_waiting_s": first - 0.004,
                "t_decode_first_step_s": first + waits,
                "t_first_token_s": np.nan if failed else first + waits,
                "t_finished_s": np.nan if failed else first + waits + 0.02 * (int(output[i]) - 1),
            }
        )
    return pd.DataFrame(rows).reindex(columns=schema.REQUESTS.names), pd.DataFrame(flows), busy


def _states(requests: pd.DataFrame, end_s: float) -> list[dict[str, object]]:
    """Prefill GPUs are busy in a third of the time, decode GPUs wait for KV in a fifth of it."""
    prefill, decode = requests["prefill_gpu"].unique(), requests["decode_gpu"].unique()
    plan = [(gpu, (("busy", 0.0), ("waiting_work", end_s / 3))) for gpu in prefill]
    plan += [(gpu, (("waiting_kv", 0.0), ("busy", end_s / 5))) for gpu in decode]
    return [{"gpu": gpu, "t_s": t_s, "state": state} for gpu, states in plan for state, t_s in states]


def _write_ports(
    folder: Path, plan: Plan, fabric: Fabric, busy: dict[tuple[str, int], list[Any]], end_s: float
) -> None:
    """Samples of every egress port: bytes grow while a transfer is sent, and some wait at the last contended
    hop."""
    per_frame = FRAME_BYTES / (RATE_FACTOR * DILATION)
    switches = {switch.name for switch in fabric.switches}
    times = np.arange(0.0, end_s + 1, 1 / plan.sample_hz_wall / DILATION * 3)
    with writer.TableWriter(folder / "ports.parquet", schema.PORTS) as table:
        owners: list[Switch | Gpu] = [*fabric.switches, *fabric.gpus]
        for owner in owners:
            for port in owner.ports:
                key = (owner.name, port.number)
                sent, waiting = np.zeros(times.size), np.zeros(times.size)
                for submit, begin, done, size in busy.get(key, ()):
                    sent += np.clip((times - begin) / (done - begin), 0, 1) * size * RATE_FACTOR * DILATION
                    if owner.name in switches:
                        waiting += np.where((times >= submit) & (times < begin), min(size / per_frame, 16), 0)
                table.write(
                    {
                        "t_s": times,
                        "t_wall_s": times * DILATION,
                        "node": [owner.name] * times.size,
                        "port": np.full(times.size, port.number),
                        "tx_bytes_raw": sent.astype(np.int64),
                        "tx_packets": (sent / FRAME_BYTES).astype(np.int64),
                        "drops": np.zeros(times.size, dtype=np.int64),
                        "backlog_bytes": waiting * per_frame,
                        "backlog_bytes_raw": (waiting * FRAME_BYTES).astype(np.int64),
                        "backlog_packets": np.ceil(waiting).astype(np.int32),
                    }
                )


def _meta(plan: Plan, scenario: Scenario, digest: str, window: dict[str, float]) -> dict[str, Any]:
    return {
        "schema_version": schema.SCHEMA_VERSION,
        "made_up": "TEST DATA: nothing was measured",
        "zcube_version": "0.0.0+test",
        "scenario_sha256": digest,
        "seed": plan.seed,
        "executor": "simulation" if plan.bound else "emulation",
        "started_utc": "2026-01-01T00:00:00Z",
        "kernel": "6.0.0-made-up",
        "ovs_version": "3.1.0",
        "cpu_model": "made-up CPU",
        "cores": 2,
        "scale": {
            "rate_factor": RATE_FACTOR,
            "dilation": DILATION,
            "frame_bytes": FRAME_BYTES,
            "mss_bytes": FRAME_BYTES - 58,
            "model_bytes_per_frame": FRAME_BYTES / (RATE_FACTOR * DILATION),
        },
        "shape": scenario.serving.shape,
        "layout": scenario.serving.layout,
        "striping": plan.striping,
        "bundle": plan.bundle,
        "policy": scenario.policy,
        "congestion_control": "reno",
        "inflight_cap_frames": 16,
        "window": window,
    }


def _fidelity(invalid: bool) -> dict[str, Any]:
    def check(name: str, value: float | None, unit: str, limit: str, ok: bool | None, text: str) -> dict[str, Any]:
        return {"name": name, "value": value, "unit": unit, "limit": limit, "ok": ok, "text": text}

    lost = 412 if invalid else 0
    return {
        "schema_version": schema.SCHEMA_VERSION,
        "valid": not invalid,
        "checks": [
            check("link_rate_worst_deviation_pct", 0.7, "%", "<= 3", True, "worst of 24 of 192 directed links"),
            check("lone_transfer_deviation_pct", 1.4, "%", "<= 5", True, "a median handoff alone"),
            check("packets_lost", lost, "packets", "0 unexplained", not invalid, f"{lost} without a drop"),
            check("resolution_frames", 71.0, "frames", ">= 20 (good: 50)", True, "frames per queue pair"),
            check("packet_budget_used_pct", 58.0, "%", "<= 100", True, "all senders at line rate"),
            check("maxmin_ratio_median", 1.04, "x", "0.95 to 1.25", True, "of 600 transfers"),
            check("maxmin_ratio_p95", None, "x", "<= 2", None, "of 600 transfers"),
            check("sampler_lag_p99_ms", 1.9, "wall ms", "told", None, "period 2.00 ms"),
            check("a_check_of_tomorrow", 3.0, "things", "<= 4", True, "nobody has heard of it yet"),
        ],
    }
