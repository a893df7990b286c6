"""Reads a price book. Whatever is wrong with it is one message that names the field, the value and what fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scenario.errors import InputError
from scenario.yaml_file import parse_mapping, read_mapping
from topologies.prices import PriceBook, PriceError, check_prices, default_prices_text

HINT = "`zcube cost --print-prices` prints a complete price book to start from"


@contextmanager
def price_errors() -> Iterator[None]:
    """Turns what is wrong with prices into InputError: exit code 2."""
    try:
        yield
    except PriceError as error:
        raise InputError(f"prices: {error.parameter}", error.value, error.allowed, HINT) from None


def default_price_book() -> PriceBook:
    """The price book that comes with the testbed."""
    return _checked(parse_mapping(default_prices_text(), "prices.yaml", "prices", HINT), "prices.yaml")


def load_price_book(path: Path) -> PriceBook:
    """Read and check a YAML file. Raises InputError."""
    return _checked(read_mapping(path, "prices", "price book", HINT), str(path))


def _checked(data: dict[Any, Any], name: str) -> PriceBook:
    with price_errors():
        return check_prices(data)
