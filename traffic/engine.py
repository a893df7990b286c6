"""The PD serving engine: a state machine without I/O or clock.

`engine.start()` gives the first actions, `engine.on(event, t_s)` those that follow an event. Life of a
request:

1. arrival, then `gateway_delay_ms`. The gateway picks the prefill server and the decode target together, at
   this point, as SGLang's router does (it sends the request to both sides with one bootstrap room;
   docs/advanced_features/router.md and pd_disaggregation.md of https://github.com/sgl-project/sglang).
2. `prefill_waiting`: FIFO queue of the prefill server. A batch reserves the KV memory of its whole prompts.
3. `prefill_forward`: the batch runs (traffic.compute). All its requests end with it.
4. `decode_alloc`: FIFO queue of the decode target for one slot and the KV memory of prompt and output
   (reserved as a whole, so that decode never has to preempt).
5. `kv_transfer`: `transfer_overhead_ms`, then one transfer per flow of the shape, all at once.
6. `decode_waiting`: the last byte of the last flow is at the receiver. Prefill memory is free from this
   instant (the confirmation's way back is not modelled). Decode takes the request up at once, so the stage
   lasts 0 s: a real instance would wait up to one step for its running iteration.
7. `decode_first_step`, for `decode_first_step_ms`, then `first_token`; `finished` is (output - 1) steps
   later.

A request without first token `timeout_s` after its arrival has failed: its transfers are cancelled, and
memory and slots are free at once. Only a running prefill batch is not cut short; what it held for the request
is free when it ends. The session goes on after a think time.

Times: an instant is the event's time, but never earlier than the request's previous one. Receivers' stamps
may be earlier than events already handled; what such an event sets off starts at the stamp, or when the
instance was free.
"""

from __future__ import annotations

import math

from scenario.models import Scenario
from traffic.actions import (
    Action,
    CancelTransfer,
    EmitToken,
    Event,
    StartTimer,
    StartTransfer,
    TimerFired,
    TimerKey,
    TimerKind,
    TransferDone,
)
from traffic.compute import decode_after_first_s, prefill_batch_s
from traffic.fit import check_requests_fit
from traffic.instances import (
    Decode,
    Prefill,
    decode_gpus_per_target,
    decode_memory_bytes,
    prefill_memory_bytes,
)
from traffic.kv import KvModel, model_of
from traffic.layout import decode_targets, roles
from traffic.placement import Placer
from traffic.records import Live, Step
from traffic.requests import Request, Source
from traffic.shapes import handoff


class Engine:
    """Serves one source under one scenario. It draws nothing at random: equal events give equal actions.

    Raises `InputError` where the layout does not fit, or where a prompt exceeds the model's context or the KV
    memory.
    """

    def __init__(self, scenario: Scenario, source: Source) -> None:
        self._scenario = scenario
        self._serving = scenario.serving
        self._source = source
        self._tp = scenario.fabric.gpus_per_server
        model = model_of(scenario.serving)
        check_requests_fit(scenario, model, source)
        self._lives = {
            r.request_id: Live(r, model.kv_bytes(r.input_tokens), model.kv_bytes(r.input_tokens + r.output_tokens))
            for r in source.requests
        }
        self._open_measured = set(source.measured_ids)
        self._prefills: dict[str, Prefill] = {}
        self._decodes: dict[str, Decode] = {}
        self._batches: dict[int, Prefill] = {}
        self._batch_count = 0
        self._transfers: dict[int, Live] = {}
        self._prefill_placer = Placer(scenario.serving.placement)
        self._decode_placer = Placer(scenario.serving.placement, drift=True)
        self._prefill_outstanding: dict[str, int] = {}
        self._decode_outstanding: dict[str, int] = {}
        self._build_instances(model)
        self._prefill_names = tuple(self._prefills)
        self._states: dict[str, tuple[str, float]] = {}
        self._gpu_rows: list[dict[str, object]] = []
        self._actions: list[Action] = []

    # What a driver and the run folder see

    def start(self) -> list[Action]:
        """The timers of the first arrivals; every GPU waits for work from model time 0."""
        for prefill in self._prefills.values():
            self._note_state(prefill.server.name, prefill.server.gpus, prefill.state, 0.0)
        for decode in self._decodes.values():
            self._note_state(decode.target.name, decode.target.gpus, decode.state, 0.0)
        for at_s, request in self._source.initial():
            self._timer(at_s, TimerKind.ARRIVAL, request.request_id)
        return self._take_actions()

    def on(self, event: Event, t_s: float) -> list[Action]:
        """What to do after `event` at model time `t_s`.

        Events about requests that are over are ignored. A transfer or timer that was never started is a
        defect of the driver and raises `ValueError`.
        """
        if isinstance(event, TransferDone):
            self._on_transfer_done(event.transfer_id, t_s)
        elif isinstance(event, TimerFired):
            self._on_timer(event.key, t_s)
        else:
            raise ValueError(f"not an event: {event!r}")
        return self._take_actions()

    @property
    def finished(self) -> bool:
        """Every measured request has its first token or has failed."""
        return not self._open_measured

    @property
    def requests(self) -> list[dict[str, object]]:
        """Rows of the `requests` table, in order of request_id, those not yet arrived included (as
        unfinished)."""
        return [self._lives[i].row() for i in sorted(self._lives)]

    @property
    def gpu_states(self) -> list[dict[str, object]]:
        """Rows of the `gpus` table: a row where a GPU's state changes; times of one GPU never decrease."""
        return list(self._gpu_rows)

    # Timers

    def _on_timer(self, key: TimerKey, t_s: float) -> None:
        if key.kind is TimerKind.PREFILL_DONE:
            if key.id >= self._batch_count:
                raise ValueError(f"no such batch: {key}")
            prefill = self._batches.pop(key.id, None)
            if prefill is not None:
                self._prefill_done(prefill, t_s)
            return
        if key.id not in self._lives:
            raise ValueError(f"no such request: {key}")
        live = self._lives[key.id]
        if key.kind is TimerKind.ARRIVAL and live.step is Step.FUTURE:
            self._arrive(live, t_s)
        elif key.kind is TimerKind.ENQUEUE and live.step is Step.GATEWAY:
            self._enqueue(live, t_s)
        elif key.kind is TimerKind.SUBMIT and live.step is Step.TRANSFER:
            self._submit(live)
        elif key.kind is TimerKind.FIRST_TOKEN and live.step is Step.FIRST_STEP:
            self._first_token(live, t_s)
        elif key.kind is TimerKind.FINISHED and live.step is Step.DECODING:
            self._finish(live, t_s)
        elif key.kind is TimerKind.TIMEOUT:
            self._time_out(live, t_s)

    def _arrive(self, live: Live, t_s: float) -> None:
        live.mark("arrival", t_s)
        live.step = Step.GATEWAY
        request_id = live.request.request_id
        self._timer(t_s + self._serving.timeout_s, TimerKind.TIMEOUT, request_id)
        if self._serving.gateway_delay_ms:
            self._timer(t_s + self._serving.gateway_delay_ms / 1e3, TimerKind.ENQUEUE, request_id)
        else:
            self._enqueue(live, t_s)

    def _enqueue(self, live: Live, t_s: float) -> None:
        live.prefill = self._prefill_placer.choose(self._prefill_names, self._prefill_outstanding)
        prefill = self._prefills[live.prefill.name]
        live.decode = self._decode_placer.choose(prefill.target_names, self._decode_outstanding)
        live.target = prefill.targets[live.decode.name]
        live.prefill_gpu = prefill.server.gpus[0]
        self._prefill_outstanding[live.prefill.name] += live.request.uncached_tokens
        self._decode_outstanding[live.decode.name] += live.request.total_tokens
        live.mark("prefill_waiting", t_s)
        live.step = Step.QUEUED
        prefill.queue.append(live)
        self._run_prefill(prefill, t_s)

    def _run_prefill(self, prefill: Prefill, t_s: float) -> None:
        taken = prefill.take_batch(t_s)
        if taken is not None:
            t_s, batch = taken
            for live in batch:
                live.batch = self._batch_count
                live.mark("prefill_forward", t_s)
                live.step = Step.FORWARD
            tokens = sum(live.request.uncached_tokens for live in batch)
            self._timer(t_s + prefill_batch_s(self._scenario, tokens), TimerKind.PREFILL_DONE, self._batch_count)
            self._batches[self._batch_count] = prefill
            self._batch_count += 1
        self._note_state(prefill.server.name, prefill.server.gpus, prefill.state, t_s)

    def _prefill_done(self, prefill: Prefill, t_s: float) -> None:
        touched: dict[str, Decode] = {}
        for live in prefill.end_batch(t_s):
            if live.step is Step.TIMED_OUT:
                prefill.free_bytes += live.kv_bytes
                continue
            self._prefill_outstanding[prefill.server.name] -= live.request.uncached_tokens
            live.mark("decode_alloc", t_s)
            live.step = Step.ALLOC
            decode = self._decode_of(live)
            decode.queue.append(live)
            touched[decode.target.name] = decode
        for decode in touched.values():
            self._run_decode(decode, t_s)
        self._run_prefill(prefill, t_s)

    # Handoff and decode

    def _run_decode(self, decode: Decode, t_s: float) -> None:
        while (live := decode.take()) is not None:
            start_s = live.mark("kv_transfer", t_s)
            live.step = Step.TRANSFER
            if self._serving.transfer_overhead_ms:
                at_s = start_s + self._serving.transfer_overhead_ms / 1e3
                self._timer(at_s, TimerKind.SUBMIT, live.request.request_id)
            else:
                self._submit(live)
        self._note_state(decode.target.name, decode.target.gpus, decode.state, t_s)

    def _submit(self, live: Live) -> None:
        decode = self._decode_of(live)
        gpus = self._prefill_of(live).server.gpus
        request_id = live.request.request_id
        for rank, (src, dst, size) in enumerate(handoff(self._serving.shape, gpus, decode.target.gpus, live.kv_bytes)):
            # Numbered by request and rank, so that a transfer has the same id in every executor and on every
            # fabric.
            transfer_id = request_id * self._tp + rank
            live.open_transfers.add(transfer_id)
            self._transfers[transfer_id] = live
            self._actions.append(StartTransfer(transfer_id, request_id, src, dst, size))

    def _on_transfer_done(self, transfer_id: int, t_s: float) -> None:
        if transfer_id not in self._transfers:
            raise ValueError(f"no such transfer: {transfer_id}")
        live = self._transfers[transfer_id]
        if transfer_id not in live.open_transfers:
            return
        live.open_transfers.remove(transfer_id)
        live.last_byte_s = max(live.last_byte_s, t_s)
        if live.open_transfers:
            return
        # Flows may be reported out of the order of their stamps; the last stamp counts.
        here_s = live.mark("decode_waiting", live.last_byte_s)
        live.mark("decode_first_step", here_s)
        live.step = Step.FIRST_STEP
        decode, prefill = self._decode_of(live), self._prefill_of(live)
        decode.receiving -= 1
        decode.decoding += 1
        self._note_state(decode.target.name, decode.target.gpus, decode.state, here_s)
        prefill.free_bytes += live.kv_bytes
        self._run_prefill(prefill, here_s)
        if self._serving.decode_first_step_ms:
            at_s = here_s + self._serving.decode_first_step_ms / 1e3
            self._timer(at_s, TimerKind.FIRST_TOKEN, live.request.request_id)
        else:
            self._first_token(live, here_s)

    def _first_token(self, live: Live, t_s: float) -> None:
        first_s = live.mark("first_token", t_s)
        live.step = Step.DECODING
        # Decode is a compute model, so the last token's instant is known now, also if the run ends before it.
        request = live.request
        decode_s = decode_after_first_s(self._scenario, request.input_tokens, request.output_tokens)
        end_s = live.mark("finished", first_s + decode_s)
        request_id = live.request.request_id
        self._open_measured.discard(request_id)
        self._actions.append(EmitToken(request_id, first_s))
        self._timer(end_s, TimerKind.FINISHED, request_id)

    def _finish(self, live: Live, t_s: float) -> None:
        live.step = Step.FINISHED
        decode = self._decode_of(live)
        decode.decoding -= 1
        decode.give_back(live)
        self._decode_outstanding[decode.target.name] -= live.request.total_tokens
        self._run_decode(decode, t_s)
        self._follow(live.request, live.instants["finished"])

    # Failures

    def _time_out(self, live: Live, t_s: float) -> None:
        step = live.step
        if step in (Step.FUTURE, Step.DECODING, Step.FINISHED, Step.TIMED_OUT):
            return
        live.step = Step.TIMED_OUT
        self._open_measured.discard(live.request.request_id)
        if step is not Step.GATEWAY:
            prefill, decode = self._prefill_of(live), self._decode_of(live)
            self._decode_outstanding[decode.target.name] -= live.request.total_tokens
            if step in (Step.QUEUED, Step.FORWARD):
                self._prefill_outstanding[prefill.server.name] -= live.request.uncached_tokens
            if step is Step.QUEUED:
                prefill.queue.remove(live)
            if step is Step.ALLOC:
                decode.queue.remove(live)
            if step in (Step.TRANSFER, Step.FIRST_STEP):
                decode.receiving -= step is Step.TRANSFER
                decode.decoding -= step is Step.FIRST_STEP
                decode.give_back(live)
            if step in (Step.ALLOC, Step.TRANSFER):
                prefill.free_bytes += live.kv_bytes
            self._actions.extend(CancelTransfer(i) for i in sorted(live.open_transfers))
            live.open_transfers.clear()
            self._run_decode(decode, t_s)
            self._run_prefill(prefill, t_s)
        self._follow(live.request, max(t_s, live.instants["arrival"]))

    def _follow(self, request: Request, finished_s: float) -> None:
        after = self._source.following(request, finished_s)
        if after is not None:
            self._timer(after[0], TimerKind.ARRIVAL, after[1].request_id)

    # Small parts

    def _build_instances(self, model: KvModel) -> None:
        gpus = decode_gpus_per_target(self._scenario)
        memory = decode_memory_bytes(self._scenario)
        for target in decode_targets(self._scenario):
            self._decodes[target.name] = Decode(target, self._serving.decode_slots_per_gpu * gpus, memory)
            self._decode_outstanding[target.name] = 0
        for server in roles(self._scenario).prefill:
            targets = {t.name: t for t in decode_targets(self._scenario, server)}
            self._prefills[server.name] = Prefill(
                server,
                targets,
                tuple(targets),
                prefill_memory_bytes(self._scenario, model),
                self._serving.prefill_batch_tokens,
            )
            self._prefill_outstanding[server.name] = 0

    def _prefill_of(self, live: Live) -> Prefill:
        return self._prefills[live.prefill_name]

    def _decode_of(self, live: Live) -> Decode:
        return self._decodes[live.decode_name]

    def _timer(self, at_s: float, kind: TimerKind, id_: int) -> None:
        self._actions.append(StartTimer(at_s, TimerKey(kind, id_)))

    def _take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def _note_state(self, instance: str, gpus: tuple[str, ...], state: str, t_s: float) -> None:
        before, since_s = self._states.get(instance, ("", -math.inf))
        if state != before:
            at_s = max(t_s, since_s)
            self._states[instance] = (state, at_s)
            self._gpu_rows.extend({"gpu": gpu, "t_s": at_s, "state": state} for gpu in gpus)
