"""Reads a price book. Whatever is wrong with it is one message that names the field, the value and what fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from scenario.errors import InputError
from topologies.prices import PriceBook, PriceError, check_prices, default_prices_text

#: Far more than 500 parts of each sort need.
MAX_BYTES = 1_000_000
HINT = "`zcube cost --print-prices` prints a complete price book to start from"


class _PlainLoader(yaml.SafeLoader):
    """No aliases (a few lines of them can stand for gigabytes), and no key given twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not allowed in a price book", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


@contextmanager
def price_errors() -> Iterator[None]:
    """Turns what is wrong with prices into InputError: exit code 2."""
    try:
        yield
    except PriceError as error:
        raise InputError(f"prices: {error.parameter}", error.value, error.allowed, HINT) from None


def default_price_book() -> PriceBook:
    """The price book that comes with the testbed."""
    return _parse(default_prices_text(), "prices.yaml")


def load_price_book(path: Path) -> PriceBook:
    """Read and check a YAML file. Raises InputError."""
    try:
        if path.exists() and not path.is_file():
            raise InputError("prices", str(path), "is not a regular file")
        if path.exists() and path.stat().st_size > MAX_BYTES:
            raise InputError("prices", str(path), f"is larger than {MAX_BYTES:,} bytes: not a price book")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError("prices", str(path), "is not UTF-8 text", HINT) from None
    except OSError as error:
        raise InputError("prices", str(path), error.strerror or "cannot be read", HINT) from None
    return _parse(text, str(path))


def _parse(text: str, name: str) -> PriceBook:
    try:
        data = yaml.load(text, Loader=_PlainLoader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise InputError("prices", name, f"is not YAML{where}: {getattr(error, 'problem', error)}", HINT) from None
    except RecursionError:
        raise InputError("prices", name, "is nested too deeply", HINT) from None
    except ValueError as error:  # a number or a date that Python cannot hold
        raise InputError("prices", name, f"holds a value that cannot be read: {error}", HINT) from None
    if not isinstance(data, dict):
        raise InputError("prices", name, "must be a mapping of sections", HINT)
    with price_errors():
        return check_prices(data)
