"""What a switch says it has, packed and read by the SDN library itself, on both: no two rules share a key."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests_root import REPOSITORY

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
