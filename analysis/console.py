"""A comparison on the terminal: tables for people; `Comparison.to_json` is for programs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis.beside import TextTable
from analysis.compare import Comparison
from analysis.console_table import plain_table
from analysis.failover_console import faults_of_run
from analysis.formats import NONE

_STYLES = {"NOT EQUAL": "bold red", "differs": "yellow", "same": "dim"}


def _heads(comparison: Comparison) -> list[Text]:
    heads = []
    for arm in comparison.arms:
        head = Text(arm.label)
        if arm.valid is False:
            head.append("\nINVALID", style="bold red")
        elif arm.is_bound:
            head.append("\n(bound)", style="dim")
        heads.append(head)
    return heads


def equality_table(comparison: Comparison) -> Table:
    """What is equal, what is meant to differ, and what should not differ but does."""
    table = (
        plain_table("1. The run")
        if comparison.alone
        else plain_table(
            "1. What is equal", "differs: what the fabrics differ in. NOT EQUAL: should be the same, and is not."
        )
    )
    table.add_column("")
    for head in _heads(comparison):
        table.add_column(head, overflow="fold")
    table.add_column("")
    for row in comparison.equality:
        mark = Text(row.mark, style=_STYLES.get(row.mark, ""))
        table.add_row(row.name, *row.values, mark)
    return table


def result_table(comparison: Comparison) -> Table:
    """The figures, with intervals and, where it makes sense, the difference to the first arm."""
    sessions, unit = (comparison.arms[0].summary[key] for key in ("interval_units", "interval_unit"))
    caption = f"Model time and bytes. Brackets: 95 % bootstrap interval over {sessions} {unit}s."
    if not comparison.alone:
        caption += f" Percentages: against {comparison.arms[0].label}."
    table = plain_table("2. Results", caption)
    table.add_column("")
    table.add_column("")
    for head in _heads(comparison):
        table.add_column(head, justify="right")
    group = ""
    for row in comparison.results:
        if group and row.group != group:
            table.add_section()
        group = row.group
        label = Text(row.label)
        if row.indicative:
            label.append(" (indicative)", style="yellow")
        cells = []
        for index in range(len(row.values)):
            cell = Text(row.text(index))
            if change := row.change_text(index):
                cell.append(f" {change}", style="bold" if row.group == "TTFT" else "")
            if interval := row.interval_text(index):
                cell.append(f"\n[{interval}]", style="dim")
            cells.append(cell)
        table.add_row(label, Text(row.unit, style="dim"), *cells)
    return table


def text_table(found: TextTable) -> Table:
    """A table that is text already: names to the left, figures to the right."""
    table = plain_table(found.title, found.note)
    for place, column in enumerate(found.columns):
        table.add_column(column, justify="left" if place < found.left else "right")
    for row in found.rows:
        table.add_row(*map(Text, row))
    return table


def fidelity_table(comparison: Comparison) -> Table:
    """Whether the emulation did what it should have done."""
    table = plain_table(f"{_number(comparison, 4)}. Fidelity of the emulation")
    table.add_column("")
    for head in _heads(comparison):
        table.add_column(head, justify="right")
    table.add_column("limit", justify="right")
    for row in comparison.fidelity:
        cells = []
        for text, verdict in zip(row.texts, row.verdicts, strict=True):
            mark = {True: " ok", False: " FAILED", None: ""}[verdict]
            style = {True: "green", False: "bold red", None: "dim"}[verdict]
            cells.append(Text.assemble(text, (mark, style)))
        # A check without a value and a verdict has a reason, which is what there is to say.
        for index, (text, verdict) in enumerate(zip(row.texts, row.verdicts, strict=True)):
            if text == NONE and verdict is None and row.details[index]:
                cells[index] = Text(row.details[index], style="dim")
        table.add_row(row.label, *cells, row.limit)
    return table


def _number(comparison: Comparison, number: int) -> int:
    """Of a section: a run alone has no third, the bound."""
    return number - comparison.alone


def _failures(comparison: Comparison) -> list[str]:
    return [
        f"{arm.label}: {row.label}: {row.texts[index]} (limit {row.limit}){': ' if row.details[index] else ''}"
        f"{row.details[index]}"
        for row in comparison.fidelity
        for index, arm in enumerate(comparison.arms)
        if row.verdicts[index] is False
    ]


def _list(title: str, lines: Iterable[str], marker: str = "· ") -> Group:
    items = [Padding(Text(f"{marker}{line}"), (0, 0, 0, 2)) for line in lines]
    return Group(Text(title, style="bold"), *items)


def renderable(comparison: Comparison, report: Path | None = None) -> RenderableType:
    """The whole comparison in the order in which it should be read."""
    parts: list[RenderableType] = []
    if warnings := comparison.warnings():
        parts += [Text(line, style="bold red") for line in warnings] + [Text()]
    parts += [equality_table(comparison), Text(), result_table(comparison), Text()]
    parts += [_list("In short", comparison.headline()), Text()]
    for found in comparison.beside():
        parts += [text_table(found), Text()]
    if not comparison.alone:
        parts += [_list("3. The fabric-free bound", comparison.bound_lines()), Text()]
    if diagnosed := comparison.diagnosis_lines():
        parts.append(Text("Diagnosis, and congestion by class (`zcube diagnose RUN` says more)", style="bold"))
        for first, *others in diagnosed:
            parts.append(Padding(Text(f"· {first}"), (0, 0, 0, 2)))
            parts += [Padding(Text(line, style="dim"), (0, 0, 0, 4)) for line in others]
        parts.append(Text())
    for label, faults in comparison.faults:
        parts += [Text(f"Faults: {label}", style="bold"), faults_of_run(faults), Text()]
    if notes := comparison.notes():
        parts += [_list("Notes on the run", notes), Text()]
    if comparison.fidelity:
        parts += [fidelity_table(comparison), Text()]
        if failures := _failures(comparison):
            parts += [_list("Checks that failed", failures), Text()]
    else:
        parts += [
            _list(f"{_number(comparison, 4)}. Fidelity of the emulation", ["Not measured: no arm was emulated."]),
            Text(),
        ]
    parts += [_list(f"{_number(comparison, 5)}. What this result does not show", comparison.limits()), Text()]
    if report is not None:
        parts.append(Text(f"Report: {report}"))
    return Group(*parts)


def print_comparison(comparison: Comparison, console: Console, report: Path | None = None) -> None:
    """Prints the comparison; `report` is the path of the HTML report."""
    console.print(renderable(comparison, report), soft_wrap=False)
