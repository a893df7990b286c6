"""What held each transfer back, for how long and at which port: the max-min replay with its bottlenecks named.

Alone on the fabric a transfer of B bytes takes B / R0 seconds. With others it has a rate R(t) <= R0, so it loses
(1 - R/R0) dt in each dt, and the sum over its time is exactly its duration less the time alone. Each lane's part of the
loss goes to the port that is its bottleneck in the max-min sense (Bertsekas & Gallager, Data Networks, 6.5.2: a full
port on which no flow is faster), and to one of three causes:

* `sender`: the port is the source's own NIC, or the lane waits behind another transfer of its queue pair (as far as
  that one goes at the rate that it has alone: what holds it back holds back those behind it);
* `incast`: the flows on the port share the *final* port, the one into the destination: no topology removes it;
* `avoidable`: they part later; another mapping of flows to ports would have let them pass.

Where a port carries both (flows to D, others elsewhere), a lane to D that is one of g to D loses r0 - C/g by incast
(that is what its own group would take from it at this port anyway) and the rest, C/g less its rate, avoidably. With all
flows to D this is pure incast, with each to another destination purely avoidable.

Pure and standard library only. Units: bytes, seconds, bytes per second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from topologies.fluid import Completion, FluidNetwork, Lane, Transfer, isolated_s
from topologies.maxmin import bottlenecks, max_min_rates
from topologies.paths import QueuePair

Cause = Literal["sender", "incast", "avoidable"]
CAUSES: tuple[Cause, ...] = ("sender", "incast", "avoidable")
_NOTHING_LOST = 1e-9


@dataclass(frozen=True)
class Held:
    """Transfer `transfer_id` lost `lost_s` seconds at egress port `port` between `start_s` and `end_s`."""

    transfer_id: int
    port: str
    cause: Cause
    start_s: float
    end_s: float
    lost_s: float


@dataclass(frozen=True)
class Account:
    """A replayed transfer: `done_s - start_s` = `alone_s` + the sum of `lost_s` of its `held` rows.

    (Under static striping the rows are those of the lane that ended last; where lanes have unequal rates alone, the sum
    is only near.) `lane_bytes` and `lane_done_s` are what each lane carried, and when it was done, in the replay.
    """

    transfer: Transfer
    start_s: float
    done_s: float
    alone_s: float
    held: tuple[Held, ...]
    lane_bytes: tuple[float, ...] = ()
    lane_done_s: tuple[float, ...] = ()

    def lost_s(self, cause: Cause | None = None) -> float:
        """Seconds lost to one cause, or to all."""
        return sum(row.lost_s for row in self.held if cause is None or row.cause == cause)


@dataclass
class _Running:
    """A transfer under way: each lane's rate alone, what each lane has lost, and which lane (static) ends last."""

    transfer: Transfer
    start_s: float
    alone_rates: tuple[float, ...]
    alone_s: float
    rows: list[list[_Row]]
    #: A small number for each lane's queue pair, the same for all transfers, and the place of each.
    numbers: tuple[int, ...]
    place_of: Mapping[int, int]

    @property
    def adaptive(self) -> bool:
        return self.transfer.striping == "adaptive"


@dataclass
class _Row:
    port: str
    cause: Cause
    start_s: float
    end_s: float
    lost_s: float


class _OnPort:
    """The lanes on a port at one moment: how many there are, from which NICs, and how many lead to each final port."""

    def __init__(self) -> None:
        self.sources: set[str] = set()
        self.transfers: set[int] = set()
        self.to_final: dict[str, int] = {}


def account(capacities: Mapping[str, float], starts: Iterable[tuple[Transfer, float]]) -> list[Account]:
    """Replay `starts` (transfer, start time) and say what held each back; by (end, id).

    `capacities` maps each resource of the lanes to bytes per second. Raises ValueError for a transfer id that is under
    way twice, KeyError for a resource without a capacity.
    """
    network = FluidNetwork(capacities)
    waiting = sorted(starts, key=lambda item: (item[1], item[0].transfer_id))
    running: dict[int, _Running] = {}
    found: list[Account] = []
    alone: dict[tuple[Lane, ...], tuple[float, ...]] = {}
    number_of: dict[QueuePair, int] = {}  # hashing a queue pair costs more than all else that is looked up
    now_s, at = waiting[0][1] if waiting else 0.0, 0
    while at < len(waiting) or running:
        end_s = network.next_completion()
        start_s = waiting[at][1] if at < len(waiting) else None
        next_s = min(t for t in (end_s, start_s) if t is not None)
        if next_s > now_s:
            sending = {number_of[qp]: now for qp, now in network.sending().items()}
            _book(capacities, sending, running, now_s, next_s)
        now_s = max(now_s, next_s)
        for end in network.advance(now_s):
            found.append(_finished(running.pop(end.transfer.transfer_id), end))
        while at < len(waiting) and waiting[at][1] <= now_s:
            transfer, submitted_s = waiting[at]
            network.start(transfer, now_s)
            if transfer.lanes not in alone:
                alone[transfer.lanes] = _alone_rates(capacities, transfer.lanes)
            numbers = tuple(number_of.setdefault(lane.qp, len(number_of)) for lane in transfer.lanes)
            rates = alone[transfer.lanes]
            running[transfer.transfer_id] = _new(capacities, transfer, submitted_s, rates, numbers)
            at += 1
    return sorted(found, key=lambda item: (item.done_s, item.transfer.transfer_id))


def _alone_rates(capacities: Mapping[str, float], lanes: tuple[Lane, ...]) -> tuple[float, ...]:
    rates = max_min_rates({n: lane.resources for n, lane in enumerate(lanes)}, capacities)
    return tuple(rates[n] for n in range(len(lanes)))


def _new(
    capacities: Mapping[str, float],
    transfer: Transfer,
    start_s: float,
    rates: tuple[float, ...],
    numbers: tuple[int, ...],
) -> _Running:
    adaptive = transfer.striping == "adaptive"
    alone_s = transfer.bytes / sum(rates) if adaptive else isolated_s(capacities, transfer)
    places = {number: place for place, number in enumerate(numbers)}
    return _Running(transfer, start_s, rates, alone_s, [[] for _ in rates], numbers, places)


def _book(
    capacities: Mapping[str, float],
    sending: Mapping[int, tuple[int, float]],
    running: Mapping[int, _Running],
    start_s: float,
    end_s: float,
) -> None:
    """Book what every transfer loses between two changes of the rates. `sending`: number of a queue pair -> (id of the
    transfer that it sends, rate)."""
    lane_of: dict[int, Lane] = {}
    for qp, (number, _) in sending.items():
        item = running[number]
        lane_of[qp] = item.transfer.lanes[item.place_of[qp]]
    flows = {qp: lane.resources for qp, lane in lane_of.items()}
    rates = {qp: rate for qp, (_, rate) in sending.items()}
    narrow = bottlenecks(flows, capacities, rates, tolerance=1e-6)
    on_port: dict[str, _OnPort] = {}
    for qp, (number, _) in sending.items():
        ports = lane_of[qp].ports
        for port in ports:
            here = on_port.setdefault(port, _OnPort())
            here.sources.add(ports[0])
            here.transfers.add(number)
            here.to_final[ports[-1]] = here.to_final.get(ports[-1], 0) + 1
    elapsed = end_s - start_s
    where: dict[int, str] = {}  # the same for all that wait behind a lane
    for item in running.values():
        number = item.transfer.transfer_id
        now = [sending.get(qp, (None, 0.0)) for qp in item.numbers]
        speeds = [rate if owner == number else 0.0 for owner, rate in now]
        # A static lane that is done shows as one that waits; its rows do not count, since it is not the last.
        short = [max(0.0, own - rate) for own, rate in zip(item.alone_rates, speeds, strict=True)]
        if item.adaptive:
            missing, whole, parts = sum(item.alone_rates) - sum(speeds), sum(item.alone_rates), sum(short)
            weights = [missing / whole * part / parts if parts else 0.0 for part in short]
        else:
            weights = [part / own for part, own in zip(short, item.alone_rates, strict=True)]
        for place, lane in enumerate(item.transfer.lanes):
            if weights[place] <= _NOTHING_LOST:
                continue
            lost_s = weights[place] * elapsed
            rows, ports = item.rows[place], lane.ports
            alone, rate = item.alone_rates[place], speeds[place]
            if not rate:  # behind another transfer of its queue pair, which has the same path
                rate = now[place][1]
                own = min(1.0, rate / alone)
                _add(rows, ports[0], "sender", start_s, end_s, lost_s * own)
                lost_s *= 1 - own
            if lost_s <= 0 or not rate:
                continue
            qp = item.numbers[place]
            if qp not in where:
                where[qp] = _where(ports, narrow[qp], on_port)
            port = where[qp]
            by_incast = _incast_share(ports, port, on_port[port], capacities[port], alone, rate)
            if by_incast is None:
                _add(rows, port, "sender", start_s, end_s, lost_s)
                continue
            _add(rows, port, "incast", start_s, end_s, lost_s * by_incast)
            _add(rows, port, "avoidable", start_s, end_s, lost_s * (1 - by_incast))


def _where(ports: tuple[str, ...], narrow: tuple[str, ...], on_port: Mapping[str, _OnPort]) -> str:
    """The port that holds a lane back. Of several that are full: the one that another topology would change least."""
    if ports[-1] in narrow and len(on_port[ports[-1]].sources) > 1:
        return ports[-1]
    if ports[0] in narrow and len(on_port[ports[0]].transfers) > 1:
        return ports[0]
    inner = [port for port in ports[1:-1] if port in narrow]
    if inner:
        return max(inner, key=lambda port: len(on_port[port].transfers))
    return ports[-1] if ports[-1] in narrow else ports[0]


def _incast_share(
    ports: tuple[str, ...], port: str, here: _OnPort, capacity: float, alone: float, rate: float
) -> float | None:
    """Part of a lane's loss at `port` that is incast; None where the port is the sender's own."""
    if port == ports[0]:
        return None
    own_group = min(alone, max(rate, capacity / here.to_final[ports[-1]]))
    return (alone - own_group) / (alone - rate) if alone > rate else 0.0


def _add(rows: list[_Row], port: str, cause: Cause, start_s: float, end_s: float, lost_s: float) -> None:
    """One row more, or the one before made longer: rates change far more often than what is narrow."""
    if lost_s <= 0:
        return
    for row in rows[-2:]:
        if row.port == port and row.cause == cause and row.end_s == start_s:
            row.end_s, row.lost_s = end_s, row.lost_s + lost_s
            return
    rows.append(_Row(port, cause, start_s, end_s, lost_s))


def _finished(item: _Running, end: Completion) -> Account:
    """Under static striping the transfer's time is that of its last lane, so only that one's losses count."""
    lanes = item.rows
    if not item.adaptive:
        lanes = [item.rows[max(range(len(item.rows)), key=lambda n: (end.lane_done_s[n], -n))]]
    number = item.transfer.transfer_id
    held = tuple(
        Held(number, row.port, row.cause, row.start_s, row.end_s, row.lost_s) for rows in lanes for row in rows
    )
    return Account(item.transfer, item.start_s, end.done_s, item.alone_s, held, end.lane_bytes, end.lane_done_s)
