"""`zcube controller`: the SDN controller alone, for stock Mininet or your own switches; the state of a running one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cli import options
from cli.app import out, print_json
from cli.run_state import why_no_controller
from controller.launch import DEFAULT_HOST, DEFAULT_PORT
from controller.repair_log import listed
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
        raise InputError("--topo", "", "says which fabric to serve", "for example: zcube controller --topo zcube,32,8")
    module = [sys.executable, "-m", "controller.launch"]
    os.execv(sys.executable, [*module, "--topo", topo, "--listen", listen, "--port", str(port)])  # noqa: S606


#: Column of the table -> field of the JSON.
_COLUMNS = {
    "rules wanted": "rules_wanted",
    "present": "rules_present",
    "kept": "rules_kept",
    "sent": "rules_sent",
    "foreign": "foreign",
    "groups wanted": "groups_wanted",
    "groups present": "groups_present",
    "connections": "connections",
}


@verbs.command()
def status(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run that is going on")],
    json: options.Json = False,
) -> None:
    """What the controller of a live run says: switches, rules and groups, failures, repairs.

    wanted: what a switch should have now, repair rules included (rules_wanted in --json); present: what of it the
    switch has confirmed (rules_present); kept and sent: when it connected, rules that were there and right, and rules
    that were sent (rules_kept, rules_sent); foreign: somebody else's, left alone. host_pid is the controller's process
    on this machine (pid: in the run's own namespace).

    Example: sudo .venv/bin/zcube controller status runs/first/coding-agent/zcube
    """
    try:
        found = ask(run_folder / NAME)
    except (OSError, ValueError) as error:
        reason, hint = why_no_controller(run_folder, run_folder / NAME, error, "zcube controller status")
        raise InputError("RUN", str(run_folder), reason, hint) from None
    if json:
        print_json(found)
        return
    if found["state"] == "starting":
        out.print(
            f"starting: process {found['host_pid']} has not loaded yet; switches forward by the rules that they have",
            highlight=False,
        )
        return
    out.print(
        f"{found['sdn']}, process {found['host_pid']}: {found['state']}, {found['confirmed']} of {found['expected']}"
        f" switches; down: {listed(found['failures']) or 'nothing'}",
        highlight=False,
    )
    table = Table("switch", "state", *_COLUMNS)
    for name, one in found["switches"].items():
        cells = (one[field] for field in _COLUMNS.values())
        table.add_row(name, one["state"], *(str(len(cell) if isinstance(cell, list) else cell) for cell in cells))
    out.print(table)
    for repair in found["repairs"][-5:]:
        changes = repair["changes"]
        out.print(
            f"repair: {changes} {'change' if changes == 1 else 'changes'}, last barrier after"
            f" {repair['last_barrier_ms']:.0f} ms; down then: {listed(repair['down']) or 'nothing'}"
            + (f"; NOT CONFIRMED by {listed(repair['unanswered'])}" if repair["unanswered"] else ""),
            highlight=False,
        )
