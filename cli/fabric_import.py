"""`zcube fabric import`: how a topology file of another tool differs from a fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cli import options
from cli.app import out, print_json
from scenario.errors import InputError
from scenario.fabric_spec import fabric_from_text
from scenario.text_file import read_text
from topologies.compare import Comparison, LinkDifference, compare
from topologies.simai_file import SimaiFileError, SimaiTopology, parse_simai

#: Differing links shown without --json.
MOST_SHOWN = 10


def register(verbs: typer.Typer) -> None:
    """Add the verb to `zcube fabric`."""
    verbs.command("import")(import_)


def import_(
    file: Annotated[Path, typer.Argument(help="SimAI topology file")],
    against: Annotated[str, typer.Option(help="the fabric to compare with: KIND[:name=value,...] or a scenario file")],
    json: options.Json = False,
) -> None:
    """Compare a SimAI topology file with a fabric, up to the names of switches.

    Exit status 0: equal. 1: different. 2: a file that cannot be read.

    Example: [bold]zcube fabric import zcube.topo --against zcube:gpus=32,gpus_per_switch=8[/]
    """
    fabric = fabric_from_text(against)
    report = compare(fabric, _read(file))
    if json:
        print_json(report.to_json())
    else:
        _show(report, file, against)
    if not report.equal:
        raise typer.Exit(1)


def _read(file: Path) -> SimaiTopology:
    text = read_text(file, "FILE", "a SimAI topology", "docs/exports.md shows the format")
    try:
        return parse_simai(text)
    except SimaiFileError as error:
        raise InputError(f"{file}, line {error.line}", error.found, f"expected {error.expected}") from error


def _show(report: Comparison, file: Path, against: str) -> None:
    verdict = "equal up to the names of switches" if report.equal else "DIFFERENT"
    out.print(f"{file} and {against}: {verdict}", highlight=False, markup=False, soft_wrap=True)
    for finding in report.findings:
        out.print(f"  - {finding}", highlight=False, markup=False, soft_wrap=True)
    counts = Table("count", "fabric", "file", title_justify="left")
    for row in report.counts:
        same = row.fabric == row.file
        counts.add_row(row.what, str(row.fabric), str(row.file), style="" if same else "bold")
    out.print(counts)
    tiers = Table("tier", "switches", "GPUs a switch", "Gb/s to GPUs", "Gb/s to switches", title="fabric / file")
    for tier in report.tiers:
        tiers.add_row(
            tier.tier,
            f"{tier.fabric_switches} / {tier.file_switches}",
            f"{tier.fabric_gpus} / {tier.file_gpus}",
            f"{tier.fabric_gpu_gbps} / {tier.file_gpu_gbps}",
            f"{tier.fabric_switch_gbps} / {tier.file_switch_gbps}",
        )
    out.print(tiers)
    _show_links("missing in the file", report.missing)
    _show_links("extra in the file", report.extra)
    for note in report.notes:
        out.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


def _show_links(what: str, links: tuple[LinkDifference, ...]) -> None:
    if not links:
        return
    out.print(f"{what}: {len(links)} pairs of nodes", highlight=False, markup=False, soft_wrap=True)
    for link in links[:MOST_SHOWN]:
        rates = f"{link.fabric_gbps:g} Gb/s in the fabric, {link.file_gbps:g} in the file"
        out.print(f"  {link.a} - {link.b}: {rates}", highlight=False, markup=False, soft_wrap=True)
    if len(links) > MOST_SHOWN:
        out.print(
            f"  ... and {len(links) - MOST_SHOWN} more (all with --json)", highlight=False, markup=False, soft_wrap=True
        )
