"""`zcube fabric failures | deadlock | collisions`: what a fabric does when parts fail, lock or are shared."""

from __future__ import annotations

import csv
import io
import random
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from rich.table import Table

from cli import options
from cli.app import out, print_json
from cli.fabric_options import DEFAULT, Detour, Down, FabricText, Policy, gpu_name, heading, line
from scenario.errors import InputError
from scenario.fabric_spec import fabric_from_text
from scenario.text_file import read_text
from topologies.collisions import PATTERNS, collisions
from topologies.deadlock import FAMILIES, dependencies
from topologies.fabric import Fabric
from topologies.impact import Impact, affected_pairs, impact, no_switch_failed
from topologies.paths import POLICIES, check_policy, default_policy
from topologies.routes import Failures

#: Up to so many transfers each one's share is listed; --json lists all of the first draw.
_LIST_TRANSFERS = 32


def register(verbs: typer.Typer) -> None:
    """Add the verbs to `zcube fabric`."""
    verbs.command()(failures)
    verbs.command()(deadlock)
    verbs.command("collisions")(collide)


def failures(
    down: Annotated[list[str], typer.Option("--down", help="a switch or a cable; may be repeated")],
    fabric_text: FabricText = DEFAULT,
    detour: Detour = False,
    list_pairs: Annotated[bool, typer.Option("--pairs", help="list the GPU pairs that lost something")] = False,
    switch_failure_rate: Annotated[float, typer.Option(min=0, max=1, help="for P(no switch failed)")] = 0.0003,
    json: options.Json = False,
) -> None:
    """What is left when cables or switches fail: GPU pairs that lost a port, pairs cut off, bandwidth per GPU."""
    fabric = fabric_from_text(fabric_text)
    failed = Failures.of(fabric, down)
    found = impact(fabric, failed, detour=detour)
    listed = list(affected_pairs(fabric, failed, detour=detour)) if list_pairs else []
    alive = no_switch_failed(fabric, switch_failure_rate)
    if json:
        print_json(
            {
                "down": sorted(failed.links | failed.switches),
                "detour": detour,
                "pairs": found.pairs,
                "whole": found.whole,
                "lost_port": found.lost_port,
                "cut_off": found.cut_off,
                "intra_server": found.intra_server,
                "gpus": [{"gpu": g.gpu, "nic_gbps": g.nic_gbps, "mean_gbps": g.mean_gbps} for g in found.gpus],
                "affected": [{"src": a, "dst": b, "lanes_left": left} for a, b, left in listed],
                "no_switch_failed": alive,
            }
        )
        return
    heading(fabric)
    line("down", ", ".join(sorted(failed.links | failed.switches)))
    _print_impact(fabric, found)
    for a, b, left in listed:
        out.print(f"{a} > {b}: {left} of {found.lanes_per_pair} lanes left", highlight=False)
    line(
        "P(no switch failed)",
        f"{100 * alive:.1f} % if each of {len(fabric.switches)} fails with {100 * switch_failure_rate:g} % by itself",
    )


def deadlock(
    fabric_text: FabricText = DEFAULT,
    policy: Annotated[str | None, typer.Option(help=", ".join(FAMILIES), show_default="all of them")] = None,
    down: Down = None,
    json: options.Json = False,
) -> None:
    """Whether a policy's paths can deadlock a lossless network (RoCE with PFC): cycles of channel dependencies.

    any_port: every port of the source with every port of the destination; detour: what is left after --down at any
    length. Exit code 1 when the policy that was asked for has a cycle.
    """
    fabric = fabric_from_text(fabric_text)
    failed = Failures.of(fabric, down or [])
    allowed = [f for f in FAMILIES if f not in POLICIES or f != "unique" or default_policy(fabric.kind) == "unique"]
    if policy is not None and policy not in allowed:
        raise InputError("--policy", policy, f"{fabric.kind} has {', '.join(allowed)}")
    # Without failures there is no detour: its row would only repeat the policy's own.
    listed = [policy] if policy else [each for each in allowed if each != "detour" or failed]
    found = [dependencies(fabric, each, failed) for each in listed]
    if json:
        print_json(
            [
                {
                    "policy": one.policy,
                    "deadlock_free": one.deadlock_free,
                    "cycle": one.cycle,
                    "channels": one.channels,
                    "longest_path_switches": one.longest_path_switches,
                }
                for one in found
            ]
        )
    else:
        heading(fabric)
        table = Table("policy", "longest path", "cycle of channel dependencies")
        for one in found:
            cycle = "none: free of deadlock" if one.deadlock_free else " > ".join(one.cycle)
            table.add_row(one.policy, f"{one.longest_path_switches} switches", cycle)
        out.print(table)
    if policy and not found[0].deadlock_free:
        raise typer.Exit(1)


def collide(
    fabric_text: FabricText = DEFAULT,
    pattern: Annotated[str, typer.Option(help=", ".join(PATTERNS))] = "cross-rail",
    policy: Policy = None,
    queue_pairs_each: Annotated[int, typer.Option("--queue-pairs", min=1, max=16, help="per port pair")] = 1,
    striping: Annotated[Literal["adaptive", "static"], typer.Option(help="over a GPU's ports")] = "adaptive",
    transfers: Annotated[
        Path | None, typer.Option(help="CSV with columns src,dst (GPU numbers or names) instead of a pattern")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="patterns and hashes drawn")] = 10,
    json: options.Json = False,
) -> None:
    """Flows per cable and max-min share of each transfer of a pattern, without traffic."""
    fabric = fabric_from_text(fabric_text)
    if pattern not in PATTERNS:
        raise InputError("--pattern", pattern, f"must be one of {', '.join(PATTERNS)}")
    fixed = _transfers(fabric, transfers) if transfers else None
    pattern = str(transfers) if transfers else pattern
    found = [
        collisions(
            fabric,
            fixed or PATTERNS[pattern](fabric, random.Random(seed)),
            queue_pairs_per_port_pair=queue_pairs_each,
            policy=policy,
            striping=striping,
            seed=seed,
        )
        for seed in range(seeds)
    ]
    mean = float(np.mean([one.mean_percent for one in found]))
    p1 = float(np.mean([one.p1_percent for one in found]))
    busiest = [max(one.links, key=lambda link: link.flows * found[0].nic_gbps / link.capacity_gbps) for one in found]
    if json:
        print_json(
            {
                "pattern": pattern,
                "policy": check_policy(fabric, policy),
                "queue_pairs": queue_pairs_each,
                "striping": striping,
                "seeds": seeds,
                "transfers": len(found[0].pairs),
                "mean_percent": mean,
                "p1_percent": p1,
                "transfers_percent": [
                    {"src": a, "dst": b, "percent": float(share)}
                    for (a, b), share in zip(found[0].pairs, found[0].shares_percent, strict=True)
                ],
                "per_seed": [{"mean_percent": one.mean_percent, "p1_percent": one.p1_percent} for one in found],
                "busiest": [
                    {"link": link.link, "node": link.end.node, "port": link.end.port, "flows": link.flows}
                    for link in busiest
                ],
            }
        )
        return
    heading(fabric)
    line("pattern", f"{pattern}: {len(found[0].pairs)} transfers, {seeds} draws, {striping} striping")
    spread = [one.mean_percent for one in found]
    line(
        "share of the NIC",
        f"mean {mean:.1f} % (draws {min(spread):.1f} to {max(spread):.1f}), first percentile {p1:.1f} %",
    )
    if len(found[0].pairs) <= _LIST_TRANSFERS:
        table = Table("transfer", "Gb/s", "of the NIC", title="first draw")
        for (a, b), rate, share in zip(found[0].pairs, found[0].rates_gbps, found[0].shares_percent, strict=True):
            table.add_row(f"{a} > {b}", f"{rate:.1f}", f"{share:.1f} %")
        out.print(table)
    worst = max(busiest, key=lambda link: link.flows)
    line("most flows on a cable", f"{worst.flows:g} on {worst.link} leaving {worst.end.node}")


def _transfers(fabric: Fabric, file: Path) -> list[tuple[str, str]]:
    """The transfers of a CSV file. Raises InputError."""
    hint = "a CSV file that begins with the line src,dst"
    text = read_text(file, "--transfers", "a list of transfers", hint)
    reader = csv.DictReader(io.StringIO(text))
    try:
        if not {"src", "dst"} <= set(reader.fieldnames or []):
            raise InputError("--transfers", str(file), "needs a first line with the columns src,dst", hint)
        pairs = [
            (
                gpu_name(fabric, f"--transfers line {n} src", row["src"] or ""),
                gpu_name(fabric, f"--transfers line {n} dst", row["dst"] or ""),
            )
            for n, row in enumerate(reader, 2)
        ]
    except csv.Error as error:
        raise InputError("--transfers", str(file), f"is not CSV: {error}", hint) from None
    if not pairs:
        raise InputError("--transfers", str(file), "holds no transfer")
    for n, (src, dst) in enumerate(pairs, 2):
        if src == dst:
            raise InputError(f"--transfers line {n}", src, "sends to itself")
    return pairs


def _print_impact(fabric: Fabric, found: Impact) -> None:
    def part(count: int) -> str:
        return f"{count:,} ({100 * count / found.pairs:.2f} %)"

    table = Table("ordered GPU pairs", "count")
    table.add_row("whole", part(found.whole))
    if found.lanes_per_pair > 1:
        table.add_row("lost a port pair, still joined", part(found.lost_port))
    table.add_row("cut off", part(found.cut_off))
    if found.intra_server:
        table.add_row("same server: NVLink only", part(found.intra_server))
    out.print(table)
    full = sum(port.gbps for port in fabric.gpus[0].ports)
    left = Counter(gpu.nic_gbps for gpu in found.gpus)
    line(
        "NIC bandwidth left",
        ", ".join(f"{gbps:g} Gb/s on {count:,} GPUs" for gbps, count in sorted(left.items())) + f" (of {full:g})",
    )
    worst = min(found.gpus, key=lambda gpu: gpu.mean_gbps)
    mean = sum(gpu.mean_gbps for gpu in found.gpus) / len(found.gpus)
    line("to an average other GPU", f"mean {mean:.1f} Gb/s, least {worst.mean_gbps:.1f} Gb/s from {worst.gpu}")
