"""`fabric draw`, `export` and `import` as a user meets them: files, places that cannot hold one, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
import zcube_command
from export_fabrics import same_index_zcube
from zcube_command import one_message, zcube_process

from cli.main import main

ZCUBE = "zcube:gpus=32,gpus_per_switch=8"
Zcube = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def zcube(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Zcube:
    """The command in this process: a process of its own takes half a second each to start."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["zcube", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    return run


@pytest.mark.parametrize("verb", ["fabric draw", "fabric export", "fabric import"])
def test_help_fits_one_screen_and_shows_an_example(verb: str) -> None:
    result = zcube_command.zcube(*verb.split(), "--help")
    assert result.returncode == 0 and "Example" in result.stdout
    assert len(result.stdout.splitlines()) <= 50


def test_export_then_import_is_equal_and_a_wrong_file_is_not(zcube: Zcube, tmp_path: Path) -> None:
    file = tmp_path / "zcube.topo"
    made = zcube("fabric", "export", ZCUBE, "--format", "simai", "--out", str(file))
    assert made.returncode == 0 and "32 GPUs, 8 switches, 96 cables" in made.stdout
    same = zcube("fabric", "import", str(file), "--against", ZCUBE)
    assert same.returncode == 0 and "equal up to the names of switches" in same.stdout
    file.write_text(same_index_zcube())
    other = zcube("fabric", "import", str(file), "--against", ZCUBE)
    assert other.returncode == 1, other.stderr
    said = " ".join(other.stdout.split())
    assert "DIFFERENT" in said and "same running index" in said and "missing in the file: 24 pairs" in said
    data = json.loads(zcube("fabric", "import", str(file), "--against", ZCUBE, "--json").stdout)
    assert data["equal"] is False and len(data["missing"]) == 24
    against_roft = zcube("fabric", "import", str(file), "--against", "roft:gpus=32,asic_ports=8")
    assert against_roft.returncode == 1


def test_one_text_goes_to_standard_output_with_notes_apart(zcube: Zcube) -> None:
    made = zcube("fabric", "export", "zcube:gpus=64,gpus_per_switch=32", "--format", "simai")
    assert made.returncode == 0
    assert made.stdout.splitlines()[0] == "84 4 16 4 196 H100"
    assert "3200 Gb/s" in made.stderr and "KMAX_MAP" in made.stderr
    piped = zcube("fabric", "export", ZCUBE, "--format", "graphml", "--out", "-")
    ElementTree.fromstring(piped.stdout)


def test_htsim_folder_says_why_there_is_no_tree(zcube: Zcube, tmp_path: Path) -> None:
    for fabric, names, note in (
        (ZCUBE, {"fabric.cm", "fabric.generic", "nodes.csv"}, "no fabric.topo"),
        ("roft:gpus=32,asic_ports=8", {"fabric.cm", "fabric.generic", "nodes.csv", "fabric.topo"}, ""),
    ):
        folder = tmp_path / fabric[:4]
        made = zcube("fabric", "export", fabric, "--format", "htsim", "--out", str(folder))
        assert made.returncode == 0 and note in made.stdout
        assert {path.name for path in folder.iterdir()} == names


def test_draw_writes_the_highlighted_path(zcube: Zcube, tmp_path: Path) -> None:
    file = tmp_path / "z.svg"
    made = zcube("fabric", "draw", ZCUBE, "--highlight", "1-11", "--out", str(file))
    assert made.returncode == 0, made.stderr
    text = file.read_text()
    assert "gpu1 port 1 &gt; odd1 &gt; even4 &gt; gpu11 port 2" in text
    dot = zcube("fabric", "draw", ZCUBE, "--out", str(tmp_path / "z.dot"))
    assert dot.returncode == 0 and (tmp_path / "z.dot").read_text().startswith('graph "zcube"')


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["draw", ZCUBE, "--out", "z.png"], ["--out", ".svg or .dot"]),
        (["draw", ZCUBE, "--out", "z.svg", "--highlight", "1-33"], ["--highlight", "1 to 32"]),
        (["draw", ZCUBE, "--out", "z.svg", "--highlight", "1"], ["--highlight", "such as"]),
        (["draw", ZCUBE, "--out", "z.svg", "--highlight", "3-3"], ["--highlight", "two GPUs that differ"]),
        (["draw", ZCUBE, "--out", "z.svg", "--theme", "blue"], ["--theme", "auto, light, dark"]),
        (["draw", ZCUBE, "--out", "z.svg", "--detail", "all"], ["--detail", "gpus"]),
        (["draw", ZCUBE, "--out", "z.dot", "--highlight", "1-2"], ["--highlight", "SVG"]),
        (["export", ZCUBE, "--format", "visio"], ["--format", "graphml"]),
        (["export", ZCUBE, "--format", "htsim"], ["--out", "folder"]),
        (["export", ZCUBE, "--format", "containerlab", "--out", "-"], ["--out", "folder"]),
        (["export", ZCUBE, "--format", "dot", "--pattern", "split"], ["--pattern", "htsim only"]),
        (["export", ZCUBE, "--format", "simai", "--image", "x"], ["--image", "containerlab only"]),
        (["export", ZCUBE, "--format", "simai", "--parallel", "both"], ["--parallel", "merged, cables"]),
        (["export", ZCUBE, "--format", "simai", "--error-rate", "2"], ["--error-rate", "less than 1"]),
        (["export", ZCUBE, "--format", "htsim", "--out", "x", "--flow-bytes", "3000000000"], ["--flow-bytes", "C int"]),
        (["export", ZCUBE, "--format", "containerlab", "--out", "x", "--name", "a b"], ["--name", "letters"]),
        (["import", "nothing.topo", "--against", ZCUBE], ["nothing.topo", "No such file"]),
        (["import", "/dev/zero", "--against", ZCUBE], ["/dev/zero", "is not a regular file"]),
        (["import", "/", "--against", ZCUBE], ["is not a regular file"]),
    ],
)
def test_bad_usage_is_one_message(zcube: Zcube, arguments: list[str], parts: list[str]) -> None:
    one_message(zcube("fabric", *arguments), 2, *parts)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["line 1", "expected nodes gpus_per_server"]),
        (b"\x7fELF\xff\xfe\x00", ["is not UTF-8 text"]),
        (b"48 4 8 8 112 H100\n32 33 34\n0 32 2880Gbps 0.1ms 0\n", ["line 3", "32", "each NVSwitch and switch once"]),
        (same_index_zcube().encode()[:900], ["line 36", "'11 34'", "expected source destination"]),
    ],
    ids=["empty", "binary", "ids", "cut"],
)
def test_a_damaged_file_is_one_message_with_its_line(
    zcube: Zcube, tmp_path: Path, content: bytes, parts: list[str]
) -> None:
    file = tmp_path / "bad.topo"
    file.write_bytes(content)
    one_message(zcube("fabric", "import", str(file), "--against", ZCUBE), 2, "bad.topo", *parts)


@pytest.mark.parametrize("form", ["file", "folder"])
def test_places_that_cannot_hold_an_export(zcube: Zcube, tmp_path: Path, form: str) -> None:
    format_ = "dot" if form == "file" else "htsim"

    def export(where: Path, *more: str) -> subprocess.CompletedProcess[str]:
        return zcube("fabric", "export", ZCUBE, "--format", format_, "--out", str(where), *more)

    one_message(export(tmp_path / "no" / "x"), 2, "does not exist", "mkdir -p")
    taken = tmp_path / "taken"
    if form == "file":
        taken.write_text("mine")
        one_message(export(taken), 2, "exists", "--force")
        assert taken.read_text() == "mine"
        assert export(taken, "--force").returncode == 0 and taken.read_text() != "mine"
        one_message(export(tmp_path), 2, "is a folder")
    else:
        taken.mkdir()
        (taken / "mine").write_text("mine")
        one_message(export(taken), 2, "not empty", "--force")
        assert export(taken, "--force").returncode == 0
        assert (taken / "mine").read_text() == "mine" and (taken / "fabric.cm").exists()
        one_message(export(taken / "mine"), 2, "is a file")
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_place_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in (tmp_path.parent, tmp_path.parent.parent):
        if parent != Path("/tmp"):
            parent.chmod(0o755)
    arguments = ("fabric", "export", ZCUBE, "--format", "dot", "--out", str(tmp_path / "x.dot"))
    made = zcube_process(*arguments, user=65534)
    if "No module named" in made.stderr or "No such command" in made.stderr:  # or only another copy of it
        pytest.skip("the other user cannot read this environment")
    one_message(made, 2, "Permission denied")
    assert list(tmp_path.iterdir()) == []
