"""`zcube controller`: the SDN controller alone, for stock Mininet or switches of your own."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from controller.launch import DEFAULT_HOST, DEFAULT_PORT


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "controller",
        help="Start the SDN controller alone; it installs the paths on every switch that connects.\n\n"
        "Example: .venv/bin/zcube controller --topo zcube,32,8    and, in a second terminal,\n\n"
        "sudo mn --custom topologies/mn.py --topo zcube,32,8 --controller remote --switch ovs,datapath=user",
    )(controller)


def controller(
    topo: Annotated[str, typer.Option(help="as for mn: zcube,GPUS,GPUS_PER_SWITCH or roft,GPUS,ASIC_PORTS")],
    listen: Annotated[str, typer.Option(help="address to listen on")] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(min=1, max=65535, help="OpenFlow port")] = DEFAULT_PORT,
) -> None:
    """Serve until a signal comes, in a fresh process: Mininet, which other verbs need, replaces Python's loggers."""
    module = [sys.executable, "-m", "controller.launch"]
    os.execv(sys.executable, [*module, "--topo", topo, "--listen", listen, "--port", str(port)])  # noqa: S606
