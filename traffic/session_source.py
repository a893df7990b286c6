"""Closed-loop replay of recorded sessions: each turn a think time after the real end of the one before."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from scenario.errors import InputError
from scenario.models import Scenario
from scenario.trace_workloads import SessionsWorkload
from traffic.compute import nominal_service_s
from traffic.open_loop import phase_of
from traffic.readers.rows import TraceRow
from traffic.readers.sessions import SESSIONS
from traffic.readers.trace import Trace
from traffic.requests import FixedSet, Request, cooldown_count
from traffic.rng import uniform
from traffic.trace_source import RequestMaker


class SessionSource(FixedSet):
    """The fixed set of turns (a `traffic.requests.Source`).

    User u of n takes sessions u, u + n, u + 2n, ... of the folder, one after the other; the first turn of a session
    follows the last of the user's session before at once. Which user serves a session does not depend on what
    happens, so the set is the same on every fabric. The set is the first `warmup + measured + cooldown` arrivals of
    a nominal schedule (idle system, infinite fabric). Raises `InputError` as the readers do, and where the sessions
    hold fewer turns.
    """

    def __init__(self, scenario: Scenario) -> None:
        workload = scenario.workload
        if not isinstance(workload, SessionsWorkload):
            raise InputError("workload.kind", workload.kind, "this source replays sessions")
        self._scenario, self._workload = scenario, workload
        self._trace = Trace(workload.path, SESSIONS, skip_bad_rows=workload.skip_bad_rows)
        self._make = RequestMaker(scenario, "sessions")
        self._initial: list[tuple[float, Request]] = []
        #: request_id -> (think time in model s, the user's next request)
        self._next: dict[int, tuple[float, Request]] = {}
        self._requests = tuple(self._enumerate())
        self.summary: dict[str, object] = {
            "kind": "sessions",
            "users": len(self._initial),
            "sessions": len({r.session_id for r in self._requests}),
            "bad_rows_skipped": self._trace.bad_rows,
            "first_bad_row": self._trace.first_bad,
            "cut_prompts": self._make.cut_prompts,
        }

    def initial(self) -> list[tuple[float, Request]]:
        """The first turn of each user (model s, request)."""
        return sorted(self._initial, key=lambda pair: pair[0])

    def following(self, request: Request, finished_s: float) -> tuple[float, Request] | None:
        """The user's next turn, a think time after `finished_s`; None where it is outside the fixed set."""
        after = self._next.get(request.request_id)
        return None if after is None else (finished_s + after[0], after[1])

    def _enumerate(self) -> Iterator[Request]:
        workload = self._workload
        needed = workload.warmup_requests + workload.requests
        limit = needed + cooldown_count(workload.requests)
        files = self._trace.files()[workload.skip :]
        users = min(workload.users, len(files))
        turns = [self._turns(user, users, workload.skip, len(files)) for user in range(users)]
        waiting: list[tuple[float, int, TraceRow]] = []
        for user in range(users):
            row = next(turns[user], None)
            if row is not None:
                start_s = workload.ramp_s * uniform(self._scenario.seed, user, purpose="session_start")
                waiting.append((start_s, user, row))
        heapq.heapify(waiting)
        last: dict[int, Request] = {}
        count = 0
        while waiting and count < limit:
            at_s, user, row = waiting[0]
            request = self._make.request(count, row, phase_of(count, workload.warmup_requests, workload.requests))
            if user in last:
                self._next[last[user].request_id] = (self._think_s(row), request)
            else:
                self._initial.append((at_s, request))
            last[user] = request
            count += 1
            yield request
            after = next(turns[user], None)
            if after is None:
                heapq.heappop(waiting)
                continue
            begins_s = at_s + nominal_service_s(self._scenario, request) + self._think_s(after)
            heapq.heapreplace(waiting, (begins_s, user, after))
        if count < needed:
            raise InputError(
                "workload.requests",
                workload.requests,
                f"the {len(files):,} sessions of {workload.path} after skip {workload.skip:,} have {count:,} requests;"
                f" warmup_requests {workload.warmup_requests:,} + requests {workload.requests:,} need {needed:,}",
                "Lower workload.skip, workload.warmup_requests or workload.requests.",
            )

    def _turns(self, user: int, users: int, skip: int, sessions: int) -> Iterator[TraceRow]:
        for number in range(user, sessions, users):
            yield from self._trace.session(skip + number)

    def _think_s(self, row: TraceRow) -> float:
        return (row.think_s or 0.0) / self._workload.speedup
