"""`zcube cabling`: the cables of a fabric, whether they are plugged as planned, and how one fabric becomes another."""

from __future__ import annotations

import json as json_text
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from cli import options
from cli.app import out
from cli.outputs import write_file
from cli.progress import RunProgress
from controller.rules import rules
from emulation.launch import observe_cabling
from emulation.scaling import require_emulated
from scenario.errors import InputError
from scenario.fabric_spec import fabric_from_text, scenario_from_text
from scenario.text_file import read_bytes
from topologies.build import build
from topologies.cabling_files import observed_from_text, plan_from_text
from topologies.cabling_migrate import Migration, RulesOf, migrate
from topologies.cabling_model import Report, planned_cables
from topologies.cabling_plan import CablingPlan, plan_cabling
from topologies.cabling_room import Room, room_from_text
from topologies.cabling_verify import verify
from topologies.fabric import Fabric, FabricError

verbs = typer.Typer(
    no_args_is_help=True,
    help="Cables: plan, check, change. Example: .venv/bin/zcube cabling plan zcube:gpus=32 --out plan.csv",
)

RoomText = Annotated[
    str, typer.Option("--room", help="NAME=VALUE,... for racks and lengths, e.g. rack_u=48,servers_per_rack=5")
]
T = TypeVar("T")
#: Faults and steps that a table shows; --json has all.
SHOWN = 40


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.add_typer(verbs, name="cabling")


@verbs.command("plan")
def plan(
    fabric: Annotated[str, typer.Argument(help="KIND[:name=value,...], or a scenario file")],
    file: Annotated[Path | None, typer.Option("--out", help="write the plan here", show_default=False)] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="csv or json; default: the suffix of --out, else csv")
    ] = None,
    room: RoomText = "",
    force: Annotated[bool, typer.Option("--force", help="replace a plan that is there")] = False,
    json: options.Json = False,
) -> None:
    """Racks, lengths, media and labels of every cable.

    Example: .venv/bin/zcube cabling plan zcube:gpus=1024,gpus_per_switch=64,gpus_per_server=8 --out plan.csv
    """
    if format not in (None, "csv", "json"):
        raise InputError("--format", format, "allowed: csv, json")
    wired = fabric_from_text(fabric)
    made = _checked(lambda: plan_cabling(wired, room_from_text(room)))
    as_json = json_text.dumps(made.to_json(), indent=1) + "\n"
    if file is not None:
        chosen = format or ("json" if file.suffix.lower() == ".json" else "csv")
        write_file(file, as_json if chosen == "json" else made.to_csv(), force=force)
    if json or (file is None and format == "json"):
        typer.echo(as_json, nl=False)
    elif file is None and format == "csv":
        typer.echo(made.to_csv(), nl=False)
    else:
        _show_plan(made, file)


@verbs.command("verify")
def verify_(
    plan_text: Annotated[
        str, typer.Argument(metavar="PLAN", help="what `zcube cabling plan` wrote (CSV or JSON); with --live a fabric")
    ],
    observed_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="OBSERVED", help="local device, local port, remote device, remote port", show_default=False
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="bring up a fabric (KIND[:name=value,...] or scenario file), ask its ports")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--out", help="with --live: write what was observed (JSON)", show_default=False)
    ] = None,
    sides: Annotated[
        str, typer.Option(help="whether OBSERVED has cables from one end or both: auto, one, both")
    ] = "auto",
    json: options.Json = False,
) -> None:
    """Hold LLDP neighbours (CSV or JSON) against a plan: 0 equal, 1 with faults, 2 bad files.

    Examples: .venv/bin/zcube cabling verify plan.csv lldp.csv

    sudo .venv/bin/zcube cabling verify --live zcube:gpus=16,gpus_per_switch=4
    """
    if sides not in ("auto", "one", "both"):
        raise InputError("--sides", sides, "allowed: auto, one, both")
    if live:
        if observed_file is not None:
            raise InputError("OBSERVED", str(observed_file), "cannot be given with --live, which observes itself")
        report = _verify_live(plan_text, file, "both" if sides == "auto" else sides)
    else:
        if observed_file is None:
            raise InputError("OBSERVED", None, "is needed", "zcube cabling verify PLAN OBSERVED, or --live FABRIC")
        if file is not None:
            raise InputError("--out", str(file), "is for --live only")
        plan_file = Path(plan_text)
        planned = _checked(lambda: plan_from_text(_read("PLAN", plan_file), str(plan_file)))
        observed = _checked(lambda: observed_from_text(_read("OBSERVED", observed_file), str(observed_file)))
        report = _checked(lambda: verify(planned, observed, sides))  # type: ignore[arg-type]
    if json:
        typer.echo(json_text.dumps(report.to_json(), indent=1))
    else:
        _show_report(report)
    if not report.clean:
        raise typer.Exit(1)


def _verify_live(text: str, file: Path | None, sides: str) -> Report:
    """Bring the fabric up, and hold what its ports say against its plan."""
    scenario = scenario_from_text(text)
    require_emulated(scenario)
    fabric = build(scenario.fabric)
    with tempfile.TemporaryDirectory(prefix="zcube-cabling-") as folder, RunProgress(fabric.kind) as progress:
        observed = observe_cabling(Path(folder), scenario, progress).read_bytes()
    if file is not None:
        write_file(file, observed.decode(), force=True)
    return verify(planned_cables(fabric), observed_from_text(observed, "the running fabric"), sides)  # type: ignore[arg-type]


@verbs.command("migrate")
def migrate_(
    old: Annotated[str, typer.Argument(metavar="FROM", help="KIND[:name=value,...], or a scenario file")],
    new: Annotated[str, typer.Argument(metavar="TO", help="a fabric of the same GPUs")],
    prefer: Annotated[
        str, typer.Option(help="what old switches become: service (fewest GPUs cut off) or cables (most stay)")
    ] = "service",
    room: RoomText = "",
    json: options.Json = False,
) -> None:
    """What changes from one fabric to another, and in which order to do it.

    Example: .venv/bin/zcube cabling migrate roft:gpus=32,asic_ports=8 zcube:gpus=32,gpus_per_switch=8
    """
    if prefer not in ("service", "cables"):
        raise InputError("--prefer", prefer, "allowed: service, cables")
    fabrics = fabric_from_text(old), fabric_from_text(new)
    where: Room = _checked(lambda: room_from_text(room))
    change = _checked(lambda: migrate(*fabrics, room=where, rules_of=_rules_of(fabrics), prefer=prefer))  # type: ignore[arg-type]
    if json:
        typer.echo(json_text.dumps(change.to_json(), indent=1))
    else:
        _show_migration(change)


def _rules_of(fabrics: tuple[Fabric, ...]) -> RulesOf | None:
    """Rules of each switch without planned flows; None where the controller has none for such a fabric."""
    try:
        found = {id(f): {name: frozenset(r) for name, r in rules(f, seed=1).rules.items()} for f in fabrics}
    except (FabricError, LookupError, ValueError):
        return None
    return lambda fabric: found[id(fabric)]


def _show_report(report: Report) -> None:
    for note in report.notes:
        out.print(f"note: {note}", highlight=False)
    if report.unknown_devices:
        _say(f"not in the plan: {_some(report.unknown_devices)}")
    if report.unknown_ports:
        _say(f"ports without a cable in the plan: {_some([str(plug) for plug in report.unknown_ports])}")
    if report.faults:
        table = Table("fault", "cables", "seen", "fix")
        for fault in report.faults[:SHOWN]:
            kind, cables = fault.kind.replace("_", " "), _some(fault.cables)
            table.add_row(kind, cables, fault.seen, fault.fix)
        out.print(table)
        _say_more(len(report.faults), "faults")
    counts = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in report.counts().items())
    _say(f"{report.agreeing} of {report.planned} cables as planned; {counts or 'no fault'}")


def _show_plan(made: CablingPlan, file: Path | None) -> None:
    layout = made.layout
    out.print(Text.assemble((made.kind, "bold"), f": {len(made.cables)} cables, {layout.racks} racks"))
    table = Table("medium", "length", "rate", "cables")
    for total in made.totals():
        table.add_row(str(total["medium"]), f"{total['class_m']:g} m", f"{total['gbps']:g} Gb/s", str(total["cables"]))
    out.print(table)
    homes = [c for c in made.cables if c.tier == "access" and c.b.device in layout.home_switches]
    copper = sum(1 for cable in homes if cable.medium == "DAC")
    _say(f"{copper} of {len(homes)} cables between GPUs and the switch racked with their servers are within DAC reach")
    beyond = made.beyond_reach()
    if beyond:
        table = Table("switch", "rack", "beyond DAC reach", "farthest rack", "length")
        for found in beyond[:SHOWN]:
            table.add_row(
                found.switch, found.rack, f"{found.beyond} of {found.cables}", found.farthest_rack,
                f"{found.farthest_m:.2f} m",
            )  # fmt: skip
        out.print(table)
        _say_more(len(beyond), "switches")
    if file is not None:
        _say(f"plan: {file}")


def _show_migration(change: Migration) -> None:
    counts, bought = change.cable_counts(), sum(1 for before in change.becomes.values() if before is None)
    table = Table("what", "", show_header=False)
    table.add_row("cables", ", ".join(f"{number} {kind}" for kind, number in counts.items()))
    freed = ", ".join(f"{len(names)} {tier}" for tier, names in change.freed.items()) or "none"
    table.add_row("switches", f"{len(change.becomes) - bought} used again, {bought} bought; freed: {freed}")
    for side, found in change.modules.items():
        table.add_row(
            f"optical modules, {side} side",
            f"{found.before} before, {found.after} after: {found.reused} reused, {found.split} split, {found.merged} "
            f"merged, {found.relocated} relocated, {found.bought} bought, {found.spare} spare",
        )
    table.add_row("addresses of GPU ports", f"{change.addresses_kept} kept, {change.addresses_changed} changed or new")
    rules_changed = change.rules
    table.add_row(
        "forwarding rules",
        "not counted: the controller has no rules for one of these fabrics"
        if rules_changed is None
        else f"{rules_changed.before} before, {rules_changed.after} after: {rules_changed.kept} kept, "
        f"{rules_changed.added} added, {rules_changed.removed} removed",
    )
    table.add_row("GPUs without a port, at worst", f"{change.peak_none} of {change.gpus}")
    table.add_row("GPUs with a part of their ports, at worst", f"{change.peak_part} of {change.gpus}")
    table.add_row("ports down in one step, at most", str(change.peak_ports_down))
    out.print(table)
    roles: Mapping[tuple[str, str], int] = Counter(
        (_role(before), _role(name)) for name, before in change.becomes.items()
    )
    _say("switches become: " + ", ".join(f"{n} {a} -> {b}" for (a, b), n in sorted(roles.items())))
    steps = Table("step", "what", "ports down", "cables out/in", "without port", "with a part")
    for number, step in list(enumerate(change.steps, 1))[:SHOWN]:
        steps.add_row(
            str(number), step.title, str(len(step.ports_down)), f"{step.cables_out}/{step.cables_in}",
            str(step.gpus_none), str(step.gpus_part),
        )  # fmt: skip
    out.print(steps)
    _say_more(len(change.steps), "steps")


def _role(name: str | None) -> str:
    return "bought" if name is None else name.rstrip("0123456789")


def _checked(work: Callable[[], T]) -> T:
    try:
        return work()
    except FabricError as error:
        raise InputError(error.parameter, error.value, error.allowed) from error


def _read(field: str, path: Path) -> bytes:
    return read_bytes(path, field, "a cabling table", "docs/cabling.md shows both files")


def _say(text: str) -> None:
    out.print(text, highlight=False)


def _say_more(count: int, what: str) -> None:
    if count > SHOWN:
        _say(f"... and {count - SHOWN} {what} more: --json has all")


def _some(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names[:5]) + (f", ... ({len(names)})" if len(names) > 5 else "")
