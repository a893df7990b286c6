"""The engine's language: events that a driver reports and actions that it carries out.

A driver (the emulation in real time, the simulation in virtual time) keeps a set of timers and of running
transfers. It calls `engine.start()` once, carries out the actions, and then feeds every event with its time
to `engine.on`.

Simultaneous events are fed in the order of `event_order`: (time, kind, id). What frees memory or slots comes
before what asks for them, and a deadline comes last, so that a first token at the deadline itself still
counts.

Several of these are made for each request: slots, and not frozen, since a frozen dataclass takes three times as long to
make. Nobody changes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class TimerKind(IntEnum):
    """What a timer stands for; the value is its rank among simultaneous events (a finished transfer has rank
    0)."""

    LOCAL_DONE = 1
    DECODE_END = 2
    FINISHED = 3
    FIRST_TOKEN = 4
    PREFILL_DONE = 5
    LAYERS = 6
    SUBMIT = 7
    ENQUEUE = 8
    ARRIVAL = 9
    HANDOFF_TIMEOUT = 10
    CANCEL = 11
    TIMEOUT = 12
    EP_ROUND = 13
    BACKGROUND = 14


class TimerKey(NamedTuple):
    """Names a timer; `id` is the request_id; the transfer_id for LOCAL_DONE; the batch number for PREFILL_DONE; else a
    number of its own. Each key is used once."""

    kind: TimerKind
    id: int


@dataclass(slots=True, unsafe_hash=True)
class StartTimer:
    """Report `TimerFired(key)` at model time `at_s`; at once if that is past. Timers are never cancelled."""

    at_s: float
    key: TimerKey


@dataclass(slots=True, unsafe_hash=True)
class StartTransfer:
    """Send `bytes` (model bytes) now, and report `TransferDone` when the last one is at the receiver.

    `src_gpu` and `dst_gpu` own the NICs that carry it. `kind`: kv (a handoff), prefix (a remote prefix read), ep
    (expert-parallel traffic), flow (a workload without serving), or background. `piece` counts what leaves together.
    """

    transfer_id: int
    request_id: int
    src_gpu: str
    dst_gpu: str
    bytes: int
    attempt: int = 1
    kind: str = "kv"
    piece: int = 0


@dataclass(slots=True, unsafe_hash=True)
class CancelTransfer:
    """Stop a running transfer: its request has timed out. A `TransferDone` that crosses it is ignored."""

    transfer_id: int


@dataclass(slots=True, unsafe_hash=True)
class EmitToken:
    """The request's first token reached the client at `t_s`; for progress only, nothing to report back."""

    request_id: int
    t_s: float


@dataclass(slots=True, unsafe_hash=True)
class TimerFired:
    """A timer is due. A driver in virtual time reports it at `at_s`."""

    key: TimerKey


@dataclass(slots=True, unsafe_hash=True)
class TransferDone:
    """The last byte is at the receiver; the time given to `engine.on` is the receiver's stamp."""

    transfer_id: int


@dataclass(slots=True, unsafe_hash=True)
class TransferFailed:
    """A transfer that will not end: its path is gone for good, or its connection broke."""

    transfer_id: int


Action = StartTimer | StartTransfer | CancelTransfer | EmitToken
Event = TimerFired | TransferDone | TransferFailed


def event_order(t_s: float, event: Event) -> tuple[float, int, int]:
    """Sort key of an event at model time `t_s`: (time, kind, id)."""
    if isinstance(event, TimerFired):
        kind, number = event.key
        return (t_s, int(kind), number)
    return (t_s, 0, event.transfer_id)


def queued(t_s: float, event: Event) -> tuple[float, int, int, Event]:
    """An entry of a heap of events: `event_order` and the event, flat, so that most comparisons are of two floats."""
    if isinstance(event, TimerFired):
        kind, number = event.key
        return (t_s, kind, number, event)
    return (t_s, 0, event.transfer_id, event)
