"""How the gateway picks an instance. Each policy scores candidates; the lowest score wins, ties go to the first.

| policy | score | as in |
|---|---|---|
| `random` | a draw keyed by request | SGLang, vLLM proxies |
| `round_robin` | turns until it is next | SGLang, vLLM proxies, Dynamo |
| `jsq` | outstanding requests | splitwise-sim |
| `token_jsq`, `least_loaded` | outstanding tokens | splitwise-sim (https://github.com/Mutinifni/splitwise-sim) |
| `power_of_two` | outstanding requests, of two drawn candidates | SGLang (Mitzenmacher, IEEE TPDS 12(10), 2001) |
| `cache_aware` | tokens it would have to compute + outstanding tokens | Dynamo's KV router with weight 1 |
| `session_affinity` | 0 where the session was last, else as `token_jsq` above all | sticky sessions |
| `topology_aware` | weight x seconds of bytes ahead on the path's fullest cable + load | llm-d-router#2299, #2315 |
| `adversarial` | the fullest path first | a bound from below: no service does it on purpose |
| `recorded` | 0 where the record says | a routing log |

Scores are kept with the request, so that a placement can be explained afterwards (of more than KEPT_SCORES candidates
only the winner's).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from scenario.errors import InputError
from traffic.rng import uniform

KEPT_SCORES = 64


class Choice:
    """The chosen candidate and the score of every candidate, in number order (worked out when somebody asks)."""

    __slots__ = ("_scores", "name")

    def __init__(self, name: str, scores: Callable[[], Mapping[str, float]]) -> None:
        self.name, self._scores = name, scores

    @property
    def scores(self) -> Mapping[str, float]:
        """Score by candidate; the lowest won."""
        return self._scores()


@dataclass(frozen=True)
class Load:
    """Outstanding work by name of candidate; names that are missing have none."""

    requests: Mapping[str, int]
    tokens: Mapping[str, int]


@dataclass(frozen=True)
class Asked:
    """What a policy may know of the request. `uncached` and `path_s` are asked only by the policies that need them."""

    request_id: int
    last: str | None = None
    recorded: str | None = None
    uncached: Callable[[str], float] = lambda _: 0.0
    path_s: Callable[[str], float] = lambda _: 0.0


Score = Callable[[str], float]


class _Rotation:
    """A set of candidates, how often one was chosen, and the choice for each of them."""

    __slots__ = ("choices", "turn")

    def __init__(self, candidates: tuple[str, ...]) -> None:
        self.turn = 0
        self.choices = [Choice(name, partial(_turns, candidates, start)) for start, name in enumerate(candidates)]


@dataclass
class Placer:
    """One gateway policy with its state; `role` (prefill or decode) and `seed` key its draws.

    Round robin counts its turns per set of candidates (a block, or everyone). With `drift`, each of its
    rounds starts one candidate later than the round before. The decode side needs it: prefill servers and
    decode targets advance together, request by request, and their numbers have a common divisor. Two plain
    rotations would stay in step for ever, and each prefill server would only ever meet a few of the targets
    (server 1 of 4 a quarter of 16 GPUs, always those of rank 0): a pattern that decides which links are used
    and that no service with several gateways or an uneven start has.
    """

    policy: str
    role: str = "prefill"
    seed: int = 0
    drift: bool = False
    topology_weight: float = 1.0
    capacity: int = 1
    _turns: dict[tuple[str, ...], _Rotation] = field(default_factory=dict)

    def choose(self, candidates: tuple[str, ...], load: Load, asked: Asked) -> Choice:
        """Pick one of the candidates (in number order); raises `InputError` for an unknown policy, or where a record
        names none of them."""
        if self.by_turns:
            return self.turn(candidates)
        if self.policy == "power_of_two":
            candidates = self._two(candidates, asked)
        score = self._score(candidates, load, asked)
        scores = {name: score(name) for name in candidates}
        best = min(scores, key=scores.__getitem__)
        kept = scores if len(scores) <= KEPT_SCORES else {best: scores[best]}
        return Choice(best, lambda: kept)

    @property
    def by_turns(self) -> bool:
        """Whether the candidates are all that counts (`turn`): nothing of the request or the load."""
        return self.policy == "round_robin"

    def turn(self, candidates: tuple[str, ...]) -> Choice:
        """Whose turn it is."""
        rotation = self._turns.get(candidates)
        if rotation is None:
            rotation = self._turns[candidates] = _Rotation(candidates)
        turn, count = rotation.turn, len(candidates)
        rotation.turn += 1
        return rotation.choices[(turn + turn // count if self.drift else turn) % count]

    def _two(self, candidates: Sequence[str], asked: Asked) -> tuple[str, ...]:
        first, second = (
            (
                int(uniform(self.seed, asked.request_id, purpose=f"{self.role} choice {i}") * (len(candidates) - i))
                for i in (0, 1)
            )
            if len(candidates) > 1
            else (0, 0)
        )
        if len(candidates) > 1 and second >= first:
            second += 1
        return tuple(candidates[i] for i in sorted({first, second}))

    def _score(self, candidates: Sequence[str], load: Load, asked: Asked) -> Score:
        def tokens(name: str) -> float:
            return float(load.tokens.get(name, 0))

        def requests(name: str) -> float:
            return float(load.requests.get(name, 0))

        match self.policy:
            case "random":
                drawn = uniform(self.seed, asked.request_id, purpose=f"{self.role} placement")
                picked = candidates[int(drawn * len(candidates))]
                return lambda name: float(name != picked)
            case "jsq" | "power_of_two":
                return requests
            case "token_jsq" | "least_loaded":
                return tokens
            case "cache_aware":
                return lambda name: asked.uncached(name) + tokens(name)
            case "session_affinity":
                return lambda name: 0.0 if name == asked.last else 1.0 + tokens(name)
            case "topology_aware":
                return lambda name: self.topology_weight * asked.path_s(name) + requests(name) / self.capacity
            case "adversarial":
                return lambda name: -asked.path_s(name)
            case "recorded":
                if asked.recorded not in candidates:
                    raise InputError(
                        f"{self.role} of request {asked.request_id}", asked.recorded,
                        f"placement recorded needs one of {', '.join(candidates[:4])}"
                        f"{' ...' if len(candidates) > 4 else ''}",
                        "a workload that records GPUs (kinds routing, transfers), and a shape and layout that has them",
                    )  # fmt: skip
                return lambda name: float(name != asked.recorded)
        raise InputError("serving.placement", self.policy, "see `zcube schema` for the policies")


def _turns(candidates: tuple[str, ...], start: int) -> dict[str, float]:
    if len(candidates) > KEPT_SCORES:
        return {candidates[start]: 0.0}
    return {name: float((i - start) % len(candidates)) for i, name in enumerate(candidates)}
