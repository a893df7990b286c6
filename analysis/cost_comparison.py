"""Costs of fabrics side by side, as data: parts, lines, totals, savings against the first, and what is left out.

The renderers (`analysis.cost_console`, `CostComparison.to_json`) add nothing of their own to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.formats import percent
from results.writer import plain
from topologies.bom import whole_server_tiers
from topologies.cost import ITEMS, FabricCost, cost_of, movers, saving, saving_range, saving_range_by_section
from topologies.fabric import Fabric

_TIER_TEXT = {
    "access": "access (GPU to switch)",
    "inter": "inter (between ZCube's groups)",
    "uplink": "uplink (leaf to spine)",
    "core": "core (spine to core)",
}
#: Switches that GPUs hang on and that a server's rack may hold.
_FIRST_HOP = frozenset({"even", "leaf"})
_ITEM_TEXT = {
    "switches": "switches",
    "optics": "transceivers",
    "dac": "copper cables",
    "fibre": "fibre cables",
    "nics": "NICs",
    "cabling": "labour of cabling",
    "spares": "spare parts",
}
_NEVER_COUNTED = (
    "GPUs, servers, racks, patch panels, cable trays, management and storage networks",
    "breakout parts: a 200G end is a 200G transceiver (or half a 400G one), whatever port of the switch it is on",
    "software, licences, support, the controller; moving a running cluster to another wiring, and its downtime",
    "discounts, tax, freight, finance",
    "a floor plan: the length class of a cable follows from its tier, not from where racks stand",
)


@dataclass(frozen=True)
class Row:
    """One part in one use over the fabrics; quantity and dollars of each."""

    item: str
    part: str
    use: str
    unit_usd: float
    assumed: bool
    quantities: tuple[float, ...]

    def usd(self, index: int) -> float:
        """Quantity times unit price."""
        return self.quantities[index] * self.unit_usd


@dataclass(frozen=True)
class Physical:
    """A count without a price."""

    name: str
    unit: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class CostComparison:
    """One or more priced fabrics; everything is compared with the first."""

    labels: tuple[str, ...]
    costs: tuple[FabricCost, ...]
    fabrics: tuple[Fabric, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Short names for sentences: the kinds where those differ, else the labels."""
        kinds = tuple(cost.kind for cost in self.costs)
        return kinds if len(set(kinds)) == len(kinds) else self.labels

    @property
    def rows(self) -> tuple[Row, ...]:
        """Lines by item and part; of one fabric alone by tier too."""
        found: dict[tuple[str, str, str], Row] = {}
        for index, cost in enumerate(self.costs):
            for line in cost.lines:
                key = (line.item, line.part, line.use if len(self.costs) == 1 else _short_use(line.item, line.use))
                row = found.get(key) or Row(*key, line.unit_usd, line.assumed, (0.0,) * len(self.costs))
                quantities = tuple(q + line.quantity * (i == index) for i, q in enumerate(row.quantities))
                found[key] = Row(*key, line.unit_usd, line.assumed, quantities)
        return tuple(sorted(found.values(), key=lambda row: ITEMS.index(row.item)))

    @property
    def physical(self) -> tuple[Physical, ...]:
        """Counts on the graph, in the counted link tiers, whatever is priced."""
        boms = [cost.bom for cost in self.costs]
        rows: list[tuple[str, str, list[float]]] = [
            ("switches", "", [bom.switch_count for bom in boms]),
            ("cables", "", [bom.cable_count() for bom in boms]),
            ("of copper", "", [bom.cable_count(copper=True) for bom in boms]),
            ("of fibre", "", [bom.cable_count(copper=False) for bom in boms]),
            ("cable bandwidth", "Tb/s", [bom.cable_gbps / 1000 for bom in boms]),
            ("transceivers, all ends", "pieces", [bom.optics() for bom in boms]),
            ("transceivers, all ends", "400G modules", [bom.modules() for bom in boms]),
            ("transceivers, switch side", "pieces", [bom.optics(nic_side=False) for bom in boms]),
            ("transceivers, switch side", "400G modules", [bom.modules(nic_side=False) for bom in boms]),
        ]
        return tuple(Physical(name, unit, tuple(float(v) for v in values)) for name, unit, values in rows)

    def headline(self) -> tuple[str, ...]:
        """The savings in sentences, with their range and what moves them."""
        base, names, lines = self.costs[0], self.names, []
        for name, cost in zip(names[1:], self.costs[1:], strict=True):
            saved, span, free = saving(base, cost), saving_range_by_section(base, cost), saving_range(base, cost)
            if saved is None:
                lines.append(f"{name}: no saving can be stated, {names[0]} costs nothing under this accounting.")
                continue
            more = "less" if saved >= 0 else "more"
            text = f"{name} costs {percent(abs(saved))} {more} per GPU than {names[0]} at the book's prices"
            if free is not None and free[1] - free[0] < 1e-9:
                text += ", and at every other price in its ranges"
            elif span is not None and free is not None:
                text += (
                    f". Saving over the book's ranges: {percent(span[0])} to {percent(span[1])} while parts of one "
                    f"sort are cheap or dear together; {percent(free[0])} to {percent(free[1])} if each part were on "
                    "its own"
                )
            lines.append(f"{text}.")
            if moved := movers(base, cost)[:3]:
                parts = "; ".join(
                    f"{m.part}{' (assumed)' if m.assumed else ''} at {m.low_usd:,.0f} to {m.high_usd:,.0f} USD: "
                    f"{percent(m.saving_at_low)} to {percent(m.saving_at_high)}"
                    for m in moved
                )
                lines.append(f"Saving moved most by {parts}.")
        lines += self._copper_choices()
        for name, cost in zip(names, self.costs, strict=True):
            if cost.capex_usd:
                share = sum(line.usd for line in cost.lines if line.assumed) / cost.capex_usd
                lines.append(f"{name}: {percent(share)} of the CapEx rests on prices that are assumptions.")
        return tuple(lines)

    def _copper_choices(self) -> list[str]:
        """The saving under other choices of copper: which cables are short enough is a property of the room, and the
        default (ZCube's contiguous port alone, as the paper counts) is in ZCube's favour."""
        accounting = self.costs[0].accounting
        if not {"optics", "dac"} & accounting.items:
            return []
        found = []
        for name, fabric, cost in list(zip(self.names, self.fabrics, self.costs, strict=True))[1:]:
            texts = []
            for what, tiers in (("no copper at all", frozenset[str]()), ("copper at every leaf too", _FIRST_HOP)):
                choice = replace(accounting, dac_tiers=tiers)
                base, other = (cost_of(f, cost.book, choice) for f in (self.fabrics[0], fabric))
                if (value := saving(base, other)) is not None:
                    texts.append(f"with {what} {percent(value)}")
            if texts:
                found.append(f"Saving of {name} {', '.join(texts)} (`zcube cabling plan` says which cables 3 m reach).")
        return found

    def warnings(self) -> tuple[str, ...]:
        """In what the fabrics are not alike; empty when all is well."""
        found = []
        gpus = {cost.gpus for cost in self.costs}
        if len(gpus) > 1:
            found.append(f"NOT LIKE FOR LIKE: numbers of GPUs differ ({_listed(gpus)}); savings are per GPU.")
        nics = {sum(port.gbps for port in fabric.gpus[0].ports) for fabric in self.fabrics}
        if len(nics) > 1:
            found.append(f"NOT LIKE FOR LIKE: NIC bandwidth per GPU differs ({_listed(nics)} Gb/s).")
        over = {str(_rounded(fabric.parameters.get("oversubscription", 1))) for fabric in self.fabrics}
        if len(over) > 1:
            found.append(f"NOT LIKE FOR LIKE: oversubscription differs ({', '.join(sorted(over))} to 1).")
        models = [{line.part for line in cost.lines if line.item == "switches"} for cost in self.costs]
        if len({frozenset(m) for m in models}) > 1:
            names = sorted(name.removeprefix("switches.") for name in set().union(*models))
            found.append(
                f"Switch models differ ({', '.join(names)}): part of the saving is the models', not the wiring's."
            )
        return tuple(found)

    def not_counted(self) -> tuple[str, ...]:
        """What these figures leave out, by choice or always."""
        accounting = self.costs[0].accounting
        found = [f"left out by choice: {_ITEM_TEXT[item]}" for item in ITEMS if item not in accounting.items]
        tiers = {link.tier for fabric in self.fabrics for link in fabric.links}
        found += [f"left out by choice: cables of tier {_TIER_TEXT[t]}" for t in sorted(tiers - accounting.link_tiers)]
        if "optics" in accounting.items and not accounting.nic_optics:
            found.append("left out by choice: transceivers in NICs")
        found += self._copper()
        return (*found, *_NEVER_COUNTED)

    def _copper(self) -> list[str]:
        dac, found = self.costs[0].accounting.dac_tiers, []
        for label, fabric in zip(self.names, self.fabrics, strict=True):
            tiers = {switch.tier for switch in fabric.switches}
            for tier in sorted(tiers & dac):
                first = next(switch for switch in fabric.switches if switch.tier == tier)
                ends = [fabric.far_end(first.name, port.number).node for port in first.ports]
                servers = {fabric.gpu_by_name[node].server for node in ends if node in fabric.gpu_by_name}
                if servers:
                    found.append(
                        f"whether copper of 3 m reaches: {label} takes it for granted for the {len(servers)} servers "
                        f"of each {tier} switch (--dac none counts fibre there)"
                    )
            found += [
                f"copper at the {tier} switches of {label}, although each holds whole servers (--dac {tier} counts it)"
                for tier in sorted(whole_server_tiers(fabric) - dac)
            ]
        return found

    def to_json(self) -> dict[str, Any]:
        """In JSON's own types, for `zcube cost --json`."""
        base = self.costs[0]
        accounting = base.accounting
        found: dict[str, Any] = plain(
            {
                "schema_version": 1,
                "accounting": {
                    "items": sorted(accounting.items, key=ITEMS.index),
                    "link_tiers": sorted(accounting.link_tiers),
                    "nic_optics": accounting.nic_optics,
                    "dac_tiers": sorted(accounting.dac_tiers),
                    "optics_by": accounting.optics_by,
                },
                "fabrics": [
                    {
                        "fabric": label,
                        "kind": cost.kind,
                        "parameters": cost.parameters,
                        "gpus": cost.gpus,
                        "counts": [
                            {"name": row.name, "unit": row.unit, "value": row.values[index]} for row in self.physical
                        ],
                        "lines": [
                            {
                                "item": line.item,
                                "part": line.part,
                                "use": line.use,
                                "quantity": line.quantity,
                                "unit_usd": line.unit_usd,
                                "assumed": line.assumed,
                                "usd": line.usd,
                                "power_w": line.power_w,
                            }
                            for line in cost.lines
                        ],
                        "items_usd": {item: cost.item_usd(item) for item in ITEMS if item in accounting.items},
                        "capex_usd": cost.capex_usd,
                        "capex_usd_per_gpu": cost.capex_usd_per_gpu,
                        "power_w": cost.power_w,
                        "kwh_per_year": cost.kwh_per_year,
                        "power_usd_per_year": cost.power_usd_per_year,
                        "saving": saving(base, cost) if index else None,
                        "saving_range_by_section": saving_range_by_section(base, cost) if index else None,
                        "saving_range": saving_range(base, cost) if index else None,
                        "movers": [
                            {
                                "part": m.part,
                                "assumed": m.assumed,
                                "low_usd": m.low_usd,
                                "high_usd": m.high_usd,
                                "saving_at_low": m.saving_at_low,
                                "saving_at_high": m.saving_at_high,
                            }
                            for m in movers(base, cost)
                        ]
                        if index
                        else [],
                    }
                    for index, (label, cost) in enumerate(zip(self.labels, self.costs, strict=True))
                ],
                "warnings": self.warnings(),
                "not_counted": self.not_counted(),
            }
        )
        return found


def unique_labels(texts: Sequence[str]) -> tuple[str, ...]:
    """The texts, with #2, #3 behind those that were there before."""
    return tuple(
        text if text not in texts[:index] else f"{text} #{texts[:index].count(text) + 1}"
        for index, text in enumerate(texts)
    )


def _short_use(item: str, use: str) -> str:
    return use.rsplit(", ", 1)[1] if item == "optics" else ""


def _rounded(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value


def _listed(values: set[float] | set[int]) -> str:
    return ", ".join(f"{value:,g}" for value in sorted(values))
