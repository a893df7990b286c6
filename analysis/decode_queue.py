"""How many requests are at each decode instance over time: waiting for KV space or a slot, receiving KV, decoding.

From the instants of `requests.parquet`, all phases (a queue does not know which requests are measured):

* waiting: from `decode_alloc` to `kv_transfer`. With transfers that start before prefill ends (chunked, layerwise)
  space is asked for earlier, which has no instant of its own: then this is the part after prefill.
* receiving: from `kv_transfer` to `decode_waiting`: space is reserved, KV is on its way.
* decoding: from `decode_waiting` to `finished`.

A request that left early stays in its last state until its time-out (status timeout) or the end of the window
(unfinished); of cancelled and failed ones nobody noted when they left, so that state is not counted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.port_series import Floats, Ints, time_percentiles
from results.reader import Window

#: State -> the stages at whose instants it begins and ends.
STATES = {
    "waiting": ("decode_alloc", "kv_transfer"),
    "receiving": ("kv_transfer", "decode_waiting"),
    "decoding": ("decode_waiting", "finished"),
}
PERCENTILE = 95


@dataclass(frozen=True)
class Steps:
    """A number over time: `count[i]` from `t_s[i]` to the next; the last until the window's end. `group` ascending."""

    group: Ints
    t_s: Floats
    count: Ints
    hold_s: Floats


def instances(requests: pd.DataFrame) -> tuple[list[str], Ints]:
    """Names of the decode instances, those that nothing was placed on included as far as `candidates` names them, and
    the instance of each request (-1: none). An instance is a GPU where a server has several targets."""
    server, gpu = requests["decode_instance"], requests["decode_gpu"]
    placed = server.notna() & gpu.notna()
    several = bool((gpu[placed].groupby(server[placed]).nunique() > 1).any())
    names: dict[str, None] = {}
    for text in requests["candidates"].dropna().unique():
        names |= dict.fromkeys(json.loads(text).get("decode", ()))
    several |= bool(set(names) & set(gpu[placed]))
    name = gpu if several else server
    names |= dict.fromkeys(sorted(name[placed].unique()))
    ordered = sorted(names, key=lambda text: (len(text), text))
    place = {text: index for index, text in enumerate(ordered)}
    return ordered, np.array([place.get(text, -1) for text in name.where(placed, "")], dtype=np.int64)


def spans(requests: pd.DataFrame, state: str, window: Window, timeout_s: float) -> tuple[Floats, Floats]:
    """When each request entered a state and left it, model s, inside the window; equal where it was not in it."""
    first, last = STATES[state]
    start = requests[f"t_{first}_s"].to_numpy(dtype=np.float64)
    end = requests[f"t_{last}_s"].to_numpy(dtype=np.float64)
    status = requests["status"].to_numpy()
    timed_out = requests["t_arrival_s"].to_numpy(dtype=np.float64) + timeout_s
    open_until = np.where(status == "timeout", timed_out, np.where(status == "unfinished", window.t_end_s, start))
    end = np.where(np.isnan(end), open_until, end)
    start = np.where(np.isnan(start), window.t_start_s, start)
    end = np.where(np.isnan(requests[f"t_{first}_s"].to_numpy(dtype=np.float64)), start, end)
    start = np.clip(start, window.t_start_s, window.t_end_s)
    return start, np.maximum(start, np.clip(end, window.t_start_s, window.t_end_s))


def steps(group: Ints, start_s: Floats, end_s: Floats, groups: int, window: Window) -> Steps:
    """How many spans are open in each group over the window; every group begins with the window, those of group -1
    are in none."""
    some = np.flatnonzero((group >= 0) & (end_s > start_s))
    everyone = np.arange(groups)
    of = np.r_[everyone, group[some], group[some]]
    t = np.r_[np.full(groups, window.t_start_s), start_s[some], end_s[some]]
    change = np.r_[np.zeros(groups, dtype=np.int64), np.ones(some.size, int), -np.ones(some.size, int)]
    order = np.lexsort((t, of))
    of, t, count = of[order], t[order], np.cumsum(change[order])  # a group's changes sum to 0
    hold = np.diff(t, append=window.t_end_s)
    last = np.r_[of[1:] != of[:-1], True] if of.size else np.empty(0, dtype=bool)
    hold[last] = window.t_end_s - t[last]
    kept = hold > 0
    return Steps(of[kept], t[kept], count[kept], hold[kept])


def figures(found: Steps, groups: int) -> pd.DataFrame:
    """mean, p95 and max over time of the number in each group, a row a group."""
    seconds = np.bincount(found.group, found.hold_s, minlength=groups)
    most = np.zeros(groups)
    np.maximum.at(most, found.group, found.count)
    p95 = time_percentiles(found.group, found.count.astype(np.float64), found.hold_s, groups, (PERCENTILE,))[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(found.group, found.hold_s * found.count, minlength=groups) / seconds
    return pd.DataFrame({"mean": mean, "p95": p95, "max": most})


def total_steps(requests: pd.DataFrame, state: str, window: Window, timeout_s: float) -> Steps:
    """The number in a state at all instances together."""
    _, of = instances(requests)
    return steps(np.minimum(of, 0), *spans(requests, state, window, timeout_s), 1, window)


def decode_queue(requests: pd.DataFrame, window: Window, timeout_s: float) -> dict[str, Any]:
    """`decode_queue` of summary.json; empty where nothing decodes.

    For each state: `mean` over time and instances, `p95` over the instance-seconds of all, `max` at one instance, the
    same of the sum over all instances (`total_*`), and `busiest`, the instance with the greatest mean. `per_instance`:
    mean, p95 and max of each.
    """
    names, of = instances(requests)
    if not names:
        return {}
    found: dict[str, Any] = {"instances": len(names)}
    each: dict[str, dict[str, Any]] = {name: {} for name in names}
    for state in STATES:
        start_s, end_s = spans(requests, state, window, timeout_s)
        series = steps(of, start_s, end_s, len(names), window)
        table = figures(series, len(names))
        pooled = figures(Steps(np.zeros_like(series.group), series.t_s, series.count, series.hold_s), 1).iloc[0]
        total = figures(steps(np.minimum(of, 0), start_s, end_s, 1, window), 1).iloc[0]
        busiest = int(table["mean"].to_numpy().argmax())
        found[state] = {
            **{key: float(pooled[key]) for key in ("mean", "p95", "max")},
            **{f"total_{key}": float(total[key]) for key in ("mean", "p95", "max")},
            "busiest": names[busiest],
            "busiest_mean": float(table["mean"].iloc[busiest]),
        }
        for name, row in zip(names, table.to_dict("records"), strict=True):
            each[name][state] = row
    return {"decode_queue": found | {"per_instance": each}}
