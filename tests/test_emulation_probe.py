"""`zcube fabric probe`: planned against observed path on real switches, and what it says when they differ."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from tests_root import REPOSITORY, in_sandbox, needs_root
from typer.testing import CliRunner

import emulation.probe
from cli import fabric_probe
from emulation.probe import Settings, check, pairs_of
from scenario.errors import InputError
from scenario.fabric_spec import fabric_from_text, section_from_text
from scenario.models import Scenario
from topologies.build import build
from topologies.paths import path, queue_pairs
from topologies.routes import Failures

ROFT = "roft:gpus=8,asic_ports=4"
ZCUBE = "zcube:gpus=8,gpus_per_switch=4"
FROM_TO = ("--from", "1", "--to", "gpu6")


def planned(seed: int, index: int = 0) -> list[dict[str, Any]]:
    fabric = fabric_from_text(ROFT)
    qp = queue_pairs(fabric, "gpu1", "gpu6", index + 1)[index]
    return [{"node": end.node, "port": end.port} for end in path(fabric, qp, seed).egress]


def another_seed(index: int) -> int:
    return next(seed for seed in range(2, 50) if planned(seed, index)[1] != planned(1, index)[1])


COMMANDS = {
    "zcube": ("--protocol", "udp", ZCUBE),
    "one": ("--queue-pair", "1", "--seed", "1", ROFT),
    "again": ("--queue-pair", "1", "--seed", "1", ROFT),
    "other": ("--queue-pair", "1", "--seed", str(another_seed(1)), ROFT),
    "unplanned": ("--source-port", "45678", ROFT),
}


@pytest.fixture(scope="module")
def probed() -> dict[str, dict[str, Any]]:
    """What each command printed. They run side by side: sandboxes do not see each other."""
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "cli.main", "fabric", "probe", *FROM_TO, *arguments, "--json"],
            cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name, arguments in COMMANDS.items()
    }  # fmt: skip
    found = {}
    for name, process in running.items():
        output, errors = process.communicate(timeout=180)
        assert process.returncode == 0, (name, output, errors)
        found[name] = json.loads(output)
    return found


@pytest.mark.root
@needs_root
def test_zcube_sends_both_port_pairs_over_the_only_path(probed: dict[str, dict[str, Any]]) -> None:
    fabric = fabric_from_text(ZCUBE)
    assert probed["zcube"]["equal"]
    for one, qp in zip(probed["zcube"]["probes"], queue_pairs(fabric, "gpu1", "gpu6"), strict=True):
        assert one["observed"] == [{"node": e.node, "port": e.port} for e in path(fabric, qp).egress]
        assert one["chosen_by"] == "address rules: the only path" and one["packets"] == 3


@pytest.mark.root
@needs_root
def test_the_seed_decides_the_path_and_the_same_seed_the_same(probed: dict[str, dict[str, Any]]) -> None:
    ways = {}
    for name in ("one", "again", "other"):
        (one,) = probed[name]["probes"]
        assert probed[name]["equal"] and one["qp"] == 1 and one["chosen_by"] == "exact rules of the plan"
        ways[name] = one["observed"]
    assert ways["one"] == ways["again"] == planned(1, 1)
    assert ways["other"] == planned(another_seed(1), 1) != ways["one"]


@pytest.mark.root
@needs_root
def test_a_flow_that_nobody_planned_goes_where_the_switch_hashes_it(probed: dict[str, dict[str, Any]]) -> None:
    (one,) = probed["unplanned"]["probes"]
    assert one["planned"] is None and one["qp"] is None and one["five_tuple"]["src_port"] == 45_678
    assert "select groups (ecmp_ovs)" in one["chosen_by"]
    assert one["observed"][0] == {"node": "gpu1", "port": 1} and len(one["observed"]) == 4


@pytest.mark.root
@needs_root
def test_one_wrong_rule_is_seen_where_it_is(tmp_path: Path) -> None:
    up = planned(1)[1]
    (wrong,) = {3, 4} - {up["port"]}
    to_all = "priority=65000,ip,nw_dst=198.18.0.0/16,actions="
    settings = Settings(section_from_text(ROFT).wiring, "gpu1", "gpu6")
    arguments = ["tests/emulated_probe.py", settings.to_json(), up["node"], f"{to_all}output:{wrong}", f"{to_all}drop"]
    elsewhere, dropped = in_sandbox(tmp_path, *arguments)
    for found in (elsewhere, dropped):
        assert not found["equal"] and found["probes"][0]["planned"] == planned(1)
    assert elsewhere["probes"][0]["observed"][1] == {"node": "leaf1", "port": wrong}
    assert elsewhere["probes"][0]["problem"] == ""
    assert dropped["probes"][0]["observed"] == planned(1)[:1]
    assert dropped["probes"][0]["problem"] == "was dropped by leaf1"


def test_the_exit_code_and_the_table_say_which_hop_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = planned(1)
    seen[1] = {**seen[1], "port": 7 - seen[1]["port"]}
    one = {
        "src_gpu": "gpu1", "src_port": 1, "dst_gpu": "gpu6", "dst_port": 1, "qp": 0, "packets": 3,
        "five_tuple": {"src_ip": "a", "dst_ip": "b", "protocol": 6, "src_port": 1, "dst_port": 2},
        "chosen_by": "x", "planned": planned(1), "observed": seen, "problem": "", "equal": False,
    }  # fmt: skip
    monkeypatch.setattr(emulation.probe, "run", lambda *_: {"probes": [one], "equal": False})
    monkeypatch.setattr(fabric_probe, "out", Console(width=120))
    app = typer.Typer()
    app.callback()(lambda: None)  # with one command alone, its name would not be an argument
    fabric_probe.register(app)
    done = CliRunner().invoke(app, ["probe", *FROM_TO, ROFT])
    assert done.exit_code == 1 and "DIFFERS" in done.stdout
    monkeypatch.setattr(emulation.probe, "run", lambda *_: {"probes": [{**one, "observed": planned(1)}], "equal": True})
    assert CliRunner().invoke(app, ["probe", *FROM_TO, ROFT]).exit_code == 0


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        (ROFT, {"src_gpu": "gpu17"}, "--from = 'gpu17': must be one of gpu1 to gpu8"),
        (ROFT, {"dst_gpu": "gpu1"}, "must be another GPU"),
        (ROFT, {"protocol": "sctp"}, "must be tcp or udp"),
        (ROFT, {"source_port": 70_000}, "from 1 to 65535"),
        ("zcube:gpus=1024,asic_ports=64", {}, "at most 256 GPUs"),
        ("rail_only:gpus=16,asic_ports=8", {"dst_gpu": "gpu2"}, "only NVLink joins them"),
    ],
)
def test_what_cannot_be_probed_is_said_before_anything_starts(text: str, changes: dict[str, Any], said: str) -> None:
    section = section_from_text(text)
    settings = Settings(**{"fabric": section.model_dump(), "src_gpu": "gpu1", "dst_gpu": "gpu6", **changes})
    with pytest.raises(InputError, match=said):
        check(section, settings)


def test_of_a_live_run_the_ports_that_are_cut_and_queue_pairs_that_it_has_not_are_known_beforehand() -> None:
    scenario = Scenario(fabric=section_from_text(ZCUBE))
    fabric = build(scenario.fabric)
    settings = Settings(scenario.fabric.wiring, "gpu1", "gpu6")

    def ports(*down: str) -> list[tuple[int, int]]:
        return [(qp.src.port, qp.dst.port) for qp in pairs_of(scenario, fabric, settings, Failures.of(fabric, down))]

    cable = fabric.link_at["gpu1", 1].id
    assert ports() == [(1, 2), (2, 1)] and ports(cable) == [(2, 1)]
    assert ports(cable, fabric.link_at["gpu1", 2].id) == []
    with pytest.raises(InputError, match="--queue-pair = 1: the run has 1 a port pair"):
        pairs_of(scenario, fabric, replace(settings, queue_pair=1))
