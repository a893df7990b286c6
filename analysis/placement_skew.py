"""How evenly the scheduler spread handoffs over decode targets, and whether it piled them up.

* `skew`: KV bytes (prompt tokens) given to the busiest target over the mean of all targets that could be chosen.
* `piled`: a handoff is piled up when, as it started, its target had handoffs in flight while another candidate had
  none. `piled_share` is the share of handoffs that were; `piled_even` the share to be expected had each target been
  drawn evenly among the candidates at the same moments. A scheduler that does not look at targets has a ratio of 1, one
  that avoids busy targets less, one that seeks them more.

Hot: the busiest target has `SKEW` times the mean, more than in 99 of 100 even draws of the same handoffs, and handoffs
are piled up no less than by an even draw; or they are piled up twice as often as that, in a third of all or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis import requests as rq

SKEW, PILED_RATIO, PILED_SHARE = 1.6, 2.0, 0.33


@dataclass(frozen=True)
class PlacementSkew:
    """See the module; NaN where there are no handoffs or no recorded candidates."""

    handoffs: int
    targets: int
    skew: float
    busiest_target: str
    piled_share: float
    piled_even: float
    skew_even_p99: float = float("nan")
    share_by_target: Mapping[str, float] = field(default_factory=dict)

    @property
    def hot(self) -> bool:
        """Whether the scheduler made a hot spot."""
        often = self.piled_share >= PILED_SHARE and self.piled_share >= PILED_RATIO * self.piled_even
        uneven = self.skew >= SKEW and self.skew > self.skew_even_p99 and self.piled_share >= self.piled_even
        return uneven or often

    def sentence(self) -> str:
        """In words."""
        return (
            f"{self.busiest_target} was given {self.skew:.1f} times the mean of {self.targets} targets;"
            f" {100 * self.piled_share:.0f} % of handoffs joined others at a target while another had none"
            f" (an even draw: {100 * self.piled_even:.0f} %)"
        )


def placement_skew(completed: pd.DataFrame) -> PlacementSkew:
    """From completed requests (columns decode_gpu, candidates, input_tokens, local, t_kv_transfer_s,
    t_decode_waiting_s)."""
    rows = completed[~completed["local"].fillna(False).astype(bool)] if "local" in completed else completed
    rows = rows.sort_values("t_kv_transfer_s", kind="stable")
    target = _targets(rows)
    known: dict[str, float] = {}
    candidates = [_names(text) for text in rows["candidates"]]
    for names in candidates:
        known |= dict.fromkeys(names, 0.0)
    for name, tokens in zip(target, rows["input_tokens"], strict=True):
        known[name] = known.get(name, 0.0) + float(tokens)
    if not known or rows.empty:
        return PlacementSkew(0, 0, float("nan"), "", float("nan"), float("nan"))
    busiest = max(known, key=lambda name: (known[name], name))
    starts = rows["t_kv_transfer_s"].to_numpy(dtype=np.float64)
    ends = rows["t_decode_waiting_s"].to_numpy(dtype=np.float64)
    piled = even = 0.0
    for at, (start_s, name) in enumerate(zip(starts, target, strict=True)):
        inbound: dict[str, int] = {}
        for other in np.flatnonzero(ends[:at] > start_s):
            inbound[target[other]] = inbound.get(target[other], 0) + 1
        names = candidates[at] or list(known)
        free = sum(inbound.get(each, 0) == 0 for each in names)
        if free:
            piled += inbound.get(name, 0) > 0 and free > 0
            even += (len(names) - free) / len(names)
    mean = sum(known.values()) / len(known)
    return PlacementSkew(
        handoffs=len(rows),
        targets=len(known),
        skew=known[busiest] / mean,
        busiest_target=busiest,
        piled_share=piled / len(rows),
        piled_even=even / len(rows),
        skew_even_p99=_even_p99(rows["input_tokens"].to_numpy(dtype=np.float64), len(known)),
        share_by_target={name: known[name] / mean for name in sorted(known, key=_natural)},
    )


def _even_p99(tokens: NDArray[np.float64], targets: int) -> float:
    """99th percentile of busiest over mean when each handoff's target is drawn evenly; 500 draws, always the same."""
    random = np.random.default_rng(0)
    skews = []
    for _ in range(500):
        given = np.bincount(random.integers(targets, size=tokens.size), weights=tokens, minlength=targets)
        skews.append(given.max() / given.mean())
    return float(np.percentile(skews, 99))


def candidate_targets(completed: pd.DataFrame) -> set[str]:
    """Names of all GPUs or instances that a decode target was, or could have been, chosen from."""
    found = set(completed["decode_gpu"].dropna()) | set(completed["decode_instance"].dropna())
    for text in completed["candidates"]:
        found.update(_names(text))
    return {str(name) for name in found}


def _natural(name: str) -> tuple[int, str]:
    return len(name), name


def _names(text: object) -> list[str]:
    """Decode candidates of a request; one name alone is no choice, or all that was kept of many."""
    found = rq.decode_candidates(text)
    return found if len(found) > 1 else []


def _targets(rows: pd.DataFrame) -> list[str]:
    """Name of the decode target as candidates name it: the GPU, or the instance where those are instances."""
    found = []
    for gpu, instance, text in zip(rows["decode_gpu"], rows["decode_instance"], rows["candidates"], strict=True):
        names = _names(text)
        found.append(str(instance) if str(instance) in names else str(gpu))
    return found
