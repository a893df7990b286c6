"""`zcube fabric`: wiring, paths, failures, deadlock and collisions of a fabric, without running anything."""

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

from cli import fabric_export, fabric_import, fabric_probe, options
from cli.app import out, print_json
from scenario.errors import InputError
from scenario.fabric_spec import COMMON, EXAMPLE, fabric_from_text
from scenario.text_file import read_text
from topologies.build import READS
from topologies.collisions import PATTERNS, collisions
from topologies.deadlock import FAMILIES, dependencies
from topologies.fabric import Fabric
from topologies.impact import Impact, affected_pairs, impact, no_switch_failed, path_lengths
from topologies.paths import (
    POLICIES,
    check_policy,
    default_policy,
    path,
    queue_pairs,
    sender,
    shares,
    shortest_port_pairs,
)
from topologies.routes import Failures
from topologies.tables import Tables

verbs = typer.Typer(
    no_args_is_help=True,
    help="Wiring, paths, failures, exports: without running anything.\n\n"
    "Example: .venv/bin/zcube fabric paths --from 1 --to 11\n\n"
    f"FABRIC is KIND[:name=value,...] {EXAMPLE}.",
)

#: Above so many GPUs path lengths are counted from some of them.
_ALL_SOURCES = 4096
#: Up to so many transfers each one's share is listed; --json lists all of the first draw.
_LIST_TRANSFERS = 32
#: Above so many switches the table is by tier.
_LIST_SWITCHES = 48

FabricText = Annotated[str, typer.Argument(metavar="FABRIC", help=f"KIND[:name=value,...] {EXAMPLE}")]
Policy = Annotated[str | None, typer.Option(help=f"{', '.join(POLICIES)}", show_default="the kind's own")]
Down = Annotated[list[str] | None, typer.Option("--down", help="a switch or cable that failed; may be repeated")]
Detour = Annotated[bool, typer.Option(help="with failures, paths may get longer")]
Seed = Annotated[int, typer.Option(help="seed of the ECMP hash and of random patterns")]
DEFAULT = "zcube:gpus=32"


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    fabric_export.register(verbs)
    fabric_import.register(verbs)
    fabric_probe.register(verbs)
    app.add_typer(verbs, name="fabric")


@verbs.command()
def kinds(json: options.Json = False) -> None:
    """The kinds of fabric and the parameters that each takes."""
    found = {kind: [*COMMON, *sorted(reads)] for kind, reads in READS.items()}
    if json:
        print_json(found)
        return
    table = Table("kind", "parameters")
    for kind, names in found.items():
        table.add_row(kind, ", ".join(names))
    out.print(table)
    out.print(f"A fabric is {EXAMPLE}. `zcube schema` describes every parameter.", highlight=False)


@verbs.command()
def show(fabric_text: FabricText = DEFAULT, json: options.Json = False) -> None:
    """Switches, cables, path lengths and the size of the routing tables; --json prints fabric.json."""
    fabric = fabric_from_text(fabric_text)
    if json:
        print_json(fabric.to_json())
        return
    _heading(fabric)
    out.print(_switch_table(fabric) if len(fabric.switches) <= _LIST_SWITCHES else _tier_table(fabric))
    cables = Counter((link.tier, link.gbps) for link in fabric.links)
    _line("cables", ", ".join(f"{count:,} {tier} of {gbps:g} Gb/s" for (tier, gbps), count in cables.items()))
    # An odd step, so that the sources are of all ranks and groups.
    every = 1 if len(fabric.gpus) <= _ALL_SOURCES else len(fabric.gpus) // _ALL_SOURCES * 8 + 1
    lengths = path_lengths(fabric, every)
    total = sum(lengths.pairs.values())
    _line(
        "switches on a path",
        ", ".join(f"{many} for {100 * count / total:.1f} %" for many, count in sorted(lengths.pairs.items()))
        + f" of {total:,} ordered GPU pairs{f' (sources: one GPU in {every})' if every > 1 else ''};"
        f" longest {lengths.longest_switches}",
    )
    if lengths.longer:
        own = default_policy(fabric.kind)
        _line(
            "longer than shortest",
            f"{100 * lengths.longer / total:.1f} % of pairs share a switch; the {own} policy takes them over two all"
            " the same, so that both ports are used (--policy shortest does not)",
        )
    _line("average shortest path", f"{lengths.average_links:.5f} cables, the two to the GPUs counted")
    tables = Tables(fabric).switch_tables()
    most = max(tables, key=lambda table: table.hosts + table.prefixes)
    _line(
        "next hops",
        f"{sum(t.hosts for t in tables):,} GPU ports and {sum(t.destinations for t in tables):,} remote /24s on all"
        f" switches, joined to {sum(t.prefixes for t in tables):,} prefixes; most on {most.switch}: {most.hosts} +"
        f" {most.prefixes}",
    )


@verbs.command()
def routes(
    switch: Annotated[str, typer.Argument(help="name of a switch")],
    fabric_text: FabricText = DEFAULT,
    policy: Policy = None,
    down: Down = None,
    detour: Detour = False,
    json: options.Json = False,
) -> None:
    """The routing table of a switch: prefixes, joined where next hops are equal, and their ports.

    Example: .venv/bin/zcube fabric routes leaf1 roft:gpus=32
    """
    fabric = fabric_from_text(fabric_text)
    if switch not in fabric.switch_by_name:
        names = list(fabric.switch_by_name)
        raise InputError("switch", switch, f"must be one of {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}")
    failed = Failures.of(fabric, down or [])
    found = Tables(fabric, failed, detour=detour, policy=policy).switch_table(switch)
    if json:
        rows = [
            {"prefixes": [str(net) for net in e.prefixes], "ports": e.ports, "switches": e.switches}
            for e in found.entries
        ]
        print_json({"switch": switch, "gpu_ports": found.hosts, "entries": rows})
        return
    _heading(fabric)
    table = Table("prefixes", "out of ports", "towards")
    for entry in found.entries:
        more = f", ... {len(entry.switches)} in all" if len(entry.switches) > 6 else ""
        ports = ", ".join(map(str, entry.ports))
        table.add_row("\n".join(map(str, entry.prefixes)), ports, ", ".join(entry.switches[:6]) + more)
    out.print(table)
    _line(
        switch,
        f"{found.hosts} GPU ports of its own, {found.destinations} remote /24s in {found.prefixes} prefixes",
    )


@verbs.command()
def paths(
    source: Annotated[str, typer.Option("--from", help="GPU number or name")],
    destination: Annotated[str, typer.Option("--to", help="GPU number or name")],
    fabric_text: FabricText = DEFAULT,
    policy: Policy = None,
    queue_pairs_each: Annotated[int, typer.Option("--queue-pairs", min=1, max=16, help="per port pair")] = 1,
    seed: Seed = 1,
    down: Down = None,
    detour: Detour = False,
    json: options.Json = False,
) -> None:
    """Every path of a handoff between two GPUs, with the ports it leaves by."""
    fabric = fabric_from_text(fabric_text)
    src, dst = _gpu(fabric, "--from", source), _gpu(fabric, "--to", destination)
    if src == dst:
        raise InputError("--to", destination, "must be another GPU than --from")
    failures = Failures.of(fabric, down or [])
    policy = check_policy(fabric, policy)
    pairs = queue_pairs(fabric, src, dst, queue_pairs_each, policy=policy, failures=failures, detour=detour)
    if policy in ("spray", "ecmp_ovs"):
        _print_shares(fabric, [(qp.src, qp.dst) for qp in pairs[::queue_pairs_each]], failures, detour, json, policy)
        return
    found = [(qp, path(fabric, qp, seed, failures=failures, detour=detour)) for qp in pairs]
    if json:
        print_json([
                {
                    "src_gpu": qp.src.node,
                    "src_port": qp.src.port,
                    "dst_gpu": qp.dst.node,
                    "dst_port": qp.dst.port,
                    "qp": qp.index,
                    "switches": way.switches,
                    "egress": [{"node": end.node, "port": end.port} for end in way.egress],
                    "links": way.links,
                }
                for qp, way in found
            ]
        )
        return
    relay = sender(fabric, src, dst)
    if relay is None:
        out.print(f"{src} and {dst} are in one server: only NVLink joins them on {fabric.kind}.", highlight=False)
    elif relay.name != src:
        out.print(f"{src} reaches {relay.name} (the rank of {dst}) over NVLink; from there:", highlight=False)
    elif not found:
        out.print(f"{src} to {dst}: cut off" + ("" if detour else " (--detour allows longer paths)"), highlight=False)
    for qp, way in found:
        hops = " > ".join(f"{end.node} port {end.port}" for end in way.egress)
        crossed = len(way.switches)
        count = f"{crossed} switch{'es' if crossed > 1 else ''}"
        out.print(f"{hops} > {dst} port {qp.dst.port}   ({count})", highlight=False)
    if found and not failures:
        best = len(path(fabric, queue_pairs(fabric, src, dst, policy="shortest")[0], seed).switches)
        longest = max(len(way.switches) for _, way in found)
        if best < longest:
            ports = " and ".join(f"{a} to {b}" for a, b in shortest_port_pairs(fabric, found[0][0].src.node, dst))
            out.print(
                f"Longer than shortest: {policy} takes up to {longest} switches; port {ports} alone would take {best},"
                " and leave a port idle. See --policy shortest.",
                highlight=False,
            )


@verbs.command()
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
        print_json({
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
    _heading(fabric)
    _line("down", ", ".join(sorted(failed.links | failed.switches)))
    _print_impact(fabric, found)
    for a, b, left in listed:
        out.print(f"{a} > {b}: {left} of {found.lanes_per_pair} lanes left", highlight=False)
    _line(
        "P(no switch failed)",
        f"{100 * alive:.1f} % if each of {len(fabric.switches)} fails with {100 * switch_failure_rate:g} % by itself",
    )


@verbs.command()
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
        print_json([
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
        _heading(fabric)
        table = Table("policy", "longest path", "cycle of channel dependencies")
        for one in found:
            cycle = "none: free of deadlock" if one.deadlock_free else " > ".join(one.cycle)
            table.add_row(one.policy, f"{one.longest_path_switches} switches", cycle)
        out.print(table)
    if policy and not found[0].deadlock_free:
        raise typer.Exit(1)


@verbs.command("collisions")
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
        print_json({
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
    _heading(fabric)
    _line("pattern", f"{pattern}: {len(found[0].pairs)} transfers, {seeds} draws, {striping} striping")
    spread = [one.mean_percent for one in found]
    _line(
        "share of the NIC",
        f"mean {mean:.1f} % (draws {min(spread):.1f} to {max(spread):.1f}), first percentile {p1:.1f} %",
    )
    if len(found[0].pairs) <= _LIST_TRANSFERS:
        table = Table("transfer", "Gb/s", "of the NIC", title="first draw")
        for (a, b), rate, share in zip(found[0].pairs, found[0].rates_gbps, found[0].shares_percent, strict=True):
            table.add_row(f"{a} > {b}", f"{rate:.1f}", f"{share:.1f} %")
        out.print(table)
    worst = max(busiest, key=lambda link: link.flows)
    _line("most flows on a cable", f"{worst.flows:g} on {worst.link} leaving {worst.end.node}")


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
                _gpu(fabric, f"--transfers line {n} src", row["src"] or ""),
                _gpu(fabric, f"--transfers line {n} dst", row["dst"] or ""),
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


def _heading(fabric: Fabric) -> None:
    shown = {name: value for name, value in fabric.parameters.items() if name != "oversubscription"}
    ratio = float(str(fabric.parameters.get("oversubscription", 1.0)))
    out.print(
        f"[bold]{fabric.kind}[/] "
        + ", ".join(f"{name} {value}" for name, value in shown.items())
        + (
            ", 1:1"
            if ratio == 1
            else f", oversubscribed {ratio:.3g}:1"
            if ratio > 1
            else f", {1 / ratio:.3g} x more up"
        ),
        highlight=False,
    )


def _line(name: str, text: str) -> None:
    out.print(f"[bold]{name}[/]: {text}", highlight=False)


def _switch_table(fabric: Fabric) -> Table:
    table = Table("switch", "tier", "ports", "GPUs", "other switches")
    for switch in fabric.switches:
        far = [fabric.far_end(switch.name, port.number).node for port in switch.ports]
        gpus_here = [name for name in far if name in fabric.gpu_by_name]
        others = dict.fromkeys(name for name in far if name in fabric.switch_by_name)
        table.add_row(
            switch.name,
            switch.tier,
            _port_rates(Counter(port.gbps for port in switch.ports)),
            ", ".join(name.removeprefix("gpu") for name in gpus_here),
            ", ".join(f"{name} x{far.count(name)}" for name in others),
        )
    return table


def _tier_table(fabric: Fabric) -> Table:
    table = Table("tier", "switches", "ports of each")
    for tier, count in Counter(switch.tier for switch in fabric.switches).items():
        kinds = {
            _port_rates(Counter(port.gbps for port in switch.ports))
            for switch in fabric.switches
            if switch.tier == tier
        }
        table.add_row(tier, f"{count:,}", " or ".join(sorted(kinds)))
    table.add_row("all", f"{len(fabric.switches):,}", "")
    return table


def _port_rates(rates: Counter[float]) -> str:
    return " + ".join(f"{count} x {gbps:g} Gb/s" for gbps, count in sorted(rates.items()))


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
    _line(
        "NIC bandwidth left",
        ", ".join(f"{gbps:g} Gb/s on {count:,} GPUs" for gbps, count in sorted(left.items())) + f" (of {full:g})",
    )
    worst = min(found.gpus, key=lambda gpu: gpu.mean_gbps)
    mean = sum(gpu.mean_gbps for gpu in found.gpus) / len(found.gpus)
    _line("to an average other GPU", f"mean {mean:.1f} Gb/s, least {worst.mean_gbps:.1f} Gb/s from {worst.gpu}")


def _print_shares(
    fabric: Fabric, ends: list[tuple[object, object]], failures: Failures, detour: bool, json: bool, policy: str
) -> None:
    rows = []
    for src, dst in ends:
        found = shares(fabric, src, dst, failures=failures, detour=detour)  # type: ignore[arg-type]
        rows += [(end.node, end.port, fabric.link_at[end.node, end.port].id, part) for end, part in found.items()]
    if json:
        print_json([{"node": n, "port": p, "link": link, "share": part} for n, p, link, part in rows])
        return
    what = "share of the packets" if policy == "spray" else "possible ways; the switch's own hash picks"
    table = Table("leaves", "port", "cable", what)
    for node, port, link, part in rows:
        table.add_row(node, str(port), link, f"{100 * part:.4g} %")
    out.print(table)


def _gpu(fabric: Fabric, option: str, text: str) -> str:
    name = text if text.startswith("gpu") else f"gpu{text}"
    if name not in fabric.gpu_by_name:
        raise InputError(option, text, f"must be one of gpu1 to gpu{len(fabric.gpus)}")
    return name
