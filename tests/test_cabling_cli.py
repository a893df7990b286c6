"""`zcube cabling` as a user meets it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from cabling_faults import csv_of, replug, seen_from_both_sides, wired
from typer.testing import CliRunner
from zcube_command import one_message, zcube

from cli import main as _verbs  # noqa: F401 - registers the verbs
from cli.app import app
from scenario.errors import InputError
from topologies.cabling_model import Plug, planned_cables
from topologies.fabric import FabricError
from topologies.zcube import zcube as wire

FABRIC = "zcube:gpus=32,gpus_per_switch=8"


def ran(*arguments: str) -> str:
    """What `zcube cabling` prints, in this process."""
    result = CliRunner().invoke(app, ["cabling", *arguments], catch_exceptions=False)
    assert result.exit_code in (0, 1)
    return result.stdout


@pytest.mark.parametrize("verb", ["", "plan", "verify", "migrate"])
def test_help_fits_one_screen_and_shows_an_example(verb: str) -> None:
    result = CliRunner().invoke(app, ["cabling", *verb.split(), "--help"])
    assert result.exit_code == 0 and "Example" in result.stdout and len(result.stdout.splitlines()) <= 50


def test_plan_verify_and_repair(tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    made = zcube("cabling", "plan", FABRIC, "--out", str(plan))
    assert made.returncode == 0 and "96 cables" in made.stdout, made.stderr
    wiring = wired(planned_cables(wire(32, 8)))
    seen = tmp_path / "lldp.csv"
    seen.write_text(csv_of(seen_from_both_sides(wiring, random.Random(1))))
    good = zcube("cabling", "verify", str(plan), str(seen))
    assert good.returncode == 0 and "96 of 96 cables as planned; no fault" in good.stdout, good.stderr
    replug(wiring, {Plug("odd1", "3"): Plug("odd1", "7"), Plug("odd1", "7"): Plug("odd1", "3")})
    seen.write_text(csv_of(seen_from_both_sides(wiring, random.Random(1))))
    bad = zcube("cabling", "verify", str(plan), str(seen))
    assert bad.returncode == 1 and "94 of 96 cables as planned; 1 swapped" in bad.stdout
    told = json.loads(ran("verify", str(plan), str(seen), "--json"))
    assert [fault["fix"] for fault in told["faults"]] == ["exchange the plugs in odd1 port 3 and odd1 port 7"]
    one_message(zcube("cabling", "verify", str(seen), str(plan)), 2, "lldp.csv", "PLAN OBSERVED")


def test_plan_formats_agree(tmp_path: Path) -> None:
    data = json.loads(ran("plan", FABRIC, "--json"))
    assert len(data["cables"]) == 96 == sum(total["cables"] for total in data["totals"])
    file = tmp_path / "plan.json"
    assert "96 cables" in ran("plan", FABRIC, "--out", str(file))
    assert json.loads(file.read_text()) == data
    text = ran("plan", FABRIC, "--format", "csv")
    assert text.splitlines()[1].startswith("C01,access,") and len(text.splitlines()) == 97


def test_migrate_prints_counts_and_steps() -> None:
    arguments = ("migrate", "roft:gpus=32,asic_ports=8", FABRIC)
    assert "turn spine1 into even2" in ran(*arguments)
    data = json.loads(ran(*arguments, "--json"))
    assert data["peak"]["gpus_without_port"] == 4
    assert data["rules"]["after"] == data["rules"]["kept"] + data["rules"]["added"] > 0


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["plan", "torus:gpus=32"], ["torus"]),
        (["plan", FABRIC, "--room", "rack_u=7"], ["room.servers_per_rack"]),
        (["plan", FABRIC + ",bundle=trunk"], ["bundle", "destination"]),
        (["plan", FABRIC, "--format", "xlsx"], ["--format", "csv, json"]),
        (["plan", FABRIC, "--out", "/nowhere/plan.csv"], ["--out", "/nowhere/plan.csv"]),
        (["verify", "/nowhere/a.csv", "/nowhere/b.csv"], ["/nowhere/a.csv"]),
        (["verify", "a", "b", "--sides", "three"], ["--sides", "auto, one, both"]),
        (["migrate", FABRIC, "zcube:gpus=64,gpus_per_switch=8"], ["gpus = 64", "same GPUs"]),
        (["migrate", FABRIC, FABRIC, "--prefer", "luck"], ["--prefer"]),
    ],
)
def test_bad_input_is_one_message(arguments: list[str], parts: list[str]) -> None:
    with pytest.raises((InputError, FabricError)) as caught:
        CliRunner().invoke(app, ["cabling", *arguments], catch_exceptions=False)
    for part in parts:
        assert part in str(caught.value)
