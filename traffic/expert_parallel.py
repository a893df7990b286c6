"""Expert-parallel dispatch and combine of decode, on the NICs that handoffs use too.

The decode GPUs of a group exchange tokens in every MoE layer: a GPU sends each token's hidden state to its experts and
gets the results back (DeepSeek-V3, section 3.2, https://arxiv.org/abs/2412.19437). One decode step of one token moves
about ``layers * experts per token * hidden size * (1 B dispatched + 2 B combined)``: 58 * 8 * 7168 * 3 = 10 MB for
DeepSeek-V3, spread over the group.

A group works in rounds of `steps_per_round` decode steps. In a round every GPU that decodes sends its tokens' bytes in
equal parts to all others of its group; the round ends when the compute model's time is over and the last byte is there.
So here, and only here, the fabric has a way into the time per output token. Tokens of a round come out at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scenario.models import Scenario
from traffic.actions import StartTransfer, TimerKind
from traffic.decode import Decode
from traffic.outbox import Outbox
from traffic.records import Live
from traffic.shapes import expert_groups, server_of

#: Transfer ids from here on are of this kind; their request_id is NO_REQUEST.
FIRST_ID = 1 << 62
NO_REQUEST = -1


@dataclass(eq=False)
class Group:
    """Decode targets that exchange tokens, and the round that is running."""

    members: tuple[Decode, ...]
    open: set[int] = field(default_factory=set)
    computing: bool = False
    last_byte_s: float = 0.0

    @property
    def running(self) -> bool:
        """Whether a round is under way."""
        return self.computing or bool(self.open)


class ExpertParallelism:
    """All groups of a scenario with `serving.ep_background`; none without."""

    def __init__(self, scenario: Scenario, decodes: Mapping[str, Decode], out: Outbox) -> None:
        self._scenario, self._out = scenario, out
        self.settings = scenario.serving.ep_background
        self._group_of: dict[str, Group] = {}
        self._by_timer: dict[int, Group] = {}
        self._by_transfer: dict[int, Group] = {}
        self._numbers = 0
        for targets in expert_groups(scenario):
            group = Group(tuple(decodes[target.name] for target in targets))
            for decode in group.members:
                decode.by_rounds = True
                self._group_of[decode.target.name] = group

    def joined(self, decode: Decode, t_s: float) -> None:
        """A request has begun to decode: its group works from now on, if it did not."""
        group = self._group_of[decode.target.name]
        if not group.running:
            self._start(group, t_s)

    def computed(self, timer: int, t_s: float) -> list[Live]:
        """The compute time of a round is over. Requests whose last token came out, where that ended it."""
        group = self._by_timer.pop(timer, None)
        if group is None:
            return []
        group.computing = False
        return self._maybe_end(group, t_s)

    def arrived(self, transfer_id: int, t_s: float) -> list[Live]:
        """The same for a last byte. Raises ValueError for a transfer that was never started."""
        group = self._by_transfer.get(transfer_id)
        if group is None:
            raise ValueError(f"no such transfer: {transfer_id}")
        if transfer_id not in group.open:
            return []
        group.open.discard(transfer_id)
        group.last_byte_s = max(group.last_byte_s, t_s)
        return self._maybe_end(group, max(group.last_byte_s, t_s))

    def _start(self, group: Group, t_s: float) -> None:
        assert self.settings is not None
        busy = [decode for decode in group.members if decode.running]
        if not busy:
            return
        steps = self.settings.steps_per_round
        slowest_s = max(decode.step_s(decode.running, decode.mean_context) for decode in busy)
        self._by_timer[self._out.numbered_timer(t_s + steps * slowest_s, TimerKind.EP_ROUND)] = group
        group.computing = True
        gpus = [gpu for decode in group.members for gpu in decode.target.gpus]
        for decode in busy:
            tokens = decode.running * steps / len(decode.target.gpus)
            size = round(tokens * self.settings.mb_per_token * 1e6 / max(1, len(gpus) - 1))
            for src in decode.target.gpus:
                for dst in gpus:
                    if server_of(self._scenario, src)[0] != server_of(self._scenario, dst)[0] and size:
                        number = FIRST_ID + self._numbers
                        self._numbers += 1
                        group.open.add(number)
                        self._by_transfer[number] = group
                        self._out.add(StartTransfer(number, NO_REQUEST, src, dst, size, kind="ep"))

    def _maybe_end(self, group: Group, t_s: float) -> list[Live]:
        if group.running:
            return []
        assert self.settings is not None
        ended = [live for decode in group.members for live in decode.step(self.settings.steps_per_round)]
        self._start(group, t_s)
        return ended
