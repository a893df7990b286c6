"""The metrics of one run: `summary.json`. Times are model ms unless the name says otherwise.

**Requests** (measured ones only, unless it says otherwise)

* `completed`: status ok. `failed`: everything else; `timed_out` had no first token by the time-out,
  `unfinished` were cut off by the end of the run. TTFT, TPOT, ITL and E2EL are over completed requests, so an
  arm with failures looks better than it was.
* `duration`: length of the fixed window (`meta.json: window`), s. `request_throughput`: requests whose last
  token came inside the window, warm-up and cool-down included, a second. `output_throughput`: output tokens
  that came out inside the window a second. `input_throughput`: prompt tokens of requests whose first token
  came inside the window a second. `total_token_throughput`: their sum. Tokens are the workload's counts; no
  text exists.
* `*_ttft_ms`: first_token - arrival. `*_e2el_ms`: finished - arrival.
* `*_tpot_ms`: (E2EL - TTFT) / (output tokens - 1). `*_itl_ms`: the same over tokens instead of requests. Both
  are the compute model only: the fabric has no way into them.
* `request_goodput`, `slo_attainment`, `tenants`, `gpu_time`, and what failures cost: `analysis.service`.
* `mean_stage_ms`: mean time in each stage; the stages sum to mean TTFT. `slowest_stage_ms`: the same over the
  slowest 5 %.

**KV transfer**

* `*_kv_transfer_exposed_ms`: the `kv_transfer` stage: prefill is done and KV is still under way.
  `*_kv_transfer_total_ms`: first submit to last byte at a receiver. `*_kv_transfer_slowdown`: total / the
  same handoff alone on the fabric (1 = no contention). `*_kv_transfer_share_of_ttft`: exposed / TTFT of each
  request (0 to 1).
* `kv_transfer_bytes`: model bytes of measured requests. `kv_transfer_gbps`: bytes over the window's
  wall-clock, model Gb/s.

**Fabric** (from samples of egress ports inside the window; null in a run without ports)

* `fabric_*`: `analysis.fabric_metrics`. `hot_leaf_*`, `hot_port_*`: `analysis.hot_leaf`.

**Decode**: `decode_queue`: `analysis.decode_queue`.

* `ecn_*`: congestion marks, where `flow_control.ecn` is red: `analysis.ecn`.

**Without serving** (collectives, matrices, recorded transfers): `analysis.flows` has the metrics.

**Intervals**: 95 %, cluster bootstrap over sessions (`analysis/stats.py` says what they do not cover).
Sources of the names: `vllm bench serve` (vllm/benchmarks/serve.py), SGLang `bench_serving` (p90, p95,
input_throughput).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis import flows as fl
from analysis import requests as rq
from analysis import service
from analysis import transfers as tr
from analysis.decode_queue import decode_queue
from analysis.ecn import ecn_figures
from analysis.fabric_metrics import fabric_metrics
from analysis.hot_leaf import hot_leaf_rates
from analysis.ports import PortFigures, port_figures
from analysis.stats import LEVEL, PERCENTILES, RESAMPLES, bootstrap, describe, weighted_percentiles
from analysis.would_pause import PauseThresholds
from results.reader import RunFolder, Scale, Window
from results.schema import SCHEMA_VERSION
from scenario.errors import InputError
from scenario.models import Scenario

SLOWEST_SHARE = 0.05


@dataclass(frozen=True)
class RunData:
    """One run, read once and reduced: small enough to keep several of them."""

    requests: pd.DataFrame
    transfers: pd.DataFrame
    ports: PortFigures | None
    scale: Scale
    window: Window
    gpus: pd.DataFrame = field(default_factory=pd.DataFrame)
    scenario: Scenario = field(default_factory=Scenario)
    ecn: dict[str, Any] = field(default_factory=dict)


def load(run: RunFolder, max_bins: int = 1000) -> RunData:
    """Reads what the metrics need. A simulated run may come without transfers and ports."""
    simulated = run.meta().get("executor") == "simulation"
    scenario = run.scenario()
    telemetry = scenario.telemetry
    pause = PauseThresholds(telemetry.xoff_frames, telemetry.xon_frames)
    ports = None
    if run.has("ports.parquet") or not simulated:
        ports = port_figures(run, float(telemetry.backlog_threshold_frames), max_bins, pause)
    if ports is not None and not ports.table["samples"].any():
        if not simulated:
            raise InputError("run folder", str(run.path), "ports.parquet has no sample inside the window")
        ports = None
    if simulated and not run.has("transfers.parquet"):
        transfers = pd.DataFrame(columns=tr.COLUMNS)
    else:
        transfers = run.transfers(tr.COLUMNS)
    gpus = run.gpus() if run.has("gpus.parquet") else pd.DataFrame()
    figures = run.requests(), transfers, ports, run.scale(), run.window(), gpus, scenario
    return RunData(*figures, ecn_figures(run))


def summarise(run_folder: RunFolder, seed: int | None = None, resamples: int = RESAMPLES) -> dict[str, Any]:
    """The metrics of a run, ready for `results.writer.write_json(run / "summary.json", ...)`; NaN means no
    value.

    `seed` is that of the bootstrap; by default the run's own.
    """
    used = int(run_folder.meta().get("seed", 0)) if seed is None else seed
    return summarise_data(load(run_folder), used, resamples)


def summarise_data(data: RunData, seed: int, resamples: int = RESAMPLES) -> dict[str, Any]:
    """The same from data already read."""
    if fl.is_flows(data.requests):
        found = fl.flow_metrics(data.requests, data.transfers, data.window, seed, resamples)
        drawn = {"interval_level": LEVEL, "interval_resamples": resamples, "interval_seed": seed}
        return {"schema_version": SCHEMA_VERSION} | found | drawn | _fabric(data)
    done = rq.completed(data.requests)
    intervals: dict[str, list[float]] = {}
    found = {"schema_version": SCHEMA_VERSION}
    found |= _counts(data.requests) | _throughput(data.requests, data.window)
    for name, values in (("ttft_ms", rq.ttft_ms(done)), ("e2el_ms", rq.e2el_ms(done))):
        found |= _named(describe(values), name)
        intervals |= _intervals(values, done["session_id"], name, seed, resamples)
    found |= _per_token(done)
    experts = "kind" in data.transfers and bool((data.transfers["kind"] == "ep").any())
    found["tpot_note"] = "compute model, and rounds of expert traffic" if experts else "compute model only"
    found |= service.objectives(data.requests, data.window) | service.costs_of_failure(data.requests)
    found |= service.gpu_time(data.gpus, data.requests, data.window)
    found |= _stages(done)
    exposed = rq.stage_seconds(done)["kv_transfer"] * 1e3
    found |= _named(describe(exposed), "kv_transfer_exposed_ms")
    intervals |= _intervals(exposed, done["session_id"], "kv_transfer_exposed_ms", seed, resamples)
    share = exposed / rq.ttft_ms(done).where(rq.ttft_ms(done) > 0)
    found |= _named(describe(share.dropna()), "kv_transfer_share_of_ttft")
    found |= _transfers(data, done, intervals, seed, resamples)
    found |= decode_queue(data.requests, data.window, data.scenario.serving.timeout_s)
    found |= hot_leaf_rates(data.requests, data.transfers, data.ports, data.scenario)
    found |= _fabric(data)
    found |= {
        "intervals": intervals,
        "interval_level": LEVEL,
        "interval_unit": "session",
        "interval_units": int(done["session_id"].nunique()),
        "interval_resamples": resamples,
        "interval_seed": seed,
    }
    return found


def _named(figures: dict[str, float], suffix: str) -> dict[str, float]:
    return {f"{name}_{suffix}": value for name, value in figures.items()}


def _intervals(
    values: pd.Series[float], sessions: pd.Series[int], suffix: str, seed: int, resamples: int
) -> dict[str, list[float]]:
    usable = values.notna()
    drawn = bootstrap(values[usable].to_numpy(), sessions[usable].to_numpy(), seed, resamples)
    return {f"{name}_{suffix}": [interval.low, interval.high] for name, interval in drawn.items()}


def _counts(requests: pd.DataFrame) -> dict[str, Any]:
    done = rq.completed(requests)
    return {
        **rq.outcomes(requests),
        "total_input_tokens": int(done["input_tokens"].sum()),
        "total_cached_tokens": int(done["cached_tokens"].sum()),
        "total_output_tokens": int(done["output_tokens"].sum()),
        "workload_hash": rq.workload_hash(requests),
    }


def _throughput(requests: pd.DataFrame, window: Window) -> dict[str, float]:
    start, end, length = window.t_start_s, window.t_end_s, window.duration_s
    finished = rq.finished_in(requests, start, end)
    output = rq.output_tokens_in(requests, start, end)
    inputs = rq.input_tokens_in(requests, start, end)
    return {
        "duration": length,
        "window_start_s": start,
        "window_end_s": end,
        "window_finished": finished,
        "request_throughput": finished / length,
        "input_throughput": inputs / length,
        "output_throughput": output / length,
        "total_token_throughput": (inputs + output) / length,
    }


def _per_token(done: pd.DataFrame) -> dict[str, Any]:
    tpot = rq.tpot_ms(done)
    usable = tpot.notna()
    values = np.asarray(tpot[usable], dtype=np.float64)
    gaps = (done.loc[usable, "output_tokens"] - 1).to_numpy(dtype=np.int64)
    itl = dict.fromkeys(("mean", "median", "std", *(f"p{p}" for p in PERCENTILES)), float("nan"))
    if values.size:
        mean = float(np.average(values, weights=gaps))
        ranks = weighted_percentiles(values, gaps, PERCENTILES)
        itl = {
            "mean": mean,
            "median": float(ranks[0]),
            "std": float(np.sqrt(np.average((values - mean) ** 2, weights=gaps))),
            **{f"p{p}": float(ranks[i]) for i, p in enumerate(PERCENTILES)},
        }
    return _named(describe(values), "tpot_ms") | _named(itl, "itl_ms")


def _stages(done: pd.DataFrame) -> dict[str, Any]:
    ms = rq.stage_seconds(done)[list(rq.TTFT_STAGES)] * 1e3
    slowest = slowest_requests(done)
    return {
        "mean_stage_ms": {str(k): float(v) for k, v in ms.mean().items()},
        "slowest_stage_ms": {str(k): float(v) for k, v in ms.loc[slowest].mean().items()},
        "slowest_share": SLOWEST_SHARE,
    }


def slowest_requests(done: pd.DataFrame, share: float = SLOWEST_SHARE) -> pd.Index[Any]:
    """Index of the slowest requests by TTFT, slowest first: the given share, at least one."""
    number = max(1, round(len(done) * share)) if len(done) else 0
    return rq.ttft_ms(done).sort_values(ascending=False, kind="stable").index[:number]


def _transfers(
    data: RunData, done: pd.DataFrame, intervals: dict[str, list[float]], seed: int, resamples: int
) -> dict[str, Any]:
    wanted = data.transfers[data.transfers["request_id"].isin(done["request_id"])]
    table = tr.handoffs(wanted)
    total = pd.Series(table["total_s"].to_numpy(dtype=np.float64) * 1e3, index=table.index).dropna()
    sessions = done.set_index("request_id")["session_id"].reindex(total.index)
    intervals |= _intervals(total, sessions, "kv_transfer_total_ms", seed, resamples)
    slowdown = table["slowdown"].astype(float).dropna()
    return {
        **_named(describe(total), "kv_transfer_total_ms"),
        **_named(describe(slowdown), "kv_transfer_slowdown"),
        "kv_transfer_handoffs": len(total),
        "kv_transfer_bytes": int(table["bytes"].sum()),
        "kv_transfer_gbps": tr.gigabits_per_s(data.transfers, data.window),
    }


def _fabric(data: RunData) -> dict[str, Any]:
    return fabric_metrics(data.ports, data.scale, data.window, data.scenario.telemetry) | data.ecn
