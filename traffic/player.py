"""The face that every engine shows its driver, in real and in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from traffic.actions import Action, Event


class Player(Protocol):
    """A state machine without I/O or clock: `traffic.engine` (serving), `traffic.flow_engine` (flows alone)."""

    def start(self) -> list[Action]:
        """The first actions."""
        ...

    def on(self, event: Event, t_s: float) -> list[Action]:
        """What to do after an event at model time `t_s`."""
        ...

    @property
    def finished(self) -> bool:
        """Whether all that is measured is over."""
        ...

    @property
    def requests(self) -> list[dict[str, object]]:
        """Rows of the requests table."""
        ...

    def request_rows(self) -> Iterator[dict[str, object]]:
        """The same one after the other."""
        ...

    def gpu_rows(self) -> Iterator[dict[str, object]]:
        """Rows of the gpus table one after the other."""
        ...

    @property
    def gpu_states(self) -> list[dict[str, object]]:
        """Rows of the gpus table."""
        ...

    @property
    def window_s(self) -> tuple[float, float] | None:
        """The stretch of model time that counts, where only the engine knows it; None: that of the plan."""
        ...
