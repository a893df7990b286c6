"""`zcube fabric` as a user runs it: every verb on every kind, as text and as JSON, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli import fabric as verb
from cli.app import app
from scenario.errors import InputError
from topologies.fabric import FabricError

KINDS = (
    "zcube:gpus=32",
    "zcube:gpus=32,links_per_pair=1",
    "zcube_recursive:gpus=27,levels=3,asic_ports=8,gpus_per_server=1",
    "roft:gpus=32",
    "roft:gpus=32,equal_cost=true",
    "roft:gpus=128,tiers=3",
    "rail_only:gpus=32",
    "hpn:gpus=32",
    "clos:gpus=32",
    "fat_tree:gpus=128",
)

if not any(group.name == "fabric" for group in app.registered_groups):
    verb.register(app)


def zcube(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["fabric", *arguments])


@pytest.mark.parametrize("text", KINDS)
@pytest.mark.parametrize(
    "arguments",
    [
        ["show"],
        ["routes", "SWITCH"],
        ["paths", "--from", "1", "--to", "9"],
        ["paths", "--from", "gpu1", "--to", "gpu9", "--policy", "spray"],
        ["failures", "--down", "SWITCH", "--pairs"],
        ["deadlock"],
        ["collisions", "--seeds", "2", "--pattern", "permutation"],
    ],
    ids=lambda arguments: " ".join(arguments[:1] + arguments[-1:]),
)
def test_every_verb_on_every_kind(text: str, arguments: list[str]) -> None:
    first = json.loads(zcube("show", text, "--json").stdout)["switches"][0]["name"]
    given = [first if argument == "SWITCH" else argument for argument in arguments]
    command = [*given, text] if given[0] == "routes" else [given[0], text, *given[1:]]
    plain, machine = zcube(*command), zcube(*command, "--json")
    assert plain.exit_code == machine.exit_code == 0, plain.output or repr(plain.exception)
    assert plain.stdout.strip()
    json.loads(machine.stdout)


def test_paths_of_the_published_figure() -> None:
    def switches(a: int, b: int) -> list[list[str]]:
        found = json.loads(zcube("paths", "--from", str(a), "--to", str(b), "--json").stdout)
        return [one["switches"] for one in found]

    assert switches(1, 11) == [["odd1", "even4"], ["even2", "odd5"]]
    assert switches(5, 18) == [["odd1", "even6"], ["even2", "odd3"]]
    said = " ".join(zcube("paths", "--from", "1", "--to", "5").stdout.split())
    assert "Longer than shortest" in said and "--policy shortest" in said
    assert "Longer" not in zcube("paths", "--from", "1", "--to", "11").stdout


def test_deadlock_exit_codes() -> None:
    assert zcube("deadlock", "--policy", "unique").exit_code == 0
    assert zcube("deadlock", "--policy", "any_port").exit_code == 1


def test_transfers_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "transfers.csv"
    file.write_text("src,dst\n1,14\ngpu5,15\n")
    text = "zcube:gpus=16,asic_ports=4"
    found = json.loads(zcube("collisions", text, "--transfers", str(file), "--seeds", "1", "--json").stdout)
    assert found["transfers"] == 2 and found["mean_percent"] == 75.0


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["show", "torus:gpus=8"], ["kinds are zcube", "roft"]),
        (["show", "zcub:gpus=8"], ["did you mean zcube?"]),
        (["show", "zcube:gpu=8"], ["did you mean gpus=?"]),
        (["show", "zcube:gpus=eight"], ["fabric.gpus", "whole number"]),
        (["show", "zcube:gpus=33"], ["fabric.gpus = 33", "nearest: 32, 36"]),
        (["show", "zcube:gpus=36"], ["gpus = 36", "these fit 1:1: [32"]),
        (["show", "zcube:gpus=32,gpus=32"], ["given twice"]),
        (["show", "hpn:tiers=2"], ["hpn takes"]),
        (["show", "missing.yaml"], ["missing.yaml", "No such file"]),
        (["paths", "--from", "1", "--to", "1"], ["--to", "another GPU"]),
        (["paths", "--from", "0", "--to", "1"], ["--from = '0'", "gpu1 to gpu32"]),
        (["paths", "--from", "1", "--to", "2", "--policy", "ospf"], ["policy = ospf", "unique"]),
        (["paths", "roft:gpus=32", "--from", "1", "--to", "2", "--policy", "unique"], ["roft has shortest"]),
        (["failures", "--down", "odd99"], ["failure = odd99"]),
        (["routes", "spine1"], ["switch = 'spine1'", "odd1"]),
        (["deadlock", "roft:gpus=32", "--policy", "unique"], ["--policy", "roft has"]),
        (["collisions", "--pattern", "storm"], ["--pattern", "cross-rail"]),
        (["collisions", "roft:gpus=32", "--pattern", "g-to-one"], ["pattern = roft", "zcube"]),
        (["collisions", "--transfers", "/dev/null"], ["is not a regular file", "src,dst"]),
    ],
)
def test_refusals(arguments: list[str], parts: list[str]) -> None:
    result = zcube(*arguments)
    assert isinstance(result.exception, InputError | FabricError), result.output
    for part in parts:
        assert part in str(result.exception)
