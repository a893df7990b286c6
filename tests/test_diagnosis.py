"""The diagnosis: known causes are named, nothing is named where nothing is wrong, and bad input is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from analysis_runs import Plan, make_run
from typer.testing import CliRunner

from analysis.confusion import NOTHING, Judged, confusion, rates
from analysis.diagnosis import Diagnosis, diagnose
from analysis.diagnosis_answers import answers, headline
from analysis.placement_skew import placement_skew
from analysis.what_if import WhatIf
from cli.diagnose import repeated
from cli.main import app
from results.reader import RunFolder
from scenario import hidden_causes
from scenario.errors import InputError
from scenario.hidden_causes import CAUSES
from scenario.load import check_scenario
from simulation.run import simulate, write_run

runner = CliRunner()


def simulated(folder: Path, data: dict[str, Any]) -> Diagnosis:
    write_run(folder, simulate(check_scenario(data)))
    return diagnose(RunFolder(folder))


def test_cases_are_drawn_from_the_seed_alone_and_name_known_causes() -> None:
    first, again, other = hidden_causes.draw(1, 12), hidden_causes.draw(1, 12), hidden_causes.draw(2, 12)
    assert first == again
    assert [case.causes for case in first] != [case.causes for case in other]
    assert {len(case.causes) for case in hidden_causes.draw(1, 40)} == {0, 1, 2}


def test_hidden_causes_are_named_and_healthy_runs_are_not(tmp_path: Path) -> None:
    """24 simulated cases of a seed that no threshold was chosen on; `python -m cli.diagnosis_check` emulates them."""
    judged = []
    for case in hidden_causes.draw(77, 24):
        folder = tmp_path / str(case.number)
        write_run(folder, simulate(case.scenario))
        named = frozenset(cause.name for cause in diagnose(RunFolder(folder)).causes)
        judged.append(Judged(frozenset(case.causes), named))
    healthy = [one for one in judged if not one.true]
    assert healthy
    assert all(one.exact for one in healthy)
    assert sum(one.exact for one in judged) >= 21, [one for one in judged if not one.exact]


def test_parts_sum_to_ttft_and_questions_are_answered(tmp_path: Path) -> None:
    case = next(case for case in hidden_causes.draw(1, 20) if case.causes == ("slow link",))
    write_run(tmp_path / "run", simulate(case.scenario))
    run = RunFolder(tmp_path / "run")
    found = diagnose(run)
    done = run.requests().query("status == 'ok' and not warmup")
    mean_ms = ((done["t_first_token_s"] - done["t_arrival_s"]) * 1e3).mean()
    assert sum(found.all_ms.values()) == pytest.approx(mean_ms)
    assert headline(found) == "Named: slow link."
    (link,) = found.links
    assert case.scenario.faults.slow[0].cable in (link.port, *link.same)
    assert link.share == pytest.approx(case.scenario.faults.slow[0].share, rel=0.25)
    questions = answers(found, None)
    assert len(questions) == 5
    assert all(item.answer for item in questions)


def test_what_if_says_bandwidth_where_bandwidth_is_short_and_mapping_where_it_is_mapping() -> None:
    base: dict[str, Any] = {
        "fabric": {"kind": "roft", "gpus": 16, "asic_ports": 8, "gpus_per_server": 1, "gpu_gbps": 100},
        "serving": {"shape": "A", "prefill_base_ms": 10, "decode_placement": "random"},
        "workload": {"kind": "burst", "handoffs": 8, "tokens": [50_000], "window_ms": 1, "repeats": 10},
    }
    spread = repeated(check_scenario({**base, "routing": {"policy": "spray"}}))
    hashed = repeated(check_scenario({**base, "routing": {"policy": "ecmp"}, "seed": 3}))
    assert spread is not None
    assert hashed is not None
    assert spread.answer == "bandwidth"
    assert spread.half[0] > spread.same[0] > spread.double[0]
    assert hashed.answer == "both"
    assert WhatIf((9, 9), (1, 1), (0.97, 1), (0.99, 1)).answer == "neither"
    assert WhatIf((9, 9), (1, 1), (0.97, 1), (0.8, 1)).answer == "mapping"


def placed(*handoffs: tuple[str, float, float]) -> pd.DataFrame:
    """(target, start, end) of handoffs of equal size; every target could have been chosen each time."""
    names = sorted({name for name, _, _ in handoffs} | {"gpu9", "gpu10", "gpu11", "gpu12"})
    return pd.DataFrame(
        {
            "decode_gpu": [name for name, _, _ in handoffs],
            "decode_instance": "server3",
            "candidates": json.dumps({"decode": dict.fromkeys(names, 0.0)}),
            "input_tokens": 1000,
            "t_kv_transfer_s": [start for _, start, _ in handoffs],
            "t_decode_waiting_s": [end for _, _, end in handoffs],
        }
    )


def test_piles_are_counted_against_an_even_draw() -> None:
    """Three of four go to gpu9 while it receives and the other three targets are free: 3/4 piled; at those moments one
    of four targets is busy, so an even draw would pile 3/4 x 1/4."""
    found = placement_skew(placed(("gpu9", 0, 9), ("gpu9", 1, 9), ("gpu9", 2, 9), ("gpu9", 3, 9)))
    assert (found.handoffs, found.targets, found.busiest_target) == (4, 4, "gpu9")
    assert found.skew == pytest.approx(4)
    assert found.piled_share == pytest.approx(3 / 4)
    assert found.piled_even == pytest.approx(3 / 16)
    assert found.hot


def test_an_even_scheduler_is_not_hot() -> None:
    turns = [(f"gpu{9 + at % 4}", float(at), at + 3.5) for at in range(40)]
    found = placement_skew(placed(*turns))
    assert found.skew == pytest.approx(1)
    assert found.piled_share == 0
    assert not found.hot


def test_chance_is_not_a_hot_spot() -> None:
    """Of few handoffs the busiest target has more than its share by chance: no more than an even draw would give."""
    found = placement_skew(placed(("gpu9", 0, 1), ("gpu10", 2, 3), ("gpu9", 4, 5), ("gpu11", 6, 7)))
    assert found.skew == pytest.approx(2)
    assert found.skew <= found.skew_even_p99
    assert not found.hot


def test_confusion_counts_hits_misses_and_false_names() -> None:
    a, b = CAUSES[:2]
    cases = [
        Judged(frozenset({a}), frozenset({a})),
        Judged(frozenset({a}), frozenset({b})),
        Judged(frozenset({a, b}), frozenset({a})),
        Judged(frozenset(), frozenset({b})),
        Judged(frozenset(), frozenset()),
    ]
    matrix = confusion(cases, CAUSES)
    assert matrix[a] == {**dict.fromkeys((*CAUSES, NOTHING), 0), a: 2, b: 1}
    assert matrix[b][NOTHING] == 1
    assert (matrix[NOTHING][b], matrix[NOTHING][NOTHING]) == (1, 1)
    assert rates(cases, CAUSES)[a] == (2, 1, 0)
    assert rates(cases, CAUSES)[b] == (0, 1, 2)


def test_the_command_writes_a_page_and_json(tmp_path: Path) -> None:
    case = next(case for case in hidden_causes.draw(1, 20) if case.causes == ("gateway delay",))
    write_run(tmp_path / "run", simulate(case.scenario))
    done = runner.invoke(app, ["diagnose", str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [cause["name"] for cause in found["causes"]] == ["gateway delay"]
    ttft_ms = found["what_if"]["ttft_ms"]
    assert ttft_ms["half"]["mean"] > ttft_ms["same"]["mean"] > ttft_ms["double"]["mean"]
    page = (tmp_path / "run" / "diagnosis.html").read_text()
    assert "gateway delay" in page
    pictures = 4 + any(found["congested_intervals"].values())
    assert page.count("<figure>") == pictures


def test_an_emulated_run_without_its_samples_is_no_simulation(tmp_path: Path) -> None:
    """The diagnosis goes on from the replay and says what is missing; a comparison needs the queues and says so too."""
    folder = make_run(tmp_path / "run", Plan(requests=60, warmup=5))
    said = {}
    for state in ("whole", "without ports.parquet"):
        done = runner.invoke(app, ["diagnose", str(folder), "--no-what-if"])
        assert done.exit_code in (0, 1), done.output
        said[state] = " ".join((done.stdout + (folder / "diagnosis.html").read_text()).split())
        (folder / "ports.parquet").unlink(missing_ok=True)
    assert all("a simulation has no queues" not in text for text in said.values())
    assert "ports.parquet is missing" not in said["whole"]
    assert said["without ports.parquet"].count("ports.parquet is missing from the run folder of this emulation") >= 2
    reported = runner.invoke(app, ["report", str(folder)])
    assert isinstance(reported.exception, InputError) and "has no ports.parquet" in str(reported.exception)


def test_a_run_without_serving_is_refused(tmp_path: Path) -> None:
    scenario = check_scenario(
        {"fabric": {"kind": "roft", "gpus": 16, "asic_ports": 8}, "workload": {"kind": "collective"}}
    )
    write_run(tmp_path / "run", simulate(scenario))
    with pytest.raises(InputError, match="played flows without serving"):
        diagnose(RunFolder(tmp_path / "run"))
    with pytest.raises(InputError, match="no such folder"):
        diagnose(RunFolder(tmp_path / "nowhere"))


def test_rails_that_do_not_meet_are_diagnosed_at_the_nic_that_sends(tmp_path: Path) -> None:
    """On rail-only a handoff to another rail goes over NVLink to the neighbour of that rail, and leaves by its NIC."""
    data: dict[str, Any] = {
        "fabric": {"kind": "rail_only", "gpus": 16, "asic_ports": 8, "gpus_per_server": 2},
        "workload": {"kind": "synthetic", "requests": 20},
    }
    found = simulated(tmp_path / "run", data)
    rows = RunFolder(tmp_path / "run").transfers()
    relayed = [row for row in rows.to_dict("records") if len(row["path"]) and row["src_gpu"] not in row["path"][0]]
    assert relayed
    assert len(found.congestion.flows.flows) == rows["transfer_id"].nunique()
    used = {port for port, load in found.loads.by_port.items() if load and port.startswith("gpu")}
    assert used == {cable.split("--")[0] for cable in rows["path"].str[0].dropna()}


def test_the_bound_and_a_damaged_fabric_are_refused(tmp_path: Path) -> None:
    (case,) = hidden_causes.draw(1, 1)
    write_run(tmp_path / "bound", simulate(case.scenario, infinite_core=True))
    with pytest.raises(InputError, match="infinite core"):
        diagnose(RunFolder(tmp_path / "bound"))
    write_run(tmp_path / "run", simulate(case.scenario))
    (tmp_path / "run" / "fabric.json").write_text("{}")
    with pytest.raises(InputError, match=r"fabric\.json: gpus"):
        diagnose(RunFolder(tmp_path / "run"))


@pytest.mark.parametrize(
    ("page", "says"), [("nowhere/x.html", "there is no folder"), (".", "is a folder"), ("", "is a folder")]
)
def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path, page: str, says: str) -> None:
    target = str(tmp_path / page) if page else ""
    done = runner.invoke(app, ["diagnose", str(tmp_path), "--page", target])
    assert isinstance(done.exception, InputError)
    assert says in str(done.exception)
    assert "--page" in str(done.exception)


def test_a_repeat_that_completes_nothing_is_unknown_and_json_has_no_nan(tmp_path: Path) -> None:
    """At half the rate no handoff ends before the time-out; in place of figures there are null and words."""
    data: dict[str, Any] = {
        "fabric": {"kind": "roft", "gpus": 16, "asic_ports": 8, "gpus_per_server": 1, "gpu_gbps": 1},
        "serving": {"shape": "D", "timeout_s": 0.5, "prefill_base_ms": 1, "prefill_tokens_per_s_per_gpu": 1e9},
        "workload": {"kind": "burst", "handoffs": 1, "tokens": [1000], "window_ms": 0, "repeats": 1},
    }
    patient = {**data, "serving": {**data["serving"], "timeout_s": 1e5}}
    (ttft_s,) = simulate(check_scenario(patient)).ttft_s().values()
    data["fabric"]["gpu_gbps"] = 2
    data["serving"]["timeout_s"] = 0.75 * ttft_s
    write_run(tmp_path / "run", simulate(check_scenario(data)))
    done = runner.invoke(app, ["diagnose", str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0, done.output

    def refuse(text: str) -> None:
        raise AssertionError(text)

    found = json.loads(done.stdout, parse_constant=refuse)
    assert found["what_if"]["ttft_ms"]["half"]["mean"] is None
    assert found["what_if"]["answer"] != "unknown"
    shown = runner.invoke(app, ["diagnose", str(tmp_path / "run")]).output
    assert "half the rate: no request got its first token" in shown
    nan = float("nan")
    assert WhatIf((nan, nan), (1, 1), (nan, nan), (1, 1)).answer == "unknown"
    assert WhatIf((0, 0), (0, 0), (0, 0), (0, 0)).answer == "neither"


def test_a_run_that_served_nothing_is_refused(tmp_path: Path) -> None:
    data: dict[str, Any] = {
        "fabric": {"kind": "roft", "gpus": 16, "asic_ports": 8},
        "serving": {"timeout_s": 0.001},
        "workload": {"kind": "synthetic", "requests": 4},
    }
    with pytest.raises(InputError, match="first token"):
        simulated(tmp_path / "run", data)


@pytest.mark.parametrize(
    ("slow", "parts"),
    [
        ([{"cable": "odd1-eth77", "share": 0.5}], ["faults.slow[0].cable", "odd1-eth77", "nearest"]),
        ([{"cable": "gpu1-eth1", "share": 0.5}, {"cable": "odd1-eth1", "share": 0.5}], ["slow[1]", "named twice"]),
        ([{"cable": "gpu1-eth1", "share": 1.0}], ["faults.slow[0].share", "less than 1"]),
    ],
)
def test_slow_cables_are_checked(slow: list[dict[str, Any]], parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        check_scenario({"faults": {"slow": slow}})
    for part in parts:
        assert part in str(caught.value)


def test_a_slow_cable_is_slow_both_ways_in_the_simulation() -> None:
    def one_message(pair: str, share: float | None) -> float:
        slow = [{"cable": "gpu1-eth1", "share": share}] if share else []
        data = {
            "fabric": {"kind": "roft", "gpus": 16, "asic_ports": 8, "gpus_per_server": 1},
            "faults": {"slow": slow},
            "workload": {"kind": "collective", "operation": "incast", "fan_in": 1, "gpus": pair.split()},
        }
        return simulate(check_scenario(data)).end_s

    for pair in ("gpu1 gpu9", "gpu9 gpu1"):
        assert one_message(pair, 0.25) == pytest.approx(4 * one_message(pair, None))
