"""A fixed list of arrivals: what every workload that does not wait for answers is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traffic.requests import FixedSet, Phase, Request


class OpenLoop(FixedSet):
    """Arrivals known in advance (a `traffic.requests.Source`).

    `summary`: what the source says of itself: its kind, rows left out because they do not parse, and the like.
    """

    def __init__(self, arrivals: Sequence[tuple[float, Request]], summary: Mapping[str, object]) -> None:
        self._arrivals = tuple(arrivals)
        self._requests = tuple(request for _, request in self._arrivals)
        self.summary: dict[str, object] = dict(summary)

    def initial(self) -> list[tuple[float, Request]]:
        """All arrivals (model s, request)."""
        return list(self._arrivals)

    def following(self, request: Request, finished_s: float) -> tuple[float, Request] | None:
        """Always None: an open loop does not wait for answers."""
        return None


def phase_of(index: int, warmup: int, measured: int) -> Phase:
    """The phase of the request at this place of the fixed set: warm-up first, then measured, then cooldown."""
    return "warmup" if index < warmup else "measured" if index < warmup + measured else "cooldown"
