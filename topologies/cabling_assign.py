"""Which old switch becomes which new one, so that many GPU cables stay where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

import numpy as np

from topologies.cabling_room import home_switches
from topologies.fabric import End, Fabric, Link

Cage = tuple[str, int]
Prefer = Literal["service", "cables"]


def cages(fabric: Fabric, gpu_gbps: float, switch_gbps: float) -> dict[End, Cage]:
    """Port -> (device, number of its cage). A cage of the stated rate holds as many ports of one rate as it can."""
    found: dict[End, Cage] = {}
    for owner in fabric.nodes:
        cage_gbps = gpu_gbps if owner.name in fabric.gpu_by_name else switch_gbps
        cage, rate, left = 0, 0.0, 0.0
        for port in owner.ports:
            if port.gbps != rate or port.gbps > left + 1e-9:
                cage, rate, left = cage + 1, port.gbps, cage_gbps
            left -= port.gbps
            found[End(owner.name, port.number)] = (owner.name, cage)
    return found


def capacity_gbps(fabric: Fabric) -> float:
    """What one switch of the fabric carries: its ASIC as far as it is known, at least the fullest switch.

    The ASIC has R ports of NIC speed where the fabric states R; a ZCube of k GPUs a switch is 1:1 on R = k.
    """
    stated = fabric.parameters.get("asic_ports", fabric.parameters.get("gpus_per_switch"))
    nic_gbps = max(sum(port.gbps for port in gpu.ports) for gpu in fabric.gpus)
    asic = stated * nic_gbps if isinstance(stated, int) else 0.0
    return max(asic, *(sum(port.gbps for port in switch.ports) for switch in fabric.switches))


def assignment(
    old: Fabric,
    new: Fabric,
    old_cages: Mapping[End, Cage],
    new_cages: Mapping[End, Cage],
    *,
    prefer: Prefer = "service",
    useless: AbstractSet[str] = frozenset(),
) -> dict[str, str | None]:
    """New switch -> old switch, or None where one must be bought.

    Rule: maximise 3 x (GPU cables that need not be touched) + (GPU cables that stay on their switch, in another cage),
    not counting the old links in `useless`. With `service`, two things count as much as two cables for each GPU port
    of the widest switch, since they let servers move before an old leaf is taken away: an old switch without GPUs
    (spine, core) becomes the home switch of servers; and what must be bought is home switches (old ones become the
    others). Ties: same name, then same tier, then the later new switch (so that those bought serve whole blocks).
    Optimal (Hungarian method) for the cables of GPUs; cables between switches are not weighed, since that would be a
    quadratic assignment. An old switch whose ASIC is too small for a new one is not taken for it.
    """
    rows, columns = list(new.switches), list(old.switches)
    weight = np.zeros((len(rows), len(columns)), dtype=np.int64)
    tie = 5 * len(rows)  # one cable outweighs all that breaks ties
    row_of = {switch.name: i for i, switch in enumerate(rows)}
    column_of = {switch.name: i for i, switch in enumerate(columns)}
    for (after, at), saved in _saved(old, new, old_cages, new_cages, useless).items():
        weight[row_of[after], column_of[at]] = saved * tie
    with_gpus = Counter(end.node for end in old.attachment.values())
    homes = home_switches(new)
    bonus = 0 if prefer == "cables" else 2 * tie * max(Counter(end.node for end in new.attachment.values()).values())
    for i, switch in enumerate(rows):
        for j, before in enumerate(columns):
            weight[i, j] += bonus * (switch.name not in homes or not with_gpus[before.name])
            alike = 2 * (switch.name == before.name) + (switch.tier == before.tier)
            weight[i, j] += alike * len(rows) + i
    fits = np.array([sum(port.gbps for port in switch.ports) <= capacity_gbps(old) + 1e-9 for switch in rows])
    fitting = np.flatnonzero(fits)
    chosen = dict(zip(fitting.tolist(), best_assignment(weight[fitting]), strict=True))
    found: dict[str, str | None] = {}
    for i, switch in enumerate(rows):
        column = chosen.get(i)
        found[switch.name] = None if column is None else columns[column].name
    return found


def _saved(
    old: Fabric,
    new: Fabric,
    old_cages: Mapping[End, Cage],
    new_cages: Mapping[End, Cage],
    useless: AbstractSet[str],
) -> Mapping[tuple[str, str], int]:
    """(new switch, old switch) -> what is saved if they are the same box."""
    before: dict[str, list[Link]] = {}
    for link in old.links:
        if link.tier == "access" and link.id not in useless:
            before.setdefault(link.a.node, []).append(link)
    saved: Counter[tuple[str, str]] = Counter()
    for (gpu, port), end in new.attachment.items():
        for link in before.get(gpu, []):
            same_gpu_cage = old_cages[link.a] == new_cages[End(gpu, port)]
            same_switch_cage = old_cages[link.b][1] == new_cages[end][1]
            saved[end.node, link.b.node] += 1 + 2 * (same_gpu_cage and same_switch_cage)
    return saved


def best_assignment(weight: np.ndarray) -> list[int | None]:
    """Column of each row so that the sum of weights is greatest; rows beyond the columns get None.

    Hungarian method with potentials (Kuhn 1955, https://doi.org/10.1002/nav.3800020109), rows added one by one,
    O(rows^2 x columns). Deterministic: of equal choices the first column.
    """
    rows, columns = weight.shape
    if rows == 0 or columns == 0:
        return [None] * rows
    if rows > columns:
        of_column = best_assignment(weight.T)
        found: list[int | None] = [None] * rows
        for column, row in enumerate(of_column):
            if row is not None:
                found[row] = column
        return found
    cost = weight.max() - weight
    far = np.iinfo(np.int64).max // 4
    u = np.zeros(rows + 1, dtype=np.int64)
    v = np.zeros(columns + 1, dtype=np.int64)
    row_at = np.zeros(columns + 1, dtype=np.int64)  # row (from 1) at a column; column 0 is where a path begins
    for row in range(1, rows + 1):
        row_at[0], here = row, 0
        least = np.full(columns + 1, far, dtype=np.int64)
        came = np.zeros(columns + 1, dtype=np.int64)
        used = np.zeros(columns + 1, dtype=bool)
        while True:
            used[here] = True
            at = row_at[here]
            reach = cost[at - 1] - u[at] - v[1:]
            better = ~used[1:] & (reach < least[1:])
            least[1:][better], came[1:][better] = reach[better], here
            open_least = np.where(used, far, least)
            open_least[0] = far
            following = int(open_least.argmin())
            delta = open_least[following]
            u[row_at[used]] += delta
            v[used] -= delta
            least[~used] -= delta
            here = following
            if row_at[here] == 0:
                break
        while here:
            previous = int(came[here])
            row_at[here] = row_at[previous]
            here = previous
    result: list[int | None] = [None] * rows
    for column in range(1, columns + 1):
        if row_at[column]:
            result[int(row_at[column]) - 1] = column - 1
    return result
