"""Max-min fair rates for flows that are spread over several paths, in arrays.

The same progressive filling as `topologies.maxmin` (the reference, exact and for any names), for flows that put a
share of themselves on each resource: a sprayed flow puts 1/16 on each of 16 uplinks. A flow's rate rises until any
resource it uses is full (Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2, with shares as weights).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Resources whose levels differ by less than this part are full together: it only absorbs rounding.
TIE = 1e-12


def weighted_max_min(
    flow: NDArray[np.int64], resource: NDArray[np.int64], share: NDArray[np.float64], capacity: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[flow] rates in the unit of `capacity` ([resource]).

    Entry e says that flow `flow[e]` puts `share[e]` (> 0) of its rate on resource `resource[e]`. Raises ValueError
    for shares or capacities that are not positive and for a flow without a resource.
    """
    flows, resources = int(flow.max(initial=-1)) + 1, len(capacity)
    if not (share > 0).all() or not (capacity > 0).all():
        raise ValueError("shares and capacities must be positive")
    if len(np.unique(flow)) != flows:
        raise ValueError("each flow needs a resource: its rate has no limit")
    rates = np.zeros(flows)
    rising = np.ones(flows, dtype=np.bool_)
    left = capacity.astype(np.float64).copy()
    level = 0.0
    while rising.any():
        load = np.bincount(resource, weights=share * rising[flow], minlength=resources)
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(load > 1e-15, left / load, np.inf)
        step = room.min()
        level += step
        left = np.maximum(left - load * step, 0.0)
        full = room <= step * (1 + TIE) + level * TIE
        stopped = np.unique(flow[full[resource] & rising[flow]])
        rates[stopped] = level
        rising[stopped] = False
    return rates
