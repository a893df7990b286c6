"""`zcube cost` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from analysis_runs import Plan, make_run
from click.testing import Result
from typer.testing import CliRunner
from zcube_command import one_message, zcube

from cli.main import app
from scenario.errors import InputError
from topologies.fabric import FabricError
from topologies.prices import default_prices_text

ROFT, ZCUBE = "roft:gpus=32,asic_ports=8", "zcube:gpus=32,asic_ports=8"


def cost(*arguments: str) -> Result:
    """`zcube cost` inside this process: starting Python takes longer than most of the tests."""
    return CliRunner().invoke(app, ["cost", *arguments])


def test_help_fits_one_screen_and_shows_an_example() -> None:
    result = zcube("cost", "--help")
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) <= 50
    assert "Example" in result.stdout


def test_one_fabric_is_a_bill_by_tier() -> None:
    result = cost(ZCUBE)
    assert (result.exit_code, result.stderr) == (0, "")
    for part in ("odd, 16 ports", "inter, 200G", "CapEx per GPU", "What is not counted", "~"):
        assert part in result.stdout
    assert "costs" not in result.stdout.split("In short")[1].split("What is not")[0]


def test_two_fabrics_are_compared_with_the_first() -> None:
    result = zcube("cost", ROFT, ZCUBE, "--accounting", "blog")
    said = " ".join(result.stdout.split())
    assert result.returncode == 0
    assert "costs 33.3 % less per GPU" in said
    assert "and at every other price in its ranges" in said
    assert "−33.3 %" in said


def test_json_is_json() -> None:
    found = json.loads(cost(ROFT, ZCUBE, "--accounting", "testbed", "--json").stdout)
    assert found["fabrics"][1]["saving"] == pytest.approx(0.25)
    assert found["accounting"]["optics_by"] == "module"


def test_toggles_reach_the_accounting() -> None:
    options = ["--count", "optics,nics", "--no-nics", "--tiers", "access", "--dac", "none", "--no-nic-optics"]
    found = json.loads(cost(ZCUBE, *options, "--optics-by", "module", "--json").stdout)
    assert found["accounting"] == {
        "items": ["optics"],
        "link_tiers": ["access"],
        "nic_optics": False,
        "dac_tiers": [],
        "optics_by": "module",
    }
    assert found["fabrics"][0]["capex_usd"] == pytest.approx(64 / 2 * 900)


def test_the_printed_book_can_be_edited_and_used(tmp_path: Path) -> None:
    printed = cost("--print-prices").stdout
    assert printed == default_prices_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text(printed.replace("price_usd: 14000", "price_usd: 15000"))
    before, after = (
        json.loads(cost(ROFT, "--count", "switches", "--json", *more).stdout)["fabrics"][0]["capex_usd"]
        for more in ([], ["--prices", str(mine)])
    )
    assert after - before == 12 * 1000


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["needs fabrics"]),
        (["torus:gpus=4"], ["torus"]),
        (["roft:gpus=33,asic_ports=8"], ["33"]),
        ([ROFT, "--asic", "N1"], ["N1", "known: N8550-40CD"]),
        (["roft:gpus=1024,asic_ports=64", "--asic", "N9550-32D"], ["too small", "25600 Gb/s"]),
        (["roft:gpus=1024,asic_ports=256"], ["no model in the price book"]),
        (["roft:gpus=32,asic_ports=8,gpu_gbps=50"], ["50 Gb/s", "--print-prices"]),
        (["zcube:gpus=32,asic_ports=8,bundle=trunk"], ["trunk", "destination"]),
        ([ROFT, "--accounting", "mine"], ["--accounting = 'mine'", "full, blog, paper, testbed"]),
        ([ROFT, "--count", "wine"], ["--count = 'wine'", "switches"]),
        ([ROFT, "--tiers", ""], ["--tiers = ''"]),
        ([ROFT, "--dac", "roof"], ["--dac = 'roof'"]),
        ([ROFT, "--optics-by", "weight"], ["--optics-by = 'weight'"]),
        ([ROFT, "--years", "3"], ["--years", "--runs"]),
        (["--runs", "x", "--years", "nan"], ["--years"]),
        (["--runs", "/nowhere"], ["/nowhere", "no such folder"]),
        ([ROFT, "--prices", "/nowhere.yaml"], ["/nowhere.yaml"]),
        ([ROFT, "--prices", "/"], ["not a regular file"]),
    ],
)
def test_bad_input_is_one_message(arguments: list[str], parts: list[str]) -> None:
    result = cost(*arguments)
    error = result.exception
    assert isinstance(error, (InputError, FabricError)), (error, result.output)
    for part in parts:
        assert part in str(error)


def test_bad_input_ends_with_2_and_no_traceback() -> None:
    one_message(zcube("cost", ROFT, "--asic", "N1"), 2, "prices: switches = 'N1'", "known: N8550-40CD")


def test_tokens_of_runs_carry_invalid_through(tmp_path: Path) -> None:
    small = {"requests": 40, "warmup": 5, "sample_hz_wall": 1.0}
    good = make_run(tmp_path / "roft", Plan(kind="roft", **small))  # type: ignore[arg-type]
    bad = make_run(tmp_path / "zcube", Plan(kind="zcube", invalid=True, **small))  # type: ignore[arg-type]
    result = cost("--runs", str(good))
    assert result.exit_code == 0
    for part in ("network hardware", "per 1,000 output tokens", "What this does not show"):
        assert part in result.stdout
    result = zcube("cost", "--runs", str(good), str(bad))
    assert result.returncode == 1
    assert "INVALID" in result.stdout
    found = cost("--runs", str(good), str(bad), "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["valid"] is False
