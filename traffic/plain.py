"""Settings for hot paths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TypeVar, cast

from pydantic import BaseModel

Section = TypeVar("Section", bound=BaseModel)


def plain(section: Section) -> Section:
    """The fields of a section as plain attributes: a model has a `__getattr__`, which makes each look-up several times
    as slow. Without the model's methods and checks."""
    return cast(Section, SimpleNamespace(**dict(section)))
