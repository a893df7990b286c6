"""Price books and costs for the tests of cost."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from scenario.fabric_spec import fabric_from_text
from topologies.cost import PRESETS, Accounting, FabricCost, cost_of
from topologies.fabric import Fabric
from topologies.prices import PriceBook, check_prices, default_prices_text


@cache
def _default_data() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(default_prices_text())
    return data


def book_data() -> dict[str, Any]:
    """The default price book as plain data, free to be changed."""
    return copy.deepcopy(_default_data())


def book(
    changes: Mapping[str, float] | None = None, ranges: Mapping[str, tuple[float, float]] | None = None
) -> PriceBook:
    """The default book with other prices: {"optics.optic-400g": 500}; a changed price has no range unless given."""
    data = book_data()
    for path, usd in (changes or {}).items():
        part = data
        for key in path.split("."):
            part = part[key]
        part["price_usd"] = usd
        part.pop("range_usd", None)
    for path, (low, high) in (ranges or {}).items():
        part = data
        for key in path.split("."):
            part = part[key]
        part["range_usd"] = [low, high]
    return check_prices(data)


def all_switches(usd: float) -> dict[str, float]:
    """One price for every switch model."""
    return {f"switches.{name}": usd for name in book_data()["switches"]}


DEFAULT = book()


@cache
def wired(text: str) -> Fabric:
    """The fabric of a text, wired once."""
    return fabric_from_text(text)


def priced(text: str, accounting: Accounting = PRESETS["full"], prices: PriceBook = DEFAULT) -> FabricCost:
    """The cost of the fabric of a text."""
    return cost_of(wired(text), prices, accounting)
