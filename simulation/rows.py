"""Rows of the transfers table of a simulated run: one a queue pair that a handoff went over."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from simulation.executor import Sent
from topologies.fluid import Lane, Transfer, isolated_s


def whole_bytes(carried: tuple[float, ...], total: int) -> list[int]:
    """Fluid bytes as whole ones that sum to `total`: rounded down, what is missing goes to the largest remainders."""
    floors = [math.floor(part) for part in carried]
    by_remainder = sorted(range(len(carried)), key=lambda at: (floors[at] - carried[at], at))
    for turn in range(total - sum(floors)):
        floors[by_remainder[turn % len(floors)]] += 1
    return floors


class Alone:
    """Durations of handoffs that have the network to themselves: proportional to their bytes, so found once a pair
    where its queue pairs share a port."""

    def __init__(self, capacities: Mapping[str, float]) -> None:
        self._capacities = capacities
        self._s_per_byte: dict[tuple[Lane, ...], float] = {}

    def seconds(self, transfer: Transfer) -> float:
        """Model seconds of this transfer alone."""
        crossed = [name for lane in transfer.lanes for name in lane.resources]
        if len(set(crossed)) == len(crossed):  # its queue pairs share nothing
            rates = [min(self._capacities[name] for name in lane.resources) for lane in transfer.lanes]
            if transfer.striping == "adaptive":
                return transfer.bytes / sum(rates)
            return transfer.bytes / len(rates) / min(rates)
        if transfer.lanes not in self._s_per_byte:
            some = Transfer(0, 1e9, transfer.lanes, transfer.striping)
            self._s_per_byte[transfer.lanes] = isolated_s(self._capacities, some) / some.bytes
        return self._s_per_byte[transfer.lanes] * transfer.bytes


def transfer_rows(sent: Iterable[Sent], capacities: Mapping[str, float]) -> list[dict[str, object]]:
    """Rows of many handoffs, by transfer_id."""
    alone = Alone(capacities)
    return [row for item in sorted(sent, key=lambda item: item.order.transfer_id) for row in rows_of(item, alone)]


def rows_of(item: Sent, alone: Alone) -> list[dict[str, object]]:
    """A row for each queue pair that it went over. The run is its own max-min replay, so `ideal_s` is the duration; a
    handoff that did not finish has one row without a queue pair. There are no frames here: `wire_bytes_raw` stays
    empty."""
    rows: list[dict[str, object]] = []
    order = item.order
    common: dict[str, object] = {
        "transfer_id": order.transfer_id,
        "request_id": order.request_id,
        "src_gpu": order.src_gpu,
        "dst_gpu": order.dst_gpu,
        "t_submit_s": item.t_submit_s,
        "isolated_s": alone.seconds(item.transfer) + item.latency_s,
        "attempt": order.attempt,
        "kind": order.kind,
        "piece": order.piece,
    }
    if item.end is None:
        unfinished = {"bytes": order.bytes, "path": [], "t_done_s": math.nan, "ideal_s": math.nan}
        return [{**common, **unfinished, "status": "unfinished"}]
    carried = whole_bytes(item.end.lane_bytes, order.bytes)
    for lane, size, done_s in zip(item.transfer.lanes, carried, item.end.lane_done_s, strict=True):
        rows.append(
            {
                **common,
                "src_port": lane.qp.src.port,
                "dst_port": lane.qp.dst.port,
                "qp": lane.qp.index,
                "path": list(lane.links),
                "bytes": size,
                "t_done_s": done_s + item.latency_s,
                "ideal_s": item.end.done_s + item.latency_s - item.t_submit_s,
                "status": "ok",
            }
        )
    return rows
