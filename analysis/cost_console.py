"""Costs on the terminal: tables for people; the comparisons' `to_json` is for programs."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis.console_table import plain_table
from analysis.cost_comparison import CostComparison
from analysis.formats import change, number
from analysis.token_cost import TokenCosts

_ITEM = {"dac": "copper", "fibre": "fibre", "nics": "NICs", "cabling": "cabling", "optics": "optics"}


def _columns(table: Table, labels: Iterable[str]) -> None:
    for label in labels:
        table.add_column(Text(label), justify="right", overflow="fold")


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _cell(value: float, base: float, text: str, first: bool) -> Text:
    cell = Text(text)
    if not first and (shown := change(value, base)):
        cell.append(f" {shown}", style="dim")
    return cell


def _usd(value: float) -> str:
    return f"{value:,.0f}"


def physical_table(comparison: CostComparison) -> Table:
    """Counts on the graph."""
    table = plain_table("1. Parts", "A 200G end is half a 400G module. Percentages: against the first.")
    table.add_column("")
    table.add_column("")
    _columns(table, comparison.labels)
    for row in comparison.physical:
        if any(row.values):
            cells = [_cell(v, row.values[0], _count(v), not i) for i, v in enumerate(row.values)]
            table.add_row(row.name, row.unit, *cells)
    return table


def cost_table(comparison: CostComparison) -> Table:
    """Lines, totals, per GPU, power."""
    costs = comparison.costs
    table = plain_table("2. Cost, USD", "~ an assumed price. Cells: USD (quantity).")
    table.add_column("")
    table.add_column("part")
    table.add_column("each", justify="right")
    _columns(table, comparison.labels)
    item = ""
    for row in comparison.rows:
        cells = []
        for i, quantity in enumerate(row.quantities):
            text = f"{_usd(row.usd(i))} ({_count(quantity)})" if quantity else ""
            cells.append(Text(text))
        part = row.part.split(".", 1)[-1] + (f" {row.use}" if row.use else "")
        shown = "" if row.item == item else _ITEM.get(row.item, row.item)
        table.add_row(shown, Text(part), Text(f"{'~' if row.assumed else ''}{row.unit_usd:,.2f}"), *cells)
        item = row.item
    table.add_section()
    totals = [
        ("CapEx", [c.capex_usd for c in costs], "bold"),
        ("CapEx per GPU", [c.capex_usd_per_gpu for c in costs], "bold"),
        ("power, kW", [c.power_w / 1000 for c in costs], ""),
        ("energy with PUE, MWh a year", [c.kwh_per_year / 1000 for c in costs], ""),
        ("energy, USD a year", [c.power_usd_per_year for c in costs], ""),
    ]
    for name, values, style in totals:
        cells = [
            _cell(v, values[0], _usd(v) if "USD" in name or style else number(v), not i) for i, v in enumerate(values)
        ]
        table.add_row(Text(name, style=style), "", "", *cells)
    return table


def _list(title: str, lines: Iterable[str]) -> Group:
    return Group(Text(title, style="bold"), *(Padding(Text(f"· {line}"), (0, 0, 0, 2)) for line in lines))


def print_costs(comparison: CostComparison, console: Console) -> None:
    """The whole in the order in which it should be read."""
    parts: list[RenderableType] = [Text(line, style="bold red") for line in comparison.warnings()]
    parts += [physical_table(comparison), Text(), cost_table(comparison), Text()]
    parts += [_list("In short", comparison.headline()), Text()]
    parts.append(_list("What is not counted", comparison.not_counted()))
    console.print(Group(*parts))


def print_token_costs(costs: TokenCosts, console: Console) -> None:
    """Dollars per 1,000 tokens, line by line."""
    parts: list[RenderableType] = [Text(line, style="bold red") for line in costs.warnings()]
    table = plain_table(
        "Cost of tokens, USD",
        f"Per hour, and per 1,000 output tokens in brackets. CapEx spread over {costs.years:g} years. "
        "Percentages: against the first.",
    )
    table.add_column("")
    for run in costs.runs:
        head = Text(run.label)
        if run.valid is False:
            head.append("\nINVALID", style="bold red")
        table.add_column(head, justify="right", overflow="fold")
    first = costs.runs[0]
    for name in first.usd_per_hour:
        values = [run.usd_per_hour[name] for run in costs.runs]
        table.add_row(
            name, *(Text(f"{v:,.3f} ({run.per_1k_output(v):.6f})") for v, run in zip(values, costs.runs, strict=True))
        )
    table.add_section()
    sums = [run.total_usd_per_hour for run in costs.runs]
    rows: list[tuple[str, list[float], str]] = [
        ("sum, an hour", sums, ",.3f"),
        ("output tokens a second", [run.output_tokens_per_s for run in costs.runs], ",.1f"),
        ("prompt and output tokens a second", [run.total_tokens_per_s for run in costs.runs], ",.1f"),
        ("per 1,000 output tokens", [r.per_1k_output(s) for r, s in zip(costs.runs, sums, strict=True)], ".6f"),
        ("per 1,000 tokens, prompts too", [r.per_1k_total(s) for r, s in zip(costs.runs, sums, strict=True)], ".7f"),
    ]
    for name, values, form in rows:
        table.add_row(name, *(_cell(v, values[0], format(v, form), not i) for i, v in enumerate(values)))
    parts += [table, Text(), _list("What this does not show", costs.limits())]
    console.print(Group(*parts))
