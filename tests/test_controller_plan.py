"""plan.json, the --topo string, status.json and the launcher's way of saying no."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controller.plan import FabricPlan, Plan, PlanError, from_json, from_topo, load
from controller.status import StatusBoard
from topologies.fabric import End
from topologies.paths import TCP, UDP, QueuePair, walk_all_pairs

MINIMAL = {"schema_version": 1, "fabric": {"kind": "zcube", "gpus": 32}}


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = Plan(
        FabricPlan("roft", 32),
        seed=3,
        version=9,
        protocols=(TCP, UDP),
        planned=(QueuePair(End("gpu1", 1), End("gpu2", 1), 4),),
        expected=("leaf1",),
    )
    plan.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == plan
    assert plan.expected_switches(plan.build()) == ("leaf1",)


def test_defaults_and_every_pair() -> None:
    plan = from_json(MINIMAL | {"planned": 2})
    fabric = plan.build()
    assert (len(fabric.switches), plan.expected_switches(fabric)) == (8, tuple(s.name for s in fabric.switches))
    roft = from_json({"schema_version": 1, "fabric": {"kind": "roft", "gpus": 32}, "planned": 2})
    listed = Plan(FabricPlan("roft", 32), planned=tuple(walk_all_pairs(roft.build(), 2)))
    assert roft.rules(roft.build()) == listed.rules(roft.build())


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ([], "plan"),
        ({"fabric": MINIMAL["fabric"]}, "schema_version"),
        (MINIMAL | {"sed": 1}, "plan"),
        (MINIMAL | {"seed": -1}, "seed"),
        (MINIMAL | {"seed": True}, "seed"),
        (MINIMAL | {"protocols": [1]}, "protocols"),
        (MINIMAL | {"planned": [["gpu1", 1]]}, "planned"),
        (MINIMAL | {"planned": -1}, "planned"),
        (MINIMAL | {"expected": "odd1"}, "expected"),
        (MINIMAL | {"fabric": {"kind": "zcube"}}, "fabric.gpus"),
        (MINIMAL | {"fabric": {"kind": "torus", "gpus": 8}}, "fabric.kind"),
        (MINIMAL | {"fabric": {"kind": "zcube", "gpus": "8"}}, "fabric.gpus"),
        (MINIMAL | {"fabric": {"kind": "zcube", "gpus": 8, "bundle": "lacp"}}, "fabric.bundle"),
    ],
)
def test_bad_plans_name_the_field(data: object, field: str) -> None:
    with pytest.raises(PlanError) as caught:
        from_json(data)
    assert caught.value.field == field


def test_what_only_the_fabric_shows() -> None:
    with pytest.raises(PlanError, match=r"fabric.gpus = 33.*these fit"):
        Plan(FabricPlan("zcube", 33)).build()
    with pytest.raises(PlanError, match="expected = 'spine1'"):
        plan = Plan(FabricPlan("zcube", 32), expected=("spine1",))
        plan.expected_switches(plan.build())
    hashed = FabricPlan("zcube", 32, bundle="hashed")
    for pair in (
        QueuePair(End("gpu1", 1), End("gpu2", 1), 0),  # not crosswise
        QueuePair(End("gpu1", 1), End("gpu99", 2), 0),
    ):
        with pytest.raises(PlanError, match="planned"):
            plan = Plan(hashed, planned=(pair,))
            plan.rules(plan.build())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zcube,32,8", FabricPlan("zcube", 32, gpus_per_switch=8)),
        ("zcube,32,8,4,bundle=trunk", FabricPlan("zcube", 32, gpus_per_switch=8, links_per_pair=4, bundle="trunk")),
        ("roft,128,16,gpus_per_server=8", FabricPlan("roft", 128, asic_ports=16, gpus_per_server=8)),
        ("roft,gpus=32,asic_ports=8", FabricPlan("roft", 32, asic_ports=8)),
    ],
)
def test_topo_strings(text: str, expected: FabricPlan) -> None:
    assert from_topo(text).fabric == expected


@pytest.mark.parametrize("text", ["", "tree,2", "zcube,32", "zcube,32,8,2,9", "zcube,a,8", "roft,32,8,bundel=x"])
def test_bad_topo_strings_say_what_is_right(text: str) -> None:
    with pytest.raises(PlanError, match=r"like zcube,32,8|takes"):
        from_topo(text)


# --- status ---------------------------------------------------------------------------------------------------


def board(tmp_path: Path, expected: tuple[str, ...] = ("odd1", "even2")) -> StatusBoard:
    return StatusBoard(
        {"odd1": 1, "even2": 2, "odd3": 3},
        expected,
        sdn="ryu 4.34",
        listen="127.0.0.1:6653",
        rule_set_version=1,
        now_s=10.0,
        path=tmp_path / "status.json",
    )


def read(tmp_path: Path) -> dict[str, object]:
    data: dict[str, object] = json.loads((tmp_path / "status.json").read_text())
    return data


def test_status_is_confirmed_when_every_expected_switch_is(tmp_path: Path) -> None:
    status = board(tmp_path)
    assert read(tmp_path)["state"] == "waiting"
    for name in ("odd1", "even2"):
        status.installing(name, 11.0)
        assert read(tmp_path)["state"] == "waiting"
        status.confirm(name, 11.25)
    found = read(tmp_path)
    assert (found["state"], found["confirmed"], found["confirmed_monotonic_s"]) == ("confirmed", 2, 11.25)
    assert found["switches"]["odd1"]["wall_ms"] == 250.0  # type: ignore[index]
    assert not (tmp_path / "status.json.part").exists()


def test_status_failure_loss_and_recovery(tmp_path: Path) -> None:
    status = board(tmp_path, expected=("odd1",))
    status.installing("odd1", 11.0)
    status.error("refused: rule", "odd1")
    status.confirm("odd1", 11.1)
    assert read(tmp_path)["state"] == "failed"
    status.lost("odd1")
    status.installing("odd1", 12.0)  # a new connection starts afresh
    status.confirm("odd1", 12.1)
    assert read(tmp_path)["state"] == "confirmed"
    status.lost("odd1")
    assert read(tmp_path)["state"] == "waiting"
    status.port_event("odd1", 3, "modify", True, 13.0)
    status.error("unknown switch: DPID 0x9")
    found = read(tmp_path)
    assert found["state"] == "failed" and found["errors"] == ["unknown switch: DPID 0x9"]
    assert found["port_events"] == [
        {"monotonic_s": 13.0, "switch": "odd1", "port": 3, "reason": "modify", "link_down": True}
    ]


# --- launcher -------------------------------------------------------------------------------------------------


def launch(*arguments: str, sdn: str = "os-ken") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "controller.launch", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "ZCUBE_SDN": sdn},
        cwd=Path(__file__).resolve().parents[1],
    )


def test_a_port_in_use_is_one_message_and_status_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = launch("--topo", "zcube,32,8", "--port", str(port))
    assert done.returncode == 3
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sdn", "code", "text"),
    [
        (["--topo", "zcube,33,8"], "ryu", 2, "fabric.gpus = 33"),
        (["--plan", "/nowhere/plan.json"], "ryu", 2, "/nowhere/plan.json"),
        (["--topo", "zcube,32,8", "--status", "/nowhere/status.json"], "ryu", 2, "its folder does not exist"),
        (["--topo", "zcube,32,8", "--listen", "192.0.2.1"], "ryu", 3, "cannot listen on 192.0.2.1:6653"),
        (["--topo", "zcube,32,8", "--port", "99999"], "ryu", 3, "cannot listen"),
        (["--topo", "zcube,32,8", "--port", "16699"], "pox", 3, "must be one of ryu, os-ken"),
        ([], "ryu", 2, "--plan"),
    ],
)
def test_launch_errors(arguments: list[str], sdn: str, code: int, text: str) -> None:
    done = launch(*arguments, sdn=sdn)
    assert done.returncode == code, done.stderr
    assert text in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("sdn", ["ryu", "os-ken"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_starts_quickly_and_ends_at_a_signal(sdn: str, number: int, code: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    status = tmp_path / "status.json"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "controller.launch",
            "--topo",
            "roft,32,8",
            "--status",
            str(status),
            "--port",
            str(port),
        ],
        env={**os.environ, "ZCUBE_SDN": sdn},
        cwd=Path(__file__).resolve().parents[1],
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 20
        while not status.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        for _ in range(100):  # the status is there just before the listening socket
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        else:
            raise AssertionError("never listened")
        found = json.loads(status.read_text())
        assert (found["state"], found["expected"], found["pid"]) == ("waiting", 12, process.pid)
        assert found["sdn"].startswith(sdn)
        process.send_signal(number)
        assert process.wait(5) == code
        assert b"Traceback" not in process.stderr.read()  # type: ignore[union-attr]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_signal_ends_it_also_beside_threads_of_others() -> None:
    """As under `zcube controller`: numpy's threads are there first, and the kernel may give them the signal."""
    program = (
        "import threading, time, sys; threading.Thread(target=time.sleep, args=(60,), daemon=True).start();"
        "import controller.launch; sys.exit(controller.launch.main(sys.argv[1:]))"
    )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--topo", "zcube,16,4", "--port", str(port)],
        cwd=Path(__file__).resolve().parents[1],
        stderr=subprocess.PIPE,
    )
    try:
        for _ in range(400):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
