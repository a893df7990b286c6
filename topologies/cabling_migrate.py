"""From one fabric to another with the same GPUs: which cables, modules, switches, addresses and rules change.

What is assumed, and said in the output: servers, NICs and switches that are used again stay where they stand; a
port's cage has the larger of the rates that the two fabrics use there, so that a 400G port can be split into two of
200G; a NIC cage that is split leads to two switches and is optical; fibre carries any rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace

from topologies.cabling_assign import Cage, Prefer, assignment, cages
from topologies.cabling_order import Step, order_of_work
from topologies.cabling_plan import DAC, FIBRE, PlannedCable, cables_of, check_physical
from topologies.cabling_room import Layout, Room, lay_out, with_more_switches
from topologies.fabric import End, Fabric, FabricError

SCHEMA_VERSION = 1

#: Fabric -> switch -> its forwarding rules, as values that can be compared.
RulesOf = Callable[[Fabric], Mapping[str, AbstractSet[Hashable]]]


@dataclass(frozen=True)
class CableChange:
    """What becomes of one cable. kept: not touched; moved: one end stays; new: laid; removed: taken out.

    `length_m` is what the new place asks for (removed: the old one), `class_m` the cable's own length.
    `new` and `old` are the link ids in the two fabrics; `stays` is the end that stays, `from_` and `to` the other one
    (devices by their old names; a switch that is bought is `new-NAME`).
    """

    kind: str
    old: str | None
    new: str | None
    stays: str | None = None
    from_: str | None = None
    to: str | None = None
    medium: str = FIBRE
    class_m: float = 0.0
    length_m: float = 0.0


@dataclass(frozen=True)
class Modules:
    """Optical modules of one side (NIC or switch), one a cage that has fibre.

    reused: same cage, as many ports as before; split: same cage, more ports; merged: same cage, fewer; relocated:
    from a cage that needs none any more; bought: the rest; spare: left over.
    """

    before: int
    after: int
    reused: int
    split: int
    merged: int
    relocated: int
    bought: int
    spare: int


@dataclass(frozen=True)
class RuleChange:
    """Forwarding rules, summed over boxes: an old rule that is also on the same box afterwards is kept."""

    before: int
    after: int
    kept: int
    added: int
    removed: int


@dataclass(frozen=True)
class Migration:
    """The whole change. `becomes`: new switch -> old switch or None (bought)."""

    gpus: int
    becomes: Mapping[str, str | None]
    cables: tuple[CableChange, ...]
    addresses_kept: int
    addresses_changed: int
    freed: Mapping[str, tuple[str, ...]]
    modules: Mapping[str, Modules]
    rules: RuleChange | None
    steps: tuple[Step, ...]

    def cable_counts(self) -> dict[str, int]:
        """Cables kept, moved, new, removed."""
        found = Counter(change.kind for change in self.cables)
        return {kind: found[kind] for kind in ("kept", "moved", "new", "removed")}

    @property
    def peak_none(self) -> int:
        """GPUs without any port, at the worst step."""
        return max((step.gpus_none for step in self.steps), default=0)

    @property
    def peak_part(self) -> int:
        """GPUs with a part of their ports (half, of two), at the worst step."""
        return max((step.gpus_part for step in self.steps), default=0)

    @property
    def peak_ports_down(self) -> int:
        """Ports that go down in one step, at most."""
        return max((len(step.ports_down) for step in self.steps), default=0)

    def to_json(self) -> dict[str, object]:
        """Plain data; steps with every port."""
        return {
            "schema_version": SCHEMA_VERSION,
            "gpus": self.gpus,
            "cables": {
                **self.cable_counts(),
                "changes": [
                    {("from" if key == "from_" else key): value for key, value in asdict(change).items()}
                    for change in self.cables
                ],
            },
            "switches": {
                "becomes": dict(self.becomes),
                "bought": sum(1 for old in self.becomes.values() if old is None),
                "freed": {tier: list(names) for tier, names in self.freed.items()},
            },
            "modules": {side: asdict(found) for side, found in self.modules.items()},
            "addresses": {"kept": self.addresses_kept, "changed": self.addresses_changed},
            "rules": None if self.rules is None else asdict(self.rules),
            "peak": {
                "gpus_without_port": self.peak_none,
                "gpus_with_part_of_ports": self.peak_part,
                "ports_down_in_one_step": self.peak_ports_down,
            },
            "steps": [step.to_json() for step in self.steps],
        }


def migrate(
    old: Fabric,
    new: Fabric,
    *,
    room: Room | None = None,
    rules_of: RulesOf | None = None,
    prefer: Prefer = "service",
) -> Migration:
    """Plan the change; `prefer` is explained at `topologies.cabling_assign.assignment`.

    Raises FabricError when the GPUs or their servers differ, or a fabric has trunk bundles.
    """
    for fabric in (old, new):
        check_physical(fabric)
    if len(old.gpus) != len(new.gpus):
        allowed = f"both fabrics must have the same GPUs, the old one has {len(old.gpus)}"
        raise FabricError("gpus", len(new.gpus), allowed)
    for was, now in zip(old.gpus, new.gpus, strict=True):
        if (was.name, was.server) != (now.name, now.server):
            raise FabricError("gpus_per_server", f"{now.name} in {now.server}", f"is in {was.server} in the old fabric")
    gpu_gbps = max(port.gbps for fabric in (old, new) for gpu in fabric.gpus for port in gpu.ports)
    switch_gbps = max(port.gbps for fabric in (old, new) for switch in fabric.switches for port in switch.ports)
    old_cages, new_cages = cages(old, gpu_gbps, switch_gbps), cages(new, gpu_gbps, switch_gbps)
    layout = lay_out(old, room)
    old_runs = _runs(old, layout, old_cages)
    split = _split_nics(new, new_cages)
    useless = {run.link for run in old_runs if run.cable.medium == DAC and (run.a in split or run.b in split)}
    becomes = assignment(old, new, old_cages, new_cages, prefer=prefer, useless=useless)
    box = {name: before or f"new-{name}" for name, before in becomes.items()}
    placed = {end: (box.get(device, device), cage) for end, (device, cage) in new_cages.items()}

    bought = [box[name] for name, before in becomes.items() if before is None]
    more = with_more_switches(layout, bought)
    after = replace(more, chassis={**more.chassis, **box})
    new_runs = _runs(new, after, placed)
    changes, kept = _matched(old_runs, new_runs)
    used = set(becomes.values())
    freed: dict[str, tuple[str, ...]] = {}
    for switch in old.switches:
        if switch.name not in used:
            freed[switch.tier] = (*freed.get(switch.tier, ()), switch.name)
    ips = [{(gpu.name, port.ip) for gpu in fabric.gpus for port in gpu.ports} for fabric in (old, new)]
    return Migration(
        gpus=len(old.gpus),
        becomes=becomes,
        cables=tuple(changes),
        addresses_kept=len(ips[0] & ips[1]),
        addresses_changed=len(ips[1] - ips[0]),
        freed=freed,
        modules={side: _modules(old_runs, new_runs, old.gpu_by_name, side == "NIC") for side in ("NIC", "switch")},
        rules=None if rules_of is None else _rule_change(rules_of(old), rules_of(new), box),
        steps=order_of_work(old, new, becomes, kept),
    )


@dataclass(frozen=True)
class _Run:
    """A cable between two cages."""

    cable: PlannedCable
    link: str
    a: Cage
    b: Cage

    @property
    def key(self) -> tuple[Cage, Cage]:
        return (self.a, self.b) if self.a <= self.b else (self.b, self.a)


def _split_nics(fabric: Fabric, cage_of: Mapping[End, Cage]) -> set[Cage]:
    """NIC cages with several ports: they lead to several switches, which one copper cable does not."""
    ports_in = Counter(cage_of[End(gpu.name, port.number)] for gpu in fabric.gpus for port in gpu.ports)
    return {cage for cage, ports in ports_in.items() if ports > 1}


def _runs(fabric: Fabric, layout: Layout, cage_of: Mapping[End, Cage]) -> list[_Run]:
    split = _split_nics(fabric, cage_of)
    optical = [link.id for link in fabric.links if cage_of[link.a] in split]
    return [
        _Run(cable, link.id, cage_of[link.a], cage_of[link.b])
        for cable, link in zip(cables_of(fabric, layout, optical), fabric.links, strict=True)
    ]


def _matched(old_runs: Iterable[_Run], new_runs: Iterable[_Run]) -> tuple[list[CableChange], dict[str, str]]:
    """What becomes of each cable, and new link -> old link of those kept.

    Greedy, in this order: the same two cages; one cage stays and the other end stays on its device; one cage stays.
    A cable is used again where its medium is right (copper: and its rate) and it is long enough; the shortest first.
    """
    at: dict[Cage, dict[int, _Run]] = {}
    same: dict[tuple[Cage, Cage], list[_Run]] = {}
    left: dict[int, _Run] = dict(enumerate(old_runs))
    number_of = {id(run): number for number, run in left.items()}
    for number, run in left.items():
        same.setdefault(run.key, []).append(run)
        at.setdefault(run.a, {})[number] = run
        at.setdefault(run.b, {})[number] = run
    changes: list[CableChange] = []
    kept: dict[str, str] = {}

    def take(run: _Run) -> None:
        number = number_of[id(run)]
        del left[number], at[run.a][number], at[run.b][number]

    def usable(run: _Run, wanted: _Run) -> bool:
        long_enough = run.cable.class_m >= wanted.cable.length_m
        fits = run.cable.medium == FIBRE or run.cable.gbps == wanted.cable.gbps
        return run.cable.medium == wanted.cable.medium and fits and long_enough

    waiting: list[_Run] = []
    for wanted in new_runs:
        found = next((run for run in same.get(wanted.key, ()) if usable(run, wanted)), None)
        if found is None:
            waiting.append(wanted)
            continue
        same[wanted.key].remove(found)
        take(found)
        kept[wanted.link] = found.link
        changes.append(_change("kept", found, wanted))
    for same_device in (True, False):
        still: list[_Run] = []
        for wanted in waiting:
            options = [
                (run.cable.class_m, number, stays, goes)
                for stays, goes in ((wanted.a, wanted.b), (wanted.b, wanted.a))
                for number, run in at.get(stays, {}).items()
                if usable(run, wanted) and (not same_device or _far(run, stays)[0] == goes[0])
            ]
            if not options:
                still.append(wanted)
                continue
            _, number, stays, goes = min(options)
            run = left[number]
            changes.append(_change("moved", run, wanted, stays, _far(run, stays), goes))
            take(run)
        waiting = still
    changes += [_change("new", None, wanted) for wanted in waiting]
    changes += [_change("removed", run, None) for run in left.values()]
    return changes, kept


def _far(run: _Run, cage: Cage) -> Cage:
    return run.b if run.a == cage else run.a


def _change(kind: str, old: _Run | None, new: _Run | None, *cages_: Cage) -> CableChange:
    cable = (old or new).cable  # type: ignore[union-attr]
    stays, from_, to = (f"{device} cage {number}" for device, number in cages_) if cages_ else (None, None, None)
    before, after = (None if run is None else run.link for run in (old, new))
    needed = (new or old).cable.length_m  # type: ignore[union-attr]
    return CableChange(kind, before, after, stays, from_, to, cable.medium, cable.class_m, needed)


def _modules(old_runs: Iterable[_Run], new_runs: Iterable[_Run], gpus: Mapping[str, object], nic: bool) -> Modules:
    def fibres(runs: Iterable[_Run]) -> Counter[Cage]:
        return Counter(
            cage for run in runs if run.cable.medium == FIBRE for cage in (run.a, run.b) if (cage[0] in gpus) == nic
        )

    before, after = fibres(old_runs), fibres(new_runs)
    both = before.keys() & after.keys()
    wanting, free = len(after) - len(both), len(before) - len(both)
    relocated = min(wanting, free)
    return Modules(
        before=len(before),
        after=len(after),
        reused=sum(1 for cage in both if after[cage] == before[cage]),
        split=sum(1 for cage in both if after[cage] > before[cage]),
        merged=sum(1 for cage in both if after[cage] < before[cage]),
        relocated=relocated,
        bought=wanting - relocated,
        spare=free - relocated,
    )


def _rule_change(
    old: Mapping[str, AbstractSet[Hashable]], new: Mapping[str, AbstractSet[Hashable]], box: Mapping[str, str]
) -> RuleChange:
    before = sum(len(rules) for rules in old.values())
    after = sum(len(rules) for rules in new.values())
    kept = sum(len(rules & old.get(box.get(switch, switch), frozenset())) for switch, rules in new.items())
    return RuleChange(before, after, kept, after - kept, before - kept)
