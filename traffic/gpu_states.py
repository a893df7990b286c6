"""What each GPU does, from the states of its instance: busy, waiting for work, waiting for KV, or blocked."""

from __future__ import annotations

import math

from traffic.decode import Decode
from traffic.prefill import Prefill


class GpuStates:
    """Rows of the `gpus` table: one where a GPU's state changes; times of one GPU never decrease."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        self._states: dict[tuple[str, str], tuple[str, float]] = {}

    def note(self, one: Prefill | Decode, t_s: float) -> None:
        """A row for each GPU of an instance, if its state is new."""
        role, instance = ("prefill", one.instance) if isinstance(one, Prefill) else ("decode", one.target)
        state, key = one.state, (role, instance.name)
        before, since_s = self._states.get(key, ("", -math.inf))
        if state != before:
            at_s = max(t_s, since_s)
            self._states[key] = state, at_s
            self.rows.extend({"gpu": gpu, "t_s": at_s, "state": state} for gpu in instance.gpus)
