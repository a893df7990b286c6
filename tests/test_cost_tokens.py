"""Dollars per 1,000 tokens: by hand, and from run folders (made-up data)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from analysis_runs import Plan, make_run
from cost_books import DEFAULT, book_data, priced, wired

from analysis.arms import Arm
from analysis.token_cost import fabric_of, hourly_usd, token_costs, usd_per_1k
from results.reader import RunFolder
from scenario.errors import InputError
from topologies.cost import HOURS_PER_YEAR, cost_of
from topologies.prices import check_prices


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    plans = {
        "roft": Plan(kind="roft", requests=60, warmup=5, sample_hz_wall=1),
        "zcube": Plan(kind="zcube", bundle="trunk", requests=60, warmup=5, sample_hz_wall=1),
        "invalid": Plan(kind="zcube", requests=60, warmup=5, sample_hz_wall=1, invalid=True),
        "bound": Plan(kind="zcube", requests=60, warmup=5, bound=True),
    }
    return {name: make_run(root / name, plan) for name, plan in plans.items()}


def arm(path: Path) -> Arm:
    return Arm(path.name, path)


def test_lines_by_hand() -> None:
    network = priced("roft:gpus=32,asic_ports=8")
    found = hourly_usd(network, 32, 4)
    hardware = network.capex_usd - network.item_usd("cabling")
    assert found["GPUs"] == 32 * 2.5
    assert found["network hardware"] == pytest.approx(hardware / 4 / 8760)
    assert found["network power"] == pytest.approx(network.power_w / 1000 * 1.3 * 0.10)
    assert found["labour"] == pytest.approx(1280 / 4 / 8760 + 12 * 500 / 8760)
    assert found["failures"] == pytest.approx(hardware * 0.02 / 8760)
    assert usd_per_1k(3.6, 10) == pytest.approx(0.1)  # 36,000 tokens an hour for 3.6 USD


def test_two_runs_with_their_lines_and_sums(runs: dict[str, Path]) -> None:
    found = token_costs([arm(runs["roft"]), arm(runs["zcube"])], DEFAULT)
    assert found.exit_code == 0
    for run in found.runs:
        assert run.total_usd_per_hour == pytest.approx(sum(run.usd_per_hour.values()))
        each = sum(run.per_1k_output(usd) for usd in run.usd_per_hour.values())
        assert each == pytest.approx(run.per_1k_output(run.total_usd_per_hour))
        assert run.total_tokens_per_s > run.output_tokens_per_s > 0
    roft, zcube = found.runs
    assert zcube.network.bom.switch_count == 8 and roft.network.bom.switch_count == 12
    assert zcube.usd_per_hour["network hardware"] < roft.usd_per_hour["network hardware"]
    assert "decides the result" in " ".join(found.limits())


def test_throughput_is_what_the_requests_say(runs: dict[str, Path]) -> None:
    """Twice the output tokens, half the dollars: counted here from the table itself."""
    run = RunFolder(runs["roft"])
    window, rows = run.window(), run.requests()
    step = 0.02  # the made-up runs' time per output token
    made = sum(
        sum(window.t_start_s <= first + i * step < window.t_end_s for i in range(tokens))
        for first, tokens in zip(rows["t_first_token_s"], rows["output_tokens"], strict=True)
    )
    found = token_costs([arm(runs["roft"])], DEFAULT).runs[0]
    assert found.output_tokens_per_s == pytest.approx(made / window.duration_s, rel=0.01)


def test_a_trunk_is_costed_as_its_cables(runs: dict[str, Path]) -> None:
    found = token_costs([arm(runs["zcube"])], DEFAULT)
    fabric = fabric_of(found.comparison.arms[0])
    assert len(fabric.links) == len(wired("zcube:gpus=32,asic_ports=8").links)
    assert found.runs[0].network.capex_usd == pytest.approx(priced("zcube:gpus=32,asic_ports=8").capex_usd)


def test_invalid_is_carried_through(runs: dict[str, Path]) -> None:
    found = token_costs([arm(runs["roft"]), arm(runs["invalid"])], DEFAULT)
    assert found.exit_code == 1
    assert any("INVALID" in line for line in found.warnings())
    json = found.to_json()
    assert (json["valid"], json["exit_code"], [run["valid"] for run in json["runs"]]) == (False, 1, [True, False])


def test_years_and_prices_move_the_lines_they_should(runs: dict[str, Path]) -> None:
    four, eight = (token_costs([arm(runs["roft"])], DEFAULT, years=years).runs[0] for years in (None, 8))
    assert four.usd_per_hour["network hardware"] == pytest.approx(2 * eight.usd_per_hour["network hardware"])
    assert four.usd_per_hour["GPUs"] == eight.usd_per_hour["GPUs"]
    data = book_data()
    data["operation"]["gpu_usd_per_hour"] = 0
    free = hourly_usd(cost_of(wired("roft:gpus=32,asic_ports=8"), check_prices(data)), 32, 4)
    assert free["GPUs"] == 0
    assert free["failures"] * HOURS_PER_YEAR > 0


def test_an_infinite_core_cannot_be_bought(runs: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="infinite core"):
        token_costs([Arm("bound", runs["bound"], "bound")], DEFAULT)


@pytest.mark.parametrize("how", ["no rows", "no tokens"])
def test_runs_that_served_nothing_are_one_message(tmp_path: Path, how: str) -> None:
    path = make_run(tmp_path / "empty", Plan(kind="roft", requests=4, warmup=1, sample_hz_wall=1))
    rows = pd.read_parquet(path / "requests.parquet")
    from results import schema, writer

    (path / "requests.parquet").unlink()
    rows = rows.iloc[:0] if how == "no rows" else rows.assign(output_tokens=0)
    writer.write_table(path / "requests.parquet", schema.REQUESTS, rows)
    with pytest.raises(InputError, match="no token came out"):
        token_costs([arm(path)], DEFAULT)


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"meta\.json"):
        token_costs([arm(tmp_path)], DEFAULT)
