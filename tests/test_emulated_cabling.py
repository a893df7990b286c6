"""Cabling of the running fabric, as root in a sandbox: found as it is, on both SDN libraries, before any traffic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests_root import REPOSITORY, in_sandbox, needs_root

pytestmark = [pytest.mark.root, needs_root]

from emulation.cabling import sightings  # noqa: E402
from scenario.models import FabricSection  # noqa: E402
from topologies.build import build  # noqa: E402
from topologies.cabling_files import observed_from_text, plan_from_text  # noqa: E402
from topologies.cabling_model import Report, planned_cables  # noqa: E402
from topologies.cabling_plan import plan_cabling  # noqa: E402
from topologies.cabling_verify import verify  # noqa: E402

ZCUBE_16 = {"kind": "zcube", "gpus": 16, "gpus_per_switch": 4}
ROFT_16 = {"kind": "roft", "gpus": 16, "asic_ports": 8}
LIBRARIES = pytest.mark.parametrize("sdn", ["ryu", "os-ken"])

SWAP = {"kind": "swap", "a": "odd1-eth5", "b": "odd1-eth7"}
MISSING_ON_GPU = {"kind": "missing", "cable": "gpu16-eth2"}
FAULTS = [
    SWAP,
    {"kind": "swap", "a": "gpu2-eth1", "b": "gpu7-eth2"},
    {"kind": "swap", "a": "gpu1-eth1", "b": "odd1-eth2"},  # joins two GPUs, and two ports of one switch
    {"kind": "wrong_port", "cable": "odd3-eth6", "to": "odd3-eth12"},
    {"kind": "wrong_port", "cable": "gpu4-eth1--odd7-eth1", "to": "odd5-eth9"},
    {"kind": "missing", "cable": "odd7-eth5--even2-eth8"},
    MISSING_ON_GPU,
]


def observed(tmp_path: Path, fabric: dict[str, object], faults: list[object], *more: str) -> dict[str, object]:
    text = json.dumps({"fabric": fabric, "faults": {"miscable": faults}})
    argv = ["tests/emulated_cabling.py", text, *more]
    found: dict[str, object] = in_sandbox(tmp_path, *argv)
    return found


def report_of(found: dict[str, object], fabric: dict[str, object]) -> Report:
    plan = planned_cables(build(FabricSection(**fabric)))  # type: ignore[arg-type]
    return verify(plan, sightings(found["observed"]), "both")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sdn", "fabric", "cables"),
    [
        ("ryu", ZCUBE_16, 48),
        ("os-ken", ROFT_16, 32),
        pytest.param("os-ken", ZCUBE_16, 48, marks=pytest.mark.deep),
        pytest.param("ryu", ROFT_16, 32, marks=pytest.mark.deep),
    ],
    ids=["ryu-zcube", "os-ken-roft", "os-ken-zcube", "ryu-roft"],
)
def test_correct_cabling_is_seen_from_both_ends_and_leaves_no_rule(
    tmp_path: Path, sdn: str, fabric: dict[str, object], cables: int
) -> None:
    found = observed(tmp_path, fabric, [], sdn)
    assert str(found["sdn"]).startswith(sdn)
    assert len(found["observed"]["neighbors"]) == 2 * cables  # type: ignore[index]
    report = report_of(found, fabric)
    assert (report.faults, report.agreeing, report.unknown_ports) == ((), cables, ())
    assert found["tables"] == found["rules"]


@pytest.mark.parametrize(
    ("sdn", "standby"),
    [
        ("ryu", True),
        ("os-ken", False),
        pytest.param("os-ken", True, marks=pytest.mark.deep),
        pytest.param("ryu", False, marks=pytest.mark.deep),
    ],
    ids=["ryu-standby", "os-ken-anew", "os-ken-standby", "ryu-anew"],
)
def test_a_controller_that_dies_in_its_discovery_is_replaced_and_the_new_one_begins_again(
    tmp_path: Path, sdn: str, standby: bool
) -> None:
    found = observed(tmp_path, ZCUBE_16, [SWAP], sdn, "death, standby" if standby else "death")
    assert found["restarts"] == [standby]
    assert [fault.kind for fault in report_of(found, ZCUBE_16).faults] == ["swapped"]
    assert found["tables"] == found["rules"]  # nor is a rule left of the discovery that was cut short


@LIBRARIES
def test_every_fault_is_named_with_its_ends_and_its_fix(tmp_path: Path, sdn: str) -> None:
    report = report_of(observed(tmp_path, ZCUBE_16, FAULTS, sdn, "deaf"), ZCUBE_16)
    assert {fault.fix: (fault.kind, fault.seen) for fault in report.faults} == {
        "exchange the plugs in odd1 port 5 and odd1 port 7": (
            "swapped",
            "odd1 port 5 is joined to even6 port 5; odd1 port 7 is joined to even2 port 5",
        ),
        "exchange the plugs in even4 port 3 and odd3 port 1": (
            "swapped",
            "gpu2 port 1 is joined to even4 port 3; gpu7 port 2 is joined to odd3 port 1",
        ),
        "exchange the plugs in gpu1 port 1 and odd1 port 2": (
            "swapped",
            "gpu5 port 1 is joined to gpu1 port 1; odd1 port 1 is joined to odd1 port 2",
        ),
        "move the plug in odd3 port 12 to odd3 port 6": (
            "wrong_port",
            "the cable from even4 port 6 is in odd3 port 12",
        ),
        "move the plug in odd5 port 9 to odd7 port 1": (
            "wrong_port",
            "the cable from gpu4 port 1 is in odd5 port 9",
        ),
        "plug cable odd7-eth5--even2-eth8 into even2 port 8 and odd7 port 5": (
            "missing",
            "no cable joins even2 port 8 and odd7 port 5",
        ),
        "plug cable gpu16-eth2--even8-eth4 into even8 port 4 and gpu16 port 2": (
            "missing",
            "no cable joins even8 port 4 and gpu16 port 2",
        ),
        "clean or replace the fibre from odd1 port 3 to gpu9 port 1 (it carries light from gpu9 port 1 only)": (
            "one_sided",
            "odd1 port 3 sees gpu9 port 1, gpu9 port 1 sees nobody",
        ),
    }
    assert report.agreeing == 48 - 3 * 2 - 2 - 2  # the dark fibre joins the right ports
    spare = [*((3, number) for number in (9, 10, 11, 12)), (5, 9)]
    assert [str(plug) for plug in report.unknown_ports] == [f"odd{switch} port {number}" for switch, number in spare]


def zcube(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


def test_the_verb_with_a_fabric_that_is_right_and_a_scenario_that_is_not(tmp_path: Path) -> None:
    out = tmp_path / "seen.json"
    good = zcube("cabling", "verify", "--live", "zcube:gpus=16,gpus_per_switch=4", "--out", str(out))
    assert good.returncode == 0 and "48 of 48 cables as planned; no fault" in good.stdout, good.stderr
    plan = plan_cabling(build(FabricSection(**ZCUBE_16))).to_csv().encode()  # type: ignore[arg-type]
    held = verify(plan_from_text(plan, "plan.csv"), observed_from_text(out.read_bytes(), out.name))
    assert held.clean and held.both_sides and held.agreeing == 48
    scenario = tmp_path / "swapped.yaml"
    scenario.write_text(json.dumps({"fabric": ZCUBE_16, "faults": {"miscable": [SWAP]}}))
    bad = zcube("cabling", "verify", "--live", str(scenario), "--json")
    assert bad.returncode == 1, bad.stderr
    (fault,) = json.loads(bad.stdout)["faults"]
    assert fault["kind"] == "swapped"
    assert fault["fix"] == "exchange the plugs in odd1 port 5 and odd1 port 7"


def test_a_run_on_a_miswired_fabric_does_not_start(tmp_path: Path) -> None:
    scenario = tmp_path / "swapped.yaml"
    settings = {
        "fabric": ZCUBE_16,
        "scale": {"rate_factor": 2e-5, "dilation": 4.0},
        "workload": {"kind": "coding_agent", "requests": 12, "warmup_requests": 2},
        "faults": {"miscable": [MISSING_ON_GPU]},
    }
    scenario.write_text(json.dumps(settings))
    out = tmp_path / "run"
    run = zcube("run", str(scenario), "--out", str(out))
    assert run.returncode == 1 and "Traceback" not in run.stderr, run.stderr
    for part in ("not started", "47 of 48 cables", "missing gpu16-eth2--even8-eth4", "plug cable", "gpu16 port 2"):
        assert part in run.stderr
    assert not (out / "requests.parquet").exists() and not (out / "meta.json").exists()
    assert (out / "cabling.json").exists()
    # Nothing is left of what only a live run has.
    assert not (out / "controller.sock").exists() and not list(out.glob("*.partial"))
