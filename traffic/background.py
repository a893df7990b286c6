"""Traffic beside the workload, as further transfers of the same agents: an engine around the workload's engine.

Each pair of an item is a sender of its own: with `gbps` a message each size / gbps (open loop), else the next as soon
as the last has ended. It ends with the workload. A background message between the same two GPUs as a handoff
uses the same queue pairs, one after the other; between other GPUs it shares cables only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scenario.background_section import Background, FlowsBackground, IperfBackground
from scenario.errors import InputError
from scenario.models import Scenario
from topologies.collisions import Pair
from traffic.actions import Action, Event, StartTransfer, TimerFired, TimerKind, TransferDone, TransferFailed
from traffic.collectives import pattern_pairs
from traffic.outbox import Outbox
from traffic.player import Player

#: Transfer ids of the background: above those of requests, below those of expert-parallel traffic.
FIRST_ID, END_ID = 1 << 60, 1 << 61
#: Where iperf3 is simulated: the paced stream as a message each so many seconds.
PACED_S = 0.05


def background_pairs(scenario: Scenario, item: Background) -> list[Pair]:
    """Who sends to whom. Raises InputError for GPUs that the fabric does not have."""
    if item.pattern is not None:
        return pattern_pairs(scenario, item.pattern)
    pairs = [(src, dst) for src, dst in (pair.split("->") for pair in item.pairs)]
    for src, dst in pairs:
        for gpu in (src, dst):
            if not 1 <= int(gpu[3:]) <= scenario.fabric.gpus:
                raise InputError("background.pairs", f"{src}->{dst}", f"GPUs are gpu1 to gpu{scenario.fabric.gpus}")
        if src == dst:
            raise InputError("background.pairs", f"{src}->{dst}", "a GPU does not send to itself")
    return pairs


@dataclass
class Stream:
    """One sender of the background. Times in model seconds."""

    item: int
    pair: Pair
    size_bytes: int
    start_s: float
    stop_s: float
    period_s: float | None
    sent: int = 0
    sent_bytes: int = 0
    done_bytes: int = 0


def streams(scenario: Scenario, *, iperf3: bool) -> list[Stream]:
    """The senders of all items that are flows; with `iperf3` those too, in messages of 50 ms (for the simulation)."""
    found = []
    for number, item in enumerate(scenario.background):
        period_s: float | None = None
        if isinstance(item, FlowsBackground):
            size = round(item.size_mb * 1e6)
            period_s = size * 8 / (item.gbps * 1e9) if item.gbps else None
        elif isinstance(item, IperfBackground) and iperf3:
            period_s = PACED_S
            size = max(1, round(item.gbps * 1e9 / 8 * PACED_S))
        else:
            continue
        stop_s = float("inf") if item.stop_s is None else item.stop_s
        for pair in background_pairs(scenario, item):
            found.append(Stream(number, pair, size, item.start_s, stop_s, period_s))
    return found


class WithBackground:
    """An engine that plays the streams beside another engine, and has otherwise that one's face."""

    def __init__(self, inner: Player, played: Sequence[Stream]) -> None:
        self._inner, self._streams = inner, played
        self._out = Outbox()
        self._of: dict[int, Stream] = {}  # transfer -> whose it is

    def start(self) -> list[Action]:
        """Both."""
        actions = self._inner.start()
        for number, stream in enumerate(self._streams):
            self._out.timer(stream.start_s, TimerKind.BACKGROUND, number)
        return [*actions, *self._out.take()]

    def on(self, event: Event, t_s: float) -> list[Action]:
        """What to do after an event; the background's own are kept from the workload's engine."""
        if isinstance(event, TimerFired) and event.key.kind is TimerKind.BACKGROUND:
            self._send(event.key.id, t_s)
        elif isinstance(event, TransferDone | TransferFailed) and FIRST_ID <= event.transfer_id < END_ID:
            stream = self._of.pop(event.transfer_id, None)
            if stream is not None:
                if isinstance(event, TransferDone):
                    stream.done_bytes += stream.size_bytes
                if stream.period_s is None:
                    self._send(self._streams.index(stream), t_s)
        else:
            return self._inner.on(event, t_s)
        return self._out.take()

    def _send(self, number: int, t_s: float) -> None:
        stream = self._streams[number]
        if t_s >= stream.stop_s:
            return
        transfer = FIRST_ID + stream.sent * len(self._streams) + number
        self._of[transfer] = stream
        self._out.add(
            StartTransfer(transfer, -1, *stream.pair, stream.size_bytes, kind="background", piece=stream.sent)
        )
        stream.sent += 1
        stream.sent_bytes += stream.size_bytes
        if stream.period_s is not None:
            self._out.timer(stream.start_s + stream.sent * stream.period_s, TimerKind.BACKGROUND, number)

    @property
    def finished(self) -> bool:
        """Of the workload: the background does not hold a run up."""
        return self._inner.finished

    @property
    def requests(self) -> list[dict[str, object]]:
        """Of the workload."""
        return self._inner.requests

    @property
    def gpu_states(self) -> list[dict[str, object]]:
        """Of the workload."""
        return self._inner.gpu_states

    def request_rows(self) -> Iterator[dict[str, object]]:
        """Of the workload, one after the other."""
        return self._inner.request_rows()

    def gpu_rows(self) -> Iterator[dict[str, object]]:
        """Of the workload, one after the other."""
        return self._inner.gpu_rows()

    @property
    def window_s(self) -> tuple[float, float] | None:
        """Of the workload."""
        return self._inner.window_s

    def account(self) -> list[dict[str, object]]:
        """What each stream sent, for the run folder: model bytes."""
        return [
            {
                "item": stream.item,
                "kind": "flows",
                "pair": "->".join(stream.pair),
                "messages": stream.sent,
                "bytes_sent": stream.sent_bytes,
                "bytes_arrived": stream.done_bytes,
            }
            for stream in self._streams
        ]
