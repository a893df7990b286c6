"""Numbers as text for tables and reports: enough digits to compare, no more."""

from __future__ import annotations

import math

NONE = "–"
_PREFIXES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def number(value: float | int | None, digits: int = 3) -> str:
    """About `digits` significant digits, thousands with commas: 12,345 · 123 · 12.3 · 0.0123."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    places = max(digits - 1 - size, 0)
    if size < -4:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{0 if isinstance(value, int) else places}f}"


def short(value: float | int | None, digits: int = 3) -> str:
    """The same without trailing zeros, for running text: 20 instead of 20.0."""
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def data_size(count: float | None) -> str:
    """Bytes with a decimal prefix: 60 MB."""
    if count is None or not math.isfinite(count):
        return NONE
    for factor, unit in _PREFIXES:
        if abs(count) >= factor:
            return f"{short(count / factor)} {unit}"
    return f"{short(count)} B"


def percent(share: float | None) -> str:
    """A share as a percentage: 0.123 -> 12.3 %."""
    return NONE if share is None or not math.isfinite(share) else f"{share * 100:.1f} %"


def change(value: float | None, base: float | None) -> str:
    """Difference to `base` in percent, with its sign: −12.3 %."""
    if value is None or base is None or not (math.isfinite(value) and math.isfinite(base)) or not base:
        return ""
    shown = (value / base - 1) * 100
    sign = "±" if abs(shown) < 0.05 else "+" if shown > 0 else "−"
    return f"{sign}{abs(shown):.1f} %"
