"""`zcube controller`: the SDN controller alone, for stock Mininet or your own switches; the state of a running one."""

from __future__ import annotations

import json as json_text
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from cli import options
from cli.app import out, print_json
from controller.launch import DEFAULT_HOST, DEFAULT_PORT
from controller.status_socket import NAME, ask
from scenario.errors import InputError

verbs = typer.Typer(
    invoke_without_command=True,
    help="Start the SDN controller alone; it installs the paths on every switch that connects.\n\n"
    "Example: .venv/bin/zcube controller --topo zcube,32,8    and, in a second terminal,\n\n"
    "sudo mn --custom topologies/mn.py --topo zcube,32,8 --controller remote --switch ovs,datapath=user",
)


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.add_typer(verbs, name="controller")


@verbs.callback()
def controller(
    context: typer.Context,
    topo: Annotated[
        str | None, typer.Option(help="as for mn: zcube,GPUS,GPUS_PER_SWITCH or roft,GPUS,ASIC_PORTS")
    ] = None,
    listen: Annotated[str, typer.Option(help="address to listen on")] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(min=1, max=65535, help="OpenFlow port")] = DEFAULT_PORT,
) -> None:
    """Serve until a signal comes, in a fresh process: Mininet, which other verbs need, replaces Python's loggers."""
    if context.invoked_subcommand is not None:
        return
    if topo is None:
        raise InputError("--topo", None, "is required", "for example: zcube controller --topo zcube,32,8")
    module = [sys.executable, "-m", "controller.launch"]
    os.execv(sys.executable, [*module, "--topo", topo, "--listen", listen, "--port", str(port)])  # noqa: S606


@verbs.command()
def status(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run that is going on")],
    json: options.Json = False,
) -> None:
    """What the controller of a live run says: switches, rules wanted and present, failures, repairs.

    Example: sudo .venv/bin/zcube controller status runs/first/coding-agent/zcube
    """
    try:
        found: dict[str, Any] = json_text.loads(ask(run_folder / NAME))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "the run must be going on, and its owner (root) asks: sudo zcube controller status RUN"
        raise InputError("RUN", str(run_folder), f"no controller answers at {NAME}: {reason}", hint) from None
    if json:
        print_json(found)
        return
    out.print(
        f"{found['sdn']}: {found['state']}, {found['confirmed']} of {found['expected']} switches;"
        f" down: {', '.join(found['failures']) or 'nothing'}",
        highlight=False,
    )
    table = Table("switch", "state", "rules wanted", "kept", "sent", "foreign", "connections")
    for name, one in found["switches"].items():
        cells = (one["rules_sent"], one["rules_kept"], one["rules_added"], len(one["foreign"]), one["connections"])
        table.add_row(name, one["state"], *map(str, cells))
    out.print(table)
    for repair in found["repairs"][-5:]:
        out.print(
            f"repair: {repair['changes']} changes, last barrier after {repair['last_barrier_ms']} ms;"
            f" down then: {', '.join(repair['down']) or 'nothing'}",
            highlight=False,
        )
