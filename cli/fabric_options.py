"""What the verbs of `zcube fabric` share: their arguments, and how a fabric is headed."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from cli.app import out
from scenario.errors import InputError
from scenario.fabric_spec import EXAMPLE
from topologies.fabric import Fabric
from topologies.paths import POLICIES

FabricText = Annotated[str, typer.Argument(metavar="FABRIC", help=f"KIND[:name=value,...] {EXAMPLE}")]
Policy = Annotated[str | None, typer.Option(help=f"{', '.join(POLICIES)}", show_default="the kind's own")]
Down = Annotated[list[str] | None, typer.Option("--down", help="a switch or cable that failed; may be repeated")]
Detour = Annotated[bool, typer.Option(help="with failures, paths may get longer")]
Seed = Annotated[int, typer.Option(help="seed of the ECMP hash and of random patterns")]
DEFAULT = "zcube:gpus=32"


def heading(fabric: Fabric) -> None:
    """Kind, parameters and oversubscription."""
    shown = {name: value for name, value in fabric.parameters.items() if name != "oversubscription"}
    ratio = float(str(fabric.parameters.get("oversubscription", 1.0)))
    rest = ", 1:1" if ratio == 1 else f", oversubscribed {ratio:.3g}:1" if ratio > 1 else f", {1 / ratio:.3g} x more up"
    parameters = ", ".join(f"{name} {value}" for name, value in shown.items())
    out.print(Text.assemble((fabric.kind, "bold"), f" {parameters}{rest}"))


def line(name: str, text: str) -> None:
    """A name in bold and what there is to say of it."""
    out.print(Text.assemble((name, "bold"), f": {text}"))


def gpu_name(fabric: Fabric, option: str, text: str) -> str:
    """The GPU that a number or a name means. Raises InputError."""
    name = text if text.startswith("gpu") else f"gpu{text}"
    if name not in fabric.gpu_by_name:
        raise InputError(option, text, f"must be one of gpu1 to gpu{len(fabric.gpus)}")
    return name
