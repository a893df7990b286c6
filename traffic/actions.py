"""The engine's language: events that a driver reports and actions that it carries out.

A driver (the emulation in real time, the simulation in virtual time) keeps a set of timers and of running
transfers. It calls `engine.start()` once, carries out the actions, and then feeds every event with its time
to `engine.on`.

Simultaneous events are fed in the order of `event_order`: (time, kind, id). What frees memory or slots comes
before what asks for them, and a deadline comes last, so that a first token at the deadline itself still
counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class TimerKind(IntEnum):
    """What a timer stands for; the value is its rank among simultaneous events (a finished transfer has rank
    0)."""

    FINISHED = 1
    FIRST_TOKEN = 2
    PREFILL_DONE = 3
    SUBMIT = 4
    ENQUEUE = 5
    ARRIVAL = 6
    TIMEOUT = 7


class TimerKey(NamedTuple):
    """Names a timer; `id` is the request_id, or the batch number for PREFILL_DONE. Each key is used once."""

    kind: TimerKind
    id: int


@dataclass(frozen=True)
class StartTimer:
    """Report `TimerFired(key)` at model time `at_s`; at once if that is past. Timers are never cancelled."""

    at_s: float
    key: TimerKey


@dataclass(frozen=True)
class StartTransfer:
    """Send `bytes` (model bytes) now, and report `TransferDone` when the last one is at the receiver."""

    transfer_id: int
    request_id: int
    src_gpu: str
    dst_gpu: str
    bytes: int


@dataclass(frozen=True)
class CancelTransfer:
    """Stop a running transfer: its request has timed out. A `TransferDone` that crosses it is ignored."""

    transfer_id: int


@dataclass(frozen=True)
class EmitToken:
    """The request's first token reached the client at `t_s`; for progress only, nothing to report back."""

    request_id: int
    t_s: float


@dataclass(frozen=True)
class TimerFired:
    """A timer is due. A driver in virtual time reports it at `at_s`."""

    key: TimerKey


@dataclass(frozen=True)
class TransferDone:
    """The last byte is at the receiver; the time given to `engine.on` is the receiver's stamp."""

    transfer_id: int


Action = StartTimer | StartTransfer | CancelTransfer | EmitToken
Event = TimerFired | TransferDone


def event_order(t_s: float, event: Event) -> tuple[float, int, int]:
    """Sort key of an event at model time `t_s`: (time, kind, id)."""
    if isinstance(event, TransferDone):
        return (t_s, 0, event.transfer_id)
    return (t_s, int(event.key.kind), event.key.id)
