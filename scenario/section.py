"""What every part of a scenario is: frozen, and strict about unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the scenario: frozen, and strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
