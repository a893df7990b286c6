"""Open-loop replay of a window of a trace or a log of any format but sessions."""

from __future__ import annotations

from dataclasses import dataclass, field

from scenario.errors import InputError
from scenario.models import Scenario
from scenario.trace_workloads import MooncakeWorkload, TraceWorkload
from traffic.kv import KvModel, model_of
from traffic.layout import roles
from traffic.open_loop import OpenLoop, phase_of
from traffic.prefix import InfiniteCache
from traffic.readers.rows import TraceRow
from traffic.readers.trace import FORMATS, Trace
from traffic.recorded import RecordedPairs
from traffic.requests import Phase, Request, cooldown_count


@dataclass
class RequestMaker:
    """From rows to requests of a scenario: context limit, prefix hits, GPUs.

    A prompt longer than the model's context is cut, and counted (`cut_prompts`). Where the row has no cached tokens
    but prefix blocks, they are the hits of an infinite shared cache (`serving.prefix_cache: assumed`) that has seen
    every row before, those that `skip` leaves out too.
    """

    scenario: Scenario
    kind: str
    cut_prompts: int = 0
    _cache: InfiniteCache = field(default_factory=InfiniteCache)
    _sessions: dict[str, int] = field(default_factory=dict)
    _turns: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._model: KvModel = model_of(self.scenario.serving)
        logged = self.kind in ("routing", "transfers")
        self._gpus = _ranks(self.scenario) if logged else {}
        self._pairs = RecordedPairs(self.scenario, flows=self.kind == "transfers") if logged else None

    def see(self, row: TraceRow) -> None:
        """A row before the window: the cache has seen it."""
        if row.cached_tokens is None and row.blocks is not None:
            self._cache.hit_tokens(row)

    def request(self, request_id: int, row: TraceRow, phase: Phase) -> Request:
        """The request of a row. Raises InputError for a GPU that the fabric or its layout does not have, and for a pair
        that cannot be served where placement follows the record."""
        tokens, blocks = row.input_tokens, row.blocks
        if row.kv_bytes:  # a handoff of a transfer log: the prompt that weighs as much, computed elsewhere
            tokens = max(1, round(row.kv_bytes / self._model.bytes_per_token))
            cached = tokens - 1
        elif row.cached_tokens is not None:
            cached = row.cached_tokens
        else:
            cached = self._cache.hit_tokens(row)
        if tokens > self._model.max_context_tokens:
            self.cut_prompts += 1
            tokens = self._model.max_context_tokens
            blocks = None if blocks is None else blocks[: -(-tokens // row.block_tokens)]
        session, turn = self._session(row)
        prefill_gpu, decode_gpu = self._gpu(row, row.prefill_gpu, "prefill"), self._gpu(row, row.decode_gpu, "decode")
        if self._pairs is not None and prefill_gpu and decode_gpu:
            self._pairs.check(self._where(row), prefill_gpu, decode_gpu)
        return Request(
            request_id,
            session,
            turn,
            row.tenant or self.kind,
            tokens,
            min(cached, tokens),
            max(1, row.output_tokens),
            phase,
            blocks,
            row.block_tokens if blocks is not None else 0,
            prefill_gpu,
            decode_gpu,
        )

    def _session(self, row: TraceRow) -> tuple[int, int]:
        """(session, turn) as numbers; turns are counted, since a window may hold a session's later turns only."""
        if row.parent in self._sessions:
            session = self._sessions[row.session] = self._sessions[row.parent]
        elif not row.session or self.kind == "transfers":
            session = len(self._turns)
            self._sessions[f"\0{session}"] = session
        else:
            session = self._sessions.setdefault(row.session, len(self._turns))
        turn = self._turns.get(session, 0)
        self._turns[session] = turn + 1
        return session, turn

    def _where(self, row: TraceRow) -> str:
        return f"workload.path: {self.scenario.workload.path}, line {row.line}"  # type: ignore[union-attr]

    def _gpu(self, row: TraceRow, label: str, role: str) -> str | None:
        if not label:
            return None
        found = self._gpus.get((role, label))
        if found is None:
            known = [name for kind, name in self._gpus if kind == role]
            raise InputError(
                self._where(row),
                label,
                f"is no {role} GPU of this scenario ({known[0]} to {known[-1]})",
                "Choose a fabric with as many GPUs as the log, or a layout that gives them these roles.",
            )
        return found


def _ranks(scenario: Scenario) -> dict[tuple[str, str], str]:
    """(role, label in a log) -> GPU. A routing log numbers the ranks of each role from 0; a transfer log names GPUs
    (gpu1 or 1)."""
    found = {}
    split = roles(scenario)
    for role, servers in (("prefill", split.prefill), ("decode", split.decode)):
        for rank, gpu in enumerate(gpu for server in servers for gpu in server.gpus):
            if scenario.workload.kind == "routing":
                found[role, str(rank)] = gpu
            else:
                found[role, gpu] = found[role, gpu.removeprefix("gpu")] = gpu
    return found


class TraceSource(OpenLoop):
    """Open-loop replay of a window of a trace.

    Skips `skip` rows, then takes `warmup_requests`, `requests` (measured) and, as far as the file goes, the
    next 10 % as cooldown. Arrival = (time - time of the first row taken) / speedup, in model seconds.
    Raises `InputError` as the readers do, and where the file has fewer rows than skip + warmup + requests.
    """

    def __init__(self, scenario: Scenario) -> None:
        workload = scenario.workload
        if not isinstance(workload, TraceWorkload):
            raise InputError("workload.kind", workload.kind, "this source replays traces")
        kind: str = workload.kind
        needed = workload.warmup_requests + workload.requests
        limit = needed + cooldown_count(workload.requests)
        trace = Trace(
            workload.path,
            FORMATS[kind],
            skip_bad_rows=workload.skip_bad_rows,
            seed=scenario.seed,
            raw_timestamps=isinstance(workload, MooncakeWorkload) and workload.raw_timestamps,
        )
        make = RequestMaker(scenario, kind)
        arrivals: list[tuple[float, Request]] = []
        first_ns = rows = 0
        for row in trace:
            rows += 1
            if rows <= workload.skip:
                make.see(row)
                continue
            index = len(arrivals)
            if index == 0:
                first_ns = row.at_ns
            at_s = (row.at_ns - first_ns) / 1e9 / workload.speedup
            arrivals.append(
                (at_s, make.request(index, row, phase_of(index, workload.warmup_requests, workload.requests)))
            )
            if len(arrivals) == limit:
                break
        if len(arrivals) < needed:
            raise InputError(
                "workload.requests",
                workload.requests,
                f"{workload.path} has {rows:,} rows; skip {workload.skip:,} + warmup_requests"
                f" {workload.warmup_requests:,} + requests {workload.requests:,} need"
                f" {workload.skip + needed:,}",
                "Lower workload.skip, workload.warmup_requests or workload.requests."
                + (f" {trace.bad_rows:,} rows did not parse; the first: {trace.first_bad}" if trace.bad_rows else ""),
            )
        summary = {
            "kind": kind,
            "rows_read": rows,
            "bad_rows_skipped": trace.bad_rows,
            "first_bad_row": trace.first_bad,
            "cut_prompts": make.cut_prompts,
        }
        super().__init__(arrivals, summary)
