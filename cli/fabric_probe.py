"""`zcube fabric probe`: sends packets over emulated switches and compares where they go with the plan."""

from __future__ import annotations

from itertools import zip_longest
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli import options
from cli.app import out, print_json
from scenario.errors import InputError
from scenario.fabric_spec import EXAMPLE, section_from_text
from topologies.build import build
from topologies.fabric import Fabric


def register(verbs: typer.Typer) -> None:
    """Add the verb to `zcube fabric`."""
    verbs.command("probe")(probe)


def probe(
    source: Annotated[str, typer.Option("--from", help="GPU number or name")],
    destination: Annotated[str, typer.Option("--to", help="GPU number or name")],
    fabric_text: Annotated[
        str, typer.Argument(metavar="FABRIC", help=f"KIND[:name=value,...] {EXAMPLE}")
    ] = "zcube:gpus=32",
    queue_pair: Annotated[int, typer.Option("--queue-pair", min=0, max=15, help="index of the queue pair")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="seed of the ECMP hash")] = 1,
    protocol: Annotated[str, typer.Option(help="tcp or udp")] = "tcp",
    source_port: Annotated[
        int | None, typer.Option(help="a flow nobody planned: this source port", show_default="the planned one")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=100, help="packets per port pair")] = 3,
    json: options.Json = False,
) -> None:
    """Send probe packets over emulated switches; planned and observed path, hop by hop. Needs root.

    Exit code 1 when they differ. Example: sudo .venv/bin/zcube fabric probe --from 1 --to 11 roft:gpus=32
    """
    from emulation.probe import Settings, run  # here: the other verbs need no sandbox

    section = section_from_text(fabric_text)
    settings = Settings(
        fabric=section.model_dump(),
        src_gpu=_gpu("--from", source),
        dst_gpu=_gpu("--to", destination),
        queue_pair=queue_pair,
        seed=seed,
        protocol=protocol,  # type: ignore[arg-type]  # checked there
        source_port=source_port,
        count=count,
    )
    result = run(section, settings)
    if json:
        print_json(result)
    else:
        fabric = build(section)
        for one in result["probes"]:
            _print(fabric, one)
    raise typer.Exit(0 if result["equal"] else 1)


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
