"""From the first token to the last: constant steps, steps that depend on who is running, or rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scenario.models import Scenario
from traffic.actions import EmitToken, TimerKind
from traffic.compute import ComputeModel
from traffic.compute_curves import ConstantStep
from traffic.decode import Decode
from traffic.expert_parallel import ExpertParallelism
from traffic.outbox import Outbox
from traffic.records import Live, Step


class DecodeStage:
    """`ended(request, time)` is called at a last token, and `known(request_id)` when its instant is known."""

    def __init__(
        self,
        scenario: Scenario,
        compute: ComputeModel,
        decodes: Mapping[str, Decode],
        out: Outbox,
        known: Callable[[int], None],
        ended: Callable[[Live, float], None],
    ) -> None:
        self._out = out
        self._known, self._ended = known, ended
        self._ends: dict[int, tuple[Decode, int]] = {}  # timer -> decode target, its generation
        self._experts = ExpertParallelism(scenario, decodes, out)
        self._constant_step_s: float | None = None
        if isinstance(compute.decode, ConstantStep) and self._experts.settings is None:
            self._constant_step_s = compute.decode.step_s

    def first_token(self, live: Live, t_s: float) -> None:
        """The first token is out."""
        first_s = live.mark("first_token", t_s)
        live.step = Step.DECODING
        request, number = live.request, live.request.request_id
        self._out.add(EmitToken(number, first_s))
        if self._constant_step_s is not None:
            # The last token's instant is known now, also if the run ends before it.
            end_s = live.mark("finished", first_s + (request.output_tokens - 1) * self._constant_step_s)
            self._known(number)
            self._out.timer(end_s, TimerKind.FINISHED, number)
        else:
            decode = live.at_decode
            decode.join(live, first_s)
            if decode.by_rounds:
                self._experts.joined(decode, first_s)
            else:
                self._await_end(decode)

    def _await_end(self, decode: Decode) -> None:
        following = decode.next_end()
        if following is not None:
            self._ends[self._out.numbered_timer(following[0], TimerKind.DECODE_END)] = decode, decode.generation

    def end_due(self, timer: int, t_s: float) -> None:
        """The next last token of a target is due, unless somebody has joined or left since."""
        decode, generation = self._ends.pop(timer, (None, 0))
        if decode is None or generation != decode.generation:
            return
        live = decode.leave_first(t_s)
        self._await_end(decode)
        self._last_token(live, t_s)

    def round_computed(self, timer: int, t_s: float) -> None:
        """The compute time of a round of expert parallelism is over."""
        for done in self._experts.computed(timer, t_s):
            self._last_token(done, t_s)

    def round_arrived(self, transfer_id: int, t_s: float) -> None:
        """A last byte of expert-parallel traffic is there. Raises ValueError for one that was never started."""
        for done in self._experts.arrived(transfer_id, t_s):
            self._last_token(done, t_s)

    def _last_token(self, live: Live, t_s: float) -> None:
        live.mark("finished", t_s)
        self._known(live.request.request_id)
        self._ended(live, t_s)
