"""Repair in the fake dataplane: every single failure, the paths afterwards, every state on the way there and back."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from controller.fakeplane import Dropped, FakePlane
from controller.repair import Change, Overlay, Phase, Repairer
from controller.rules import rules
from controller.ruleset import MASK_HOST, Rule, RuleSet, SelectGroup
from scenario.fabric_spec import fabric_from_text
from topologies.addresses import ip_to_int
from topologies.fabric import End, Fabric
from topologies.paths import FiveTuple, Path, five_tuple, flow_path, path, queue_pairs, reversed_flow, walk_all_pairs
from topologies.routes import NONE, Failures

SEED = 5
TEXTS = (
    "zcube:gpus=16,asic_ports=4",
    "zcube:gpus=16,asic_ports=8,gpus_per_switch=8",  # m = 4
    "zcube:gpus=16,asic_ports=8,gpus_per_switch=8,bundle=hashed",
    "roft:gpus=16,asic_ports=4,gpus_per_server=2,tiers=3",
    "roft:gpus=16",
    "hpn:gpus=16,asic_ports=4",
    "fat_tree:gpus=16,asic_ports=4",
)


def elements(fabric: Fabric, count: int = 1000) -> list[str]:
    """Every switch and every cable between switches, and some GPU cables; at most `count`, spread evenly."""
    links = [link.id for link in fabric.links if link.tier != "access"]
    access = [link.id for link in fabric.links if link.tier == "access"][::5]
    found = [switch.name for switch in fabric.switches] + links + access
    return found[:: -(-len(found) // count)]


class Plane:
    """The fake dataplane with rules that change one message at a time, and back."""

    def __init__(self, fabric: Fabric, base: RuleSet) -> None:
        self.fabric = fabric
        self.rules = {name: {(r.priority, r.match): r for r in found} for name, found in base.rules.items()}
        self.groups = {name: {g.group_id: g for g in found} for name, found in base.groups.items()}
        self.plane = FakePlane(fabric, base)
        self.plane.groups = self.groups

    def apply(self, change: Change) -> Change:
        """Carry out one message; returns the one that undoes it."""
        if isinstance(change.item, SelectGroup):
            if change.what == "add group":
                self.groups[change.switch][change.item.group_id] = change.item
                return Change(change.switch, "delete group", change.item)
            del self.groups[change.switch][change.item.group_id]
            return Change(change.switch, "add group", change.item)
        table, rules = self.plane.tables[change.switch], self.rules[change.switch]
        key = change.item.priority, change.item.match
        if change.what == "delete":
            del rules[key]
            return Change(change.switch, "add", table.remove(change.item))
        rules[key] = change.item
        old = table.add(change.item)
        return Change(change.switch, "delete", change.item) if old is None else Change(change.switch, "add", old)

    def walk(self, src: End, flow: FiveTuple) -> Path:
        return self.plane.walk(src, flow)


def concerns(rule: Rule, flow: FiveTuple) -> bool:
    """Whether a rule can match a flow."""
    mask = ip_to_int(rule.match.ipv4_dst_mask)
    if ip_to_int(flow.dst_ip) & mask != ip_to_int(rule.match.ipv4_dst) & mask:
        return False
    wanted = (rule.match.ipv4_src, rule.match.ip_proto, rule.match.tp_src, rule.match.tp_dst)
    have = (flow.src_ip, flow.protocol, flow.src_port, flow.dst_port)
    return all(w is None or w == h for w, h in zip(wanted, have, strict=True))


def subsets(changes: Sequence[Change]) -> Iterator[tuple[Change, ...]]:
    """Every subset that is neither empty nor whole: the states inside a phase."""
    for size in range(1, len(changes)):
        yield from itertools.combinations(changes, size)


def flows_of(fabric: Fabric) -> list[tuple[End, End, FiveTuple]]:
    found = []
    for qp in walk_all_pairs(fabric):
        flow = five_tuple(fabric, qp)
        found.append((qp.src, qp.dst, flow))
        found.append((qp.dst, qp.src, reversed_flow(flow)))
    return found


def works(fabric: Fabric, way: Path, failures: Failures) -> bool:
    return not (set(way.links) & failures.links or set(way.switches) & failures.switches)


def walk_through(
    fabric: Fabric,
    plane: Plane,
    phases: Sequence[Phase],
    flows: Sequence[tuple[End, End, FiveTuple]],
    failures: Failures,
) -> None:
    """Apply an update; in every state that barriers allow nothing loops, and what worked before and after works."""
    safe = {f for f in flows if works(fabric, flow_path(fabric, *f, SEED), failures)}
    for phase in phases:
        touched = [f for f in flows if any(isinstance(c.item, Rule) and concerns(c.item, f[2]) for c in phase)]
        for flow in touched:
            mine = [c for c in phase if isinstance(c.item, Rule) and concerns(c.item, flow[2])]
            for some in subsets(mine[:5]):
                undo = [plane.apply(change) for change in some]
                check(fabric, plane, flow, flow in safe, failures)
                for change in reversed(undo):
                    plane.apply(change)
        for change in phase:
            plane.apply(change)
        for flow in touched:
            check(fabric, plane, flow, flow in safe, failures)


def check(
    fabric: Fabric, plane: Plane, flow: tuple[End, End, FiveTuple], must_arrive: bool, failures: Failures
) -> None:
    src, _, headers = flow
    try:
        way = plane.walk(src, headers)  # Loop and Misdelivered fail the test
    except Dropped:
        assert not must_arrive, f"{headers} was lost on the way"
        return
    assert not must_arrive or works(fabric, way, failures)


def installed(plane: Plane, failures: Failures) -> None:
    """With the overlay in place every planned queue pair that has a path is on it."""
    fabric = plane.fabric
    for src in fabric.gpus:
        for dst in fabric.gpus:
            if src is dst:
                continue
            for qp in queue_pairs(fabric, src.name, dst.name, failures=failures):
                wanted = path(fabric, qp, SEED, failures=failures)
                assert plane.walk(qp.src, five_tuple(fabric, qp)) == wanted


@pytest.mark.parametrize("text", TEXTS)
def test_every_single_failure_and_its_recovery(text: str) -> None:
    fabric = fabric_from_text(text)
    planned = list(walk_all_pairs(fabric))
    base = rules(fabric, seed=SEED, planned=planned)
    repairer = Repairer(fabric, seed=SEED, planned=planned)
    flows = flows_of(fabric)
    for name in elements(fabric, 12):
        failures = Failures.of(fabric, [name])
        plane = Plane(fabric, base)
        overlay = repairer.overlay(failures)
        walk_through(fabric, plane, repairer.update(repairer.nothing, overlay), flows, failures)
        installed(plane, failures)
        walk_through(fabric, plane, repairer.update(overlay, repairer.nothing), flows, failures)
        assert plane.rules == Plane(fabric, base).rules and plane.groups == Plane(fabric, base).groups


@pytest.mark.parametrize("text", TEXTS)
def test_failures_that_come_and_go_in_any_order(text: str) -> None:
    fabric = fabric_from_text(text)
    planned = list(walk_all_pairs(fabric))
    base = rules(fabric, seed=SEED, planned=planned)
    repairer = Repairer(fabric, seed=SEED, planned=planned)
    flows = flows_of(fabric)
    rng = random.Random(text)
    plane, overlay = Plane(fabric, base), repairer.nothing
    down: set[str] = set()
    for _ in range(8):
        down ^= {rng.choice(elements(fabric))}
        new = repairer.overlay(Failures.of(fabric, down))
        both = Failures(new.failures.links | overlay.failures.links, new.failures.switches | overlay.failures.switches)
        walk_through(fabric, plane, repairer.update(overlay, new), flows, both)
        installed(plane, new.failures)
        overlay = new


@pytest.mark.parametrize("text", ["zcube:gpus=16,asic_ports=4", "zcube:gpus=16,asic_ports=8,gpus_per_switch=8"])
def test_detours(text: str) -> None:
    """With longer paths allowed a dead bundle or a dead odd switch costs no pair, and nothing loops on the way."""
    fabric = fabric_from_text(text)
    base = rules(fabric, seed=SEED)
    repairer = Repairer(fabric, seed=SEED, detour=True)
    flows = flows_of(fabric)
    bundle = [k.id for k in fabric.links if {k.a.node, k.b.node} == {"odd1", "even4"}]
    for names in (bundle, ["odd1"], ["even2"]):
        failures = Failures.of(fabric, names)
        plane = Plane(fabric, base)
        overlay = repairer.overlay(failures)
        walk_through(fabric, plane, repairer.update(repairer.nothing, overlay), flows, failures)
        for src, dst in itertools.permutations(fabric.gpus, 2):
            lanes = queue_pairs(fabric, src.name, dst.name, failures=failures, detour=True)
            assert lanes
            for qp in lanes:
                way = plane.walk(qp.src, five_tuple(fabric, qp))
                assert way == path(fabric, qp, SEED, failures=failures, detour=True) and works(fabric, way, failures)
        walk_through(fabric, plane, repairer.update(overlay, repairer.nothing), flows, failures)
        assert plane.rules == Plane(fabric, base).rules


def overlay_of(text: str, *names: str) -> tuple[Fabric, Repairer, Overlay]:
    fabric = fabric_from_text(text)
    repairer = Repairer(fabric, seed=SEED, planned=walk_all_pairs(fabric))
    return fabric, repairer, repairer.overlay(Failures.of(fabric, names))


def test_only_the_pairs_concerned_change() -> None:
    fabric, _, overlay = overlay_of("zcube:gpus=16,asic_ports=8,gpus_per_switch=8", "odd1-eth9--even2-eth9")
    # m = 4 members, one gone: at odd1 the two GPUs of even2 with that member, at even2 the two of odd1
    assert {name: len(found) for name, found in overlay.rules.items()} == {"odd1": 2, "even2": 2}
    assert all(one.rule.match.ipv4_dst_mask == MASK_HOST for found in overlay.rules.values() for one in found)
    _, _, nothing = overlay_of("zcube:gpus=16,asic_ports=4", "odd1-eth5--even2-eth5")
    assert nothing.rule_count == 0  # m = 1: no other cable; the sender turns to its other port
    assert fabric.kind == "zcube"


def test_an_update_to_the_same_state_is_empty() -> None:
    _, repairer, overlay = overlay_of("roft:gpus=32", "leaf1-eth5--spine1-eth1")
    assert overlay.rule_count > 0
    assert repairer.update(overlay, overlay) == () and repairer.overlay(NONE) is repairer.nothing


def test_upstream_first_would_lose_packets() -> None:
    """The order matters: reversed, a detour's packets meet a switch that does not know the way yet."""
    fabric = fabric_from_text("zcube:gpus=16,asic_ports=4")
    repairer = Repairer(fabric, seed=SEED, detour=True)
    base = rules(fabric, seed=SEED)
    overlay = repairer.overlay(Failures.of(fabric, ["odd1-eth5--even2-eth5"]))
    phases = repairer.update(repairer.nothing, overlay)
    assert len(phases) >= 2
    plane = Plane(fabric, base)
    for change in phases[-1]:
        plane.apply(change)
    # gpu5 (odd1, even4) to gpu2 (odd3, even2): odd1 > even > odd > even2, and no even switch knows its own group yet
    qp = queue_pairs(fabric, "gpu5", "gpu2")[0]
    with pytest.raises(Dropped):
        plane.walk(qp.src, five_tuple(fabric, qp))
