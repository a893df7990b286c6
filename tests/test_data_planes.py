"""The setting `fabric.switch`: what it refuses, which runs it makes, what is measured by it. Without root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests_root import REPOSITORY

from controller.rules import rules
from emulation.kernel_routes import SwitchRoutes, kernel_routes
from emulation.kernel_switch import _difference
from scenario.arms import arms
from scenario.errors import InputError
from scenario.fabric_section import FabricSection
from scenario.fabric_spec import section_from_text
from scenario.load import check_scenario
from scenario.models import Scenario
from topologies.build import build
from topologies.paths import walk_all_pairs


def test_the_default_is_open_vswitch() -> None:
    assert Scenario().fabric.switch == "ovs"
    assert "switch" not in Scenario().fabric.wiring and "gpus" in Scenario().fabric.wiring


def test_faults_are_refused_where_nobody_repairs() -> None:
    faults = {"events": [{"at_s": 1, "down": ["odd1"]}]}
    with pytest.raises(InputError) as refused:
        check_scenario({"fabric": {"switch": "linux"}, "faults": faults})
    for part in ("faults.events (1)", "fabric.switch: ovs", "controller"):
        assert part in str(refused.value)
    check_scenario({"fabric": {"switch": "ovs"}, "faults": faults})
    # Cables that are plugged wrongly are found before traffic on either.
    check_scenario({"fabric": {"switch": "linux"}, "faults": {"miscable": [{"kind": "missing", "cable": "odd1-eth9"}]}})


def test_another_value_is_one_message() -> None:
    with pytest.raises(InputError) as refused:
        check_scenario({"fabric": {"switch": "bridge"}})
    assert "fabric.switch" in str(refused.value) and "ovs, linux" in str(refused.value)


def test_each_arm_on_each_data_plane() -> None:
    both = arms(Scenario(name="x"), ("ROFT", "ZCube"), ("ovs", "linux"))
    assert [(label, one.fabric.kind, one.fabric.switch) for label, one in both.items()] == [
        ("ROFT", "roft", "ovs"),
        ("ROFT linux", "roft", "linux"),
        ("ZCube", "zcube", "ovs"),
        ("ZCube linux", "zcube", "linux"),
    ]
    assert both["ZCube linux"].name == "x-zcube-linux"
    assert {one.fabric.switch for one in arms(Scenario(), switches=("linux",)).values()} == {"linux"}


def test_the_command_line_refuses_in_one_message(tmp_path: Path) -> None:
    file = tmp_path / "faults.yaml"
    file.write_text("faults: {events: [{at_s: 1, down: [odd1]}]}\n")
    for arguments, parts in (
        (["compare", "--switch", "vpp"], ("--switch = 'vpp'", "ovs, linux, both")),
        (["run", str(file), "--switch", "vpp"], ("--switch = 'vpp'", "ovs, linux")),
        (["run", str(file), "--switch", "linux"], ("faults.events", "fabric.switch: ovs")),
    ):
        command = [sys.executable, "-m", "cli.main", *arguments]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        said = " ".join(done.stderr.split())
        assert done.returncode == 2 and "Traceback" not in said
        for part in parts:
            assert part in said, said


def test_a_probe_needs_the_controller(tmp_path: Path) -> None:
    file = tmp_path / "linux.yaml"
    file.write_text("fabric: {switch: linux}\n")
    command = [sys.executable, "-m", "cli.main", "fabric", "probe", "--from", "1", "--to", "11"]
    fabric = subprocess.run([*command, str(file)], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert fabric.returncode == 2 and "fabric.switch" in fabric.stderr and "fabric.switch: ovs" in fabric.stderr
    (tmp_path / "run").mkdir()
    resolved = Scenario(fabric=FabricSection(switch="linux")).model_dump(mode="json")
    (tmp_path / "run" / "scenario.yaml").write_text(yaml.safe_dump(resolved))
    live = [*command, "--run", str(tmp_path / "run")]
    run = subprocess.run(live, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 2 and "has no controller" in " ".join(run.stderr.split())


def leaf() -> SwitchRoutes:
    fabric = build(section_from_text("roft:gpus=16,asic_ports=4,gpus_per_server=2,tiers=3"))
    return kernel_routes(fabric, rules(fabric, seed=1, planned=walk_all_pairs(fabric)))["leaf1"]


def as_the_kernel_says(planned: SwitchRoutes) -> tuple[list[dict], list[dict], list[dict]]:  # type: ignore[type-arg]
    """What `ip -j nexthop`, `ip -j route show table all` and `ip -j rule` print when all is there."""
    nexthops = [{"id": port, "gateway": "169.254.0.1", "dev": name} for port, (name, _) in planned.interfaces.items()]
    groups = [{"id": n, "group": [{"id": port} for port in ports]} for ports, n in planned.groups.items()]
    routes = [{"type": "blackhole", "dst": "default"}, {"type": "local", "dst": "127.0.0.1", "table": "local"}]
    for route in planned.routes:
        text = str(route.prefix).removesuffix("/32")
        routes.append({"dst": text, "nhid": planned.nexthop(route.ports)})  # type: ignore[dict-item]
    for port in sorted({rule.port for rule in planned.flows}):
        routes.append({"dst": "default", "nhid": port, "table": str(1000 + port)})  # type: ignore[dict-item]
    rows = [{"priority": 0, "src": "all", "table": "local"}]
    for rule in planned.flows:
        flow = rule.flow
        rows.append(
            {
                "priority": 100, "src": flow.src_ip, "dst": flow.dst_ip, "ipproto": "tcp", "sport": flow.src_port,
                "dport": flow.dst_port, "table": str(1000 + rule.port),
            }
        )  # fmt: skip
    return [*nexthops, *groups], routes, rows


def test_routes_that_are_all_there_do_not_differ() -> None:
    planned = leaf()
    assert planned.groups and planned.flows
    assert _difference(planned, *as_the_kernel_says(planned)) == ""


@pytest.mark.parametrize("what", ["route", "group", "rule", "table", "extra"])
def test_reading_back_sees_one_wrong_route(what: str) -> None:
    planned = leaf()
    nexthops, routes, rows = as_the_kernel_says(planned)
    if what == "route":
        routes[2]["nhid"] = 99
    elif what == "group":
        nexthops[-1]["group"].pop()
    elif what == "rule":
        del rows[-1]
    elif what == "table":
        routes[-1]["nhid"] = next(port for port in planned.interfaces if port != routes[-1]["nhid"])
    else:
        routes.append({"dst": "198.18.9.0/24", "nhid": 1})
    assert _difference(planned, nexthops, routes, rows)
