"""The containerlab export: valid, complete, and its scripts make Open vSwitch forward as path() says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from export_fabrics import FABRICS

from cli.fabric_export import _containerlab as export
from controller.ovs_scripts import bridges_script, rules_script
from controller.rules import rules
from topologies.export_containerlab import LONGEST_INTERFACE, containerlab, interface
from topologies.fabric import End, Fabric, FabricError
from topologies.roft import roft
from topologies.zcube import zcube

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT.parent / "shared" / "reference" / "clab.schema.json"
fabrics = pytest.mark.parametrize("fabric", FABRICS.values(), ids=FABRICS)


@fabrics
def test_topology_file_names_every_node_cable_and_address(fabric: Fabric) -> None:
    read = yaml.safe_load(containerlab(fabric, "lab"))
    nodes, links = read["topology"]["nodes"], read["topology"]["links"]
    assert {name: node["kind"] for name, node in nodes.items()} == {
        **{gpu.name: "linux" for gpu in fabric.gpus},
        **{switch.name: "ovs-bridge" for switch in fabric.switches},
    }
    ends = [tuple(end.split(":") for end in link["endpoints"]) for link in links]
    assert [(a[0], b[0]) for a, b in ends] == [(link.a.node, link.b.node) for link in fabric.links]
    used = Counter(tuple(end) for pair in ends for end in pair)
    assert set(used.values()) == {1} and all(len(name) <= LONGEST_INTERFACE for _, name in used)
    outside = [name for node, name in used if nodes[node]["kind"] == "ovs-bridge"]
    assert len(outside) == len(set(outside))  # they share the machine's namespace
    for gpu in fabric.gpus:
        commands = [shlex.split(command) for command in nodes[gpu.name]["exec"]]
        for port in gpu.ports:
            dev = f"eth{port.number}"
            assert ["ip", "addr", "add", f"{port.ip}/32", "dev", dev] in commands
            assert ["ip", "link", "set", "dev", dev, "address", port.mac] in commands
            assert ["ip", "link", "set", "dev", dev, "arp", "off"] in commands
        assert sum(command[:3] == ["ip", "route", "add"] for command in commands) == len(gpu.ports)


@fabrics
def test_topology_file_is_valid_by_containerlabs_schema(fabric: Fabric) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    if not SCHEMA.exists():
        pytest.skip(f"no schema at ../{SCHEMA.relative_to(ROOT.parent)}")
    # Not `validate`: it first checks the schema, whose patterns for addresses Python's `re` cannot compile.
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))
    text = containerlab(fabric, "lab")
    assert [error.message for error in validator.iter_errors(yaml.safe_load(text))] == []
    for broken in (text.replace("kind: linux", "kind: linus"), text.replace("endpoints:", "ends:")):
        assert not validator.is_valid(yaml.safe_load(broken))


def entries(script: str, command: str) -> list[str]:
    """Lines of the here-document fed to ovs-ofctl COMMAND."""
    found = re.search(rf"ovs-ofctl \S+ {command} \S+ - <<'ENTRIES'\n(.*?)\nENTRIES\n", script, re.DOTALL)
    return found[1].splitlines() if found else []


@pytest.mark.parametrize("fabric", [*FABRICS.values(), zcube(32, 8, bundle="hashed")], ids=[*FABRICS, "zcube-hashed"])
def test_scripts_hold_every_rule_and_group_and_are_bash(fabric: Fabric, tmp_path: Path) -> None:
    ruleset = rules(fabric, seed=1)
    files = export(fabric).files
    assert isinstance(files, dict)
    for name, text in files.items():
        if name.endswith(".sh"):
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)
            assert text.startswith("#!/usr/bin/env bash\nset -euo pipefail\n")
    for switch in fabric.switches:
        script = files[f"rules/{switch.name}.sh"]
        flows = [re.fullmatch(r"cookie=(\S+?),priority=(\d+),ip,nw_dst=([\d.]+)/([\d.]+),actions=(\S+)", line)
                 for line in entries(script, "add-flows")]  # fmt: skip
        assert all(flows)
        wanted = [
            (rule.priority, rule.match.ipv4_dst, rule.match.ipv4_dst_mask, len(rule.actions) or 1)
            for rule in ruleset.rules[switch.name]
        ]
        assert [(int(f[2]), f[3], f[4], len(f[5].split(","))) for f in flows if f] == wanted
        groups = entries(script, "add-groups")
        assert len(groups) == len(ruleset.groups[switch.name])
        for line, group in zip(groups, ruleset.groups[switch.name], strict=True):
            assert line.startswith(f"group_id={group.group_id},type=select,")
            assert [int(port) for port in re.findall(r"output:(\d+)", line)] == list(group.ports)
        numbering = re.findall(r"set interface (\S+) ofport_request=(\d+)", script)
        assert numbering == [
            (interface(fabric, End(switch.name, port.number)), str(port.number)) for port in switch.ports
        ]


def test_names_reach_the_shell_quoted() -> None:
    """Names of ours are harmless; one that is not stays one word."""
    fabric = zcube(16, 4)
    evil = "odd1; touch /tmp/owned #"
    first = replace(fabric.switches[0], name=evil)
    renamed = replace(fabric, switches=(first, *fabric.switches[1:]))
    lines = bridges_script(renamed).splitlines()
    line = next(line for line in lines if "owned" in line)
    assert shlex.split(line)[3] == evil and len(shlex.split(line)) == 11
    ruleset = rules(fabric, seed=1)
    moved = replace(ruleset, rules={**ruleset.rules, evil: ruleset.rules["odd1"]}, groups={**ruleset.groups, evil: ()})
    script = rules_script(renamed, moved, evil, lambda _, end: f"p{end.port}")
    for line in script.splitlines():
        if "owned" in line:
            assert evil in shlex.split(line.removesuffix(" <<'ENTRIES'"))


def test_bad_names_and_long_interfaces_are_refused() -> None:
    fabric = zcube(16, 4)
    for name in ("", "-lab", "a b", "lab\n- x"):
        with pytest.raises(FabricError, match="name"):
            containerlab(fabric, name)
    with pytest.raises(FabricError, match="image"):
        containerlab(fabric, "lab", "alpine:3\nx: y")
    with pytest.raises(FabricError, match="15 characters"):
        interface(fabric, End("a-very-long-switch", 1))
    assert interface(fabric, End("spine1000", 1000)) == "spine1000-1000"


def test_the_largest_fabric_within_seconds() -> None:
    fabric = zcube(16_384, 128, gpus_per_server=8)
    began = time.process_time()
    files = export(fabric).files
    assert time.process_time() - began < 15
    assert isinstance(files, dict) and len(files) == 4 + 256
    assert files["fabric.clab.yml"].count("kind: linux") == 16_384


PLAY = r"""
import shlex, subprocess, sys, yaml
def run(*argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(argv)}: {done.stdout}{done.stderr}")
    return done.stdout
topology = yaml.safe_load(open("fabric.clab.yml"))["topology"]
kinds = {name: node["kind"] for name, node in topology["nodes"].items()}
for name, kind in kinds.items():
    if kind == "linux":
        run("ip", "netns", "add", name)
        run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
    else:  # this machine may lack the kernel datapath that containerlab needs
        run("ovs-vsctl", "set", "bridge", name, "datapath_type=netdev")
for number, link in enumerate(reversed(topology["links"])):  # numbers must not depend on the order
    for side, end in zip("ab", link["endpoints"]):
        node, name = end.split(":")
    (a, a_name), (b, b_name) = (end.split(":") for end in link["endpoints"])
    run("ip", "link", "add", f"x{number}a", "type", "veth", "peer", "name", f"x{number}b")
    for node, name, made in ((a, a_name, f"x{number}a"), (b, b_name, f"x{number}b")):
        if kinds[node] == "linux":
            run("ip", "link", "set", made, "netns", node)
            run("ip", "-n", node, "link", "set", made, "name", name)
            run("ip", "-n", node, "link", "set", name, "up")
        else:
            run("ip", "link", "set", made, "name", name)
            run("ip", "link", "set", name, "up")
            run("ovs-vsctl", "--timeout=20", "add-port", node, name)
for name, node in topology["nodes"].items():
    for command in node.get("exec", ()):
        run("ip", "netns", "exec", name, *shlex.split(command))
print(run("bash", "2-rules.sh"))
run("bash", "2-rules.sh")  # and again: it replaces
ips = {name: [c.split()[3].removesuffix("/32") for c in node["exec"] if " addr add " in c]
       for name, node in topology["nodes"].items() if "exec" in node}
lost = []
for source in ips:
    for target in ips:
        for ip in ips[target] if target != source else ():
            done = subprocess.run(["ip", "netns", "exec", source, "ping", "-c1", "-W2", "-q", ip], capture_output=True)
            lost += [(source, target, ip)] if done.returncode else []
print("lost", lost)
run("bash", "3-remove.sh")
print("left", run("ovs-vsctl", "list-br").split())
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and Open vSwitch")
@pytest.mark.parametrize("fabric", [zcube(8, 4), roft(8, 4)], ids=["zcube", "roft"])
def test_scripts_play_on_open_vswitch(fabric: Fabric, tmp_path: Path) -> None:
    """What containerlab does between the two scripts is done by hand; then every GPU pings every NIC port."""
    from test_controller_ovs import sandbox

    files = export(fabric).files
    assert isinstance(files, dict)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "play.py").write_text(PLAY)
    out = sandbox(
        'folder=$1; mkdir /run/lab; cp -r "$folder"/* /run/lab; cd /run/lab; bash 1-bridges.sh; "$python" play.py',
        str(tmp_path),
    )
    assert "lost []" in out and "left []" in out, out
    assert sys.executable
