"""What a fabric costs: its bill of materials under a stated accounting, priced with a price book.

Published savings of ZCube differ by what they count, so every choice is a setting of `Accounting`; docs/cost.md says
which one gives which published figure. A cost is a sum over parts, quantity * unit price, so a saving is one minus a
ratio of two such sums, and its extremes over independent price ranges are found exactly (`saving_range`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import Literal

from topologies.bom import DAC_TIERS, MODULE_GBPS, BillOfMaterials, CableGroup, bill_of_materials
from topologies.fabric import Fabric
from topologies.prices import LINK_TIERS, PriceBook

#: What can be counted, in the order of a table.
ITEMS = ("switches", "optics", "dac", "fibre", "nics", "cabling", "spares")
ALL_TIERS = frozenset(LINK_TIERS)
HOURS_PER_YEAR = 8760.0


@dataclass(frozen=True)
class Accounting:
    """What is counted, and how.

    `optics_by` piece prices every transceiver at its own rate's price; module prices it as a share of a 400G one
    (a 200G end is half: one 400G module split over two ports), which makes savings independent of the price ratio.
    """

    items: frozenset[str] = frozenset(ITEMS)
    link_tiers: frozenset[str] = ALL_TIERS
    nic_optics: bool = True
    dac_tiers: frozenset[str] = DAC_TIERS
    optics_by: Literal["piece", "module"] = "piece"


#: The accountings behind the published figures (docs/cost.md), and `full`, which counts all that the book prices.
PRESETS: Mapping[str, Accounting] = MappingProxyType(
    {
        "full": Accounting(),
        "blog": Accounting(frozenset({"switches", "optics"}), ALL_TIERS, False, frozenset(), "module"),
        "paper": Accounting(frozenset({"switches", "optics", "dac", "fibre", "nics"})),
        "testbed": Accounting(frozenset({"optics"}), ALL_TIERS, True, frozenset(), "module"),
    }
)


@dataclass(frozen=True)
class CostLine:
    """One line: `quantity` parts of the price book's `part`, for what, at which unit price."""

    item: str
    part: str
    use: str
    quantity: float
    unit_usd: float
    assumed: bool
    power_w: float = 0.0

    @property
    def usd(self) -> float:
        """Quantity times unit price."""
        return self.quantity * self.unit_usd


@dataclass(frozen=True)
class FabricCost:
    """The priced fabric; power is that of the counted parts in operation, spares are on the shelf."""

    kind: str
    parameters: Mapping[str, object]
    gpus: int
    bom: BillOfMaterials
    accounting: Accounting
    book: PriceBook
    lines: tuple[CostLine, ...]

    @property
    def capex_usd(self) -> float:
        """Sum of all lines."""
        return sum(line.usd for line in self.lines)

    @property
    def capex_usd_per_gpu(self) -> float:
        """The same per GPU."""
        return self.capex_usd / self.gpus

    def item_usd(self, item: str) -> float:
        """Sum of the lines of one item."""
        return sum(line.usd for line in self.lines if line.item == item)

    @property
    def power_w(self) -> float:
        """IT power of the counted parts, W."""
        return sum(line.power_w for line in self.lines)

    @property
    def kwh_per_year(self) -> float:
        """Electricity at the meter: IT power * PUE * 8760 h."""
        return self.power_w * self.book.power.pue * HOURS_PER_YEAR / 1000

    @property
    def power_usd_per_year(self) -> float:
        """What that electricity costs."""
        return self.kwh_per_year * self.book.power.usd_per_kwh

    @cached_property
    def quantities(self) -> Mapping[str, float]:
        """How many of each priced part, spares included."""
        found: defaultdict[str, float] = defaultdict(float)
        for line in self.lines:
            found[line.part] += line.quantity
        return MappingProxyType(dict(found))


def cost_of(
    fabric: Fabric, book: PriceBook, accounting: Accounting = PRESETS["full"], switch_model: str | None = None
) -> FabricCost:
    """Price a fabric. `switch_model` takes one model for all switches instead of the smallest that holds each.

    Raises PriceError when the book lacks a part or the model is too small, FabricError for trunk bundles.
    """
    bom = bill_of_materials(fabric, accounting.dac_tiers).only(accounting.link_tiers)
    lines = [
        *_switch_lines(bom, book, switch_model),
        *(line for group in bom.cables for line in _cable_lines(group, book, accounting)),
        *_nic_lines(bom, book, accounting),
    ]
    lines = [line for line in lines if line.item in accounting.items]
    if "spares" in accounting.items:
        lines += _spare_lines(lines, book)
    return FabricCost(fabric.kind, dict(fabric.parameters), len(fabric.gpus), bom, accounting, book, tuple(lines))


def _line(book: PriceBook, item: str, part: str, use: str, quantity: float) -> CostLine:
    priced = book.priced[part]
    return CostLine(item, part, use, quantity, priced.price_usd, priced.assumption, quantity * priced.power_w)


def _switch_lines(bom: BillOfMaterials, book: PriceBook, model: str | None) -> list[CostLine]:
    return [
        _line(
            book,
            "switches",
            f"switches.{book.switch_for(group.gbps, group.ports, group.port_gbps, model)}",
            f"{group.tier}, {group.ports} ports, {group.gbps / 1000:g} Tb/s used",
            group.count,
        )
        for group in bom.switches
    ]


def _cable_lines(group: CableGroup, book: PriceBook, accounting: Accounting) -> list[CostLine]:
    """Only parts that are counted are looked up, so that a book need not price the others."""
    items = accounting.items
    rate = f"{group.tier}, {group.gbps:g}G"
    lines = []
    if group.copper and "dac" in items:
        lines.append(_line(book, "dac", f"dac.{book.dac_for(group.gbps)}", rate, group.count))
    if not group.copper and "fibre" in items:
        lines.append(_line(book, "fibre", f"fibre.{book.fibre_for(group.tier)}", rate, group.count))
    if not group.copper and "optics" in items:
        by_piece = accounting.optics_by == "piece"
        part = f"optics.{book.optic_for(group.gbps if by_piece else MODULE_GBPS)}"
        share = 1.0 if by_piece else group.gbps / MODULE_GBPS
        ends = [("switch side", group.switch_ends)]
        if accounting.nic_optics:
            ends.append(("NIC side", group.nic_ends))
        lines += [_line(book, "optics", part, f"{rate}, {side}", n * share) for side, n in ends if n]
    if "cabling" in items:
        work = group.count * (2 if book.cabling.per == "cable_end" else 1)
        lines.append(_line(book, "cabling", "cabling", f"{rate}, {book.cabling.per.replace('_', ' ')}s", work))
    return lines


def _nic_lines(bom: BillOfMaterials, book: PriceBook, accounting: Accounting) -> list[CostLine]:
    if "nics" not in accounting.items:
        return []
    return [
        _line(
            book,
            "nics",
            f"nics.{book.nic_for(group.ports, group.port_gbps)}",
            f"{group.ports} x {group.port_gbps:g}G",
            group.count,
        )
        for group in bom.nics
    ]


def _spare_lines(lines: list[CostLine], book: PriceBook) -> list[CostLine]:
    percent = {
        "switches": book.spares.switches_percent,
        "optics": book.spares.optics_percent,
        "dac": book.spares.cables_percent,
        "fibre": book.spares.cables_percent,
        "nics": book.spares.nics_percent,
    }
    installed: defaultdict[tuple[str, str], float] = defaultdict(float)
    for line in lines:
        if line.item in percent:
            installed[line.item, line.part] += line.quantity
    found = []
    for (item, part), quantity in installed.items():
        # Rounding guards against 2 % of 50 being 1.0000000000000002 parts.
        spare = math.ceil(round(quantity * percent[item] / 100, 9))
        if spare:
            found.append(replace(_line(book, "spares", part, f"{percent[item]:g} % of {item}", spare), power_w=0.0))
    return found


def saving(base: FabricCost, other: FabricCost) -> float | None:
    """Share by which `other` is cheaper per GPU than `base`; None when the base costs nothing."""
    return 1 - other.capex_usd_per_gpu / base.capex_usd_per_gpu if base.capex_usd else None


def _per_gpu(cost: FabricCost) -> dict[str, float]:
    return {part: quantity / cost.gpus for part, quantity in cost.quantities.items()}


def saving_range_by_section(base: FabricCost, other: FabricCost) -> tuple[float, float] | None:
    """Lowest and highest saving while the prices of one section of the book (switches, optics, ...) move together.

    All transceivers are then cheap at once or dear at once, as they are from one maker: this is the plausible range.
    Each section is at the same place of its parts' ranges; the extremes are at corners. None when undefined.
    """
    sums: list[dict[str, tuple[float, float]]] = []
    for quantities in (_per_gpu(other), _per_gpu(base)):
        found: defaultdict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        for part, n in quantities.items():
            section, priced = part.split(".")[0], base.book.priced[part]
            found[section] = (found[section][0] + n * priced.low_usd, found[section][1] + n * priced.high_usd)
        sums.append(found)
    sections = sorted({*sums[0], *sums[1]})
    ratios = []
    for corner in product((0, 1), repeat=len(sections)):
        paid = [sum(side[section][end] for section, end in zip(sections, corner, strict=True)) for side in sums]
        if paid[1] <= 0:
            return None
        ratios.append(paid[0] / paid[1])
    return 1 - max(ratios), 1 - min(ratios)


def saving_range(base: FabricCost, other: FabricCost) -> tuple[float, float] | None:
    """Lowest and highest saving while every price moves on its own within its range; None when undefined.

    The widest range: a 400G transceiver may be cheap while a 200G one is dear.

    The saving is 1 - a.p / b.p with prices p in a box. Such a ratio has its extremes at corners, and at the corner
    with the highest ratio a price is high exactly when a_i / b_i is above that ratio (Dinkelbach 1967,
    https://doi.org/10.1287/mnsc.13.7.492): sorted by a_i / b_i, n + 1 corners need a look, not 2 ** n.
    """
    a, b = _per_gpu(other), _per_gpu(base)
    parts = sorted({*a, *b}, key=lambda p: a.get(p, 0.0) / b[p] if b.get(p) else math.inf)
    prices = base.book.priced
    ratios = []
    for cut in range(len(parts) + 1):
        for first_low in (True, False):
            p = {
                part: prices[part].low_usd if (i < cut) is first_low else prices[part].high_usd
                for i, part in enumerate(parts)
            }
            denominator = sum(b.get(part, 0.0) * p[part] for part in parts)
            if denominator <= 0:
                return None
            ratios.append(sum(a.get(part, 0.0) * p[part] for part in parts) / denominator)
    return 1 - max(ratios), 1 - min(ratios)


@dataclass(frozen=True)
class Mover:
    """A price and the saving at the two ends of its range, all others at the book's price."""

    part: str
    assumed: bool
    low_usd: float
    high_usd: float
    saving_at_low: float
    saving_at_high: float

    @property
    def swing(self) -> float:
        """How far the saving moves."""
        return abs(self.saving_at_high - self.saving_at_low)


def movers(base: FabricCost, other: FabricCost) -> tuple[Mover, ...]:
    """Prices with a range that moves the saving, the strongest first."""
    a, b = _per_gpu(other), _per_gpu(base)
    prices = base.book.priced
    at_book = {part: prices[part].price_usd for part in {*a, *b}}

    def saved(part: str, usd: float) -> float:
        p = {**at_book, part: usd}
        paid = sum(n * p[k] for k, n in b.items())
        return 1 - sum(n * p[k] for k, n in a.items()) / paid if paid > 0 else 0.0

    found = [
        Mover(part, prices[part].assumption, low, high, saved(part, low), saved(part, high))
        for part in sorted(at_book)
        if (low := prices[part].low_usd) < (high := prices[part].high_usd)
    ]
    return tuple(sorted((m for m in found if m.swing > 1e-6), key=lambda m: -m.swing))
