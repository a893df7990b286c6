"""`zcube fabric draw` and `zcube fabric export`: a fabric as a picture, and in the formats of other tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from cli.app import err, out
from cli.outputs import write_file, write_folder
from controller.ovs_scripts import all_rules_script, bridges_script, remove_script, rules_script
from controller.rules import rules
from scenario.errors import InputError
from scenario.fabric_spec import fabric_from_text
from topologies import drawing
from topologies.drawing_svg import svg
from topologies.export_containerlab import containerlab, interface
from topologies.export_dot import dot
from topologies.export_graphml import graphml
from topologies.export_htsim import (
    HtsimSettings,
    connection_matrix,
    fat_tree_topo,
    generic_topology,
    nodes_table,
    too_many_ports,
)
from topologies.export_simai import GPU_TYPES, SimaiSettings, rates_without_ecn, simai
from topologies.fabric import Fabric, FabricError
from topologies.htsim_shape import NotAFatTree, fat_tree
from topologies.paths import path, queue_pairs

FORMATS = ("dot", "graphml", "containerlab", "simai", "htsim")
FABRIC_HELP = "KIND[:name=value,...], e.g. zcube:gpus=32,gpus_per_switch=8, or a scenario file"

FabricText = Annotated[str, typer.Argument(metavar="FABRIC", help=FABRIC_HELP)]
Force = Annotated[bool, typer.Option("--force", help="replace files that exist")]
SIMAI, HTSIM, BOTH, CLAB = "simai", "htsim", "simai and htsim", "containerlab"


@dataclass(frozen=True)
class Export:
    """What a format makes: one text or several files by name, and what the reader should know about it."""

    files: str | Mapping[str, str]
    notes: tuple[str, ...] = ()


def register(verbs: typer.Typer) -> None:
    """Add the verbs to `zcube fabric`."""
    verbs.command()(draw)
    verbs.command()(export)


def draw(
    fabric: FabricText,
    to: Annotated[Path, typer.Option("--out", help="FILE.svg, or FILE.dot for Graphviz")],
    highlight: Annotated[list[str], typer.Option(help="a GPU pair such as 1-11: its paths in colour")] = [],  # noqa: B006
    seed: Annotated[int, typer.Option(help="seed of the ECMP hash, for --highlight")] = 1,
    detail: Annotated[str, typer.Option(help=f"{', '.join(drawing.DETAILS)}: a box a GPU, or a box a server")] = "auto",
    theme: Annotated[str, typer.Option(help="auto (as the browser), light or dark")] = "auto",
    force: Force = False,
) -> None:
    """Draw a fabric as SVG or DOT.

    Example: [bold]zcube fabric draw zcube:gpus=32,gpus_per_switch=8 --highlight 1-11 --out zcube.svg[/]
    """
    wired = fabric_from_text(fabric)
    suffix = to.suffix.lower()
    if suffix not in (".svg", ".dot", ".gv"):
        raise InputError("--out", str(to), "must end in .svg or .dot")
    if suffix == ".svg":
        ways = [found for pair in highlight for found in _paths(wired, pair, seed)]
        text = _checked(lambda: svg(drawing.draw(wired, ways, detail), theme))
    elif highlight:
        raise InputError("--highlight", ", ".join(highlight), "only in an SVG drawing")
    else:
        text = dot(wired)
    write_file(to, text, force=force)
    out.print(f"{to}: {_size(wired)}", highlight=False, markup=False, soft_wrap=True)


def export(
    fabric: FabricText,
    format_: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))],
    to: Annotated[
        Path | None,
        typer.Option("--out", help="file; folder for containerlab, htsim", show_default="standard output"),
    ] = None,
    force: Force = False,
    gpu_type: Annotated[str | None, typer.Option(help=f"{', '.join(GPU_TYPES)} [H100]", rich_help_panel=SIMAI)] = None,
    nvlink_gbps: Annotated[
        float | None, typer.Option(help="per GPU and direction [2880]", rich_help_panel=SIMAI)
    ] = None,
    nvlink_latency_us: Annotated[float | None, typer.Option(help="of one link [0.025]", rich_help_panel=SIMAI)] = None,
    error_rate: Annotated[float | None, typer.Option(help="lost packets per packet [0]", rich_help_panel=SIMAI)] = None,
    parallel: Annotated[
        str | None,
        typer.Option(help="parallel cables: merged into one link, or cables [merged]", rich_help_panel=SIMAI),
    ] = None,
    link_latency_us: Annotated[float | None, typer.Option(help="of one cable [0.5]", rich_help_panel=BOTH)] = None,
    pattern: Annotated[
        str | None, typer.Option(help="permutation, split or all_to_all [permutation]", rich_help_panel=HTSIM)
    ] = None,
    flow_bytes: Annotated[int | None, typer.Option(help="GPU to GPU [2000000]", rich_help_panel=HTSIM)] = None,
    seed: Annotated[int | None, typer.Option(help="of the permutation [1]", rich_help_panel=HTSIM)] = None,
    switch_latency_us: Annotated[float | None, typer.Option(help="of one switch [0]", rich_help_panel=HTSIM)] = None,
    queue_bytes: Annotated[
        int | None, typer.Option(help="a port, .generic only [1000000]", rich_help_panel=HTSIM)
    ] = None,
    name: Annotated[str | None, typer.Option(help="of the lab [the fabric's kind]", rich_help_panel=CLAB)] = None,
    image: Annotated[str | None, typer.Option(help="of a GPU's container [alpine:3]", rich_help_panel=CLAB)] = None,
) -> None:
    """Write a fabric in the format of another tool (docs/exports.md).

    Example: [bold]zcube fabric export zcube:gpus=32,gpus_per_switch=8 --format simai --out zcube.topo[/]
    """
    wired = fabric_from_text(fabric)
    given: dict[str, dict[str, object]] = {
        "simai": {
            "gpu_type": gpu_type,
            "nvlink_gbps": nvlink_gbps,
            "nvlink_latency_us": nvlink_latency_us,
            "error_rate": error_rate,
            "parallel": parallel,
            "link_latency_us": link_latency_us,
        },
        "htsim": {
            "pattern": pattern,
            "flow_bytes": flow_bytes,
            "seed": seed,
            "switch_latency_us": switch_latency_us,
            "queue_bytes": queue_bytes,
            "link_latency_us": link_latency_us,
        },
        "containerlab": {"name": name, "image": image},
    }
    makers: dict[str, Callable[..., Export]] = {
        "dot": lambda fabric: Export(dot(fabric)),
        "graphml": lambda fabric: Export(graphml(fabric)),
        "simai": _simai,
        "htsim": _htsim,
        "containerlab": _containerlab,
    }
    if format_ not in makers:
        raise InputError("--format", format_, f"must be one of {', '.join(FORMATS)}")
    settings = _settings(given, format_)
    made = _checked(lambda: makers[format_](wired, **settings))
    _deliver(wired, made, to, force)


def _settings(given: Mapping[str, Mapping[str, object]], format_: str) -> dict[str, object]:
    """The options that were given. Raises InputError for one that the format has no use for."""
    mine = given.get(format_, {})
    for other, options in given.items():
        for option, value in options.items():
            if value is not None and option not in mine:
                raise InputError(f"--{option.replace('_', '-')}", value, f"is for --format {other} only")
    return {option: value for option, value in mine.items() if value is not None}


def _deliver(fabric: Fabric, made: Export, to: Path | None, force: bool) -> None:
    """To the file, folder or standard output; notes to where they do not mix with the export."""
    if to is None or str(to) == "-":
        if not isinstance(made.files, str):
            raise InputError("--out", str(to or ""), "this format is several files: name a new folder")
        out.file.write(made.files)
        for note in made.notes:
            err.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
        return
    if isinstance(made.files, str):
        write_file(to, made.files, force=force)
    else:
        write_folder(to, made.files, force=force)
        shown = [name for name in made.files if "/" not in name]
        if more := len(made.files) - len(shown):
            shown.append(f"rules/ ({more} files)")
        out.print(f"{to}/: {', '.join(shown)}", highlight=False, markup=False, soft_wrap=True)
    out.print(f"{to}: {_size(fabric)}", highlight=False, markup=False, soft_wrap=True)
    for note in made.notes:
        out.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


def _simai(fabric: Fabric, **options: object) -> Export:
    settings = SimaiSettings(**options)  # type: ignore[arg-type]
    notes = []
    if odd := rates_without_ecn(fabric, settings.parallel):
        rates = ", ".join(f"{rate:g}" for rate in odd)
        notes.append(
            f"SimAI.conf as shipped has no ECN thresholds for {rates} Gb/s: add to KMAX_MAP, KMIN_MAP, PMAX_MAP"
        )
    if settings.parallel == "cables" and any(len(ports) > 1 for ports in fabric.parallel_ports.values()):
        notes.append("SimAI's ns-3 front end uses only the last of several parallel links")
    if settings.gpu_type not in GPU_TYPES:
        notes.append(f"SimAI's ns-3 front end knows {', '.join(GPU_TYPES)}, not {settings.gpu_type}")
    return Export(simai(fabric, settings), tuple(notes))


def _htsim(fabric: Fabric, **options: object) -> Export:
    settings = HtsimSettings(**options)  # type: ignore[arg-type]
    files = {
        "fabric.cm": connection_matrix(fabric, settings),
        "fabric.generic": generic_topology(fabric, settings),
        "nodes.csv": nodes_table(fabric),
    }
    try:
        tree = fat_tree(fabric)
    except NotAFatTree as why:
        return Export(files, (f"no fabric.topo: htsim's .topo describes fat trees only, and {why}",))
    files["fabric.topo"] = fat_tree_topo(tree, settings)
    limit = too_many_ports(tree)
    return Export(files, (limit,) if limit else ())


def _containerlab(fabric: Fabric, name: str | None = None, image: str = "alpine:3") -> Export:
    ruleset = rules(fabric, seed=1)
    files = {
        "fabric.clab.yml": containerlab(fabric, name or fabric.kind.replace("_", "-"), image),
        "1-bridges.sh": bridges_script(fabric),
        "2-rules.sh": all_rules_script(fabric),
        "3-remove.sh": remove_script(fabric),
    }
    for switch in fabric.switches:
        files[f"rules/{switch.name}.sh"] = rules_script(fabric, ruleset, switch.name, interface)
    return Export(files)


def _paths(fabric: Fabric, pair: str, seed: int) -> list[drawing.Path]:
    """The paths of `1-11` or `gpu1-gpu11`."""
    numbers = re.fullmatch(r"(?:gpu)?([0-9]{1,6})-(?:gpu)?([0-9]{1,6})", pair)
    count = len(fabric.gpus)
    if numbers is None or not all(1 <= int(number) <= count for number in numbers.groups()):
        raise InputError("--highlight", pair, f"two GPUs of 1 to {count}, such as 1-{min(11, count)}")
    src, dst = (f"gpu{int(number)}" for number in numbers.groups())
    if src == dst:
        raise InputError("--highlight", pair, "two GPUs that differ")
    found = []
    for qp in queue_pairs(fabric, src, dst):
        way = _checked(lambda qp=qp: path(fabric, qp, seed))  # type: ignore[misc]
        hops = " > ".join(way.switches)
        label = f"{qp.src.node} port {qp.src.port} > {hops} > {dst} port {qp.dst.port}"
        found.append(drawing.Path(label, way.links))
    if not found:
        raise InputError("--highlight", pair, "these GPUs share a server and reach each other by NVLink only")
    return found


def _size(fabric: Fabric) -> str:
    return f"{len(fabric.gpus)} GPUs, {len(fabric.switches)} switches, {len(fabric.links)} cables"


T = TypeVar("T")


def _checked(make: Callable[[], T]) -> T:
    """A setting's FabricError as one that names the option."""
    try:
        return make()
    except FabricError as error:
        raise InputError(f"--{error.parameter.replace('_', '-')}", error.value, error.allowed) from error
