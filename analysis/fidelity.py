"""The fidelity checks of several runs side by side, whatever checks they have (`fidelity.json`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.arms import ArmResult
from analysis.formats import NONE, short


@dataclass(frozen=True)
class FidelityRow:
    """One check over the arms: text and verdict of each (None: measured and not judged, or not there)."""

    name: str
    texts: tuple[str, ...]
    verdicts: tuple[bool | None, ...]
    limit: str
    explanation: str


def fidelity_rows(arms: Sequence[ArmResult]) -> tuple[FidelityRow, ...]:
    """Every check that any arm has, in the order in which they are met."""
    checks = [{str(check.get("name")): check for check in (arm.fidelity or {}).get("checks", ())} for arm in arms]
    rows = []
    for name in dict.fromkeys(name for found in checks for name in found):
        present = [found[name] for found in checks if name in found]
        rows.append(
            FidelityRow(
                name=name,
                texts=tuple(_text(found.get(name)) for found in checks),
                verdicts=tuple(_verdict(found.get(name)) for found in checks),
                limit=next((_with_unit(c, "limit") for c in present if c.get("limit") is not None), ""),
                explanation=next((str(c["text"]) for c in present if c.get("text")), ""),
            )
        )
    return tuple(rows)


def _with_unit(check: Mapping[str, Any], key: str) -> str:
    value = check.get(key)
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    text = short(value) if isinstance(value, (int, float)) else str(value)
    return f"{text} {check.get('unit') or ''}".strip()


def _text(check: Mapping[str, Any] | None) -> str:
    return NONE if check is None else _with_unit(check, "value")


def _verdict(check: Mapping[str, Any] | None) -> bool | None:
    found = None if check is None else check.get("ok")
    return found if isinstance(found, bool) else None
