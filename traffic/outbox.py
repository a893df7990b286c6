"""What the engine has decided and a driver has not yet been told."""

from __future__ import annotations

from traffic.actions import Action, StartTimer, TimerKey, TimerKind


class Outbox:
    """Actions in order; and numbers for timers that need one of their own."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._numbers = 0

    def add(self, action: Action) -> None:
        """One more."""
        self._actions.append(action)

    def timer(self, at_s: float, kind: TimerKind, id_: int) -> None:
        """A timer with a key of the engine's own."""
        self._actions.append(StartTimer(at_s, TimerKey(kind, id_)))

    def numbered_timer(self, at_s: float, kind: TimerKind) -> int:
        """A timer with a new number, which is returned."""
        number = self._numbers
        self._numbers += 1
        self.timer(at_s, kind, number)
        return number

    def take(self) -> list[Action]:
        """All, and empty it."""
        actions, self._actions = self._actions, []
        return actions
