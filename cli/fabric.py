"""`zcube fabric`: kinds, wiring, routing tables and paths of a fabric, without running anything."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.table import Table

from cli import fabric_analysis, fabric_export, fabric_import, fabric_probe, options
from cli.app import out, print_json
from cli.fabric_options import DEFAULT, Detour, Down, FabricText, Policy, Seed, gpu_name, heading, line
from scenario.errors import InputError
from scenario.fabric_spec import COMMON, EXAMPLE, fabric_from_text
from topologies.build import READS
from topologies.fabric import Fabric
from topologies.impact import path_lengths
from topologies.paths import (
    check_policy,
    default_policy,
    path,
    queue_pairs,
    sender,
    shares,
    shortest_port_pairs,
)
from topologies.routes import Failures
from topologies.tables import Tables, member_choice

verbs = typer.Typer(
    no_args_is_help=True,
    help="Wiring, paths, failures, exports: without running anything.\n\n"
    "Example: .venv/bin/zcube fabric paths --from 1 --to 11\n\n"
    f"FABRIC is KIND[:name=value,...] {EXAMPLE}.",
)

#: Above so many GPUs path lengths are counted from some of them.
_ALL_SOURCES = 4096
#: Above so many switches the table is by tier.
_LIST_SWITCHES = 48


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    fabric_analysis.register(verbs)
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
    heading(fabric)
    out.print(_switch_table(fabric) if len(fabric.switches) <= _LIST_SWITCHES else _tier_table(fabric))
    cables = Counter((link.tier, link.gbps) for link in fabric.links)
    line("cables", ", ".join(f"{count:,} {tier} of {gbps:g} Gb/s" for (tier, gbps), count in cables.items()))
    # An odd step, so that the sources are of all ranks and groups.
    every = 1 if len(fabric.gpus) <= _ALL_SOURCES else len(fabric.gpus) // _ALL_SOURCES * 8 + 1
    lengths = path_lengths(fabric, every)
    total = sum(lengths.pairs.values())
    line(
        "switches on a path",
        ", ".join(f"{many} for {100 * count / total:.1f} %" for many, count in sorted(lengths.pairs.items()))
        + f" of {total:,} ordered GPU pairs{f' (sources: one GPU in {every})' if every > 1 else ''};"
        f" longest {lengths.longest_switches}",
    )
    if lengths.longer:
        own = default_policy(fabric.kind)
        line(
            "longer than shortest",
            f"{100 * lengths.longer / total:.1f} % of pairs share a switch; the {own} policy takes them over two all"
            " the same, so that both ports are used (--policy shortest does not)",
        )
    line("average shortest path", f"{lengths.average_links:.5f} cables, the two to the GPUs counted")
    tables = Tables(fabric).switch_tables()
    most = max(tables, key=lambda table: table.hosts + table.prefixes)
    line(
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
            {
                "prefixes": [str(net) for net in e.prefixes],
                "ports": e.ports,
                "chosen_by": member_choice(fabric, len(e.ports), policy),
                "switches": e.switches,
            }
            for e in found.entries
        ]
        print_json({"switch": switch, "gpu_ports": found.hosts, "entries": rows})
        return
    heading(fabric)
    table = Table("prefixes", "out of ports", "chosen by", "towards")
    for entry in found.entries:
        more = f", ... {len(entry.switches)} in all" if len(entry.switches) > 6 else ""
        ports = ", ".join(map(str, entry.ports))
        choice = member_choice(fabric, len(entry.ports), policy)
        table.add_row("\n".join(map(str, entry.prefixes)), ports, choice, ", ".join(entry.switches[:6]) + more)
    out.print(table)
    line(
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
    src, dst = gpu_name(fabric, "--from", source), gpu_name(fabric, "--to", destination)
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
        print_json(
            [
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
