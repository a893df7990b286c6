"""How the gateway picks an instance: round robin or least loaded.

Both give each candidate a score, the lowest wins, and ties go to the first in number order. The scores are
kept with the request, so that a placement can be explained afterwards. Round robin: turns until the candidate
is next (0 = chosen), as in SGLang's and vLLM's proxies. Least loaded: outstanding tokens, the token-JSQ of
splitwise-sim (https://github.com/Mutinifni/splitwise-sim).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scenario.errors import InputError


@dataclass(frozen=True)
class Choice:
    """The chosen candidate and the score of every candidate, in number order."""

    name: str
    scores: dict[str, float]


def least_loaded(candidates: Sequence[str], outstanding_tokens: Mapping[str, int]) -> Choice:
    """The candidate with the fewest outstanding tokens; missing names count as 0."""
    scores = {name: float(outstanding_tokens.get(name, 0)) for name in candidates}
    return Choice(min(candidates, key=lambda name: scores[name]), scores)


def round_robin(candidates: Sequence[str], turn: int) -> Choice:
    """The candidate whose turn it is when `turn` choices were made before among these candidates."""
    start = turn % len(candidates)
    scores = {name: float((i - start) % len(candidates)) for i, name in enumerate(candidates)}
    return Choice(candidates[start], scores)


@dataclass
class Placer:
    """One gateway policy with its state.

    Round robin counts its turns per set of candidates (a block, or everyone). With `drift`, each of its
    rounds starts one candidate later than the round before. The decode side needs it: prefill servers and
    decode targets advance together, request by request, and their numbers have a common divisor. Two plain
    rotations would stay in step for ever, and each prefill server would only ever meet a few of the targets
    (server 1 of 4 a quarter of 16 GPUs, always those of rank 0): a pattern that decides which links are used
    and that no service with several gateways or an uneven start has.
    """

    policy: str
    drift: bool = False
    _turns: dict[tuple[str, ...], int] = field(default_factory=dict)

    def choose(self, candidates: tuple[str, ...], outstanding_tokens: Mapping[str, int]) -> Choice:
        """Pick one of the candidates (in number order); raises `InputError` for an unknown policy."""
        if self.policy == "least_loaded":
            return least_loaded(candidates, outstanding_tokens)
        if self.policy == "round_robin":
            turn = self._turns.get(candidates, 0)
            self._turns[candidates] = turn + 1
            return round_robin(candidates, turn + (turn // len(candidates) if self.drift else 0))
        raise InputError("serving.placement", self.policy, "allowed: round_robin, least_loaded")
