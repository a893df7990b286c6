"""Which switch of a file is most likely which of ours, when the two are not equal.

Grown from the surest pair outwards (percolation): the score of a pair of switches is the bandwidth that both have
towards the same GPUs and towards pairs matched already, minus what only one of them has. The first round accepts one
pair, each later one twice as many, so that early choices (which of two like groups is the even one) guide the rest.
It is a good matching and not proven the best: the differences it leaves are an upper bound.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from topologies.switch_graph import SwitchGraph

Matrix = npt.NDArray[np.float32]


def best_matching(ours: SwitchGraph, theirs: SwitchGraph) -> dict[int, int]:
    """Our switch -> a file's switch, one to one, as many as both have."""
    wanted = min(len(ours.names), len(theirs.names))
    shared = _shared_access(ours, theirs)
    a, b = _dense(ours), _dense(theirs)
    totals = (_access_totals(ours), _access_totals(theirs))
    matching: dict[int, int] = {}
    quota = 1
    while len(matching) < wanted:
        score = _score(a, b, shared, totals, matching)
        matching |= _accept(score, matching, quota)
        quota *= 2
    for _ in range(3):  # once all are matched, every neighbour speaks: choose again while that helps
        again = _accept(_score(a, b, shared, totals, matching), {}, wanted)
        if _common(a, b, shared, again) <= _common(a, b, shared, matching):
            break
        matching = again
    return matching


def _shared_access(ours: SwitchGraph, theirs: SwitchGraph) -> Matrix:
    """Gb/s that two switches have towards the same GPUs."""
    shared = np.zeros((len(ours.names), len(theirs.names)), dtype=np.float32)
    for gpu, here in ours.switches_of_gpu.items():
        for i in here:
            for j in theirs.switches_of_gpu.get(gpu, ()):
                shared[i, j] += min(ours.access[i][gpu], theirs.access[j][gpu])
    return shared


def _dense(graph: SwitchGraph) -> Matrix:
    matrix = np.zeros((len(graph.names), len(graph.names)), dtype=np.float32)
    for i, rates in enumerate(graph.between):
        for j, rate in rates.items():
            matrix[i, j] = rate
    return matrix


def _access_totals(graph: SwitchGraph) -> Matrix:
    return np.array([sum(rates.values()) for rates in graph.access], dtype=np.float32)


def _score(a: Matrix, b: Matrix, shared: Matrix, totals: tuple[Matrix, Matrix], matching: dict[int, int]) -> Matrix:
    """Common minus uncommon bandwidth of every pair: 3 common - own total - other's total."""
    left, right = a[:, list(matching)], b[:, list(matching.values())]
    common = shared + _sum_of_minima(left, right)
    own, other = totals[0] + left.sum(axis=1), totals[1] + right.sum(axis=1)
    return np.asarray(3 * common - own[:, None] - other[None, :], dtype=np.float32)


def _sum_of_minima(left: Matrix, right: Matrix) -> Matrix:
    """sum over w of min(left[i, w], right[j, w]), as products of 0/1 matrices for each distinct rate."""
    total = np.zeros((left.shape[0], right.shape[0]), dtype=np.float32)
    below = 0.0
    for rate in np.unique(np.concatenate([left.ravel(), right.ravel()])):
        if rate > 0:
            at_least = (left >= rate).astype(np.float32), (right >= rate).astype(np.float32)
            total += (float(rate) - below) * (at_least[0] @ at_least[1].T)
            below = float(rate)
    return total


def _accept(score: Matrix, matching: dict[int, int], quota: int) -> dict[int, int]:
    """The best `quota` pairs among switches that are free; rows with the highest score choose first."""
    free = score.copy()
    free[list(matching), :] = -np.inf
    free[:, list(matching.values())] = -np.inf
    accepted: dict[int, int] = {}
    for i in np.argsort(-free.max(axis=1), kind="stable"):
        if len(accepted) == quota:
            break
        j = int(free[i].argmax())
        if np.isfinite(free[i, j]):
            accepted[int(i)] = j
            free[:, j] = -np.inf
    return accepted


def _common(a: Matrix, b: Matrix, shared: Matrix, matching: dict[int, int]) -> float:
    """Bandwidth that agrees under a matching; a cable between switches counts from both ends."""
    rows, columns = list(matching), list(matching.values())
    between = np.minimum(a[np.ix_(rows, rows)], b[np.ix_(columns, columns)]).sum()
    return float(shared[rows, columns].sum() + between / 2)
