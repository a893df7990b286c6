"""topologies/mn.py as a Mininet user runs it: the real `mn`, our controller started alone, every pair pinged."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from test_controller_ovs import ROOT, UNSHARE, sandbox

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: Mininet and Open vSwitch"),
]

#: A /tmp of its own, with the repository still in its place when it is below /tmp.
KEEP = f"mount --bind {ROOT} /mnt; mount -t tmpfs tmpfs /tmp; mkdir -p {ROOT}; mount --bind /mnt {ROOT}; cd {ROOT}"

#: Topology and test. mn tidies /tmp when it fails, so it gets one of its own.
MN = r"""
here=$PWD; mount --bind "$here" /mnt; mount -t tmpfs tmpfs /tmp  # the repository may be below it
mkdir -p "$here"; mount --bind /mnt "$here"; cd "$here"
$python -m controller.launch --topo $1 --status /run/status.json & controller=$!
await waiting
mn --custom topologies/mn.py --topo $1 --controller remote,ip=127.0.0.1 --switch ovs,datapath=user --test $2 2>&1
kill $controller
"""


@pytest.mark.parametrize(
    ("topo", "library", "pairs"),
    [
        ("zcube,16,4", "os-ken", 240),
        ("roft,16,8", "ryu", 240),
        pytest.param("zcube,32,8", "ryu", 992, marks=pytest.mark.deep),
        pytest.param("roft,32,8", "ryu", 992, marks=pytest.mark.deep),
    ],
)
def test_pingall(topo: str, library: str, pairs: int) -> None:
    output = sandbox(MN, topo, "pingall", ZCUBE_SDN=library)
    assert f"Results: 0% dropped ({pairs}/{pairs} received)" in output, output


#: Every host sends to both addresses of every other; TCP between two of them.
BOTH_PORTS = r"""
here=$PWD; mount --bind "$here" /mnt; mount -t tmpfs tmpfs /tmp  # the repository may be below it
mkdir -p "$here"; mount --bind /mnt "$here"; cd "$here"
cat > /tmp/both.py <<'PROGRAM'
import sys
from mininet.net import Mininet
from mininet.node import OVSSwitch, RemoteController
sys.argv = ["mn", "--custom", "topologies/mn.py"]
names = {}
exec(open("topologies/mn.py").read(), names, names)
net = Mininet(names["topos"]["zcube"](16, 4), switch=lambda name, **p: OVSSwitch(name, datapath="user", **p),
              controller=lambda name: RemoteController(name, ip="127.0.0.1", port=6653), waitConnected=True)
net.start()
lost = 0
for there in net.hosts:
    for intf in there.intfList():
        for here in net.hosts[:2]:
            if here is not there:
                lost += " 0% packet loss" not in here.cmd(f"ping -c1 -W1 {intf.IP()}")
print("lost", lost)
for intf in net["gpu16"].intfList():
    net["gpu16"].cmd("timeout 20 iperf3 -s -1 -D"); net["gpu16"].cmd("sleep 0.3")
    print("tcp", "iperf Done" in net["gpu1"].cmd(f"timeout 10 iperf3 -c {intf.IP()} -n 200K"))
print("neighbours", net["gpu1"].cmd("ip -4 neigh show nud reachable nud stale | wc -l").strip())
net.stop()
PROGRAM
$python -m controller.launch --topo zcube,16,4 --status /run/status.json & controller=$!
await waiting
/usr/bin/python3 /tmp/both.py
kill $controller
"""


def test_both_addresses_answer_and_tcp_connects_without_arp() -> None:
    assert sandbox(BOTH_PORTS).split("\n")[:4] == ["lost 0", "tcp True", "tcp True", "neighbours 0"]


def test_found_from_another_folder_and_a_misfit_is_one_message(tmp_path: Path) -> None:
    script = f"{KEEP}; cd /; mn --custom {ROOT}/topologies/mn.py --topo zcube,33,8 --test none"
    done = subprocess.run([*UNSHARE, "bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--topo: gpus = 33" in done.stderr and "Traceback" not in done.stderr
