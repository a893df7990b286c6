"""Plays a plan of flows (`traffic.flow_plan`): the face of `traffic.engine.Engine`, without serving.

A message starts at its time, or when the messages it waits for have ended; a flow when its message has started and the
flows it waits for have ended. Starting costs nothing: neither kernels nor software overhead are modelled, so a chain of
small flows is as fast as the network. Flows between GPUs of one server go over NVLink (a timer) or by their NICs, as
`workload.in_server` says. A message that fails (a transfer did, or `timeout_s` is over) takes those with it that can
then never start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from scenario.flow_workloads import FlowWorkload
from scenario.models import Scenario
from traffic.actions import (
    Action,
    CancelTransfer,
    EmitToken,
    Event,
    StartTransfer,
    TimerFired,
    TimerKind,
    TransferDone,
    TransferFailed,
)
from traffic.flow_plan import FlowPlan, Message, PlannedFlow
from traffic.outbox import Outbox

#: Of a row of a transfer log, which has no setting of its own.
TIMEOUT_S = FlowWorkload.model_fields["timeout_s"].default


def crosses_fabric(scenario: Scenario, flow: PlannedFlow) -> bool:
    """Whether a flow goes by NICs: not within a server, unless `workload.in_server: fabric`."""
    if getattr(scenario.workload, "in_server", "nvlink") == "fabric":
        return True
    ranks = scenario.fabric.gpus_per_server
    return (int(flow.src[3:]) - 1) // ranks != (int(flow.dst[3:]) - 1) // ranks


class _State:
    """A message while it is played."""

    __slots__ = (
        "end_s",
        "fabric_bytes",
        "given_up_s",
        "left",
        "open",
        "passed",
        "start_s",
        "status",
        "waiting",
        "wasted",
    )

    def __init__(self, message: Message) -> None:
        self.waiting = message.needs if message.after else 0  # messages that must still end
        self.passed = len(message.after)  # of those it may wait for, how many have not failed
        self.left = 0  # flows that have not ended
        self.open: dict[int, None] = {}  # transfers under way
        self.start_s: float | None = None
        self.end_s: float | None = None
        self.given_up_s: float | None = None
        self.status = "unfinished"
        self.fabric_bytes = self.wasted = 0


class FlowEngine:
    """Plays one plan. Transfer ids are numbers of flows, request ids those of messages."""

    def __init__(self, scenario: Scenario, plan: FlowPlan) -> None:
        self._scenario, self._plan = scenario, plan
        self._timeout_s = float(getattr(scenario.workload, "timeout_s", TIMEOUT_S))
        self._nvlink_bytes_per_s = scenario.serving.nvlink_gbps * 1e9 / 8
        self._out = Outbox()
        self._states = [_State(message) for message in plan.messages]
        self._of_message: list[list[int]] = [[] for _ in plan.messages]
        self._then: defaultdict[int, list[int]] = defaultdict(list)  # flow -> flows that wait for it
        self._waiting = [len(flow.after) for flow in plan.flows]
        self._last_s = [0.0] * len(plan.flows)  # latest end among the flows that a flow waits for
        self._ended: set[int] = set()
        self._over = 0
        self._messages_then: defaultdict[int, list[int]] = defaultdict(list)
        for number, flow in enumerate(plan.flows):
            self._of_message[flow.message].append(number)
            self._states[flow.message].left += 1
            for before in flow.after:
                self._then[before].append(number)
        for message in plan.messages:
            for before_message in message.after:
                self._messages_then[before_message].append(message.number)

    def start(self) -> list[Action]:
        """A timer for each message that waits for no other."""
        for message in self._plan.messages:
            if not message.after:
                self._out.timer(message.at_s, TimerKind.ARRIVAL, message.number)
        return self._out.take()

    def on(self, event: Event, t_s: float) -> list[Action]:
        """What to do after `event` at model time `t_s`. Raises ValueError for what was never started."""
        if isinstance(event, TransferDone):
            self._flow_done(event.transfer_id, t_s)
        elif isinstance(event, TransferFailed):
            self._fail(self._flow(event.transfer_id).message, "failed", t_s)
        elif isinstance(event, TimerFired):
            kind, number = event.key
            if kind is TimerKind.LOCAL_DONE:
                self._flow_done(number, t_s)
            elif kind is TimerKind.ARRIVAL:
                self._begin(number, t_s)
            elif kind is TimerKind.TIMEOUT:
                self._fail(number, "timeout", t_s)
            else:
                raise ValueError(f"no such timer: {event.key}")
        else:
            raise ValueError(f"not an event: {event!r}")
        return self._out.take()

    @property
    def finished(self) -> bool:
        """Every message has ended or failed."""
        return self._over == len(self._states)

    @property
    def window_s(self) -> tuple[float, float] | None:
        """First start to last end of the measured messages; None before one has ended."""
        ended = [self._states[number] for number in self._plan.measured_ids]
        starts = [state.start_s for state in ended if state.start_s is not None]
        ends = [state.end_s for state in ended if state.end_s is not None]
        return (min(starts), max(ends)) if ends and max(ends) > min(starts) else None

    @property
    def requests(self) -> list[dict[str, object]]:
        """Rows of the `requests` table: one a message, without tokens and stages."""
        return list(self.request_rows())

    def request_rows(self) -> Iterator[dict[str, object]]:
        """The same one after the other."""
        return (self._row(message, state) for message, state in zip(self._plan.messages, self._states, strict=True))

    @property
    def gpu_states(self) -> list[dict[str, object]]:
        """No GPU computes here."""
        return []

    def gpu_rows(self) -> Iterator[dict[str, object]]:
        """None."""
        return iter(())

    def _flow(self, number: int) -> PlannedFlow:
        if not 0 <= number < len(self._plan.flows):
            raise ValueError(f"no such flow: {number}")
        return self._plan.flows[number]

    def _begin(self, number: int, t_s: float) -> None:
        state = self._states[number]
        if state.start_s is not None or state.status != "unfinished":
            return
        state.start_s = t_s
        self._out.timer(t_s + self._timeout_s, TimerKind.TIMEOUT, number)
        for flow in self._of_message[number]:
            if not self._waiting[flow]:
                self._send(flow, t_s)

    def _send(self, number: int, t_s: float) -> None:
        flow = self._plan.flows[number]
        if not crosses_fabric(self._scenario, flow):
            self._out.timer(t_s + flow.size_bytes / self._nvlink_bytes_per_s, TimerKind.LOCAL_DONE, number)
            return
        state = self._states[flow.message]
        state.open[number] = None
        state.fabric_bytes += flow.size_bytes
        self._out.add(
            StartTransfer(number, flow.message, flow.src, flow.dst, flow.size_bytes, kind="flow", piece=flow.step)
        )

    def _flow_done(self, number: int, t_s: float) -> None:
        flow = self._flow(number)
        state = self._states[flow.message]
        if state.status != "unfinished" or number in self._ended:
            return
        self._ended.add(number)
        state.open.pop(number, None)
        state.left -= 1
        state.end_s = t_s if state.end_s is None else max(state.end_s, t_s)
        for after in self._then[number]:
            self._waiting[after] -= 1
            self._last_s[after] = max(self._last_s[after], t_s)
            if not self._waiting[after]:
                self._send(after, self._last_s[after])
        if not state.left:
            state.status = "ok"
            self._over += 1
            self._out.add(EmitToken(flow.message, state.end_s))
            for message in self._messages_then[flow.message]:
                self._one_ended(message, state.end_s)

    def _one_ended(self, number: int, t_s: float) -> None:
        """A message that this one waits for has ended."""
        state, message = self._states[number], self._plan.messages[number]
        state.waiting -= 1
        if state.waiting == 0:
            self._out.timer(t_s + message.delay_s, TimerKind.ARRIVAL, number)

    def _fail(self, number: int, why: str, t_s: float) -> None:
        """Give a message up, and those that can then never start."""
        failing = [(number, why)]
        while failing:
            number, why = failing.pop()
            state = self._states[number]
            if state.status != "unfinished":
                continue
            state.status, state.end_s, state.given_up_s = why, None, t_s
            self._over += 1
            for flow in state.open:
                self._out.add(CancelTransfer(flow))
                state.wasted += self._plan.flows[flow].size_bytes
            state.open.clear()
            for after in self._messages_then[number]:
                waiter = self._states[after]
                waiter.passed -= 1
                if waiter.passed < self._plan.messages[after].needs and waiter.start_s is None and waiter.waiting > 0:
                    failing.append((after, "failed"))

    def _row(self, message: Message, state: _State) -> dict[str, object]:
        return {
            "request_id": message.number,
            "session_id": message.number,
            "tenant": message.name,
            "turn": message.repeat,
            "phase": message.phase,
            "warmup": message.phase != "measured",
            "status": state.status,
            "input_tokens": 0,
            "cached_tokens": 0,
            "output_tokens": 0,
            "candidates": "{}",
            "local": False,
            "handoff_attempts": 1,
            "kv_bytes_sent": state.fabric_bytes,
            "kv_bytes_wasted": state.wasted,
            "operation": message.operation,
            "ranks": message.ranks,
            "message_bytes": message.size_bytes,
            "bus_factor": message.bus_factor,
            "t_arrival_s": state.start_s,
            "t_finished_s": state.end_s if state.status == "ok" else None,
            "t_ended_s": state.end_s if state.status == "ok" else state.given_up_s,
        }
