"""What a switch says it has, packed and read by the SDN library itself, on both: no two rules share a key."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests_root import REPOSITORY

from controller.audit import Found, RuleKey, difference
from controller.ruleset import FIRST_OVERLAY_GROUP, Group, Match, Output, Rule, SelectGroup

#: Entries as a switch sends them. Ours: a prefix rule, the LLDP punt rule, an ARP rule and a rule in another table that
#: an earlier version of us left. Foreign: the rest, all of which differ from each other by their match alone.
LIBRARY_SIDE = """
import json, struct
from types import SimpleNamespace
from controller import sdn
from controller.audit import difference, rule_of
from controller.messages import messages
from controller.ruleset import Match, Output, Rule, RuleSet, TABLE

parser, ofproto = sdn.ofproto_v1_3_parser, sdn.ofproto_v1_3
OURS, THEIRS = 0x5a43_0000_0000_0103, 0x99
WANTED = Rule("prefix", 200, Match("198.19.1.0", "255.255.255.0"), (Output(7),))

def entry(cookie, priority, fields, table=0):
    packed = bytearray(48)
    length = parser.OFPMatch(_ordered_fields=fields).serialize(packed, 48) + 48
    parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, [parser.OFPActionOutput(7, 0)]).serialize(packed, length)
    head = len(packed), table, 1, 0, priority, 0, 0, 0, cookie, 0, 0  # struct ofp_flow_stats
    struct.pack_into("!HBxIIHHHH4xQQQ", packed, 0, *head)
    return parser.OFPFlowStats.parser(bytes(packed), 0)

stats = [
    entry(OURS, 200, [("eth_type", 0x800), ("ipv4_dst", ("198.19.1.0", "255.255.255.0"))]),
    entry(OURS, 65535, [("eth_type", 0x88cc)]),
    entry(OURS, 65535, [("eth_type", 0x806), ("arp_tpa", ("10.0.0.0", "255.0.0.0"))]),
    entry(OURS, 200, [("eth_type", 0x800), ("ipv4_dst", ("198.19.1.0", "255.255.255.0"))], table=3),
    entry(THEIRS, 65535, [("eth_type", 0x806)]),
    entry(THEIRS, 65535, []),
    entry(THEIRS, 65535, [("eth_type", 0x800)]),
    entry(THEIRS, 65535, [("eth_type", 0x800), ("ipv4_src", ("10.0.0.0", "255.0.0.0")), ("ipv4_dst", "10.0.0.1")]),
    entry(THEIRS, 65535, [("eth_type", 0x86dd), ("ipv6_dst", "fe80::1")]),
    entry(THEIRS, 65535, [("in_port", 4), ("eth_type", 0x88cc)]),
]
found = dict(map(rule_of, stats))
ruleset = RuleSet(1, 1, {"odd1": 1}, {"odd1": (WANTED,)}, {"odd1": ()})
what = difference([WANTED], {(200, WANTED.match): OURS}, [], found, {})
datapath = SimpleNamespace(
    ofproto=ofproto, ofproto_parser=parser, set_xid=lambda message: message.set_xid(1)
)
deletes = []
for message, _ in messages(datapath, ruleset, what, {}):
    if isinstance(message, parser.OFPFlowMod):
        message.set_xid(1)
        message.serialize()
        read = parser.OFPMatch.parser(bytes(message.buf), 48)  # ofp_header 8, ofp_flow_mod 40
        deletes.append([
            message.command == ofproto.OFPFC_DELETE_STRICT, message.table_id, message.priority,
            hex(message.cookie_mask), hex(message.cookie), sorted(map(list, read.items())),
        ])
print(json.dumps({"keys": len(found), "kept": what.kept, "added": len(what.add_rules), "foreign": what.foreign,
                  "deletes": sorted(deletes)}))
"""


@pytest.mark.parametrize("sdn", ["ryu", "os-ken"])
def test_rules_that_are_not_ipv4_of_ours_keep_their_own_keys(sdn: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY_SIDE],
        capture_output=True, text=True, cwd=REPOSITORY, env={**os.environ, "ZCUBE_SDN": sdn},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["keys"], found["kept"], found["added"]) == (10, 1, 0)
    # Ours that are not wanted go, each by its own match; the wanted one with the same match in table 0 stays.
    owner = ["0xffff000000000000", "0x5a43000000000000"]
    prefix = ["ipv4_dst", ["198.19.1.0", "255.255.255.0"]]
    assert found["deletes"] == [
        [True, 0, 65535, *owner, [["arp_tpa", ["10.0.0.0", "255.0.0.0"]], ["eth_type", 0x806]]],
        [True, 0, 65535, *owner, [["eth_type", 0x88CC]]],
        [True, 3, 200, *owner, [["eth_type", 0x800], prefix]],
    ]
    # Every foreign one is reported by itself.
    assert len(found["foreign"]) == 6 and all("cookie 0x99" in text for text in found["foreign"])
    for part in ("{'eth_type': 2054}", "{}", "{'eth_type': 2048}", "ipv4_src", "ipv6_dst", "'in_port': 4"):
        assert any(part in text for text in found["foreign"]), part


#: Group descriptions as a switch sends them: (type, id, [(weight, port), ...]). 1 is select, 0 all.
GROUP_SIDE = """
import json, struct, sys
from controller import sdn
from controller.audit import group_of

parser, ofproto = sdn.ofproto_v1_3_parser, sdn.ofproto_v1_3

def stat(kind, number, buckets):
    made = [parser.OFPBucket(weight=w, actions=[parser.OFPActionOutput(p, 0)]) for w, p in buckets]
    packed = bytearray(8)
    for bucket in made:
        bucket.serialize(packed, len(packed))
    struct.pack_into("!HBxI", packed, 0, len(packed), kind, number)
    return parser.OFPGroupDescStats.parser(bytes(packed), 0)

print(json.dumps([group_of(stat(*one)) for one in json.loads(sys.argv[1])]))
"""


@pytest.mark.parametrize("sdn", ["ryu", "os-ken"])
def test_a_group_is_as_ours_only_with_type_select_and_weights_of_one(sdn: str) -> None:
    groups = [[1, 7, [[1, 5], [1, 6]]], [0, 8, [[0, 5], [0, 6]]], [1, 9, [[1, 5], [3, 6]]], [0, 10, [[1, 5], [1, 6]]]]
    done = subprocess.run(
        [sys.executable, "-c", GROUP_SIDE, json.dumps(groups)],
        capture_output=True, text=True, cwd=REPOSITORY, env={**os.environ, "ZCUBE_SDN": sdn},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[7, [5, 6]], [8, None], [9, None], [10, None]]


OURS, THEIRS = 0x5A43_0000_0000_0104, 0x99


def rule(address: str, action: Group | Output) -> Rule:
    return Rule("fallback", 100, Match(address, "255.255.255.0"), (action,))


def found(cookie: int, one: Rule) -> tuple[RuleKey, Found]:
    groups = frozenset(action.group_id for action in one.actions if isinstance(action, Group))
    return (one.priority, one.match), Found(cookie, one.actions, groups)


def test_only_groups_of_ours_are_deleted_and_others_are_reported() -> None:
    wanted, old = rule("198.18.1.0", Group(1)), rule("198.18.9.0", Group(2))
    shared = rule("198.18.8.0", Group(3))
    on_switch = dict([found(OURS, wanted), found(OURS, old), found(OURS, shared)])
    on_switch |= dict([found(THEIRS, rule("10.0.0.0", Group(77))), found(THEIRS, rule("10.0.1.0", Group(3)))])
    overlay_left = FIRST_OVERLAY_GROUP + 5
    groups = dict.fromkeys((1, 2, 3, 77, 78, overlay_left), (5, 6))
    cookies, wanted_groups = {(100, wanted.match): OURS}, [SelectGroup(1, (5, 6))]
    what = difference([wanted], cookies, wanted_groups, on_switch, groups)
    assert what.kept == 1 and not what.add_rules and not what.add_groups
    assert what.delete_groups == (2, overlay_left)  # 3 is used by a foreign rule too
    assert [text for text in what.foreign if text.startswith("group")] == ["group 3", "group 77", "group 78"]


def test_what_takes_the_place_of_somebody_elses_is_reported() -> None:
    wanted = rule("198.18.1.0", Group(1))
    on_switch = dict([found(THEIRS, rule("198.18.1.0", Output(3)))])
    what = difference([wanted], {(100, wanted.match): OURS}, [SelectGroup(1, (5, 6))], on_switch, {1: None})
    assert what.add_rules == (wanted,) and what.add_groups == (SelectGroup(1, (5, 6)),) and not what.delete_groups
    of_rule, of_group = what.foreign
    assert of_rule.endswith("cookie 0x99, replaced") and of_group == "group 1, replaced"
