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
from topologies.paths import FiveTuple, Path, QueuePair, five_tuple, path, queue_pairs, reversed_flow, walk_all_pairs
from topologies.routes import NONE, Failures
from topologies.routing import Routing

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


def arrives(plane: Plane, flow: tuple[End, End, FiveTuple], failures: Failures) -> bool:
    """Whether the rules that are there bring a flow to its end, over nothing that has failed."""
    try:
        return works(plane.fabric, plane.walk(flow[0], flow[2]), failures)
    except Dropped:
        return False


def walk_through(
    fabric: Fabric,
    plane: Plane,
    phases: Sequence[Phase],
    flows: Sequence[tuple[End, End, FiveTuple]],
    failures: Failures,
) -> None:
    """Apply an update while `failures` hold; in every state that barriers allow nothing loops, and what worked before
    and works afterwards, by whatever path, works."""
    before = {f for f in flows if arrives(plane, f, failures)}
    undo = [plane.apply(change) for phase in phases for change in phase]
    safe = {f for f in before if arrives(plane, f, failures)}
    for change in reversed(undo):
        plane.apply(change)
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
def test_every_single_failure_and_its_recovery(text: str, deep: bool) -> None:
    fabric = fabric_from_text(text)
    planned = list(walk_all_pairs(fabric))
    base = rules(fabric, seed=SEED, planned=planned)
    repairer = Repairer(fabric, seed=SEED, planned=planned)
    flows = flows_of(fabric)
    for name in elements(fabric, 12 if deep else 6):
        failures = Failures.of(fabric, [name])
        plane = Plane(fabric, base)
        overlay = repairer.overlay(failures)
        walk_through(fabric, plane, repairer.update(repairer.nothing, overlay), flows, failures)
        installed(plane, failures)
        walk_through(fabric, plane, repairer.update(overlay, repairer.nothing), flows, NONE)
        assert plane.rules == Plane(fabric, base).rules and plane.groups == Plane(fabric, base).groups


@pytest.mark.parametrize("text", TEXTS)
def test_failures_that_come_and_go_in_any_order(text: str, deep: bool) -> None:
    fabric = fabric_from_text(text)
    planned = list(walk_all_pairs(fabric))
    base = rules(fabric, seed=SEED, planned=planned)
    repairer = Repairer(fabric, seed=SEED, planned=planned)
    flows = flows_of(fabric)
    rng = random.Random(text)
    plane, overlay = Plane(fabric, base), repairer.nothing
    down: set[str] = set()
    for _ in range(8 if deep else 5):
        down ^= {rng.choice(elements(fabric))}
        new = repairer.overlay(Failures.of(fabric, down))
        walk_through(fabric, plane, repairer.update(overlay, new), flows, new.failures)
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
        walk_through(fabric, plane, repairer.update(overlay, repairer.nothing), flows, NONE)
        assert plane.rules == Plane(fabric, base).rules


#: Fabric, policy: all that have more than one port a GPU, and trees for their hashed paths.
SEARCHED = [
    ("zcube:gpus=16,asic_ports=4", "unique"),
    ("zcube:gpus=16,asic_ports=4", "shortest"),
    ("zcube:gpus=16,asic_ports=8,gpus_per_switch=8", "shortest"),
    ("zcube:gpus=8,asic_ports=8,gpus_per_switch=4,bundle=hashed", "spray"),
    ("zcube_recursive:gpus=16,asic_ports=4", "shortest"),
    ("zcube_recursive:gpus=8,levels=3,gpus_per_server=2,asic_ports=4", "ecmp"),
    ("zcube_recursive:gpus=8,levels=3,partial=true,gpus_per_server=2,asic_ports=4", "ecmp"),
    ("hpn:gpus=16,asic_ports=4", "shortest"),
    ("roft:gpus=8,asic_ports=4,gpus_per_server=2", "spray"),
    ("rail_only:gpus=16,gpus_per_server=4,asic_ports=4", "ecmp"),
]


def failures_to_try(fabric: Fabric, count: int) -> Iterator[Failures]:
    """Sets of one to six elements; half of them around two GPUs, where they cut off whole port pairs."""
    rng = random.Random(7)
    everything = [s.name for s in fabric.switches] + [link.id for link in fabric.links]
    for number in range(count):
        near = rng.sample(fabric.gpus, 2)
        around = [fabric.link_at[g.name, p.number].id for g in near for p in g.ports]
        around += [fabric.attachment[g.name, p.number].node for g in near for p in g.ports]
        pool = around if number % 2 else everything
        yield Failures.of(fabric, rng.sample(pool, min(len(pool), rng.randint(1, 6))))


@pytest.mark.parametrize("detour", [False, True])
@pytest.mark.parametrize(
    ("text", "policy"),
    [
        *SEARCHED,
        pytest.param("zcube:gpus=16,asic_ports=8,gpus_per_switch=8,bundle=hashed", "spray", marks=pytest.mark.deep),
    ],
)
def test_every_queue_pair_that_is_left_has_rules_both_ways(
    text: str, policy: str, detour: bool, deep: bool
) -> None:
    fabric = fabric_from_text(text)
    routing = Routing(policy, seed=SEED, detour=detour)
    gpus = list(itertools.permutations([gpu.name for gpu in fabric.gpus], 2))
    planned = [qp for pair in gpus for qp in routing.queue_pairs(fabric, *pair)]
    base = rules(fabric, seed=SEED, planned=planned)
    repairer = Repairer(fabric, seed=SEED, planned=planned, detour=detour)
    for failures in failures_to_try(fabric, 16 if deep else 6):
        plane = Plane(fabric, base)
        for phase in repairer.update(repairer.nothing, repairer.overlay(failures)):
            for change in phase:
                plane.apply(change)
        crosswise = Routing(seed=SEED, detour=detour)
        for pair in gpus:
            found = routing.queue_pairs(fabric, *pair, failures)
            assert found or not crosswise.queue_pairs(fabric, *pair, failures), f"{pair} stranded by {failures}"
            for qp in found:
                data = five_tuple(fabric, qp)
                there, back = plane.walk(qp.src, data), plane.walk(qp.dst, reversed_flow(data))
                assert works(fabric, there, failures) and works(fabric, back, failures)
                if qp in planned:
                    assert there == path(fabric, qp, SEED, failures=failures, detour=detour)


def test_shortest_turns_to_the_crosswise_ports_when_its_own_are_cut() -> None:
    fabric = fabric_from_text("zcube:gpus=16,asic_ports=4")
    failures = Failures.of(fabric, ["gpu16-eth1--odd7-eth4"])  # gpu4 and gpu16 share odd7
    for detour in (False, True):
        (left,) = Routing("shortest", detour=detour).queue_pairs(fabric, "gpu4", "gpu16", failures)
        assert (left.src.port, left.dst.port) == (1, 2)


@pytest.mark.parametrize("text", sorted({text for text, policy in SEARCHED if policy != "spray"}))
def test_updates_between_detours_lose_no_flow_that_has_a_path_before_and_after(text: str, deep: bool) -> None:
    """Flows between all ports, as a pair whose own ports are cut may use any."""
    fabric = fabric_from_text(text)
    planned = list(walk_all_pairs(fabric))
    base = rules(fabric, seed=SEED, planned=planned)
    repairer = Repairer(fabric, seed=SEED, planned=planned, detour=True)
    flows = flows_of(fabric)
    flows += [
        (src, dst, five_tuple(fabric, QueuePair(src, dst, 1)))
        for src, dst in itertools.permutations([End(*plug) for plug in fabric.attachment], 2)
        if src.node != dst.node
    ]
    plane, overlay = Plane(fabric, base), repairer.nothing
    for failures in [*failures_to_try(fabric, 8 if deep else 4), NONE]:
        new = repairer.overlay(failures)
        walk_through(fabric, plane, repairer.update(overlay, new), flows, failures)
        overlay = new
    assert plane.rules == Plane(fabric, base).rules and plane.groups == Plane(fabric, base).groups


def test_recovery_keeps_a_detour_until_the_way_before_it_has_changed() -> None:
    fabric = fabric_from_text("zcube_recursive:gpus=8,levels=3,partial=true,gpus_per_server=2,asic_ports=4")
    base = rules(fabric, seed=SEED, planned=walk_all_pairs(fabric))
    repairer = Repairer(fabric, seed=SEED, planned=walk_all_pairs(fabric), detour=True)
    failures = Failures.of(fabric, ["odd1-eth5--top1-eth1", "odd5-eth5--top1-eth3", "odd5-eth6--top1-eth4"])
    plane, overlay = Plane(fabric, base), repairer.overlay(failures)
    walk_through(fabric, plane, repairer.update(repairer.nothing, overlay), flows_of(fabric), failures)
    walk_through(fabric, plane, repairer.update(overlay, repairer.nothing), flows_of(fabric), NONE)


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
