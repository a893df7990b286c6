"""What each GPU does, from the states of its instance: busy, waiting for work, waiting for KV, or blocked."""

from __future__ import annotations

from collections.abc import Iterator

from traffic.decode import Decode
from traffic.prefill import Prefill


class GpuStates:
    """A row where a GPU's state changes; times of one GPU never decrease."""

    def __init__(self) -> None:
        self._changes: list[tuple[tuple[str, ...], float, str]] = []

    def note(self, one: Prefill | Decode, t_s: float) -> None:
        """A change for the GPUs of an instance, if its state is new."""
        state = one.state
        if state != one.noted:
            one.noted = state
            one.noted_s = max(t_s, one.noted_s)
            self._changes.append((one.gpus, one.noted_s, state))

    def rows(self) -> Iterator[dict[str, object]]:
        """Rows of the `gpus` table."""
        return ({"gpu": gpu, "t_s": at_s, "state": state} for gpus, at_s, state in self._changes for gpu in gpus)
