"""The PD serving engine: a state machine without I/O or clock.

`engine.start()` gives the first actions, `engine.on(event, t_s)` those that follow an event. docs/serving.md defines
every stage. Life of a request:

1. arrival, then `gateway_delay_ms`; the gateway picks the prefill instance and the decode target (`traffic.gateway`).
2. `prefill_waiting`: FIFO queue of the prefill instance; with `prefix_cache: pool` a remote prefix read comes first.
   The first batch that has a part of the prompt reserves the KV memory of the whole.
3. `prefill_forward`: batches run (`traffic.prefill`, `traffic.compute`). KV leaves when they end (`whole`: the last;
   `chunked`: each), or while they run (`layerwise`), once decode has space.
4. `decode_alloc`: FIFO queue of the decode target for a slot and the KV memory of prompt and output (reserved as a
   whole, so that decode never has to preempt). With `chunked` and `layerwise` the request joins it when prefill begins,
   and the stage is what is left of the wait when prefill ends.
5. `kv_transfer`: from there until the last byte is at the receiver: the exposed part of the transfer. Each piece that
   is sent first waits `transfer_overhead_ms`.
6. `decode_waiting`: the last byte is there. Prefill memory is free from this instant (the confirmation's way back is
   not modelled). Decode takes the request up at once, so the stage lasts 0 s: a real one would wait up to one step.
7. `decode_first_step`, for `decode_first_step_ms`, then `first_token`; `finished` when the remaining tokens are out.

A request without first token `timeout_s` after its arrival has failed, as has one that its client gives up
(`client_cancel_*`) or whose handoff failed too often: transfers are cancelled, memory and slots are free at once. Only
a running prefill batch is not cut short; what it held for the request is free when it ends. The session goes on after
a think time.

Times: an instant is the event's time, but never earlier than the request's previous one. Receivers' stamps may be
earlier than events already handled; what such an event sets off starts at the stamp, or when the instance was free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scenario.models import Scenario
from traffic.actions import Action, Event, TimerFired, TimerKind, TransferDone, TransferFailed
from traffic.compute import compute_model
from traffic.decode_stage import DecodeStage
from traffic.expert_parallel import FIRST_ID
from traffic.fit import check_requests_fit
from traffic.gateway import Gateway, objective
from traffic.gpu_states import GpuStates
from traffic.handoff_stage import HandoffStage
from traffic.handoffs import Handoffs
from traffic.instances import build_decodes, build_prefills
from traffic.kv import KvModel, model_of
from traffic.outbox import Outbox
from traffic.plain import plain
from traffic.prefill import Prefill
from traffic.prefix_pool import remote_prefix
from traffic.records import BEFORE_FIRST_TOKEN, Live, Step
from traffic.requests import Request, Source
from traffic.rng import exponential, uniform


class Engine:
    """Serves one source under one scenario. What it draws is keyed by request: equal events give equal actions.

    Raises `InputError` where the layout does not fit, or where a prompt exceeds the model's context or the KV memory.
    """

    def __init__(self, scenario: Scenario, source: Source) -> None:
        self._seed, self._serving, self._source = scenario.seed, plain(scenario.serving), source
        self._model = model = model_of(scenario.serving)
        check_requests_fit(scenario, model, source)
        self._lives = {r.request_id: self._live(r, scenario, model) for r in source.requests}
        self._open_measured = set(source.measured_ids)
        self._out = Outbox()
        self._prefills = build_prefills(scenario, model)
        self._decodes = build_decodes(scenario, model)
        self._gateway = Gateway(scenario, self._prefills, self._decodes)
        self._handoffs = Handoffs(scenario, self._out, self._gateway.path_load)
        self._batches: dict[int, Prefill] = {}
        self._batch_count = 0
        self._compute = compute_model(scenario)
        self._prefill_s = self._compute.prefill
        self._states = GpuStates()
        self._stage = HandoffStage(scenario, model, self._handoffs, self._out, self._states)
        known = self._open_measured.discard
        self._decoding = DecodeStage(scenario, self._compute, self._decodes, self._out, known, self._finish)
        self._timers = self._timer_handlers()

    # What a driver and the run folder see

    def start(self) -> list[Action]:
        """The timers of the first arrivals; every GPU waits for work from model time 0."""
        for prefill in self._prefills.values():
            self._states.note(prefill, 0.0)
        for decode in self._decodes.values():
            self._states.note(decode, 0.0)
        for at_s, request in self._source.initial():
            self._out.timer(at_s, TimerKind.ARRIVAL, request.request_id)
        return self._out.take()

    def on(self, event: Event, t_s: float) -> list[Action]:
        """What to do after `event` at model time `t_s`.

        Events about requests that are over are ignored. A transfer or timer that was never started is a
        defect of the driver and raises `ValueError`.
        """
        if isinstance(event, TimerFired):
            kind, number = event.key
            self._timers[kind](number, t_s)
        elif isinstance(event, TransferDone):
            self._on_transfer_done(event.transfer_id, t_s)
        elif isinstance(event, TransferFailed):
            live = self._handoffs.owner(event.transfer_id)
            if event.transfer_id in live.open_transfers:
                self._handoff_failed(live, t_s)
        else:
            raise ValueError(f"not an event: {event!r}")
        return self._out.take()

    @property
    def finished(self) -> bool:
        """Every measured request has its first token or has failed; where decode steps depend on who is running: its
        last token, which is not known before."""
        return not self._open_measured

    @property
    def requests(self) -> list[dict[str, object]]:
        """Rows of the `requests` table, in order of request_id, those not yet arrived included (as
        unfinished)."""
        return list(self.request_rows())

    def request_rows(self) -> Iterator[dict[str, object]]:
        """The same one after the other: all at once they take more memory than the engine."""
        return (self._lives[i].row() for i in sorted(self._lives))

    @property
    def gpu_states(self) -> list[dict[str, object]]:
        """Rows of the `gpus` table: a row where a GPU's state changes; times of one GPU never decrease."""
        return list(self.gpu_rows())

    def gpu_rows(self) -> Iterator[dict[str, object]]:
        """The same one after the other."""
        return self._states.rows()

    @property
    def window_s(self) -> tuple[float, float] | None:
        """None: the window of a service is planned (`traffic.budget`)."""
        return None

    # Timers

    def _timer_handlers(self) -> list[Callable[[int, float], object]]:
        """What a timer leads to, by its kind."""
        stage, decoding = self._stage, self._decoding
        found = {
            TimerKind.LOCAL_DONE: self._on_transfer_done,
            TimerKind.PREFILL_DONE: self._prefill_done,
            TimerKind.LAYERS: stage.layers_done,
            TimerKind.SUBMIT: stage.overhead_over,
            TimerKind.HANDOFF_TIMEOUT: self._handoff_timed_out,
            TimerKind.DECODE_END: decoding.end_due,
            TimerKind.EP_ROUND: decoding.round_computed,
            TimerKind.ARRIVAL: self._if_at(Step.FUTURE, self._arrive),
            TimerKind.ENQUEUE: self._if_at(Step.GATEWAY, self._place),
            TimerKind.FIRST_TOKEN: self._if_at(Step.FIRST_STEP, decoding.first_token),
            TimerKind.FINISHED: self._if_at(Step.DECODING, self._finish),
            TimerKind.TIMEOUT: lambda number, t_s: self._give_up(self._known(number), Step.TIMED_OUT, t_s),
            TimerKind.CANCEL: lambda number, t_s: self._give_up(self._known(number), Step.CANCELLED, t_s),
        }
        return [found.get(kind, self._known) for kind in range(max(TimerKind) + 1)]  # type: ignore[call-overload]

    def _if_at(self, step: Step, then: Callable[[Live, float], None]) -> Callable[[int, float], None]:
        """A handler that does nothing where its request is not (any more) at this step."""
        lives = self._lives

        def handler(number: int, t_s: float) -> None:
            live = lives.get(number) or self._known(number)
            if live.step is step:
                then(live, t_s)

        return handler

    def _known(self, number: int, _: float = 0.0) -> Live:
        """The request; also what becomes of a timer that means nothing here. Raises ValueError."""
        if number not in self._lives:
            raise ValueError(f"no such request: {number}")
        return self._lives[number]

    # Arrival and prefill

    def _arrive(self, live: Live, t_s: float) -> None:
        live.mark("arrival", t_s)
        live.step = Step.GATEWAY
        serving, seed, number = self._serving, self._seed, live.request.request_id
        self._out.timer(t_s + serving.timeout_s, TimerKind.TIMEOUT, number)
        share = serving.client_cancel_share
        if share and uniform(seed, number, purpose="cancel") < share:
            patience_s = exponential(seed, number, purpose="patience", mean=serving.client_cancel_mean_s)
            self._out.timer(t_s + patience_s, TimerKind.CANCEL, number)
        if serving.gateway_delay_ms:
            self._out.timer(t_s + serving.gateway_delay_ms / 1e3, TimerKind.ENQUEUE, number)
        else:
            self._place(live, t_s)

    def _place(self, live: Live, t_s: float) -> None:
        self._gateway.place(live)
        prefill, decode = live.at_prefill, live.at_decode
        request, serving = live.request, self._serving
        live.cached_tokens = request.cached_tokens
        if serving.prefix_cache != "assumed":
            live.cached_tokens = prefill.cache.match(request)
        if serving.transfer_content == "delta":
            live.held_tokens = decode.cache.match(request)
        if share := serving.local_handoff_share:
            live.local = uniform(self._seed, request.request_id, purpose="local") < share
        live.mark("prefill_waiting", t_s)
        pooled = serving.prefix_cache == "pool"
        read = remote_prefix(live, prefill, self._prefills.values(), self._model) if pooled else []
        self._gateway.count_prefill(live.prefill_name, 1, live.uncached_tokens)
        self._gateway.count_decode(live.decode_name, 1, request.total_tokens)
        if read:
            live.step = Step.FETCH
            self._handoffs.send(live, self._handoffs.by_nic(live, read), t_s, "prefix")
        else:
            self._enqueue(live, t_s)

    def _enqueue(self, live: Live, t_s: float) -> None:
        live.step = Step.QUEUED
        prefill = live.at_prefill
        prefill.queue.append(live)
        self._run_prefill(prefill, t_s)

    def _run_prefill(self, prefill: Prefill, t_s: float) -> None:
        batch = prefill.take_batch(t_s, self._batch_count) if prefill.running is None and prefill.queue else None
        if batch is not None:
            duration_s = self._prefill_s(batch.tokens)
            early: list[Live] = []
            for live, _, _ in batch.parts:
                live.batch = batch.number
                if live.step is Step.QUEUED and live.computed_tokens == 0:
                    live.mark("prefill_forward", batch.start_s)
                    early.append(live)
                live.step = Step.FORWARD
                live.sent_layers = 0
            self._out.timer(batch.start_s + duration_s, TimerKind.PREFILL_DONE, batch.number)
            self._batches[batch.number] = prefill
            self._batch_count += 1
            if self._serving.transfer_mode != "whole":
                self._stage.time_layers(prefill, batch, duration_s)
                for live in early:
                    if not live.holds_decode:
                        self._stage.ask_decode(live, batch.start_s)
        self._states.note(prefill, t_s)

    def _prefill_done(self, number: int, t_s: float) -> None:
        if number >= self._batch_count:
            raise ValueError(f"no such batch: {number}")
        prefill = self._batches.pop(number, None)
        if prefill is None:
            return
        batch = prefill.end_batch(t_s)
        ended: list[Live] = []
        for live, tokens, last in batch.parts:
            if live.step is not Step.FORWARD:  # given up meanwhile
                if prefill.queue and prefill.queue[0] is live:
                    prefill.queue.popleft()
                prefill.release(live)
                continue
            live.computed_tokens += tokens
            if last:
                self._prefill_complete(prefill, live, t_s)
                ended.append(live)
            else:
                live.step = Step.QUEUED
            if last or self._serving.transfer_mode != "whole":
                self._stage.ready(live, live.cached_tokens + live.computed_tokens, self._serving.layer_groups, t_s)
        for decode in dict.fromkeys([live.at_decode for live in ended]):
            self._stage.run_decode(decode, t_s)
        for live in ended:
            if live.holds_decode:
                self._maybe_arrived(live)
        self._run_prefill(prefill, t_s)

    def _prefill_complete(self, prefill: Prefill, live: Live, t_s: float) -> None:
        self._gateway.count_prefill(live.prefill_name, -1, -live.uncached_tokens)
        if self._serving.prefix_cache != "assumed":
            prefill.cache.insert(live.request, live.request.input_tokens)
        here_s = live.mark("decode_alloc", t_s)
        live.step = Step.ALLOC
        live.read_bytes = 0  # the prefill cache has it now
        if live.holds_decode:
            self._stage.begins(live, here_s)
        elif not live.asks_decode:
            live.at_decode.ask(live)

    # Handoff

    def _on_transfer_done(self, transfer_id: int, t_s: float) -> None:
        if transfer_id >= FIRST_ID:
            self._decoding.round_arrived(transfer_id, t_s)
            return
        live = self._handoffs.arrived(transfer_id, t_s)
        if live is None:
            return
        if live.step is Step.FETCH and not live.open_transfers:
            self._enqueue(live, live.last_byte_s)
        else:
            self._maybe_arrived(live)

    def _maybe_arrived(self, live: Live) -> None:
        """Go on where the whole cache is at decode. Flows may be reported out of the order of their stamps; the last
        stamp counts."""
        if live.open_transfers or live.step is not Step.TRANSFER or live.waiting or live.unsubmitted:
            return
        here_s = live.mark("decode_waiting", live.last_byte_s)
        live.mark("decode_first_step", here_s)
        live.step = Step.FIRST_STEP
        decode, prefill = live.at_decode, live.at_prefill
        decode.receiving -= 1
        decode.decoding += 1
        prefill.release(live)
        if self._serving.max_inbound is not None:
            self._stage.run_decode(decode, here_s)
        self._states.note(decode, here_s)
        if prefill.queue:
            self._run_prefill(prefill, here_s)
        if self._serving.decode_first_step_ms:
            at_s = here_s + self._serving.decode_first_step_ms / 1e3
            self._out.timer(at_s, TimerKind.FIRST_TOKEN, live.request.request_id)
        else:
            self._decoding.first_token(live, here_s)

    def _handoff_timed_out(self, timer: int, t_s: float) -> None:
        if (live := self._stage.timed_out(timer)) is not None:
            self._handoff_failed(live, t_s)

    def _handoff_failed(self, live: Live, t_s: float) -> None:
        """Send again what is missing, compute it again, or give the request up."""
        flows = self._handoffs.cancel(live)
        if self._serving.on_handoff_failure == "fail" or live.attempt > self._serving.handoff_retries:
            self._give_up(live, Step.FAILED, t_s)
            return
        live.attempt += 1
        if live.step is Step.FETCH:
            self._handoffs.send(live, flows, t_s, "prefix")
            return
        if live.step is Step.TRANSFER and self._serving.on_handoff_failure == "recompute":
            self._recompute(live, t_s)
            return
        if live.step is Step.TRANSFER:
            self._stage.begins(live, t_s)
        self._handoffs.send(live, flows, t_s)  # while the prompt is computed, there is nothing to compute again

    def _recompute(self, live: Live, t_s: float) -> None:
        """The handoff is given up on both sides, and the prompt goes to the end of its prefill queue."""
        prefill, decode = live.at_prefill, live.at_decode
        decode.receiving -= 1
        decode.give_back(live)
        prefill.release(live)
        live.waste_kept()
        live.forget_computed()
        self._gateway.count_prefill(live.prefill_name, 1, live.uncached_tokens)
        self._stage.run_decode(decode, t_s)
        self._enqueue(live, t_s)

    # End

    def _finish(self, live: Live, t_s: float) -> None:
        live.step = Step.FINISHED
        decode = live.at_decode
        decode.decoding -= 1
        decode.give_back(live)
        if self._serving.transfer_content == "delta":
            decode.cache.insert(live.request, live.request.total_tokens)
        self._gateway.count_decode(live.decode_name, -1, -live.request.total_tokens)
        self._stage.run_decode(decode, t_s)
        self._follow(live.request, live.instants["finished"])

    def _give_up(self, live: Live, why: Step, t_s: float) -> None:
        step = live.step
        if step not in BEFORE_FIRST_TOKEN:
            return
        live.step = why
        live.given_up_s = max(t_s, live.latest_s)
        self._open_measured.discard(live.request.request_id)
        if step is not Step.GATEWAY:
            prefill, decode = live.at_prefill, live.at_decode
            self._gateway.count_decode(live.decode_name, -1, -live.request.total_tokens)
            if step in (Step.FETCH, Step.QUEUED, Step.FORWARD):
                self._gateway.count_prefill(live.prefill_name, -1, -live.uncached_tokens)
            if step is Step.QUEUED:
                prefill.queue.remove(live)
            if live.asks_decode:
                decode.queue.remove(live)
                live.asks_decode = False
            if live.holds_decode:
                decode.receiving -= step is not Step.FIRST_STEP
                decode.decoding -= step is Step.FIRST_STEP
                decode.give_back(live)
            if not prefill.computes(live):
                prefill.release(live)
            self._handoffs.cancel(live)
            live.waste_kept()
            live.bytes_wasted += live.read_bytes
            live.waiting.clear()
            self._stage.run_decode(decode, t_s)
            self._run_prefill(prefill, t_s)
        self._follow(live.request, max(t_s, live.instants["arrival"]))

    def _follow(self, request: Request, finished_s: float) -> None:
        after = self._source.following(request, finished_s)
        if after is not None:
            self._out.timer(after[0], TimerKind.ARRIVAL, after[1].request_id)

    # Small parts

    def _live(self, request: Request, scenario: Scenario, model: KvModel) -> Live:
        whole, with_output = model.kv_bytes(request.input_tokens), model.kv_bytes(request.total_tokens)
        return Live(request, whole, with_output, objective(scenario, request))
