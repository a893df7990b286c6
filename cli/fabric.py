"""`zcube fabric`: the wiring and the paths of a fabric, without running anything."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from cli import options
from cli.app import out
from scenario.errors import InputError
from scenario.load import check_scenario
from scenario.models import Scenario
from topologies.build import build
from topologies.fabric import Fabric
from topologies.paths import path, queue_pairs

verbs = typer.Typer(no_args_is_help=True, help="Wiring and paths. Example: .venv/bin/zcube fabric show --kind roft")

Kind = Annotated[str, typer.Option(help="zcube or roft")]
Count = Annotated[int, typer.Option("--gpus", help="number of GPUs")]
PerServer = Annotated[int, typer.Option(help="GPUs per server")]
Ports = Annotated[int, typer.Option(help="R: ports of NIC speed per switch ASIC")]
Bundle = Annotated[str, typer.Option(help="zcube: destination, hashed or trunk")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.add_typer(verbs, name="fabric")


def _scenario(kind: str, gpus: int, gpus_per_server: int, asic_ports: int, bundle: str) -> Scenario:
    return check_scenario(
        {
            "fabric": {
                "kind": kind,
                "gpus": gpus,
                "gpus_per_server": gpus_per_server,
                "asic_ports": asic_ports,
                "bundle": bundle,
            }
        }
    )


@verbs.command()
def show(
    kind: Kind = "zcube",
    gpus: Count = 32,
    gpus_per_server: PerServer = 4,
    asic_ports: Ports = 8,
    bundle: Bundle = "destination",
    json: options.Json = False,
) -> None:
    """Switches and cables; --json prints fabric.json."""
    fabric = build(_scenario(kind, gpus, gpus_per_server, asic_ports, bundle).fabric)
    if json:
        out.print_json(data=fabric.to_json())
        return
    out.print(f"[bold]{fabric.kind}[/] " + ", ".join(f"{k} {v}" for k, v in fabric.parameters.items()))
    table = Table("switch", "tier", "ports", "GPUs", "other switches")
    for switch in fabric.switches:
        far = [fabric.far_end(switch.name, port.number).node for port in switch.ports]
        gpus_here = [name for name in far if name in fabric.gpu_by_name]
        others = dict.fromkeys(name for name in far if name in fabric.switch_by_name)
        table.add_row(
            switch.name,
            switch.tier,
            f"{len(switch.ports)} x {'/'.join(f'{g:g}' for g in sorted({p.gbps for p in switch.ports}))} Gb/s",
            ", ".join(name.removeprefix("gpu") for name in gpus_here),
            ", ".join(f"{name} x{far.count(name)}" for name in others),
        )
    out.print(table)


@verbs.command()
def paths(
    source: Annotated[str, typer.Option("--from", help="GPU number or name")],
    destination: Annotated[str, typer.Option("--to", help="GPU number or name")],
    kind: Kind = "zcube",
    gpus: Count = 32,
    gpus_per_server: PerServer = 4,
    asic_ports: Ports = 8,
    bundle: Bundle = "destination",
    seed: Annotated[int, typer.Option(help="seed of the ECMP hash")] = 1,
    json: options.Json = False,
) -> None:
    """Every path of a handoff between two GPUs, with the ports it leaves by."""
    fabric = build(_scenario(kind, gpus, gpus_per_server, asic_ports, bundle).fabric)
    src, dst = _gpu(fabric, "--from", source), _gpu(fabric, "--to", destination)
    found = [(qp, path(fabric, qp, seed)) for qp in queue_pairs(fabric, src, dst)]
    if json:
        out.print_json(
            data=[{"src_port": qp.src.port, "dst_port": qp.dst.port, "links": way.links} for qp, way in found]
        )
        return
    for qp, way in found:
        hops = " > ".join(f"{end.node} port {end.port}" for end in way.egress)
        out.print(f"{hops} > {dst} port {qp.dst.port}   ({len(way.switches)} switches)", highlight=False)


def _gpu(fabric: Fabric, option: str, text: str) -> str:
    name = text if text.startswith("gpu") else f"gpu{text}"
    if name not in fabric.gpu_by_name:
        raise InputError(option, text, f"must be one of gpu1 to gpu{len(fabric.gpus)}")
    return name
