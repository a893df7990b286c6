"""What is wrong in a scenario from the start, and what breaks while it serves."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from scenario.section import Section


def _listed(value: object) -> object:
    """One name is a list of one."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of names such as [odd1], or one name")
    return value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class FaultEvent(Section):
    """Cables and switches that go down or come back at one moment; a switch is all its cables."""

    at_s: float = Field(ge=0, le=1e6, description="model seconds from the start of serving")
    down: Names = Field((), description="names of cables and switches (`zcube fabric show`)")
    up: Names = Field((), description="the same, to come back")

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not (self.down or self.up):
            raise ValueError("an event needs names in down, in up, or in both")
        return self


class SwapFault(Section):
    """Two plugs exchanged."""

    kind: Literal["swap"] = "swap"
    a: str = Field(description="interface that holds one of the plugs, such as odd1-eth9")
    b: str = Field(description="interface that holds the other")


class WrongPortFault(Section):
    """One plug in another port."""

    kind: Literal["wrong_port"] = "wrong_port"
    cable: str = Field(description="cable id, such as odd1-eth9--even2-eth9, or the interface whose plug moves")
    to: str = Field(description="interface without a cable: one of a missing cable, or one past a switch's last")


class MissingFault(Section):
    """A cable that was not laid."""

    kind: Literal["missing"] = "missing"
    cable: str = Field(description="cable id, or the interface at either of its ends")


Miscable = Annotated[SwapFault | WrongPortFault | MissingFault, Field(discriminator="kind")]


class SlowCable(Section):
    """A cable that carries less than it should, both ways: a bad transceiver, a port that negotiated a lower rate."""

    cable: str = Field(description="cable id, such as odd1-eth9--even2-eth9, or the interface at either of its ends")
    share: float = Field(gt=0.001, lt=1, description="of its rate that is left")


class FaultsSection(Section):
    """What is wrong from the start, and what breaks while serving."""

    events: tuple[FaultEvent, ...] = Field((), max_length=1000, description="in any order")
    miscable: tuple[Miscable, ...] = Field(
        (), description="cables plugged otherwise than planned, one after another: a run must find them, and not start"
    )
    slow: tuple[SlowCable, ...] = Field(
        (), max_length=1000, description="cables that are slow while serving, after the check of all links"
    )
