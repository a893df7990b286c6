"""How a diagnosis did against known causes: what was named for what, and counts by cause. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NOTHING = "nothing"


@dataclass(frozen=True)
class Judged:
    """One case: causes that were put in, and those that were named."""

    true: frozenset[str]
    named: frozenset[str]

    @property
    def exact(self) -> bool:
        """Neither one missed nor one too many."""
        return self.true == self.named


def confusion(cases: Iterable[Judged], causes: Sequence[str]) -> dict[str, dict[str, int]]:
    """matrix[true][named].

    A cause that was found counts on the diagonal; one that was missed counts for each cause that was named and not put
    in, or for NOTHING; what was named where nothing is left to explain counts in row NOTHING, whose diagonal is healthy
    cases of which nothing was named.
    """
    names = (*causes, NOTHING)
    matrix = {true: dict.fromkeys(names, 0) for true in names}
    for case in cases:
        missed, extra = case.true - case.named, case.named - case.true
        for name in case.true & case.named:
            matrix[name][name] += 1
        for name in missed:
            for other in extra or {NOTHING}:
                matrix[name][other] += 1
        if not missed:
            for other in extra:
                matrix[NOTHING][other] += 1
        if not case.true and not case.named:
            matrix[NOTHING][NOTHING] += 1
    return matrix


def rates(cases: Sequence[Judged], causes: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Cause -> (found, missed, named without being there)."""
    return {
        cause: (
            sum(cause in case.true and cause in case.named for case in cases),
            sum(cause in case.true and cause not in case.named for case in cases),
            sum(cause not in case.true and cause in case.named for case in cases),
        )
        for cause in causes
    }
