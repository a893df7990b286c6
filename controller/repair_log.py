"""The controller's log of failures and repairs: what went down or came back, what was done, who is cut off. Pure.

At most one line a second: when a whole network is shut down every cable reports, and nobody reads dozens of lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from topologies.fabric import Fabric
from topologies.impact import impact
from topologies.routes import Failures

#: Seconds between two lines.
EVERY_S = 1.0
#: Names that a line lists.
_LISTED = 6
#: Above so many GPUs the pairs are not counted: it would hold the controller up.
_COUNTED_GPUS = 1024


@dataclass
class RepairLog:
    """Collects repairs and says them. `say` takes a line; times are seconds of one clock."""

    fabric: Fabric
    detour: bool
    say: Callable[[str], None]
    _said: Failures = field(default_factory=Failures)  # what was down when the last line was made
    _now: Failures = field(default_factory=Failures)
    _repairs: int = 0
    _changes: int = 0
    _phases: int = 0
    _slowest_ms: float = 0.0
    _unanswered: set[str] = field(default_factory=set)
    _last_s: float = float("-inf")

    def repaired(
        self,
        before: Failures,
        now: Failures,
        *,
        changes: int,
        phases: int,
        ms: float,
        now_s: float,
        unanswered: Iterable[str] = (),
    ) -> float:
        """Note one repair, and say it if a second has passed since the last line. Returns the seconds after which
        `flush` is to be called; 0: never."""
        if not self._repairs:
            self._said = before
        self._now = now
        self._repairs += 1
        self._changes += changes
        self._phases += phases
        self._unanswered |= {*unanswered}
        self._slowest_ms = max(self._slowest_ms, ms)
        wait_s = self._last_s + EVERY_S - now_s
        if wait_s <= 0:
            self.flush(now_s)
            return 0.0
        return wait_s if self._repairs == 1 else 0.0

    def flush(self, now_s: float) -> None:
        """Say what has been collected."""
        if not self._repairs:
            return
        self._last_s = now_s
        was, down = _names(self._said), _names(self._now)
        parts = [f"{what}: {listed(names)}" for what, names in (("down", down - was), ("back", was - down)) if names]
        parts.append(self._done())
        parts.append(self._cut_off())
        self.say("; ".join(part for part in parts if part))
        self._repairs = self._changes = self._phases = 0
        self._slowest_ms = 0.0
        self._unanswered = set()

    def _done(self) -> str:
        took = f"{self._slowest_ms:.0f} ms"
        if self._unanswered:
            took += f"; NOT CONFIRMED by {listed(self._unanswered)}"
        if self._repairs > 1:
            return f"{self._repairs} repairs, {_many(self._changes, 'rule change')} in all, the slowest {took}"
        if not self._changes:
            return "no rule to change"
        return f"{_many(self._changes, 'rule change')} in {_many(self._phases, 'phase')}, the last barrier after {took}"

    def _cut_off(self) -> str:
        if not self._now:
            return "everything is up"
        if len(self.fabric.gpus) > _COUNTED_GPUS:
            return f"down now: {listed(_names(self._now))}"
        found = impact(self.fabric, self._now, detour=self.detour)
        if found.cut_off:
            return (
                f"{found.cut_off} of {found.pairs} GPU pairs (ordered) are CUT OFF: no rule can repair that"
            )
        if found.lost_port:
            return f"{found.lost_port} of {found.pairs} GPU pairs (ordered) have fewer paths, none is cut off"
        return "no GPU pair is cut off"


def _names(failures: Failures) -> frozenset[str]:
    return failures.links | failures.switches


def listed(names: Iterable[str]) -> str:
    """In order, the first few of them."""
    found = sorted(names)
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return ", ".join(found[:_LISTED]) + more


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
