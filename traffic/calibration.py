"""Fits ``seconds = base + size / rate`` to measurements of transfers, or of prefill batches.

Errors are taken as relative (a transfer of twice the time may be off by twice as much), since sizes span decades and an
overhead of a millisecond would otherwise drown in the noise of the long ones. Three steps:

1. least absolute relative deviations, which a minority of outliers cannot move far (iteratively reweighted;
   Schlossmacher, JASA 68, 1973);
2. rows further from it than `OUTLIER_SCALES` robust standard deviations (1.4826 * median absolute deviation; Huber,
   "Robust Statistics", 1981, section 5) and than `FLOOR` are left out; none of fewer than `JUDGED_FROM`;
3. least squares of what is left, weighted by 1 / fitted time squared, with the usual t intervals. A base below 0 means
   nothing: it is then held at 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from scenario.errors import InputError
from scenario.models import FabricSection, ServingSection

OUTLIER_SCALES = 4.0
#: Relative deviation that never makes an outlier: where more than half of the rows lie on one line, the robust
#: deviation is 0 and says nothing of what a measurement scatters by.
FLOOR = 0.05
#: Of fewer rows any two make a line, and which of the others is wrong cannot be told.
JUDGED_FROM = 5
#: (least, most) of what is a measurement: bytes or tokens, and seconds.
SIZES, TIMES_S = (1e-3, 1e18), (1e-12, 1e9)
_ITERATIONS = 200

#: Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class LineFit:
    """``seconds = base_s + size / rate``; `rate` in sizes a second.

    `base_interval_s`, `rate_interval`: 95 %, None where two rows leave nothing to judge by; the upper end of the rate
    is infinite where the noise allows it. `n` rows were used, `outliers` (numbers of rows, from 0) were not.
    `residual_median`, `residual_max`: of the rows used, absolute, as a share of the fitted time.
    """

    base_s: float
    rate: float
    base_interval_s: tuple[float, float] | None
    rate_interval: tuple[float, float] | None
    n: int
    outliers: tuple[int, ...]
    residual_median: float
    residual_max: float
    size_range: tuple[float, float]

    def seconds(self, size: float) -> float:
        """The fitted time of this size."""
        return self.base_s + size / self.rate


def fit_line(rows: Sequence[tuple[float, float]], what: str) -> LineFit:
    """Fit rows of (size, seconds), both positive. `what` names them in errors ("transfers").

    Raises `InputError` for fewer than two different sizes, for sizes and times that are none of a measurement, and
    where the time does not grow with the size.
    """
    data = np.asarray(rows, dtype=float).reshape(-1, 2)
    for name, values, (least, most) in (("size", data[:, 0], SIZES), ("time", data[:, 1], TIMES_S)):
        for at in np.flatnonzero(~((values >= least) & (values <= most)))[:1]:
            unit_name = " s" if name == "time" else ""
            raise InputError(
                f"{what}: row {at + 1}: {name}",
                f"{values[at]:g}{unit_name}",
                f"must be {least:g} to {most:g}{unit_name}",
                "Check the unit that the column's name says.",
            )
    size, seconds = data[:, 0], data[:, 1]
    if len(np.unique(size)) < 2:
        raise InputError(
            what, f"{len(rows)} rows", "need at least two different sizes", "Measure small and large ones."
        )
    unit = float(size.max())
    x = size / unit
    first = _least_absolute(x, seconds)
    fitted = _at_least_some(first[0] + first[1] * x, seconds)
    off = np.abs(seconds - fitted) / fitted
    kept = off <= max(FLOOR, OUTLIER_SCALES * 1.4826 * float(np.median(off)))
    if len(rows) < JUDGED_FROM or len(np.unique(size[kept])) < 2:
        kept = np.ones(len(size), dtype=bool)
    try:
        base, slope, covariance = _least_squares(x[kept], seconds[kept], 1.0 / fitted[kept])
    except np.linalg.LinAlgError:
        raise InputError(
            what, f"{len(rows)} rows", "no line can be fitted: sizes or times are too close, or too far apart",
            "Measure sizes that are further apart.",
        ) from None  # fmt: skip
    if slope <= 0:
        raise InputError(
            what,
            f"{seconds[size == size.min()].min():g} s for {size.min():g}, {seconds[size == size.max()].max():g} s for"
            f" {size.max():g}",
            "the time does not grow with the size: no rate can be fitted",
            "Measure sizes that are further apart.",
        )
    line = base + slope * x[kept]
    residuals = np.abs(seconds[kept] - line) / line
    base_interval = rate_interval = None
    if covariance is not None:
        t = _t95(int(kept.sum()) - 2)
        base_half, slope_half = (t * math.sqrt(max(0.0, covariance[i, i])) for i in (0, 1))
        base_interval = (max(0.0, base - base_half), base + base_half)
        low = slope - slope_half
        rate_interval = (unit / (slope + slope_half), unit / low if low > 0 else math.inf)
    return LineFit(
        base_s=base,
        rate=unit / slope,
        base_interval_s=base_interval,
        rate_interval=rate_interval,
        n=int(kept.sum()),
        outliers=tuple(int(i) for i in np.flatnonzero(~kept)),
        residual_median=float(np.median(residuals)),
        residual_max=float(residuals.max()),
        size_range=(float(size[kept].min()), float(size[kept].max())),
    )


Vector = NDArray[np.float64]


def _at_least_some(fitted: Vector, seconds: Vector) -> Vector:
    """A first fit may pass 0 among the smallest; relative errors need a time above it."""
    return np.maximum(fitted, 0.1 * float(seconds.min()))


def _solve(x: Vector, y: Vector, weight: Vector) -> tuple[float, float]:
    """Weighted least squares with a base of at least 0; `weight` multiplies errors, not their squares."""
    design = np.stack([np.ones_like(x), x], axis=1) * weight[:, None]
    (base, slope), *_ = np.linalg.lstsq(design, y * weight, rcond=None)
    if base < 0:
        base, slope = 0.0, float((weight * x) @ (weight * y) / ((weight * x) @ (weight * x)))
    return float(base), float(slope)


def _least_absolute(x: Vector, y: Vector) -> tuple[float, float]:
    """Least absolute deviations relative to the time; starting from the measured times keeps slow outliers light."""
    base, slope = _solve(x, y, 1.0 / y)
    for _ in range(_ITERATIONS):
        off = np.abs(y - base - slope * x) / y
        # A row's weight in squares is 1 / |error|; the floor keeps it finite on rows that are met exactly.
        weight = 1.0 / (y * np.sqrt(np.maximum(off, 1e-6)))
        following = _solve(x, y, weight)
        done = np.allclose(following, (base, slope), rtol=1e-10, atol=0)
        base, slope = following
        if done:
            break
    return base, slope


def _least_squares(x: Vector, y: Vector, weight: Vector) -> tuple[float, float, Vector | None]:
    """(base, slope, covariance of the two); no covariance for two rows."""
    base, slope = _solve(x, y, weight)
    if len(x) < 3:
        return base, slope, None
    errors = (y - base - slope * x) * weight
    design = np.stack([np.ones_like(x), x], axis=1) * weight[:, None]
    variance = float(errors @ errors) / (len(x) - 2)
    return base, slope, np.asarray(variance * np.linalg.inv(design.T @ design), dtype=np.float64)


def _t95(freedom: int) -> float:
    return _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.4 / freedom


@dataclass(frozen=True)
class Calibration:
    """What measurements say about a scenario's constants. Transfers went over `nics` NICs, prefill ran on `gpus`."""

    transfer: LineFit | None
    prefill: LineFit | None
    nics: int = 1
    gpus: int = 1

    @property
    def nic_gbps(self) -> float | None:
        """Effective rate of one NIC, Gb/s."""
        return None if self.transfer is None else self.transfer.rate * 8 / 1e9 / self.nics

    @property
    def settings(self) -> dict[str, dict[str, float]]:
        """The scenario's settings, by section; rounded to what a measurement can say.

        Raises InputError for one that no scenario may have.
        """
        found: dict[str, dict[str, float]] = {}
        if self.transfer is not None and self.nic_gbps is not None:
            found["fabric"] = {"gpu_gbps": _digits(self.nic_gbps)}
            found["serving"] = {"transfer_overhead_ms": _digits(self.transfer.base_s * 1e3)}
        if self.prefill is not None:
            serving = found.setdefault("serving", {})
            serving["prefill_base_ms"] = _digits(self.prefill.base_s * 1e3)
            serving["prefill_tokens_per_s_per_gpu"] = _digits(self.prefill.rate / self.gpus)
        for section, values in found.items():
            for name, value in values.items():
                _require_allowed(section, name, value)
        return found


def _require_allowed(section: str, name: str, value: float) -> None:
    sections: dict[str, type[BaseModel]] = {"fabric": FabricSection, "serving": ServingSection}
    bounds = sections[section].model_fields[name].metadata
    low = max((bound.ge for bound in bounds if hasattr(bound, "ge")), default=-math.inf)
    high = min((bound.le for bound in bounds if hasattr(bound, "le")), default=math.inf)
    if not low <= value <= high:
        raise InputError(
            f"fitted {section}.{name}", f"{value:g}", f"must be {low:g} to {high:g}",
            "Check the units of the columns, and --nics and --gpus; times that do not grow with the size give no rate.",
        )  # fmt: skip


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
