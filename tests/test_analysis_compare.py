"""The comparison and its renderers on made-up runs: what it must say, and when it must refuse or warn."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis_runs import Plan, make_run
from rich.console import Console

from analysis import charts
from analysis.arms import Arm
from analysis.compare import Comparison, compare
from analysis.console import print_comparison
from analysis.formats import change, data_size, number, percent, short
from analysis.metrics import summarise
from analysis.report import render, write_report
from analysis.rows import result_rows
from results import schema, writer
from results.reader import RunFolder
from scenario.errors import InputError

SMALL = Plan(requests=60, warmup=5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    return {
        "roft": make_run(root / "roft", replace(SMALL, kind="roft")),
        "zcube": make_run(root / "zcube", SMALL),
        "trunk": make_run(root / "trunk", replace(SMALL, bundle="trunk")),
        "bound": make_run(root / "bound", replace(SMALL, bound=True)),
    }


@pytest.fixture(scope="module")
def arms(folders: dict[str, Path]) -> list[Arm]:
    return [
        Arm("ROFT ECMP", folders["roft"]),
        Arm("ZCube destination", folders["zcube"]),
        Arm("ZCube trunk", folders["trunk"]),
        Arm("infinite core", folders["bound"], "bound"),
    ]


@pytest.fixture(scope="module")
def comparison(arms: list[Arm]) -> Comparison:
    return compare(arms, resamples=100)


def console_text(comparison: Comparison, report: Path | None = None) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_comparison(comparison, console, report)
    return console.export_text()


def row(comparison: Comparison, name: str) -> Any:
    return next(found for found in comparison.equality if found.name == name)


def test_the_equality_table_counts_what_the_wiring_rules_give(comparison: Comparison) -> None:
    assert row(comparison, "Switches").values[:2] == ("12 (8 leaf + 4 spine)", "8 (4 odd + 4 even)")
    assert row(comparison, "NIC ports of a GPU").values[:2] == ("1 × 400G", "2 × 200G")
    assert row(comparison, "Switch ports in use").values[:3] == (
        "96 × 400G",
        "128 × 200G",
        "64 × 200G + 32 × 400G",
    )
    assert row(comparison, "NIC bandwidth of a GPU, Gb/s").values == ("400", "400", "400", "–")
    assert row(comparison, "Bundle").values[1:3] == ("destination (2 links a pair)", "trunk (1 link a pair)")
    # Of 496 pairs: ROFT's 8 leaves of 4 have 48. ZCube's 4 + 4 switches of 8 have 224, and 16 of them share both.
    assert row(comparison, "GPU pairs that share a switch").values[:2] == ("9.7 %", "41.9 %")
    assert comparison.unequal == ()
    assert comparison.exit_code == 0


def test_runs_of_other_questions_are_not_like_for_like(folders: dict[str, Path], tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", replace(SMALL, seed=2, striping="static"))
    found = compare([Arm("a", folders["zcube"]), Arm("b", other)], resamples=20)
    names = {found.name for found in found.unequal}
    assert {"Workload", "Seed", "Striping over a GPU's ports"} <= names
    assert "NOT LIKE FOR LIKE" in "\n".join(found.warnings())
    assert "NOT LIKE FOR LIKE" in console_text(found)
    assert found.to_json()["like_for_like"] is False


def on_data_plane(folder: Path, plane: str, plan: Plan) -> Path:
    """A made-up run that says of itself that it was on this data plane."""
    made = make_run(folder, plan)
    scenario = RunFolder(made).scenario_dict()
    scenario["fabric"]["switch"] = plane
    writer.write_yaml(made / "scenario.yaml", scenario)
    meta = {**RunFolder(made).meta(), "data_plane": plane}
    if plane == "linux":
        meta["ovs_version"] = None
    writer.write_json(made / "meta.json", meta)
    return made


def test_a_comparison_over_two_data_planes_says_so(folders: dict[str, Path], tmp_path: Path) -> None:
    zcube = on_data_plane(tmp_path / "zcube", "linux", SMALL)
    roft = on_data_plane(tmp_path / "roft", "ovs", replace(SMALL, kind="roft"))
    mixed = compare([Arm("a", roft), Arm("b", zcube)], resamples=20)
    assert row(mixed, "Data plane").values == ("ovs (Open vSwitch 3.1.0)", "linux (kernel)")
    assert "Data plane" in {found.name for found in mixed.unequal}
    # The same fabric on both is what such a comparison is for; a run that does not say is of before there were two.
    crossed = compare([Arm("a", folders["zcube"]), Arm("b", zcube)], resamples=20)
    assert row(crossed, "Data plane").mark == "differs" and not crossed.unequal


def test_another_setting_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", SMALL)
    scenario = RunFolder(other).scenario_dict()
    scenario["serving"]["timeout_s"] = 60.0
    writer.write_yaml(other / "scenario.yaml", scenario)
    found = compare([Arm("a", folders["zcube"]), Arm("b", other)], resamples=20)
    assert [(r.name, r.values) for r in found.unequal] == [
        (
            "Other serving, workload and transport settings",
            ("serving.timeout_s = 120.0", "serving.timeout_s = 60.0"),
        )
    ]


def test_an_invalid_run_is_marked_everywhere(folders: dict[str, Path], tmp_path: Path) -> None:
    bad = make_run(tmp_path / "bad", replace(SMALL, invalid=True))
    found = compare([Arm("good", folders["roft"]), Arm("bad", bad)], resamples=20)
    assert found.exit_code == 1
    assert found.invalid == ("bad",)
    assert "INVALID" in console_text(found)
    assert "INVALID" in render(found)
    assert "INVALID" in found.headline()[1]
    assert found.to_json()["valid"] is False
    packets = next(check for check in found.fidelity if check.name == "packets_lost")
    assert packets.verdicts == (True, False)
    assert packets.texts == ("0 packets", "412 packets")
    assert packets.common_detail == ""
    assert "bad: Packets lost: 412 packets (limit 0 unexplained): 412 without a drop" in console_text(found)
    page = render(found)
    assert "412 without a drop" in page
    assert page.index("do not use its figures") < page.index("<table")


def test_loosened_limits_are_named_before_the_figures_and_break_the_comparison(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    loose = make_run(tmp_path / "loose", SMALL)
    scenario = RunFolder(loose).scenario_dict()
    scenario["fidelity"] = {"cpu_pct": 99.0, "resolution_frames_min": 10}
    writer.write_yaml(loose / "scenario.yaml", scenario)
    found = compare([Arm("usual", folders["zcube"]), Arm("loose", loose)], resamples=20)
    named = "resolution_frames_min 20 -> 10, cpu_pct 95 -> 99"
    assert [(r.name, r.values) for r in found.unequal] == [("Fidelity limits loosened", ("none", named))]
    page = render(found)
    assert page.index("LIMITS LOOSENED: loose") < page.index("<table") and "cpu_pct 95 -" in page
    assert "LIMITS LOOSENED: loose" in console_text(found) and "usual was judged" not in console_text(found)


def test_an_invalid_run_says_which_scale_would_have_been_faithful(tmp_path: Path) -> None:
    bad = make_run(tmp_path / "bad", replace(SMALL, invalid=True))
    verdict = RunFolder(bad).fidelity()
    verdict["advice"] = {"text": "A scale that fits: --rate-factor 3e-05 --dilation 4"}
    writer.write_json(bad / "fidelity.json", verdict)
    (warning,) = compare([Arm("bad", bad)], resamples=20).warnings()
    assert warning.endswith(". A scale that fits: --rate-factor 3e-05 --dilation 4.")


def test_an_emulation_without_a_verdict_is_not_valid(folders: dict[str, Path], tmp_path: Path) -> None:
    cut = make_run(tmp_path / "cut", SMALL)
    (cut / "fidelity.json").unlink()
    found = compare([Arm("cut", cut)], resamples=20)
    assert found.exit_code == 1
    assert "not emulated, or left no" in render(found)


def test_a_simulation_needs_no_fidelity_and_no_ports(folders: dict[str, Path]) -> None:
    found = compare([Arm("simulated", folders["bound"])], resamples=20)
    assert found.arms[0].valid is None
    assert found.exit_code == 0
    text = render(found)
    assert "The runs are simulated" in text
    assert "Excess backlog by switch port" not in text
    assert "Not measured" in console_text(found)


def test_differences_are_to_the_first_run_and_the_bound_comes_last(comparison: Comparison, arms: list[Arm]) -> None:
    mean = next(found for found in comparison.results if found.key == "mean_ttft_ms")
    values = [arm.summary["mean_ttft_ms"] for arm in comparison.arms]
    assert mean.change_text(0) == ""
    assert mean.change_text(1) == change(values[1], values[0])
    turned = compare([arms[3], arms[1], arms[0]], resamples=20)
    assert [arm.label for arm in turned.arms] == ["ZCube destination", "ROFT ECMP", "infinite core"]
    assert turned.bound is not None
    assert "no fabric in the way" in turned.bound_lines()[0]
    assert not any("below the bound" in line for line in turned.bound_lines())
    low = replace(turned.arms[0], summary={**turned.arms[0].summary, "p99_ttft_ms": 0.1})
    assert "below the bound" in replace(turned, arms=(low, *turned.arms[1:])).bound_lines()[-1]


def test_p99_is_indicative_below_a_thousand_requests(comparison: Comparison) -> None:
    found = {r.key: r.indicative for r in comparison.results}
    assert found["p99_ttft_ms"] is True
    assert found["p90_ttft_ms"] is False
    assert any("P99 is indicative" in line for line in comparison.limits())
    arm = comparison.arms[0]
    many = replace(arm, summary={**arm.summary, "completed": 1000})
    assert not any(r.indicative for r in result_rows([many]))


def test_failures_are_announced(tmp_path: Path) -> None:
    failing = make_run(tmp_path / "failing", replace(SMALL, timeouts=3))
    found = compare([Arm("failing", failing)], resamples=20)
    assert found.arms[0].summary["failed"] == 3
    assert "failing 3" in found.warnings()[0]


def test_the_console_says_everything_in_order(comparison: Comparison) -> None:
    text = console_text(comparison, Path("runs/x/report.html"))
    places = [
        text.index(part)
        for part in (
            "1. What is equal",
            "2. Results",
            "3. The fabric-free bound",
            "4. Fidelity of the emulation",
            "5. What this result does not show",
            "Report: runs/x/report.html",
        )
    ]
    assert places == sorted(places)
    for needed in (
        "excess backlog (deep buffer), never switch buffer occupancy",
        "one frame stands for 60 MB",
        "one draw of the mapping",
        "No significance between fabrics is claimed",
        "compute model only",
        "TCP stands for RDMA",
        "no client leg",
        "20 Mb/s stands for 400 Gb/s",
        "Store-and-forward bias",
        "Lag of the queue sampler",
        "a_check_of_tomorrow",
        "0.95 to 1.25",
    ):
        assert needed in text, needed


def test_json_is_complete_and_plain(comparison: Comparison) -> None:
    found = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert [arm["label"] for arm in found["arms"]][3] == "infinite core"
    assert found["arms"][0]["summary"]["intervals"]["mean_ttft_ms"][0] > 0
    assert {"equality", "results", "bound", "does_not_show", "exit_code"} <= found.keys()


def test_the_report_shows_queues_and_the_scheduler(tmp_path: Path) -> None:
    busy = Arm("busy", make_run(tmp_path / "busy", Plan("roft", requests=150)))
    comparison = compare([busy], resamples=10)
    page = render(comparison).split("</head>", 1)[1]
    first = comparison.runs[0].summary
    titles = ("How uneven switches, rails and NICs are", "Hot ports", "Would-pause time (a model)", "Decode queue")
    assert all(f"<h2>{title}</h2>" in page for title in titles)
    assert "No pause was sent." in page and "XOFF at 16 frames, XON at 8: at this scale XOFF stands for 960 MB" in page
    label, hottest = next(iter(first["fabric_hot_ports"].items()))
    row = page[page.index("<h2>Hot ports") :].split("<tbody>")[1].split("</tr>")[0]
    assert label in row and f"{hottest['longest_over_s']:.2f} from {hottest['longest_over_start_s']:.2f}" in row
    met = page[page.index("Does the scheduler meet hot") :].split("<tbody>")[1].split("</tr>")[0]
    assert percent(first["hot_leaf_hit_rate"]) in met and number(first["hot_leaf_amplification"]) in met
    ports = [percent(first[f"hot_port_hit_rate{name}"]) for name in ("", "_even")]
    assert "".join(f'<td class="num">{cell}</td>' for cell in ports) in met
    queue = page[page.index("<h2>Decode queue") :].split("</tbody>")[0]
    assert short(first["decode_queue"]["decoding"]["mean"]) in queue


def test_the_report_is_self_contained_and_small(comparison: Comparison, tmp_path: Path) -> None:
    path = write_report(comparison, tmp_path / "report.html")
    text = path.read_text()
    page = text.split("</head>", 1)[1]
    assert path.stat().st_size < 8_000_000
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", text)
    assert "http" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    ids = re.findall(r'<div id="([a-z0-9-]+)" class="plotly-graph-div"', page)
    assert ids == [
        "ttft-cdf",
        "stages",
        "gpu-time",
        "decode-queue",
        "backlog-0",
        "backlog-1",
        "backlog-2",
        "loads",
        "timeline-0",
        "timeline-1",
        "timeline-2",
    ]
    know = page.index("Four things to know")
    assert know < page.index("<table")
    for needed in ("TCP stands for RDMA", "Prefill and decode are timers", "no client leg", "stands for 400 Gb/s"):
        assert know < page.index(needed) < page.index("<table")


def test_labels_cannot_break_out_of_the_page(folders: dict[str, Path]) -> None:
    nasty = "</script><b onload=x>&"
    page = render(compare([Arm(nasty, folders["zcube"])], resamples=20)).split("</head>", 1)[1]
    assert nasty not in page
    assert "<b onload" not in page


def test_heatmaps_share_one_scale_and_show_switch_ports_by_tier(comparison: Comparison) -> None:
    top, span = charts.backlog_scale(comparison.runs)
    peaks = [arm.summary["fabric_backlog_peak_frames"] for arm in comparison.runs]
    assert top == max(peaks)
    for arm, ports in zip(comparison.runs, (96, 128, 96), strict=True):
        figure = charts.backlog_heatmap(arm, top, span)
        assert figure is not None
        heat = figure.data[0]
        assert heat.zmax == top
        assert np.asarray(heat.z).shape[0] == ports
        assert np.asarray(heat.z).shape[1] <= 1000
        tiers = [port.tier for port in arm.data.ports.backlog.ports] if arm.data.ports else []
        assert len(list(dict.fromkeys(tiers))) == sum(a != b for a, b in pairwise(tiers)) + 1


def test_the_cdf_ends_at_all_requests(comparison: Comparison) -> None:
    figure = charts.ttft_cdf(comparison)
    assert figure is not None
    assert len(figure.data) == 4
    for trace in figure.data:
        assert trace.y[-1] == 100
        assert list(trace.x) == sorted(trace.x)


def test_timelines_sum_to_ttft_and_sample_the_same_requests(comparison: Comparison) -> None:
    sample = charts.sample_requests(comparison.runs[0])
    figures = [charts.timeline(arm, sample, 1000.0) for arm in comparison.runs]
    names = [next(trace.y for trace in figure.data if trace.xaxis == "x2") for figure in figures if figure]
    assert len({tuple(found) for found in names}) == 1
    first = figures[0]
    assert first is not None
    slowest = sum(trace.x[0] for trace in first.data if trace.xaxis == "x")
    done = comparison.runs[0].data.requests.query("not warmup")
    assert slowest == pytest.approx((done["t_first_token_s"] - done["t_arrival_s"]).max() * 1e3, abs=0.1)


def test_summarise_fits_summary_json(folders: dict[str, Path], tmp_path: Path) -> None:
    found = summarise(RunFolder(folders["zcube"]), resamples=50)
    writer.write_json(tmp_path / "summary.json", found)
    back = json.loads((tmp_path / "summary.json").read_text())
    for name in ("ttft", "tpot", "itl", "e2el"):
        for figure in ("mean", "median", "std", "p50", "p90", "p95", "p99"):
            assert back[f"{figure}_{name}_ms"] is not None
    assert {"duration", "completed", "failed", "request_throughput", "output_throughput"} <= back.keys()
    assert back["schema_version"] == 1


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ([], "at least one run"),
        ([Arm("only", Path("."), "bound")], "at least one run"),
        ([Arm("same", Path(".")), Arm("same", Path("."))], "a name of its own"),
        ([Arm("gone", Path("/nonexistent/run"))], "no such folder"),
    ],
)
def test_bad_input_is_one_message(arms: list[Arm], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compare(arms)


def test_samples_outside_the_window_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", SMALL)
    meta = RunFolder(run).meta()
    writer.write_json(run / "meta.json", {**meta, "window": {"t_start_s": 9e5, "t_end_s": 9.1e5}})
    with pytest.raises(InputError, match="no sample inside the window"):
        compare([Arm("run", run)])


def test_numbers_read_well() -> None:
    assert [number(x) for x in (12345.6, 123.4, 12.34, 0.01234, 0, float("nan"), None, 9000)] == [
        "12,346",
        "123",
        "12.3",
        "0.0123",
        "0",
        "–",
        "–",
        "9,000",
    ]
    assert (short(20.0), short(0.7), short(1000.0), short(10.25)) == ("20", "0.7", "1,000", "10.2")
    assert (data_size(60e6), data_size(1.5e9), data_size(12)) == ("60 MB", "1.5 GB", "12 B")
    assert (percent(0.123), percent(None)) == ("12.3 %", "–")
    assert (change(90, 100), change(110, 100), change(100, 100), change(1, 0)) == ("−10.0 %", "+10.0 %", "±0.0 %", "")


def marking_run(folder: Path, plan: Plan) -> Path:
    """A made-up run whose switches marked: 12 of 400 packets, and 7 of 300 segments came back so."""
    make_run(folder, plan)
    run = RunFolder(folder)
    scenario = run.scenario_dict()
    flow_control = {"ecn": "red", "ecn_min_frames": 5, "ecn_max_frames": 20, "ecn_probability": 0.25}
    writer.write_yaml(folder / "scenario.yaml", {**scenario, "flow_control": flow_control})
    link = run.fabric()["links"][0]
    switch = next(end for end in (link["a"], link["b"]) if not end["node"].startswith("gpu"))
    none = {"early": 0, "pdrop": 0, "other": 0}
    port = {"node": switch["node"], "port": switch["port"], "packets": 400, "marked": 12, **none}
    writer.write_table(folder / "ecn_ports.parquet", schema.ECN_PORTS, [port])
    flow = {"src_gpu": "gpu1", "src_port": 1, "dst_gpu": "gpu2", "dst_port": 1, "qp": 0}
    rows = [{**flow, "delivered": 300, "delivered_ce": 7}]
    writer.write_table(folder / "ecn_flows.parquet", schema.ECN_FLOWS, rows)
    return folder


def test_marks_are_told_and_compared_with_an_arm_without(tmp_path: Path, folders: dict[str, Path]) -> None:
    marked = marking_run(tmp_path / "marked", SMALL)
    summary = summarise(RunFolder(marked), resamples=10)
    assert (summary["ecn_marked_packets"], summary["ecn_marked_share"], summary["ecn_delivered_ce"]) == (12, 0.03, 7)
    ((tier, of_tier),) = summary["ecn_tiers"].items()
    assert tier.endswith(" to gpu") and of_tier == {"marked": 12, "packets": 400, "share": 0.03}
    assert not any(key.startswith("ecn_") for key in summarise(RunFolder(folders["zcube"]), resamples=10))

    comparison = compare([Arm("off", folders["zcube"]), Arm("red", marked)], resamples=10)
    found = row(comparison, "ECN marks by switches")
    assert found.values == ("off", "red, 5 to 20 frames, probability 0.25") and found.unequal
    texts = {r.label: (r.text(0), r.text(1)) for r in result_rows(comparison.arms)}
    assert texts["Packets marked by switches (ECN)"] == ("–", "12")
    assert texts["Packets marked, of those sent"][1] == texts[f"Packets marked {tier}, of those sent"][1] == "3.0 %"
    assert texts["Segments acknowledged as marked (TCP's analogue of CNPs)"] == ("–", "7")
    report = write_report(comparison, tmp_path / "report.html").read_text()
    assert "Packets marked by switches (ECN)" in report and "ECN marks for TCP in place of CNPs" in report
