"""The controller against real Open vSwitch bridges, on both SDN libraries, in a sandbox that ends with its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from controller.plan import FabricPlan, Plan
from topologies.paths import TCP, UDP

ROOT = Path(__file__).resolve().parents[1]
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and Open vSwitch"),
]

#: Private folders and daemons; host-wide sysctls are read-only. Then cd to the repository, and $python.
PRELUDE = r"""
set -eu
export HOME=/run PYTHONDONTWRITEBYTECODE=1
export OVS_RUNDIR=/run/openvswitch OVS_DBDIR=/run/openvswitch OVS_LOGDIR=/run/openvswitch
for folder in fs kernel vm; do
    mount --bind /proc/sys/$folder /proc/sys/$folder
    mount -o remount,bind,ro /proc/sys/$folder
done
mount -t tmpfs tmpfs /run
mkdir -p /run/openvswitch /run/netns
ip link set lo up
ovsdb-tool create /run/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema
daemon=(--detach --pidfile -vconsole:off --log-file)
ovsdb-server /run/openvswitch/conf.db --remote=punix:/run/openvswitch/db.sock "${daemon[@]}"
ovs-vsctl --no-wait init
ovs-vswitchd "${daemon[@]}"
cd "$1"; python=$2; shift 2

await() {  # until the status file says so, or 30 s
    for _ in $(seq 300); do
        if grep -qs "^ \"state\": \"$1\"" /run/status.json; then return; fi
        sleep 0.1
    done
    echo "never $1" >&2; cat /run/status.json >&2; exit 1
}

bridges() {  # name=dpid ..., in one transaction
    local transaction=() pair name
    for pair in "$@"; do
        name=${pair%%=*}
        transaction+=(-- add-br $name -- set-fail-mode $name secure -- set-controller $name tcp:127.0.0.1:6653)
        transaction+=(-- set bridge $name datapath_type=netdev protocols=OpenFlow13 other-config:disable-in-band=true)
        transaction+=(-- set bridge $name other-config:datapath-id=${pair#*=})
        transaction+=(-- set controller $name max_backoff=1000)
    done
    ovs-vsctl "${transaction[@]}"
}
"""


def sandbox(script: str, *arguments: str, timeout_s: float = 120, **environment: str) -> str:
    """Output of a shell script in a fresh sandbox."""
    done = subprocess.run(
        [*UNSHARE, "bash", "-c", PRELUDE + script, "bash", str(ROOT), sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dpids(plan: Plan) -> list[str]:
    """Arguments of `bridges` for a plan."""
    return [f"{switch.name}={switch.dpid:016x}" for switch in plan.build().switches]


INSTALL = r"""
plan=$1 newer=$2; shift 2
bridges "$@"
first=${1%%=*}
for flow in cookie=0x99,priority=5,ip,actions=drop cookie=0x99,priority=65535,arp,actions=drop \
    cookie=0x5a43000000000007,priority=65535,dl_type=0x88cc,actions=controller \
    cookie=0x5a43000000000001,priority=65535,tcp,tp_src=0x400/0xfc00,actions=drop \
    cookie=0x5a43000000000001,table=3,priority=65535,ip,nw_src=10.0.0.0/8,actions=drop; do
    ovs-ofctl -O OpenFlow13 add-flow $first $flow  # of others; then of a controller that died, and of another version
done
$python -m controller.launch --plan $plan --status /run/status.json & controller=$!
await confirmed
cat /run/status.json
echo ---
kill $controller; wait $controller
rm /run/status.json
$python -m controller.launch --plan $newer --status /run/status.json & controller=$!
await confirmed
for pair in "$@"; do
    name=${pair%%=*}
    echo "$name $(ovs-ofctl -O OpenFlow13 dump-flows $name | grep -c 'cookie=0x5a43') \
$(ovs-ofctl -O OpenFlow13 dump-flows $name cookie=0x5a43000000000200/0xffffffffffffff00 | grep -c cookie=) \
$(ovs-ofctl -O OpenFlow13 dump-groups $name | grep -c group_id)"
done
echo "foreign $(ovs-ofctl -O OpenFlow13 dump-flows $first | grep -c 'cookie=0x99')"
kill $controller
"""

FABRICS = {
    "zcube-destination": FabricPlan("zcube", 32, gpus_per_switch=8),
    "zcube-hashed": FabricPlan("zcube", 16, gpus_per_switch=8, bundle="hashed"),
    "roft": FabricPlan("roft", 32),
}


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("ryu", "zcube-destination"),
        ("os-ken", "zcube-hashed"),
        ("ryu", "roft"),
        pytest.param("os-ken", "zcube-destination", marks=pytest.mark.deep),
        pytest.param("ryu", "zcube-hashed", marks=pytest.mark.deep),
        pytest.param("os-ken", "roft", marks=pytest.mark.deep),
    ],
)
def test_every_rule_arrives_and_a_newer_set_replaces_it(library: str, name: str, tmp_path: Path) -> None:
    plan = Plan(FABRICS[name], planned=1, protocols=(TCP, UDP))
    plan.save(tmp_path / "plan.json")
    replace(plan, version=2).save(tmp_path / "newer.json")
    fabric = plan.build()
    ruleset = plan.rules(fabric)
    files = str(tmp_path / "plan.json"), str(tmp_path / "newer.json")

    output = sandbox(INSTALL, *files, *dpids(plan), ZCUBE_SDN=library)

    status_text, _, tables = output.partition("---\n")
    status = json.loads(status_text)
    assert status["sdn"].startswith(library)
    assert (status["state"], status["confirmed"], status["errors"]) == ("confirmed", len(fabric.switches), [])
    foreign = {switch: found["foreign"] for switch, found in status["switches"].items()}
    arp, ip = foreign.pop(fabric.switches[0].name)
    assert "{'eth_type': 2054}" in arp + ip and "{'eth_type': 2048}" in arp + ip
    assert not any(foreign.values())
    for switch in fabric.switches:
        found = status["switches"][switch.name]
        assert found["rules_wanted"] == len(ruleset.rules[switch.name])
        assert found["errors"] == [] and found["wall_ms"] > 0
    rules = {name: str(len(found)) for name, found in ruleset.rules.items()}
    assert [line.split() for line in tables.splitlines()] == [
        *([s.name, rules[s.name], rules[s.name], str(len(ruleset.groups[s.name]))] for s in fabric.switches),
        ["foreign", "2"],
    ]


UNKNOWN = r"""
plan=$1; shift
bridges "$@" stranger=00000000000000ff
$python -m controller.launch --plan $plan --status /run/status.json 2>/run/log & controller=$!
await failed
grep -q "unknown switch" /run/log
ovs-ofctl -O OpenFlow13 dump-flows stranger | grep -c cookie= || true
cat /run/status.json
"""


def test_a_switch_that_the_plan_does_not_know_gets_nothing_and_is_reported(tmp_path: Path) -> None:
    plan = Plan(FabricPlan("zcube", 16, gpus_per_switch=4), expected=("odd1",))
    plan.save(tmp_path / "plan.json")
    flows, _, status_text = sandbox(UNKNOWN, str(tmp_path / "plan.json"), *dpids(plan)[:1]).partition("\n")
    assert flows == "0"
    status = json.loads(status_text)
    assert status["errors"] == ["unknown switch: DPID 0x00000000000000ff at 127.0.0.1 is not in the plan"]


REFUSED = r"""
bridges odd1=0000000100000001
cat > /run/refused.py <<'PROGRAM'
from dataclasses import replace
from pathlib import Path
from controller import app, sdn
from controller.plan import from_topo
from controller.ruleset import Group

plan = from_topo("zcube,16,4")
good = plan.rules(plan.build())
bad = replace(good.rules["odd1"][5], actions=(Group(77),))
ruleset = replace(good, rules={**good.rules, "odd1": (*good.rules["odd1"][:5], bad)})
settings = app.Settings(ruleset, ("odd1",), "127.0.0.1:6653", Path("/run/status.json"), plan.repairer(plan.build()))
app.configure(settings)
sdn.run(["controller.app"], "127.0.0.1", 6653)
PROGRAM
PYTHONPATH=. $python /run/refused.py 2>/run/log & controller=$!
await failed
cat /run/status.json
"""


@pytest.mark.parametrize("library", ["ryu", "os-ken"])
def test_a_refused_rule_is_named(library: str) -> None:
    status = json.loads(sandbox(REFUSED, ZCUBE_SDN=library))
    (error,) = status["switches"]["odd1"]["errors"]
    assert error.startswith("refused (type 2, code ") and "Group(group_id=77)" in error


LOST = r"""
plan=$1; shift
bridges "$@"
$python -m controller.launch --plan $plan --status /run/status.json & controller=$!
await confirmed
ovs-vsctl del-controller odd1
await waiting
grep -q '"state": "lost"' /run/status.json
ovs-vsctl set-controller odd1 tcp:127.0.0.1:6653
await confirmed
ovs-vsctl add-port even2 gpu1-eth2 -- set interface gpu1-eth2 type=internal
for _ in $(seq 50); do grep -q '"reason": "add"' /run/status.json && break; sleep 0.1; done
cat /run/status.json
"""


@pytest.mark.parametrize("library", ["ryu", "os-ken"])
def test_a_switch_that_leaves_and_returns_is_installed_again(library: str, tmp_path: Path) -> None:
    plan = Plan(FabricPlan("zcube", 16, gpus_per_switch=4))
    plan.save(tmp_path / "plan.json")
    status = json.loads(sandbox(LOST, str(tmp_path / "plan.json"), *dpids(plan), ZCUBE_SDN=library))
    assert status["state"] == "confirmed"
    assert status["switches"]["odd1"]["connections"] == 2
    assert [event["switch"] for event in status["port_events"] if event["reason"] == "add"] == ["even2"]
