"""A workload without serving: messages (a collective, a row of a log) of flows that wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

from scenario.errors import InputError
from traffic.requests import Phase

#: Larger plans are refused: every flow is an object here, and several rows in the results.
MOST_FLOWS = 2_000_000


@dataclass(frozen=True)
class PlannedFlow:
    """`size_bytes` from one GPU to another, as soon as its message has started and all flows of `after` have ended.

    `after`: numbers of earlier flows of the same message. `step` counts the rounds of an algorithm from 0.
    """

    message: int
    src: str
    dst: str
    size_bytes: int
    after: tuple[int, ...] = ()
    step: int = 0


@dataclass(frozen=True)
class Message:
    """Flows that count as one operation: a row of the requests table.

    It starts at `at_s` (model s); with `after`, `delay_s` after the `needs`-th of those messages has ended.
    `size_bytes` and `bus_factor` are S and the correction factor of nccl-tests (`traffic.collectives`).
    """

    number: int
    operation: str
    name: str
    size_bytes: int
    ranks: int
    bus_factor: float = 1.0
    phase: Phase = "measured"
    repeat: int = 0
    at_s: float = 0.0
    after: tuple[int, ...] = ()
    needs: int = 0
    delay_s: float = 0.0


@dataclass(frozen=True)
class FlowPlan:
    """All of it. Messages and flows are known by their place in the tuples."""

    messages: tuple[Message, ...]
    flows: tuple[PlannedFlow, ...]
    summary: dict[str, object]

    @property
    def measured_ids(self) -> frozenset[int]:
        """Numbers of the messages that count."""
        return frozenset(m.number for m in self.messages if m.phase == "measured")


class PlanBuilder:
    """Collects messages and flows. Raises InputError where they become too many to hold."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.flows: list[PlannedFlow] = []

    def message(self, operation: str, name: str, size_bytes: int, ranks: int, **more: object) -> int:
        """Add one; its number. `more`: further fields of `Message`."""
        number = len(self.messages)
        self.messages.append(Message(number, operation, name, size_bytes, ranks, **more))  # type: ignore[arg-type]
        return number

    def flow(
        self, message: int, src: str, dst: str, size_bytes: int, after: tuple[int, ...] = (), step: int = 0
    ) -> int:
        """Add one; its number."""
        if len(self.flows) >= MOST_FLOWS:
            raise InputError(
                "workload", "...", f"makes more than {MOST_FLOWS:,} flows", "fewer GPUs, or fewer workload.repeats"
            )
        self.flows.append(PlannedFlow(message, src, dst, size_bytes, after, step))
        return len(self.flows) - 1

    def plan(self, **summary: object) -> FlowPlan:
        """The whole."""
        return FlowPlan(tuple(self.messages), tuple(self.flows), summary)
