"""The timeline of a run's faults on the terminal: for `zcube failover` and for every run that had faults."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.failover import Failover


def faults_of_run(one: Failover) -> RenderableType:
    """Timeline and what is said below it."""
    parts: list[RenderableType] = []
    if one.timeline:
        table = Table("wall ms", "model s", "what")
        for moment in one.timeline:
            table.add_row(f"{moment.wall_ms:,.0f}", f"{moment.model_s:.2f}", Text(moment.text))
        parts.append(table)
    parts += [Text(line, style="bold red" if line.startswith("NOT REACHED") else "") for line in one.lines()]
    return Group(*parts)
