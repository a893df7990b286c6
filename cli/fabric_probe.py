"""`zcube fabric probe`: sends packets over emulated switches and compares where they go with the plan."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli import options
from cli.app import out, print_json
from cli.run_state import why_no_controller
from controller.repair_log import listed
from controller.status_socket import NAME, ask
from results.reader import RunFolder
from scenario.errors import InputError, RunError
from scenario.fabric_spec import EXAMPLE, section_from_text
from topologies.build import build
from topologies.fabric import Fabric

DEFAULT = "zcube:gpus=32"


def register(verbs: typer.Typer) -> None:
    """Add the verb to `zcube fabric`."""
    verbs.command("probe")(probe)


def probe(
    source: Annotated[str, typer.Option("--from", help="GPU number or name")],
    destination: Annotated[str, typer.Option("--to", help="GPU number or name")],
    fabric_text: Annotated[
        str | None, typer.Argument(metavar="[FABRIC]", help=f"KIND[:name=value,...] {EXAMPLE}", show_default=DEFAULT)
    ] = None,
    live: Annotated[
        Path | None, typer.Option("--run", metavar="RUN", help="the fabric of a run that is going on, by its folder")
    ] = None,
    queue_pair: Annotated[int, typer.Option("--queue-pair", min=0, max=63, help="index of the queue pair")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="seed of the ECMP hash", show_default="1, or the run's")
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="tcp or udp", show_default="tcp, or the run's")] = None,
    source_port: Annotated[
        int | None, typer.Option(help="a flow nobody planned: this source port", show_default="the planned one")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=100, help="packets per port pair")] = 3,
    json: options.Json = False,
) -> None:
    """Send probe packets over emulated switches; planned and observed path, hop by hop. Needs root.

    Over a fabric that it brings up, or with --run over that of a live run, beside its traffic: no socket of the run
    gets these packets, and planned is then what the run has planned, failures and repairs included.

    Exit code 1 when they differ. Example: sudo .venv/bin/zcube fabric probe --from 1 --to 11 roft:gpus=32
    """
    from emulation.probe import Settings, run, run_live  # here: the other verbs need no sandbox

    ends = {"src_gpu": _gpu("--from", source), "dst_gpu": _gpu("--to", destination)}
    flow = {"queue_pair": queue_pair, "source_port": source_port, "count": count}
    if live is None:
        section = section_from_text(fabric_text or DEFAULT)
        _require_controller("fabric.switch", section.switch)
        chosen = {"seed": 1 if seed is None else seed, "protocol": protocol or "tcp"}
        result = run(section, Settings(fabric=section.wiring, **ends, **flow, **chosen))  # type: ignore[arg-type]
    else:
        for option, value in (("FABRIC", fabric_text), ("--seed", seed)):
            if value is not None:
                raise InputError(option, value, "is the run's: leave it out with --run")
        status = _ask(live)
        scenario = RunFolder(live).scenario()
        section = scenario.fabric
        own = "udp" if scenario.transport.kind == "udp" else "tcp"
        chosen = {"seed": scenario.seed, "protocol": protocol or own}
        settings = Settings(fabric=section.wiring, **ends, **flow, **chosen)  # type: ignore[arg-type]
        result = run_live(live, scenario, status["host_pid"], status["failures"], settings)
        if not result["equal"] and _ask(live)["failures"] != status["failures"]:
            raise RunError("paths were being repaired while the probes were under way; probe again")
    if json:
        print_json(result)
    else:
        fabric = build(section)
        if result.get("down"):
            out.print(f"down: {listed(result['down'])}", highlight=False)
        for one in result["probes"]:
            _print(fabric, one)
        for a, b in result.get("cut", ()):
            out.print(
                f"{ends['src_gpu']} port {a} to {ends['dst_gpu']} port {b}: no path is left by what is down, and none"
                " was probed",
                highlight=False,
            )
    raise typer.Exit(0 if result["equal"] else 1)


def _require_controller(field: str, switch: str) -> None:
    if switch != "ovs":
        raise InputError(field, switch, "is not probed: rules come from the controller", "fabric.switch: ovs")


def _ask(folder: Path) -> dict[str, Any]:
    """What the controller of a live run says, once all switches have its rules."""
    try:
        status = ask(folder / NAME)
    except (OSError, ValueError) as error:
        why = why_no_controller(folder, folder / NAME, error, "zcube fabric probe --from ... --to ... --run")
        raise InputError("--run", str(folder), *why) from None
    if status["state"] != "confirmed":
        raise InputError(
            "--run",
            str(folder),
            f"not all switches have their rules: its controller is {status['state']}",
            "wait a second",
        )
    return status


def _print(fabric: Fabric, one: dict[str, Any]) -> None:
    flow = one["five_tuple"]
    ends = f"{one['src_gpu']} port {one['src_port']} to {one['dst_gpu']} port {one['dst_port']}"
    what = f"queue pair {one['qp']}" if one["qp"] is not None else "a flow that nobody planned"
    sockets = f"{flow['src_ip']}:{flow['src_port']} > {flow['dst_ip']}:{flow['dst_port']}"
    protocol = "TCP" if flow["protocol"] == 6 else "UDP"
    out.print(Text.assemble((ends, "bold"), f", {what}: {protocol} {sockets}, {one['packets']} packets"))
    out.print(f"chosen by {one['chosen_by']}", highlight=False)
    table = Table("hop", "planned", "observed", "cable", "")
    planned = one["planned"]
    for hop, (wanted, seen) in enumerate(zip_longest(planned or (), one["observed"])):
        verdict = "" if planned is None else "equal" if wanted == seen else "DIFFERS"
        cable = fabric.link_at[seen["node"], seen["port"]].id if seen else ""
        table.add_row(str(hop), _end(wanted) if planned else "any equal one", _end(seen), cable, verdict)
    out.print(table)
    if one["problem"]:
        out.print(f"The packet {one['problem']}", highlight=False, style="bold red")


def _end(end: dict[str, Any] | None) -> str:
    return "-" if end is None else f"{end['node']} port {end['port']}"


def _gpu(option: str, text: str) -> str:
    name = text if text.startswith("gpu") else f"gpu{text}"
    if not name.removeprefix("gpu").isdecimal():
        raise InputError(option, text, "must be the number or the name of a GPU, like 11 or gpu11")
    return name
