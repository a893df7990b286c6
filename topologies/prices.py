"""The price book: what parts cost, draw and hold, and where each figure comes from.

No unit price list was published with ZCube (SIGCOMM'25, https://doi.org/10.1145/3718958.3750503 section 4.1 names the
switch models and the shops, not the prices), so a price is either sourced (`source` and `date`) or says that it is
assumed (`assumption: true` and `reason`). Both may carry `range_usd`, the span over which results are also computed.
All money is US dollars, all rates Gb/s per direction.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

#: The only link tiers that a fabric has (`topologies.fabric.Link.tier`); each needs a class of fibre.
LINK_TIERS = ("access", "inter", "uplink", "core")

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,47}$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=500, strip_whitespace=True)]
Usd = Annotated[float, Field(ge=0, le=1e9)]
Watt = Annotated[float, Field(ge=0, le=1e6)]
Percent = Annotated[float, Field(ge=0, le=100)]
Gbps = Annotated[float, Field(gt=0, le=1e6)]


class PriceError(ValueError):
    """A price book that cannot be used, or lacks a part. `parameter`, `value`, `allowed` say why and what would fit."""

    def __init__(self, parameter: str, value: object, allowed: str) -> None:
        self.parameter, self.value, self.allowed = parameter, value, allowed
        super().__init__(f"{parameter} = {value}: {allowed}")


class Sourced(BaseModel):
    """Figures with their origin: a source and its date, or an assumption and its reason."""

    # strict: `true` is not 1 dollar; NaN and infinity are no price.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    source: Text | None = Field(None, description="where the price was read")
    date: str | None = Field(None, pattern=r"^\d{4}(-\d{2}){0,2}$", description="when: YYYY, YYYY-MM or YYYY-MM-DD")
    assumption: bool = Field(False, description="true: nobody published it")
    reason: Text | None = Field(None, description="why the assumed figure is plausible")

    @field_validator("date", mode="before")
    @classmethod
    def _date_as_text(cls, value: object) -> object:
        if isinstance(value, datetime.date):  # YAML reads 2026-09-15 as a date, 2026 as a number
            return value.isoformat()[:10]
        return str(value) if type(value) is int else value

    @model_validator(mode="after")
    def _origin_is_stated(self) -> Sourced:
        if self.assumption and not self.reason:
            raise ValueError("an assumption needs a reason")
        if self.assumption and self.date:
            raise ValueError("an assumption has no date; name what it rests on in reason or source")
        if not self.assumption and not (self.source and self.date):
            raise ValueError("needs source and date, or assumption: true and a reason")
        return self


class Priced(Sourced):
    """A part with a unit price and, when known, the span that the price may lie in."""

    price_usd: Usd
    range_usd: list[Usd] | None = Field(None, min_length=2, max_length=2, description="lowest and highest plausible")
    power_w: Watt = Field(0.0, description="drawn by one part")

    @model_validator(mode="after")
    def _price_in_range(self) -> Priced:
        if not self.low_usd <= self.price_usd <= self.high_usd:
            raise ValueError(f"range_usd = {self.range_usd} does not hold price_usd = {self.price_usd:g}")
        return self

    @property
    def low_usd(self) -> float:
        """Lower end of the span; the price itself when no range is given."""
        return self.range_usd[0] if self.range_usd else self.price_usd

    @property
    def high_usd(self) -> float:
        """Upper end of the span."""
        return self.range_usd[1] if self.range_usd else self.price_usd


class SwitchPrice(Priced):
    """A switch model. Optics are not in its price nor in its power."""

    capacity_gbps: Gbps = Field(description="sum of port rates in one direction: 25600 for a 25.6T ASIC")
    max_ports: int | None = Field(None, ge=1, le=4096, description="ports after breakout; not given: no limit known")
    max_port_gbps: Gbps | None = Field(None, description="fastest port; not given: no limit known")

    def holds(self, gbps: float, ports: int, port_gbps: float) -> bool:
        """Whether `ports` ports that sum to `gbps`, the fastest of `port_gbps`, fit on this model."""
        return (
            gbps <= self.capacity_gbps * (1 + 1e-9)
            and (self.max_ports is None or ports <= self.max_ports)
            and (self.max_port_gbps is None or port_gbps <= self.max_port_gbps)
        )


class OpticPrice(Priced):
    """A transceiver for one end of a fibre."""

    gbps: Gbps


class DacPrice(Priced):
    """A passive copper cable with its two ends."""

    gbps: Gbps
    max_length_m: Annotated[float, Field(gt=0, le=100)]


class FibrePrice(Priced):
    """A patch cable of one length class, both connectors, no transceivers; one per port-rate cable."""

    length_m: Annotated[float, Field(gt=0, le=10_000)]


class NicPrice(Priced):
    """A NIC by its ports; one a GPU."""

    ports: Annotated[int, Field(ge=1, le=16)]
    port_gbps: Gbps


class CablingPrice(Priced):
    """Labour: pulling, plugging, labelling and testing."""

    per: Literal["cable_end", "cable"] = "cable_end"


class FibreOfTier(BaseModel):
    """Which class of fibre the cables of a link tier are."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    access: Name
    inter: Name
    uplink: Name
    core: Name


class Spares(Sourced):
    """Parts bought on top, in percent of those installed; whole parts, rounded up per part."""

    switches_percent: Percent
    optics_percent: Percent
    cables_percent: Percent
    nics_percent: Percent


class Power(Sourced):
    """What electricity costs; PUE is facility power over IT power."""

    usd_per_kwh: Annotated[float, Field(ge=0, le=100)]
    pue: Annotated[float, Field(ge=1, le=10)]


class Operation(Sourced):
    """What the cost of a token needs besides the network: see `analysis.token_cost`."""

    gpu_usd_per_hour: Usd
    amortisation_years: Annotated[float, Field(gt=0, le=50)]
    labour_usd_per_switch_year: Usd
    failure_percent_of_hardware_per_year: Percent


class PriceBook(BaseModel):
    """All prices that a cost is made of. Names of parts are free; every part is found by its properties."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    schema_version: Literal[1] = 1
    switches: dict[Name, SwitchPrice] = Field(min_length=1, max_length=500)
    optics: dict[Name, OpticPrice] = Field(min_length=1, max_length=500)
    dac: dict[Name, DacPrice] = Field(max_length=500)
    fibre: dict[Name, FibrePrice] = Field(min_length=1, max_length=500)
    fibre_of_tier: FibreOfTier
    nics: dict[Name, NicPrice] = Field(max_length=500)
    cabling: CablingPrice
    spares: Spares
    power: Power
    operation: Operation

    @model_validator(mode="after")
    def _parts_are_found_in_one_way(self) -> PriceBook:
        _unambiguous("optics", ((name, (part.gbps,)) for name, part in self.optics.items()))
        _unambiguous("dac", ((name, (part.gbps,)) for name, part in self.dac.items()))
        _unambiguous("nics", ((name, (part.ports, part.port_gbps)) for name, part in self.nics.items()))
        for tier in LINK_TIERS:
            name = getattr(self.fibre_of_tier, tier)
            if name not in self.fibre:
                raise ValueError(f"fibre_of_tier.{tier} = {name}: must be one of {', '.join(self.fibre)}")
        return self

    @cached_property
    def priced(self) -> Mapping[str, Priced]:
        """Everything with a unit price, by its path in the file: "switches.N9550-64D"."""
        sections: dict[str, Mapping[str, Priced]] = {
            "switches": self.switches,
            "optics": self.optics,
            "dac": self.dac,
            "fibre": self.fibre,
            "nics": self.nics,
        }
        found = {f"{section}.{name}": part for section, parts in sections.items() for name, part in parts.items()}
        return {**found, "cabling": self.cabling}

    def switch_for(self, gbps: float, ports: int, port_gbps: float, model: str | None = None) -> str:
        """Name of the smallest model (the cheaper of two) that holds such a switch, or of the one asked for.

        Raises PriceError when there is none, or the one asked for is too small.
        """
        needs = f"{ports} ports of up to {port_gbps:g} Gb/s, {gbps:g} Gb/s in all"
        if model is not None:
            if model not in self.switches:
                raise PriceError("switches", model, f"is not in the price book; known: {', '.join(self.switches)}")
            if not self.switches[model].holds(gbps, ports, port_gbps):
                raise PriceError("switches", model, f"is too small for a switch with {needs}")
            return model
        fits = [name for name, part in self.switches.items() if part.holds(gbps, ports, port_gbps)]
        if not fits:
            largest = max(self.switches, key=lambda name: self.switches[name].capacity_gbps)
            raise PriceError(
                "switches",
                needs,
                f"no model in the price book holds such a switch; the largest is {largest} with "
                f"{self.switches[largest].capacity_gbps:g} Gb/s: add a model",
            )
        return min(fits, key=lambda name: (self.switches[name].capacity_gbps, self.switches[name].price_usd, name))

    def optic_for(self, gbps: float) -> str:
        """Name of the transceiver of this rate. Raises PriceError."""
        return _only("optics", {name: part.gbps for name, part in self.optics.items()}, gbps, f"{gbps:g} Gb/s")

    def dac_for(self, gbps: float) -> str:
        """Name of the copper cable of this rate. Raises PriceError."""
        return _only("dac", {name: part.gbps for name, part in self.dac.items()}, gbps, f"{gbps:g} Gb/s")

    def nic_for(self, ports: int, port_gbps: float) -> str:
        """Name of the NIC with these ports. Raises PriceError."""
        known = {name: (part.ports, part.port_gbps) for name, part in self.nics.items()}
        return _only("nics", known, (ports, port_gbps), f"{ports} x {port_gbps:g} Gb/s")

    def fibre_for(self, tier: str) -> str:
        """Name of the fibre class of a link tier. Raises PriceError."""
        if tier not in LINK_TIERS:
            raise PriceError("fibre_of_tier", tier, f"no class of fibre for this link tier; known: {LINK_TIERS}")
        return str(getattr(self.fibre_of_tier, tier))


def _unambiguous(section: str, parts: Iterable[tuple[str, object]]) -> None:
    seen: dict[object, str] = {}
    for name, properties in parts:
        if properties in seen:
            raise ValueError(f"{section}.{name}: is the same part as {section}.{seen[properties]}; keep one")
        seen[properties] = name


def _only(section: str, known: Mapping[str, object], wanted: object, shown: str) -> str:
    for name, properties in known.items():
        if properties == wanted:
            return name
    raise PriceError(section, shown, f"is not in the price book; it has {', '.join(known) or 'none'}: add a part")


def check_prices(data: Mapping[Any, Any]) -> PriceBook:
    """Price book from plain data. Raises PriceError naming the first thing that is wrong."""
    try:
        return PriceBook.model_validate(dict(data))
    except ValidationError as error:
        # A misspelt key is both unknown and missing; the first of these says what to do.
        first = min(error.errors(include_url=False), key=lambda e: e["type"] not in ("extra_forbidden", "invalid_key"))
        path = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = "unknown key"
        value = first.get("input")
        shown = "(a section)" if isinstance(value, (Mapping, list)) else value
        if first["type"] == "missing":
            shown = "(nothing)"
        raise PriceError(path or "prices", shown, message[:1].lower() + message[1:]) from None


def default_prices_text() -> str:
    """The price book that comes with the testbed, as the YAML text of prices.yaml."""
    return resources.files("topologies").joinpath("prices.yaml").read_text(encoding="utf-8")
