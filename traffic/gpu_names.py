"""Lists of GPUs as a person writes them: gpu1, gpu4-gpu8."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scenario.errors import InputError

_NAME = re.compile(r"gpu(\d+)(?:-gpu(\d+))?")


def expand(names: Iterable[str], gpus: int, field: str) -> list[str]:
    """Single GPUs in the order given. Raises InputError for one that does not exist, or that comes twice."""
    found: list[str] = []
    for name in names:
        match = _NAME.fullmatch(name)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= gpus:
            raise InputError(field, name, f"must be one of gpu1 to gpu{gpus}, or a range such as gpu1-gpu{gpus}")
        found += [f"gpu{number}" for number in range(first, last + 1)]
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise InputError(field, twice[0], "is named twice")
    return found
