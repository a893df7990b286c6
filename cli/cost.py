"""`zcube cost`: what fabrics cost, or what the tokens of runs cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from analysis.arms import Arm, Kind
from analysis.cost_comparison import CostComparison, unique_labels
from analysis.cost_console import print_costs, print_token_costs
from analysis.token_cost import token_costs
from cli import options
from cli.app import out, print_json
from results.reader import RunFolder
from scenario.errors import InputError
from scenario.fabric_spec import fabric_from_text
from scenario.price_file import default_price_book, load_price_book, price_errors
from topologies.cost import ITEMS, PRESETS, Accounting, cost_of
from topologies.prices import LINK_TIERS, default_prices_text

#: Tiers of switches that GPUs can be cabled to.
GPU_SWITCH_TIERS = ("odd", "even", "top", "leaf", "spine", "core")
BY = ("piece", "module")

What = Annotated[list[str] | None, typer.Argument(help="KIND:name=value,... or scenario files; --runs: run folders")]
Runs = Annotated[bool, typer.Option("--runs", help="USD per 1,000 tokens of run folders instead")]
Prices = Annotated[Path | None, typer.Option(help="your price book", show_default="the testbed's")]
PrintPrices = Annotated[bool, typer.Option("--print-prices", help="print the price book, for editing, and exit")]
Preset = Annotated[str, typer.Option("--accounting", help=f"{', '.join(PRESETS)}: docs/cost.md says what each counts")]
Count = Annotated[str | None, typer.Option(help=f"items, with commas: {','.join(ITEMS)}", show_default=False)]
Tiers = Annotated[str | None, typer.Option(help=f"tiers of cables: {','.join(LINK_TIERS)}", show_default="all")]
Dac = Annotated[str | None, typer.Option(help="switch tiers with copper to GPUs, or none", show_default="even")]
NicOptics = Annotated[bool | None, typer.Option("--nic-optics/--no-nic-optics", help="transceivers in NICs")]
Nics = Annotated[bool | None, typer.Option("--nics/--no-nics", help="the NICs themselves")]
OpticsBy = Annotated[str | None, typer.Option(help="piece, or module (a 200G end: half a 400G)", show_default="piece")]
Asic = Annotated[str | None, typer.Option(help="switch model for all", show_default="smallest that holds the ports")]
Years = Annotated[float | None, typer.Option(help="--runs: CapEx is spread over these", show_default="the book's")]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "cost",
        help="What fabrics cost; with two or more, compared with the first. Or, with --runs, what tokens cost.\n\n"
        "Example: .venv/bin/zcube cost roft:gpus=1024,asic_ports=64 zcube:gpus=1024,asic_ports=64",
    )(cost)


def cost(
    what: What = None,
    runs: Runs = False,
    prices: Prices = None,
    print_prices: PrintPrices = False,
    preset: Preset = "full",
    count: Count = None,
    tiers: Tiers = None,
    dac: Dac = None,
    nic_optics: NicOptics = None,
    nics: Nics = None,
    optics_by: OpticsBy = None,
    asic: Asic = None,
    years: Years = None,
    json: options.Json = False,
) -> None:
    """Price, compare, print."""
    book = load_price_book(prices) if prices else default_price_book()
    if print_prices:
        typer.echo(prices.read_text(encoding="utf-8") if prices else default_prices_text(), nl=False)
        return
    if not what:
        raise InputError("cost", "nothing", "needs fabrics, or --runs and run folders", "zcube cost --help")
    if years is not None and not (runs and 0 < years <= 50):
        raise InputError("--years", years, "needs --runs and a number above 0, at most 50")
    accounting = _accounting(preset, count, tiers, dac, nic_optics, nics, optics_by)
    if runs:
        arms = [Arm(label, Path(text), _kind(text)) for label, text in zip(_labels(what), what, strict=True)]
        with price_errors():
            tokens = token_costs(arms, book, accounting, years, asic)
        if json:
            print_json(tokens.to_json())
        else:
            print_token_costs(tokens, out)
        raise typer.Exit(tokens.exit_code)
    fabrics = tuple(fabric_from_text(text) for text in what)
    with price_errors():
        costs = tuple(cost_of(fabric, book, accounting, asic) for fabric in fabrics)
    comparison = CostComparison(unique_labels(what), costs, fabrics)
    if json:
        print_json(comparison.to_json())
    else:
        print_costs(comparison, out)


def _labels(folders: list[str]) -> tuple[str, ...]:
    return unique_labels([Path(text).resolve().name or text for text in folders])


def _kind(folder: str) -> Kind:
    return "bound" if RunFolder(folder).meta().get("infinite_core") is True else "run"


def _accounting(
    preset: str,
    count: str | None,
    tiers: str | None,
    dac: str | None,
    nic_optics: bool | None,
    nics: bool | None,
    optics_by: str | None,
) -> Accounting:
    found = PRESETS[_one_of("--accounting", preset, tuple(PRESETS))]
    if count is not None:
        found = replace(found, items=_some_of("--count", count, ITEMS))
    if tiers is not None:
        found = replace(found, link_tiers=_some_of("--tiers", tiers, LINK_TIERS))
    if dac is not None:
        found = replace(found, dac_tiers=frozenset() if dac == "none" else _some_of("--dac", dac, GPU_SWITCH_TIERS))
    if nic_optics is not None:
        found = replace(found, nic_optics=nic_optics)
    if nics is not None:
        found = replace(found, items=found.items | {"nics"} if nics else found.items - {"nics"})
    if optics_by is not None:
        found = replace(found, optics_by="piece" if _one_of("--optics-by", optics_by, BY) == "piece" else "module")
    return found


def _one_of(option: str, text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise InputError(option, text, f"must be one of {', '.join(allowed)}")
    return text


def _some_of(option: str, text: str, allowed: tuple[str, ...]) -> frozenset[str]:
    names = [part.strip() for part in text.split(",")]
    for name in names:
        _one_of(option, name, allowed)
    return frozenset(names)
