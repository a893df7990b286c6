"""The command line as a user meets it: help on one screen, one message for bad input (2) or a lacking machine (3)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tests_root import REPOSITORY
from zcube_command import one_message, zcube, zcube_process

from scenario.models import Scenario

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:17:03.9799600,4808,10\n"


@pytest.mark.parametrize(
    "verb",
    [
        "",
        "compare",
        "run",
        "simulate",
        "report",
        "fabric",
        "fabric show",
        "fabric paths",
        "trace",
        "schema",
        "controller",
        "doctor",
    ],
)
def test_help_fits_one_screen_and_shows_an_example(verb: str) -> None:
    result = zcube(*verb.split(), "--help")
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) <= 50
    if verb not in ("fabric show", "fabric paths"):
        assert "Example" in result.stdout


def test_a_process_of_its_own_prints_and_ends_the_same() -> None:
    for arguments in (["--help"], ["schema"], ["kv", "--model", "gpt"], ["compare", "--nonsense"]):
        alone, inside = zcube_process(*arguments), zcube(*arguments)
        assert alone.returncode == inside.returncode
        for text, same in ((alone.stdout, inside.stdout), (alone.stderr, inside.stderr)):
            # The library names the program after what Python was started with.
            assert re.sub(r"python -m [a-z.]+", "zcube", text).split() == re.sub(
                r"python -m [a-z.]+", "zcube", same
            ).split()


def trace(tmp_path: Path, content: str) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    return str(path)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["trace.csv", "empty"]),
        ("a,b,c\n1,2,3\n", ["trace.csv", "TIMESTAMP,ContextTokens,GeneratedTokens"]),
        (HEADER + ROW + "2023-11-16 18:17:04,abc,1\n", ["trace.csv", "3", "abc"]),
        (HEADER + ROW + "2023-11-16 18:17:04,-5,1\n", ["trace.csv", "3", "-5"]),
        (HEADER + ROW + "2023-11-16 18:17:04,99999999999,1\n", ["trace.csv", "3", "99999999999"]),
        (HEADER + ROW + "yesterday,5,1\n", ["trace.csv", "3", "yesterday"]),
        (HEADER + ROW + "2023-11-16 18:17:04,5\n", ["trace.csv", "3"]),
        (HEADER + ROW, ["trace.csv", "1"]),
    ],
    ids=["empty", "header", "words", "negative", "absurd", "time", "short", "too few rows"],
)
def test_bad_traces_name_file_and_line(tmp_path: Path, content: str, parts: list[str]) -> None:
    one_message(zcube("compare", "--trace", trace(tmp_path, content), "--requests", "2"), 2, *parts)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--trace", "/nowhere/trace.csv"], ["/nowhere/trace.csv"]),
        (["--gpus", "33"], ["fabric.gpus = 33"]),
        (["--gpus", "20"], ["fabric.gpus = 20", "these fit"]),
        (["--gpus", "-4"], ["fabric.gpus = -4", "greater"]),
        (["--requests", "0"], ["requests = 0"]),
        (["--seed", "-1"], ["seed = -1"]),
        (["--placement", "best"], ["serving.placement = 'best'", "least_loaded"]),
        (["--arm", "Torus"], ["--arm = 'Torus'", "ROFT, ZCube, ZCube trunk"]),
        (["--speedup", "2"], ["--trace"]),
        (["--rate-factor", "nan"], ["scale.rate_factor", "finite"]),
        (["--dilation", "-1"], ["scale.dilation"]),
        (["--resolution", "5"], ["resolution_frames = 5", "20"]),
        (["/nowhere.yaml"], ["/nowhere.yaml", "No such file"]),
        (["--nonsense"], ["No such option"]),
        (["--trace-format", "foo"], ["--trace-format = 'foo'", "azure"]),
        (["--gpus", "17"], ["fabric.gpus = 17: is not a multiple"]),
        (["--rate-factor", "2e-5", "--dilation", "1"], ["frames per connection", "raise scale.dilation"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_options_are_one_message_and_exit_2(arguments: list[str], parts: list[str]) -> None:
    one_message(zcube("compare", *arguments), 2, *parts)


@pytest.mark.skipif(os.geteuid() != 0, reason="without root it stops before it looks")
@pytest.mark.parametrize("place", ["file", "/proc/none/here"])
def test_an_output_place_that_cannot_be(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("precious")
    one_message(zcube("compare", "--out", str(tmp_path / place)), 2, "--out")
    one_message(zcube("run", "experiments/coding-agent.yaml", "--out", str(tmp_path / place)), 2, "--out")
    assert (tmp_path / "file").read_text() == "precious"


def test_fault_names_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    scenario, out = tmp_path / "wrong.yaml", tmp_path / "out"
    events = "events: [{at_s: 1.0, up: [leaf1]}, {at_s: 2.0, down: [leaf1, leaf1-eth9--spine1-eth1]}]"
    scenario.write_text(f"name: wrong\nfabric: {{kind: roft, gpus: 16}}\nfaults: {{{events}}}\n")
    result = zcube("run", str(scenario), "--out", str(out))
    one_message(
        result, 2, "scenario wrong: faults.events[1].down", "'leaf1-eth9--spine1-eth1'", "this roft has no",
        "did you mean leaf1-eth5--spine1-eth1", "zcube fabric show FABRIC --json",
    )  # fmt: skip
    assert not out.exists()


def test_a_fabric_is_not_told_names_of_another() -> None:
    result = zcube("fabric", "failures", "zcube:gpus=32", "--down", "leaf3")
    one_message(result, 2, "leaf3", "odd1 to even8", "odd1-eth9--even2-eth9")


def test_a_controller_that_does_not_answer_says_why(tmp_path: Path) -> None:
    def status(*parts: str, folder: Path = tmp_path) -> None:
        one_message(zcube("controller", "status", str(folder)), 2, *parts)

    status("no such folder", folder=tmp_path / "none")
    status("not a run folder")
    (tmp_path / "machine-check").mkdir()
    status("has not begun", "machine is being checked")
    arm = tmp_path / "base" / "roft"
    arm.mkdir(parents=True)
    (arm / "scenario.yaml").touch()
    status("several runs", f"zcube controller status {arm}")
    status("its scenario cannot be read", "scenario.yaml", "must hold one mapping", folder=arm)
    whole = yaml.safe_dump(Scenario().model_dump(mode="json"), sort_keys=False)
    (arm / "scenario.yaml").write_text(whole[: whole.index("transport:")])
    status("scenario.yaml", "has no transport", folder=arm)
    (arm / "scenario.yaml").write_text(whole)
    status("being brought up", folder=arm)
    (arm / "events.jsonl").write_text('{"event": "checking every link", "t_monotonic_s": 1.0}\n')
    status("the last step", "'checking every link'", folder=arm)
    with socket.socket(socket.AF_UNIX) as dead:  # bound, and nobody listens: what a run leaves that was killed
        dead.bind(os.path.relpath(arm / "controller.sock"))
        status("was killed", folder=arm)
    (arm / "meta.json").touch()
    status("has ended", folder=arm)


def test_an_output_folder_in_use_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    result = zcube("compare", "--out", str(tmp_path))
    assert result.returncode in (2, 3)  # 3 where there is no root to run with
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_without_root_it_says_what_helps(tmp_path: Path) -> None:
    result = zcube_process("compare", "--out", "/tmp/zcube-none", user=65534)
    if "Permission denied" in result.stderr and "site-packages" not in result.stderr:
        pytest.skip("the repository cannot be read by another user here")
    one_message(result, 3, "needs root", "sudo .venv/bin/zcube compare")


def test_fabric_as_json_and_paths_of_the_published_figure() -> None:
    fabric = json.loads(zcube("fabric", "show", "--json").stdout)
    names = [switch["name"] for switch in fabric["switches"]]
    assert names == ["odd1", "even2", "odd3", "even4", "odd5", "even6", "odd7", "even8"]
    assert len(fabric["links"]) == 96
    paths = json.loads(zcube("fabric", "paths", "--from", "1", "--to", "11", "--json").stdout)
    crossed = [link for path in paths for link in path["links"]]
    assert any(link.startswith("odd1-") and "--even4-" in link for link in crossed)
    assert any(link.startswith("odd5-") and "--even2-" in link for link in crossed)
    one_message(zcube("fabric", "paths", "--from", "1", "--to", "99"), 2, "--to = '99'", "gpu1 to gpu32")


def test_schema_is_json_schema() -> None:
    schema = json.loads(zcube("schema").stdout)
    assert schema["properties"]["fabric"] and schema["additionalProperties"] is False


def test_report_of_something_else_is_one_message(tmp_path: Path) -> None:
    one_message(zcube("report", str(tmp_path / "none")), 2, "no such folder")
    one_message(zcube("report", str(tmp_path)), 2, "meta.json")


def test_what_a_user_typed_is_shown_as_typed() -> None:
    """A message is no markup: brackets in a name neither vanish nor end in a traceback."""
    for name in ("[/x]", "[bold]odd1"):
        one_message(zcube("fabric", "failures", "zcube:gpus=32", "--down", name), 2, f"failure = {name}")
    one_message(zcube("fabric", "collisions", "zcube:gpus=32", "--transfers", "d/[/x]/n.csv"), 2, "d/[/x]/n.csv")


def test_a_closed_stdout_is_no_traceback() -> None:
    script = [sys.executable, "-m", "cli.main", "schema"]
    result = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *script], cwd=REPOSITORY, capture_output=True, text=True)
    assert "Traceback" not in result.stderr


def test_an_early_ctrl_c_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "cost", "roft:gpus=1024,asic_ports=64"],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while "numpy" not in Path(f"/proc/{process.pid}/maps").read_text():  # it is loading its verbs
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
