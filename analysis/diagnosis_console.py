"""A diagnosis on the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from analysis.diagnosis import Diagnosis
from analysis.diagnosis_answers import Answer, headline


def diagnosis_text(found: Diagnosis, answered: list[Answer]) -> RenderableType:
    """Causes first, then the five answers."""
    parts: list[RenderableType] = [Text(headline(found), style="bold")]
    for cause in found.causes:
        parts.append(Padding(Text.assemble((cause.name, "bold red"), f": {cause.evidence}"), (0, 0, 0, 2)))
        parts.append(Padding(Text(f"what helps: {cause.remedy}", style="dim"), (0, 0, 0, 4)))
    for place, item in enumerate(answered, 1):
        parts += [Text(), Text(f"{place}. {item.question}", style="bold"), Padding(Text(item.answer), (0, 0, 0, 3))]
        parts += [Padding(Text(f"· {line}", style="dim"), (0, 0, 0, 3)) for line in item.lines]
    return Group(*parts)
