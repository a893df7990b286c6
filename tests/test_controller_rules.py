"""The rules, executed in memory: every ordered GPU pair on every port goes where `path()` says, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.fakeplane import BadRules, Dropped, FakePlane, Loop, Misdelivered, walk
from controller.rules import exact_match, rules
from controller.ruleset import (
    COOKIE_OWNER,
    COOKIE_OWNER_MASK,
    MASK_24,
    Group,
    Match,
    Output,
    Rule,
    RuleSet,
    SelectGroup,
    SetEthDst,
    rules_json,
)
from topologies.clos import clos, fat_tree
from topologies.fabric import End, Fabric
from topologies.impact import path_lengths
from topologies.paths import (
    TCP,
    UDP,
    FiveTuple,
    QueuePair,
    five_tuple,
    flow_path,
    path,
    queue_pairs,
    reversed_flow,
    walk_all_pairs,
)
from topologies.rails import hpn, rail_only
from topologies.recursive import zcube_recursive
from topologies.roft import roft
from topologies.zcube import zcube

SEED = 7
ICMP = 1

FABRICS = {
    "zcube-16-4": zcube(16, 4),
    "zcube-32-8-destination": zcube(32, 8),
    "zcube-32-8-hashed": zcube(32, 8, bundle="hashed"),
    "zcube-32-8-trunk": zcube(32, 8, bundle="trunk"),
    "zcube-32-8-three-links": zcube(32, 8, 3),
    "zcube-64-16": zcube(64, 16),
    "roft-32-8": roft(32, 8),
    "roft-64-16-parallel": roft(64, 16),
    "roft-8-4": roft(8, 4, tiers=2),
    "roft-32-8-three-tiers": roft(32, 8, tiers=3),
    "roft-32-8-equal-cost": roft(32, 8, equal_cost=True),
    "rail-only-32-8": rail_only(32, 8),
    "hpn-32-8": hpn(32, 8),
    "clos-32-8": clos(32, 8),
    "fat-tree-16": fat_tree(16, 4),
    "zcube-3-3": zcube_recursive(27, 3, gpus_per_server=1),
    "zcube-2-3-partial": zcube_recursive(8, 3, partial=True),
}


def planned_rules(fabric: Fabric) -> RuleSet:
    return rules(fabric, seed=SEED, planned=walk_all_pairs(fabric), protocols=(TCP, UDP))


@pytest.mark.parametrize("name", FABRICS)
def test_every_planned_pair_takes_its_path_there_and_back(name: str) -> None:
    fabric = FABRICS[name]

    def never(switch: str, group: SelectGroup, flow: FiveTuple) -> int:
        raise AssertionError(f"{switch} hashed a planned flow {flow}")

    plane = FakePlane(fabric, planned_rules(fabric), choose=never)
    for qp in walk_all_pairs(fabric):
        for protocol in (TCP, UDP):
            data = five_tuple(fabric, qp, protocol)
            assert plane.walk(qp.src, data) == path(fabric, qp, SEED, protocol)
            acks = reversed_flow(data)
            assert plane.walk(qp.dst, acks) == flow_path(fabric, qp.dst, qp.src, acks, SEED)


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize("bucket", [0, -1])
def test_flows_nobody_planned_arrive_whatever_a_group_picks(name: str, bucket: int) -> None:
    fabric = FABRICS[name]
    plane = FakePlane(fabric, rules(fabric, seed=SEED), choose=lambda _s, group, _f: group.ports[bucket])
    longest = path_lengths(fabric).longest_switches
    for qp in walk_all_pairs(fabric):
        flow = replace(five_tuple(fabric, qp), protocol=ICMP, src_port=0, dst_port=0)
        assert len(plane.walk(qp.src, flow).switches) <= longest


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.sampled_from(["destination", "hashed", "trunk"]))
def test_zcube_at_any_size(groups: int, k: int, m: int, bundle: str) -> None:
    fabric = zcube(groups * k, k, m, gpus_per_server=1, bundle=bundle)
    plane = FakePlane(fabric, planned_rules(fabric))
    for qp in walk_all_pairs(fabric):
        assert plane.walk(qp.src, five_tuple(fabric, qp)) == path(fabric, qp, SEED)


@pytest.mark.parametrize(
    ("fabric", "per_switch"),
    [
        (zcube(16, 4), 4 + 4),
        (zcube(32, 8), 8 + 4 * 2),
        (zcube(32, 8, 3), 8 + 4 * 8),  # three is no power of two: one rule for each remote GPU
        (zcube(32, 8, bundle="trunk"), 8 + 4),
        (zcube(32, 8, bundle="hashed"), 8 + 4),
        (zcube(1024, 128), 128 + 8 * 16),
    ],
)
def test_zcube_rule_counts(fabric: Fabric, per_switch: int) -> None:
    assert {len(found) for found in rules(fabric, seed=SEED).rules.values()} == {per_switch}


def test_zcube_by_destination_needs_no_rule_per_flow() -> None:
    fabric = zcube(32, 8)
    assert planned_rules(fabric).rules == rules(fabric, seed=SEED).rules


def test_hashed_bundles_add_one_rule_a_flow_and_direction() -> None:
    fabric = zcube(32, 8, bundle="hashed")
    few = queue_pairs(fabric, "gpu1", "gpu11", per_port_pair=3)
    bare, full = rules(fabric, seed=SEED), rules(fabric, seed=SEED, planned=few)
    assert full.rule_count - bare.rule_count == 2 * 3 * 2  # port pairs * queue pairs * directions
    assert rules(fabric, seed=SEED, planned=few * 2) == full  # planned twice, installed once
    assert all(len(groups) == 4 for groups in bare.groups.values())


def test_roft_rule_counts() -> None:
    fabric = roft(32, 8)
    bare = rules(fabric, seed=SEED)
    assert {len(bare.rules[f"leaf{n}"]) for n in range(1, 9)} == {4 + 3}  # hosts; seven /24s are three prefixes
    assert {len(bare.rules[f"spine{n}"]) for n in range(1, 5)} == {8}  # a prefix per leaf
    assert bare.groups["leaf1"] == (SelectGroup(1, (5, 6, 7, 8)),) and bare.groups["spine1"] == ()
    climbing = sum(len(path(fabric, qp).switches) == 3 for qp in walk_all_pairs(fabric))
    assert climbing == 32 * 28
    full = rules(fabric, seed=SEED, planned=walk_all_pairs(fabric))
    assert full.rule_count - bare.rule_count == 2 * climbing


def test_parallel_links_are_exact_on_the_spine_too() -> None:
    fabric = roft(64, 16)  # 4 spines, two cables per leaf and spine
    full = planned_rules(fabric)
    assert any(rule.kind == "planned" for rule in full.rules["spine1"])
    assert full.groups["spine1"] and {len(group.ports) for group in full.groups["spine1"]} == {2}


def test_only_the_crosswise_ports_are_joined() -> None:
    fabric = zcube(32, 8)
    plane = FakePlane(fabric, rules(fabric, seed=SEED))

    def send(src: End, dst: End) -> tuple[str, ...]:
        ips = fabric.port(src.node, src.port).ip, fabric.port(dst.node, dst.port).ip
        return plane.walk(src, FiveTuple(str(ips[0]), str(ips[1]), ICMP, 0, 0)).switches

    with pytest.raises(Dropped, match="odd1: no rule"):
        send(End("gpu1", 1), End("gpu2", 1))
    with pytest.raises(Dropped, match="even2: no rule"):
        send(End("gpu1", 2), End("gpu9", 2))
    assert send(End("gpu1", 1), End("gpu5", 1)) == ("odd1",)  # the stated exception: both on one switch


@pytest.mark.parametrize("address", ["198.18.0.99", "198.18.77.1", "198.19.3.99", "10.0.0.1"])
@pytest.mark.parametrize(
    "name", ["zcube-32-8-destination", "zcube-32-8-hashed", "roft-32-8", "fat-tree-16", "hpn-32-8"]
)
def test_addresses_that_no_gpu_has_are_dropped_and_do_not_loop(name: str, address: str) -> None:
    fabric = FABRICS[name]
    plane = FakePlane(fabric, rules(fabric, seed=SEED), choose=lambda _s, group, _f: group.ports[-1])
    for gpu in fabric.gpus:
        for port in gpu.ports:
            with pytest.raises(Dropped):
                plane.walk(End(gpu.name, port.number), FiveTuple(str(port.ip), address, ICMP, 0, 0))


# --- a broken rule set is noticed -----------------------------------------------------------------------------


def change(ruleset: RuleSet, switch: str, kind: str, to: tuple[Rule, ...] | None = None, **fields: object) -> RuleSet:
    """The rule set with the first rule of a kind changed, or replaced by others."""
    found = list(ruleset.rules[switch])
    at = next(index for index, rule in enumerate(found) if rule.kind == kind)
    found[at : at + 1] = [replace(found[at], **fields)] if to is None else list(to)  # type: ignore[arg-type]
    return replace(ruleset, rules={**ruleset.rules, switch: tuple(found)})


def walk_all(fabric: Fabric, ruleset: RuleSet) -> None:
    plane = FakePlane(fabric, ruleset)
    for qp in walk_all_pairs(fabric):
        plane.walk(qp.src, five_tuple(fabric, qp))


def test_broken_rules_fail_by_name() -> None:
    fabric = zcube(32, 8)
    good = rules(fabric, seed=SEED)
    walk_all(fabric, good)
    mac = str(fabric.gpus[0].ports[0].mac)
    broken = {
        Dropped: [
            change(good, "odd1", "prefix", to=()),
            change(good, "odd1", "host", to=()),
            change(good, "odd1", "host", actions=()),
            change(good, "odd1", "host", actions=(SetEthDst(mac), Output(99))),
        ],
        Misdelivered: [
            change(good, "odd1", "host", actions=(SetEthDst(mac), Output(2))),
            change(good, "odd1", "host", actions=(Output(1),)),  # MAC not rewritten: the NIC would drop it
        ],
        Loop: [change(good, "odd1", "prefix", actions=(Output(1),))],
        BadRules: [
            change(good, "odd1", "prefix", actions=(Group(5),)),
            change(good, "odd1", "prefix", to=(good.rules["odd1"][-1],)),
            change(good, "odd1", "prefix", match=Match("198.19.0.0", MASK_24)),  # overlaps the other member's
            change(good, "odd1", "prefix", match=Match("198.19.0.1", MASK_24)),
            change(good, "odd1", "prefix", match=Match("198.19.0.0", MASK_24, tp_dst=80)),
        ],
    }
    for error, rulesets in broken.items():
        for ruleset in rulesets:
            with pytest.raises(error):
                walk_all(fabric, ruleset)


def test_a_wrong_member_is_noticed_by_the_path() -> None:
    fabric = zcube(32, 8)
    good = rules(fabric, seed=SEED)
    prefix = next(rule for rule in good.rules["odd1"] if rule.kind == "prefix")
    wrong = change(good, "odd1", "prefix", actions=(Output(prefix.actions[0].port + 1),))  # type: ignore[union-attr]
    walk_all(fabric, wrong)  # it arrives
    assert any(
        walk(fabric, wrong, qp.src, five_tuple(fabric, qp)) != path(fabric, qp, SEED)
        for qp in queue_pairs(fabric, "gpu1", "gpu2")
    )


def test_a_prefix_that_covers_the_leafs_own_addresses_would_loop() -> None:
    fabric = roft(32, 8)
    ruleset = change(rules(fabric, seed=SEED), "leaf1", "fallback", match=Match("198.18.0.0", "255.255.0.0"))
    wide = replace(ruleset, rules={**ruleset.rules, "leaf1": ruleset.rules["leaf1"][:5]})
    with pytest.raises(Loop):
        walk(fabric, wide, End("gpu1", 1), FiveTuple("198.18.0.1", "198.18.0.99", ICMP, 0, 0))


# --- the public form ------------------------------------------------------------------------------------------


def test_rules_json_is_stable_and_complete() -> None:
    fabric = roft(32, 8)
    pairs = list(walk_all_pairs(fabric))
    one = rules_json(rules(fabric, seed=SEED, planned=pairs))
    other = rules_json(rules(fabric, seed=SEED, planned=reversed(pairs)))
    assert json.dumps(one) == json.dumps(other)
    assert one["rule_count"] == sum(len(s["rules"]) for s in one["switches"])  # type: ignore[attr-defined]
    leaf = one["switches"][0]  # type: ignore[index]
    assert (leaf["name"], leaf["dpid"]) == ("leaf1", 3 << 32 | 1)
    assert leaf["rules"][0] == {
        "kind": "host",
        "priority": 400,
        "match": {"eth_type": 2048, "ipv4_dst": "198.18.0.1"},
        "actions": ["set_eth_dst:02:00:c6:12:00:01", "output:1"],
        "cookie": "0x5a43000000000101",
    }


def test_cookies_carry_owner_version_and_kind() -> None:
    ruleset = rules(zcube(16, 4), seed=SEED, version=0x1234)
    for rule in ruleset.rules["odd1"]:
        cookie = ruleset.cookie(rule)
        assert cookie & COOKIE_OWNER_MASK == COOKIE_OWNER
        assert cookie >> 8 & 0xFFFF_FFFF_FF == 0x1234
    assert {ruleset.cookie(rule) & 0xFF for rule in ruleset.rules["odd1"]} == {1, 3}


def test_an_exact_match_names_every_field() -> None:
    fabric = roft(32, 8)
    qp = QueuePair(End("gpu1", 1), End("gpu2", 1), 0)
    match = exact_match(five_tuple(fabric, qp))
    assert match.to_json() == {
        "eth_type": 2048,
        "ipv4_dst": "198.18.1.1",
        "ipv4_src": "198.18.0.1",
        "ip_proto": 6,
        "tp_src": 20_002,
        "tp_dst": 19_000,
    }
