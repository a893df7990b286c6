"""A handoff's life at the engine: the wait for decode's space, pieces that are computed, their overhead, timeouts."""

from __future__ import annotations

from scenario.models import Scenario
from traffic.actions import TimerKind
from traffic.decode import Decode
from traffic.gpu_states import GpuStates
from traffic.handoffs import Handoffs
from traffic.kv import KvModel
from traffic.outbox import Outbox
from traffic.prefill import Batch, Prefill
from traffic.records import BEFORE_FIRST_TOKEN, Live, Step


class HandoffStage:
    """From KV that prefill has computed to flows that `traffic.handoffs` starts."""

    def __init__(
        self,
        scenario: Scenario,
        model: KvModel,
        handoffs: Handoffs,
        out: Outbox,
        states: GpuStates,
    ) -> None:
        serving = scenario.serving
        self._kv_bytes, self._overhead_s = model.kv_bytes, serving.transfer_overhead_ms / 1e3
        self._groups = serving.layer_groups if serving.transfer_mode == "layerwise" else None
        self._timeout_s = serving.handoff_timeout_s
        self._handoffs, self._out, self._states = handoffs, out, states
        self._pieces: dict[int, tuple[Live, int, int]] = {}  # timer -> request, its computation, bytes
        self._layers: dict[int, tuple[Prefill, Batch, int]] = {}  # timer -> groups of layers that are then done
        self._failing: dict[int, tuple[Live, int]] = {}  # timer -> request, its attempt

    def ask_decode(self, live: Live, t_s: float) -> None:
        """Queue at the decode target, and let in whom it has space for."""
        live.at_decode.ask(live)
        self.run_decode(live.at_decode, t_s)

    def run_decode(self, decode: Decode, t_s: float) -> None:
        """Let in whom the target has space for; what of their KV is computed leaves."""
        while decode.queue and (live := decode.take()) is not None:
            start_s = t_s
            if live.step is Step.ALLOC:
                start_s = self.begins(live, t_s)
            if live.waiting:
                ready, live.waiting = live.waiting, []
                for size in ready:
                    self._submit(live, size, start_s)
        self._states.note(decode, t_s)

    def begins(self, live: Live, t_s: float) -> float:
        """The prompt is complete and decode has space: what is not there yet is exposed. Returns the instant."""
        start_s = live.mark("kv_transfer", t_s)
        live.step = Step.TRANSFER
        if self._timeout_s is not None:
            number = self._out.numbered_timer(start_s + self._timeout_s, TimerKind.HANDOFF_TIMEOUT)
            self._failing[number] = live, live.attempt
        return start_s

    def time_layers(self, prefill: Prefill, batch: Batch, duration_s: float) -> None:
        """With `layerwise`: a timer for each group of layers of a batch but the last, which ends with the batch."""
        for done in range(1, self._groups or 0):
            at_s = batch.start_s + duration_s * done / (self._groups or 1)
            self._layers[self._out.numbered_timer(at_s, TimerKind.LAYERS)] = prefill, batch, done

    def layers_done(self, timer: int, t_s: float) -> None:
        """A group of layers is computed, unless its batch has ended meanwhile."""
        prefill, batch, groups = self._layers.pop(timer, (None, None, 0))
        if prefill is None or batch is None or prefill.running is not batch:
            return
        for part in batch.parts:
            if part.live.step is Step.FORWARD:
                end = part.live.cached_tokens + part.live.computed_tokens + part.tokens
                self.ready(part.live, end, groups, t_s)

    def ready(self, live: Live, end_tokens: int, groups: int, t_s: float) -> None:
        """KV of the prompt up to `end_tokens` is computed in the first `groups` groups of layers: send what was not."""
        total = self._groups or groups
        tokens = max(0, end_tokens - max(live.sent_tokens, live.held_tokens))
        whole = self._kv_bytes(tokens)
        size = whole * groups // total - whole * live.sent_layers // total
        live.sent_layers = groups
        if groups == total:
            live.sent_tokens, live.sent_layers = max(live.sent_tokens, end_tokens), 0
        if size == 0:
            return
        if live.holds_decode:
            self._submit(live, size, t_s)
        else:
            live.waiting.append(size)

    def _submit(self, live: Live, size: int, t_s: float) -> None:
        if self._overhead_s:
            live.unsubmitted += 1
            at_s = t_s + self._overhead_s
            self._pieces[self._out.numbered_timer(at_s, TimerKind.SUBMIT)] = live, live.computation, size
        else:
            self._handoffs.send(live, self._handoffs.flows(live, size), t_s)

    def overhead_over(self, timer: int, t_s: float) -> None:
        """A piece leaves, unless its request or its computation has been given up."""
        live, computation, size = self._pieces.pop(timer, (None, 0, 0))
        if live is not None and computation == live.computation and live.step in BEFORE_FIRST_TOKEN:
            live.unsubmitted -= 1
            self._handoffs.send(live, self._handoffs.flows(live, size), t_s)

    def timed_out(self, timer: int) -> Live | None:
        """The request whose handoff takes too long; None where it has ended or was tried again meanwhile."""
        live, attempt = self._failing.pop(timer, (None, 0))
        if live is not None and attempt == live.attempt and live.step is Step.TRANSFER:
            return live
        return None
