"""`zcube fabric probe --run`: beside the traffic of a run, before and after its routes go round a failure."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests_root import REPOSITORY, needs_root
from zcube_command import one_message, zcube

from controller.status_socket import NAME, ask
from results.reader import RunFolder
from scenario.models import Scenario
from topologies.build import build
from topologies.fabric import Fabric
from topologies.paths import QueuePair
from topologies.routes import Failures
from traffic.budget import pairs_of
from traffic.sources import make_source

pytestmark = [pytest.mark.root, needs_root]

ZCUBE = [sys.executable, "-m", "cli.main"]
#: Settings of each, and a cable that fails.
FABRICS = {
    "zcube": ("{kind: zcube, gpus: 8, gpus_per_server: 2, asic_ports: 4}", "odd1-eth5--even2-eth5"),
    "roft": ("{kind: roft, gpus: 8, gpus_per_server: 2, asic_ports: 4}", "leaf1-eth3--spine1-eth1"),
}
SCENARIO = """
name: probed
fabric: {fabric}
scale: {{rate_factor: 2.0e-5, dilation: 8.0}}
routing: {{queue_pairs: 2}}
workload: {{kind: coding_agent, requests: 30, warmup_requests: 2, utilisation: 0.6}}
faults: {{events: [{{at_s: 0.3, down: [{cable}]}}]}}
"""


def probe(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*ZCUBE, "fabric", "probe", "--run", str(folder), *arguments],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def csum_errors(folder: Path, gpu: str) -> int:
    """Of the TCP segments that a GPU's kernel has dropped, those with a wrong checksum."""
    pid = str(ask(folder / NAME)["host_pid"])
    inner = (
        "import json, subprocess, sys; from emulation.netns import inside;"
        "pid = json.load(open('/etc/openvswitch/nodes.json'))[sys.argv[1]];"
        "subprocess.run(inside(pid, ['cat', '/proc/thread-self/net/snmp']))"
    )
    command = ["nsenter", "--target", pid, "--mount", "--pid", "--net", "--", sys.executable, "-c", inner, gpu]
    text = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ).stdout
    names, values = (line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:"))
    return int(dict(zip(names, values, strict=True))["InCsumErrors"])


@contextlib.contextmanager
def serving(tmp_path: Path, kind: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run under way, and its folder."""
    fabric, cable = FABRICS[kind]
    (tmp_path / "scenario.yaml").write_text(SCENARIO.format(fabric=fabric, cable=cable))
    folder = tmp_path / "out"
    process = subprocess.Popen(
        [*ZCUBE, "run", str(tmp_path / "scenario.yaml"), "--out", str(folder)],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_for(folder, "serving", process)
        yield process, folder
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def events(folder: Path) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(folder: Path, name: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while name not in [event["event"] for event in events(folder)]:
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.1)


def over(scenario: Scenario, fabric: Fabric, cable: str) -> QueuePair:
    """A queue pair of the run whose path is over a cable."""
    pairs = (pair for pair in pairs_of(scenario, make_source(scenario)))
    queue_pairs = (qp for pair in pairs for qp in scenario.paths.queue_pairs(fabric, *pair))
    return next(qp for qp in queue_pairs if cable in scenario.paths.path(fabric, qp).links)


@pytest.mark.parametrize("kind", list(FABRICS))
def test_a_live_run_is_probed_and_the_probe_follows_its_repairs(tmp_path: Path, kind: str) -> None:
    with serving(tmp_path, kind) as (process, folder):
        scenario, cable = RunFolder(folder).scenario(), FABRICS[kind][1]
        fabric = build(scenario.fabric)
        qp = over(scenario, fabric, cable)
        pair = ("--from", qp.src.node, "--to", qp.dst.node)
        wait_for(folder, "repaired", process)
        before = csum_errors(folder, qp.dst.node)
        found = json.loads(probe(folder, *pair, "--queue-pair", str(qp.index), "--json").stdout)
        assert csum_errors(folder, qp.dst.node) - before == 3 * len(found["probes"])  # no socket of the run got them
        down = Failures.of(fabric, [cable])
        wanted = [
            scenario.paths.path(fabric, other, down)
            for other in scenario.paths.queue_pairs(fabric, qp.src.node, qp.dst.node, down)
            if other.index == qp.index
        ]
        assert [one["observed"] for one in found["probes"]] == [
            [{"node": end.node, "port": end.port} for end in way.egress] for way in wanted
        ]
        assert found["equal"] and wanted and all(cable not in way.links for way in wanted)
        assert all(one["planned"] for one in found["probes"])
        (probed,) = [event for event in events(folder) if event["event"] == "probed"]
        assert (probed["src_gpu"], probed["packets"]) == (qp.src.node, 3 * len(wanted))
        for arguments, said in (
            (("--from", "1", "--to", "9"), "must be one of gpu1 to gpu8"),
            ((*pair, "--queue-pair", "2"), "the run has 2 a port pair"),
            ((*pair, "--seed", "2"), "leave it out with --run"),
            ((*pair, "roft:gpus=16"), "leave it out with --run"),
        ):
            one_message(zcube("fabric", "probe", "--run", str(folder), *arguments), 2, said)
    one_message(zcube("fabric", "probe", "--run", str(folder), *pair), 2, "this run has ended")
