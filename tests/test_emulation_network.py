"""The emulated network itself, as root in a sandbox: forwarding, a whole comparison, kills and interrupts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests_root import REPOSITORY, in_sandbox, needs_root

pytestmark = [pytest.mark.root, needs_root]

from host_state import descendants, settled, snapshot  # noqa: E402

from controller.status_socket import NAME as SOCKET_NAME  # noqa: E402
from controller.status_socket import ask  # noqa: E402
from results.parts import PART_S  # noqa: E402
from results.reader import IncompleteTable, RunFolder  # noqa: E402

ZCUBE = [sys.executable, "-m", "cli.main"]
SMALL = """
name: small
fabric: {gpus: 8, gpus_per_server: 2, asic_ports: 4}
scale: {rate_factor: 4.0e-5, dilation: 2.0}
workload: {kind: coding_agent, requests: 12, warmup_requests: 2, utilisation: 0.8}
"""


def walked(tmp_path: Path, *arguments: str) -> dict[str, object]:
    found: dict[str, object] = in_sandbox(tmp_path, "tests/emulated_paths.py", *arguments)
    return found


@pytest.mark.parametrize(
    ("arguments", "queue_pairs"),
    [
        (("zcube", "16", "8", "destination"), 16 * 15 * 2),
        (("zcube", "16", "8", "trunk"), 16 * 15 * 2),
        (("zcube", "16", "8", "hashed"), 16 * 15 * 2),
        (("roft", "16", "8", "destination"), 16 * 15),
        pytest.param(("zcube", "32", "8", "destination"), 32 * 31 * 2, marks=pytest.mark.deep),
        pytest.param(("roft", "32", "8", "destination"), 32 * 31, marks=pytest.mark.deep),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_every_gpu_pair_takes_exactly_the_planned_path(
    tmp_path: Path, arguments: tuple[str, ...], queue_pairs: int
) -> None:
    nic_ports = int(arguments[1]) * (1 if arguments[0] == "roft" else 2)
    assert walked(tmp_path, *arguments) == {
        "checked": queue_pairs,
        "wrong": [],
        "pings_lost": 0,
        "listeners": nic_ports,
    }


def test_the_path_check_sees_one_rule_that_sends_elsewhere(tmp_path: Path) -> None:
    # On odd1 the prefix of even4 now leaves by a port that leads to even2: a host under even4 is not reached that way.
    rule = "priority=65000,ip,nw_dst=198.19.1.0/24,actions=output:9"
    found = walked(tmp_path, "zcube", "16", "8", "destination", rule)
    assert found["wrong"]


def scenario_file(tmp_path: Path, text: str = SMALL) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(text)
    return path


def start(tmp_path: Path, *more: str, text: str = SMALL) -> subprocess.Popen[str]:
    command = [*ZCUBE, "compare", str(scenario_file(tmp_path, text)), "--out", str(tmp_path / "out"), *more]
    return subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_a_small_comparison_end_to_end(tmp_path: Path) -> None:
    before = snapshot()
    process = start(tmp_path, "--json")
    output, errors = process.communicate(timeout=240)
    assert process.returncode in (0, 1), errors  # 1: measured, and INVALID on a machine that is too busy
    comparison = json.loads(output)
    assert [arm["label"] for arm in comparison["arms"]][:3] == ["ROFT", "ZCube", "ZCube trunk"]
    assert comparison["valid"] == (process.returncode == 0)
    folder = tmp_path / "out" / "small"
    assert (folder / "report.html").stat().st_size > 100_000
    served = {}
    for name in ("roft", "zcube", "zcube-trunk"):
        run = RunFolder(folder / name)
        requests = run.requests()
        measured = requests[requests["phase"] == "measured"]
        assert (measured["status"] == "ok").all() and len(measured) == 12
        served[name] = requests[["request_id", "session_id", "turn", "input_tokens", "cached_tokens"]]
        check_stages(measured)
        check_transfers(run, requests)
        check_ports(run)
        checks = {check["name"]: check for check in run.fidelity()["checks"]}
        assert checks["packets_lost"]["ok"], checks["packets_lost"]
        assert checks["upcalls_lost"]["ok"], checks["upcalls_lost"]
        assert {"sampler_gap_pct", "cpu_pct"} <= checks.keys()
        gaps, sampler = run.table("gaps").to_pandas(), run.fidelity()["sampler"]
        assert (len(gaps), gaps["length_wall_s"].sum()) == (sampler["gaps"], pytest.approx(sampler["gaps_node_s"]))
        unseen_s = gaps.groupby("node")["unseen_wall_s"].sum().max() if len(gaps) else 0.0
        assert checks["sampler_gap_pct"]["value"] == pytest.approx(100 * unseen_s / sampler["serving_s"])
        assert run.fidelity()["limits_loosened"] == run.meta()["fidelity_limits_loosened"] == []
        assert (run.fidelity()["advice"] is None) == run.fidelity()["valid"]
        assert run.meta()["cabling"] == {
            "verified": True,
            "how": "LLDP at both ends of every cable, before traffic",
            "cables": len(run.fabric()["links"]),
        }
        assert run.has("cabling.json")
        for file in ("rules.json", "fabric.json", "meta.json", "summary.json", "events.jsonl", "gpus.parquet"):
            assert (folder / name / file).exists(), file
        assert not list((folder / name).glob("*.partial"))
    for name in ("zcube", "zcube-trunk"):
        pd.testing.assert_frame_equal(served[name], served["roft"])
    assert settled(before) == {}


def check_stages(measured: pd.DataFrame) -> None:
    stages = [column for column in measured.columns if column.startswith("t_")]
    times = measured[stages[: stages.index("t_finished_s") + 1]]
    assert (times.diff(axis=1).iloc[:, 1:] >= -1e-9).all().all()


def check_transfers(run: RunFolder, requests: pd.DataFrame) -> None:
    transfers = run.transfers()
    done = transfers[transfers["status"] == "ok"]
    fabric = run.fabric()
    links = {link["id"]: (link["a"]["node"], link["b"]["node"]) for link in fabric["links"]}
    for row in done.itertuples():
        node = row.src_gpu
        for link in row.path:  # the path is connected, from the source to the destination
            a, b = links[link]
            assert node in (a, b)
            node = b if node == a else a
        assert node == row.dst_gpu
        assert row.t_done_s > row.t_submit_s
    tokens = requests.set_index("request_id")["input_tokens"]
    carried = done.groupby("request_id")["bytes"].sum()
    for request_id, count in carried.items():
        assert count == pytest.approx(61_464 * int(tokens[request_id]), rel=1e-6)


def check_ports(run: RunFolder) -> None:
    """Counters never fall, and the bytes that left the GPUs are those of the handoffs, with headers and ACKs."""
    ports = run.ports()
    gpus = ports[ports["node"].str.startswith("gpu")]
    for _, series in gpus.groupby(["node", "port"]):
        assert (series["tx_bytes_raw"].diff().dropna() >= 0).all()
    grew = gpus.groupby(["node", "port"])["tx_bytes_raw"].agg(lambda s: s.iloc[-1] - s.iloc[0]).sum()
    transfers = run.transfers()
    wire = transfers["wire_bytes_raw"].sum()
    scale = run.scale()
    begun = transfers.loc[transfers["status"] != "ok", "bytes"].sum() * scale.rate_factor * scale.dilation
    assert wire * 0.99 <= grew <= (wire + begun) * 1.05


@pytest.mark.parametrize("victim", ["zcube", "zcube", "emulation.init", "emulation.runner"])
def test_sigkill_at_any_moment_leaves_nothing(tmp_path: Path, victim: str) -> None:
    before = snapshot()
    process = start(tmp_path)
    wait_s = random.Random(time.monotonic_ns()).uniform(1, 30)
    deadline = time.monotonic() + wait_s
    killed = None
    while killed is None and process.poll() is None:
        time.sleep(max(0.1, deadline - time.monotonic()))
        killed = process.pid if victim == "zcube" else pid_of(victim, process)
        if killed is not None:
            os.kill(killed, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    if victim != "zcube" and killed is not None:
        assert process.returncode == 1 and "Traceback" not in errors, errors
    assert settled(before) == {}, f"{victim} killed after {wait_s:.2f} s"
    for partial in (tmp_path / "out").rglob("*.parquet"):
        pd.read_parquet(partial)  # every file with a final name is whole


@pytest.mark.parametrize(
    ("victim", "said"),
    [
        ("emulation.sampler", "the sampler"),
        ("ovs-vswitchd", "Open vSwitch"),
    ],
)
def test_a_part_that_dies_while_serving_ends_the_run(tmp_path: Path, victim: str, said: str) -> None:
    before = snapshot()
    process = start(tmp_path, "--arm", "ZCube")
    wait_until_serving(tmp_path, process)
    pid = pid_of(victim, process) or daemon_of(victim, process)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1 and said in errors and "Traceback" not in errors, errors
    assert settled(before) == {}


@pytest.mark.alone
@pytest.mark.parametrize(
    ("victim", "said"),
    [
        ("traffic/agent.py", "the agent of gpu"),
        ("emulation.sampler", "the sampler"),
        ("ovs-vswitchd", "the Open vSwitch daemon of"),
    ],
)
def test_a_part_that_is_stopped_while_serving_ends_the_run(tmp_path: Path, victim: str, said: str) -> None:
    before = snapshot()
    process = start(tmp_path, "--arm", "ZCube")
    wait_until_serving(tmp_path, process)
    pid = agent_of(process) if victim == "traffic/agent.py" else pid_of(victim, process) or daemon_of(victim, process)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1 and "Traceback" not in errors, errors
    assert said in errors and "was stopped while serving" in errors and "start the run again" in errors, errors
    assert "serving" in [event["event"] for event in events_of(RunFolder(tmp_path / "out" / "small" / "zcube"))]
    assert settled(before) == {}


FAULT_AT_S = 2.0
FAULTS = f"""
faults: {{events: [{{at_s: {FAULT_AT_S}, down: [odd1-eth5--even2-eth5]}}]}}
"""


@pytest.mark.parametrize("with_fault", [False, True], ids=["nothing fails", "a cable fails before it has taken over"])
def test_a_controller_that_dies_while_serving_is_replaced_and_the_run_goes_on(tmp_path: Path, with_fault: bool) -> None:
    before = snapshot()
    process = start(tmp_path, "--arm", "ZCube", text=SMALL + FAULTS if with_fault else SMALL)
    wait_until_serving(tmp_path, process, more_s=0)
    run = RunFolder(tmp_path / "out" / "small" / "zcube")
    if with_fault:  # the new controller's Python alone takes longer to start than is left until the fault
        serving_s = next(event["t_monotonic_s"] for event in events_of(run) if event["event"] == "serving")
        dilation = 2.0
        time.sleep(max(0.0, serving_s + 0.2 + FAULT_AT_S * dilation - 0.1 - time.monotonic()))
    else:
        time.sleep(2)
    # By its own socket: another run on the machine has a controller too.
    os.kill(int(ask(run.path / SOCKET_NAME)["host_pid"]), signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode in (0, 1) and "Traceback" not in errors, errors
    assert run.fidelity()["valid"] == (process.returncode == 0)
    requests = run.requests()
    measured = requests[requests["phase"] == "measured"]
    assert (measured["status"] == "ok").all() and len(measured) == 12
    events = events_of(run)
    names = [event["event"] for event in events]
    assert names.count("controller ended") == names.count("controller took over") == 1
    took_over = events[names.index("controller took over")]
    assert took_over["rules_sent"] == 0 and took_over["rules_kept"] > 0
    assert [restart["rules_kept"] for restart in run.meta()["controller_restarts"]] == [took_over["rules_kept"]]
    checks = {check["name"]: check for check in run.fidelity()["checks"]}
    assert checks["controller_restarts"]["value"] == 1 and checks["controller_restarts"]["ok"] is None
    account = events[names.index("openflow polls")]
    assert account["failure"] is None and account["unanswered"] == []
    assert account["ticks"] > 0 and account["missed"] >= 0  # a takeover may fall between two polls
    polled = pd.read_parquet(run.path / "of_ports.parquet")
    t0_s = run.meta()["t0_monotonic_s"]
    assert polled["t_wall_s"].min() < 0  # what the first controller logged is there
    assert polled["t_wall_s"].max() > took_over["t_monotonic_s"] - t0_s
    if with_fault:
        assert names.index("fault down") < names.index("controller took over")
        repaired = [event for event in events if event["event"] == "repaired"]
        assert [event["down"] for event in repaired] == [["odd1-eth5--even2-eth5"]]
        assert "flows moved" in names
    assert settled(before) == {}


def events_of(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]


def daemon_of(program: str, process: subprocess.Popen[str]) -> int | None:
    """A process of that program below `process`."""
    for pid in descendants(process.pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(program.encode()):
                return pid
    return None


def wait_until_serving(tmp_path: Path, process: subprocess.Popen[str], more_s: float = 2) -> None:
    events = tmp_path / "out" / "small" / "zcube" / "events.jsonl"
    deadline = time.monotonic() + 120
    while not (events.exists() and "serving" in events.read_text()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    time.sleep(more_s)


def pid_of(module: str, process: subprocess.Popen[str]) -> int | None:
    """The process that runs a module of ours below `process`, if there is one now: never that of another run."""
    for pid in descendants(process.pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:3] == [b"-m", module.encode()]:
                return pid
    return None


def agent_of(process: subprocess.Popen[str]) -> int:
    """A traffic agent below `process`."""
    for pid in descendants(process.pid):
        with contextlib.suppress(OSError):
            if b"traffic/agent.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise AssertionError("no agent")


def test_a_killed_run_keeps_its_samples_until_a_few_seconds_before(tmp_path: Path) -> None:
    """kill -9 of the command, on which everything else depends: what it had sampled was on the disk in parts."""
    before = snapshot()
    process = start(tmp_path, "--arm", "ZCube")
    wait_until_serving(tmp_path, process, more_s=7)
    killed_s = time.monotonic()
    process.kill()
    process.communicate(timeout=30)
    assert settled(before) == {}
    run = RunFolder(tmp_path / "out" / "small" / "zcube")
    assert not run.has("ports.parquet") and not run.has("meta.json")
    serving_s = next(event["t_monotonic_s"] for event in events_of(run) if event["event"] == "serving")
    with pytest.warns(IncompleteTable, match="incomplete"):
        ports = run.ports()
    assert serving_s + 0.2 + ports["t_wall_s"].max() > killed_s - PART_S - 1.5  # a part, and the writing of it
    assert ports.groupby("node", observed=True)["t_wall_s"].max().min() > 2
    left = run.left_of("ports")
    assert left is not None and left.rows == len(ports) and not left.lost
    told = subprocess.run(
        [*ZCUBE, "report", str(run.path)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert told.returncode == 2 and "ports.parquet is incomplete" in " ".join(told.stderr.split())


@pytest.mark.alone  # the run has some 2 s to write what it has
@pytest.mark.parametrize("hangs", ["nothing", "controller", "agent"])
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, hangs: str) -> None:
    before = snapshot()
    process = start(tmp_path, "--arm", "ZCube")
    wait_until_serving(tmp_path, process)
    if hangs == "controller":
        folder = tmp_path / "out" / "small" / "zcube"
        os.kill(int(ask(folder / SOCKET_NAME)["host_pid"]), signal.SIGSTOP)
    elif hangs == "agent":
        os.kill(agent_of(process), signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    run = RunFolder(tmp_path / "out" / "small" / "zcube")
    assert run.meta()["interrupted"] is True
    assert len(run.requests()) > 0 and len(run.ports()) > 0
    assert settled(before) == {}


@pytest.mark.alone
def test_further_ctrl_c_while_results_are_written_loses_none(tmp_path: Path) -> None:
    process = start(tmp_path, "--arm", "ZCube")
    wait_until_serving(tmp_path, process)
    for _ in range(4):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in errors
    run = RunFolder(tmp_path / "out" / "small" / "zcube")
    assert run.meta()["interrupted"] is True
    assert len(run.requests()) > 0 and len(run.ports()) > 0 and run.has("transfers.parquet")
    assert not list(run.path.glob("*.partial"))
    assert "Ctrl-C is ignored" in errors


def test_ctrl_c_before_anything_is_measured_says_so_and_leaves_no_socket(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    folder = tmp_path / "out"
    process = subprocess.Popen(
        [*ZCUBE, "run", str(tmp_path / "small.yaml"), "--out", str(folder)],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    events = folder / "events.jsonl"
    while not (events.exists() and "checking every link" in events.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "before anything was measured" in errors and "Traceback" not in errors
    assert not (folder / SOCKET_NAME).exists() and not list(folder.glob("*.partial"))


def test_a_controller_that_dies_before_serving_is_replaced_too(tmp_path: Path) -> None:
    process = start(tmp_path, "--arm", "ZCube")
    events = tmp_path / "out" / "small" / "zcube" / "events.jsonl"
    while not (events.exists() and "checking every link" in events.read_text()):
        assert process.poll() is None
        time.sleep(0.1)
    run = RunFolder(events.parent)
    os.kill(int(ask(run.path / SOCKET_NAME)["host_pid"]), signal.SIGKILL)  # not the one that stands by
    _, errors = process.communicate(timeout=120)
    assert process.returncode in (0, 1) and "Traceback" not in errors, errors
    names = [event["event"] for event in events_of(run)]
    assert names.index("controller took over") < names.index("serving")
    account = next(event for event in events_of(run) if event["event"] == "openflow polls")
    assert account["failure"] is None and account["unanswered"] == []
