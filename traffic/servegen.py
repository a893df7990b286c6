"""ServeGen's rate curves: many clients, each a renewal process whose law changes from window to window.

Data: https://github.com/alibaba/ServeGen, `chunk-<client>-trace.csv` (Apache-2.0; https://arxiv.org/abs/2505.09999).
No header; a line a window: start (s), rate (requests/s), CV of the gaps, pattern (Gamma, Weibull, or empty: no
arrivals), shape, scale (s). Gamma mean = shape * scale, Weibull mean = scale * Gamma(1 + 1/shape). In most windows that
is 1/rate; where the fit misses it (by up to a factor of four) the measured rate counts, so the scale is derived from
the rate and the shape.

What is left of a gap at the end of a window goes on in the next one at that one's pace (multiplied by the ratio of
the mean gaps), and time 0 is a random instant: the first gap is what remains of a length-biased one (Cox, "Renewal
Theory", 1962, chapter 5). Starting each window anew would add (CV^2 - 1) / 2 arrivals to each.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from scenario.errors import InputError
from traffic.readers.cells import parse_cell
from traffic.readers.lines import Reading, open_file, text_of
from traffic.readers.rows import BadCell, Column
from traffic.rng import gamma, uniform, weibull

_NAME = re.compile(r"chunk-(\w+)-trace\.csv")
_COLUMNS = [Column(name, name, "number") for name in ("start_s", "rate", "cv", "shape", "scale")]
_EXAMPLE = "lines of start_s,rate,cv,pattern,shape,scale, for example 600,2.8,1.3,Gamma,0.57,0.62"
MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Window:
    """A client's law of gaps from `start_s` on; `pattern` is empty where it sends nothing."""

    start_s: float
    pattern: str
    shape: float
    scale_s: float

    @property
    def mean_s(self) -> float:
        """Mean gap; infinite where nothing is sent."""
        if not self.pattern:
            return math.inf
        return self.scale_s * (self.shape if self.pattern == "Gamma" else math.gamma(1 + 1 / self.shape))

    def gap_s(self, seed: int, client: str, number: int) -> float:
        """A gap, keyed by client and number."""
        draw = gamma if self.pattern == "Gamma" else weibull
        return draw(seed, client, number, purpose="gap", shape=self.shape, scale=self.scale_s)

    def residual_s(self, seed: int, client: str) -> float:
        """Time from a random instant to the next arrival: a uniform share of a length-biased gap.

        Length-biased Gamma: shape + 1. Length-biased Weibull: scale * y^(1/shape), y of Gamma(1 + 1/shape).
        """
        share = uniform(seed, client, purpose="residual_share")
        if self.pattern == "Gamma":
            return share * gamma(seed, client, purpose="residual", shape=self.shape + 1, scale=self.scale_s)
        y = gamma(seed, client, purpose="residual", shape=1 + 1 / self.shape, scale=1.0)
        return share * self.scale_s * y ** (1 / self.shape)


def read_clients(folder: Path) -> dict[str, list[Window]]:
    """Client -> windows, of every chunk-<client>-trace.csv of a folder. Raises InputError."""
    files = sorted(folder.glob("chunk-*-trace.csv")) if folder.is_dir() else []
    found = {match[1]: _windows(file) for file in files if (match := _NAME.fullmatch(file.name))}
    if not found:
        raise InputError(
            "workload.arrivals.path", str(folder), "is not a folder with chunk-<client>-trace.csv of ServeGen"
        )
    return found


def _windows(path: Path) -> list[Window]:
    reading = Reading(path, _EXAMPLE)
    with open_file(path) as handle:
        raw = handle.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise reading.error(1, f"the file is larger than {MAX_BYTES >> 20} MiB")
    found: list[Window] = []
    for line, part in enumerate(raw.splitlines(), 1):
        if not part.strip():
            continue
        try:
            window = _window(text_of(part))
            if found and window.start_s <= found[-1].start_s:
                raise BadCell("start_s", "start_s does not rise")
        except BadCell as bad:
            raise reading.error(line, bad.what, part, bad.column) from None
        found.append(window)
    if not found:
        raise reading.error(1, "the file is empty")
    return found


def _window(text: str | None) -> Window:
    cells = (text or "").split(",")
    if len(cells) != 6:
        raise BadCell("", f"{len(cells)} fields where 6 are expected")
    pattern = cells.pop(3).strip()
    start_s, rate, _, shape, scale_s = (
        parse_cell(column, cell, from_text=True) for column, cell in zip(_COLUMNS, cells, strict=True)
    )
    if start_s < 0:
        raise BadCell("start_s", f"start_s {start_s} is below 0")
    if pattern not in ("Gamma", "Weibull", ""):
        raise BadCell("pattern", f"pattern {pattern!r} is not Gamma, Weibull or empty")
    if not pattern or rate <= 0:
        return Window(start_s, "", 0.0, 0.0)
    if not (0.02 <= shape <= 1e4 and 0 < scale_s <= 1e9 and rate <= 1e6):
        raise BadCell(
            "shape", f"shape {shape}, scale {scale_s} and rate {rate} are not those of a {pattern} law of gaps"
        )
    unit = Window(start_s, pattern, shape, 1.0)
    return replace(unit, scale_s=1 / (rate * unit.mean_s))


def rate_at(clients: dict[str, list[Window]], at_s: float) -> float:
    """Arrivals a second of all clients together, by the windows that `at_s` lies in."""
    return sum(1 / window.mean_s for windows in clients.values() if (window := _window_at(windows, at_s)) is not None)


def _window_at(windows: list[Window], at_s: float) -> Window | None:
    if at_s >= _end_s(windows):
        return None
    return next((window for window in reversed(windows) if window.start_s <= at_s), None)


def _end_s(windows: list[Window]) -> float:
    """Where a client's curve ends: its last window is as long as the one before it (600 s where there is one only)."""
    return windows[-1].start_s + (windows[-1].start_s - windows[-2].start_s if len(windows) > 1 else 600.0)


def at_rate(clients: dict[str, list[Window]], start_s: float, rate_per_s: float) -> dict[str, list[Window]]:
    """The clients with every rate multiplied so that it is `rate_per_s` at `start_s`; shapes and windows stay.

    As ServeGen's own generator does, which scales its clients to a total. Raises InputError where nobody sends then.
    """
    measured = rate_at(clients, start_s)
    if not measured:
        raise InputError(
            "workload.arrivals.rate_per_s", rate_per_s,
            f"cannot be reached: no client sends anything at start_s {start_s:g}", "another workload.arrivals.start_s",
        )  # fmt: skip
    factor = measured / rate_per_s
    return {
        name: [replace(window, scale_s=window.scale_s * factor) for window in windows]
        for name, windows in clients.items()
    }


def client_arrivals(seed: int, client: str, windows: list[Window], start_s: float) -> Iterator[float]:
    """Arrivals of one client (s from `start_s`) to the end of its curve."""
    ends = [window.start_s for window in windows[1:]] + [_end_s(windows)]
    left = -1.0  # what is left of the gap, in mean gaps: a window's own pace turns it into seconds
    number = 0
    for window, end_s in zip(windows, ends, strict=True):
        if end_s <= start_s or not window.pattern:
            continue
        now_s = max(window.start_s, start_s)
        if left < 0:
            left = window.residual_s(seed, client) / window.mean_s
        while (at_s := now_s + left * window.mean_s) < end_s:
            yield at_s - start_s
            now_s, number = at_s, number + 1
            left = window.gap_s(seed, client, number) / window.mean_s
        left -= (end_s - now_s) / window.mean_s


def arrivals(seed: int, clients: dict[str, list[Window]], start_s: float) -> Iterator[tuple[float, str]]:
    """(s, client) of all clients, in order of time."""

    def of(client: str) -> Iterator[tuple[float, str]]:
        for at_s in client_arrivals(seed, client, clients[client], start_s):
            yield at_s, client

    return heapq.merge(*(of(client) for client in sorted(clients)))
