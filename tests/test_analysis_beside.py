"""Tenants, background, failures and verdicts, as console and report tell them, on made-up runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from analysis_runs import Plan, make_run
from test_analysis_compare import SMALL, console_text

from analysis.arms import Arm
from analysis.beside import MOST_STREAMS
from analysis.compare import Comparison, compare
from analysis.fidelity import LABELS, NEXT_STEPS, why_invalid
from analysis.report import render
from emulation import fidelity
from emulation.losses import Losses
from emulation.ovs_counters import DatapathCounts
from emulation.pressure import Waits
from results import schema, writer
from scenario.fidelity_section import FidelitySection
from scenario.scale import Scale


def changed(
    folder: Path,
    *,
    requests: dict[str, Any] | None = None,
    scenario: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
    plan: Plan = SMALL,
) -> Comparison:
    """One run with columns of its requests, sections of its scenario and keys of its meta.json replaced."""
    make_run(folder, plan)
    if requests:
        table = pd.read_parquet(folder / "requests.parquet").assign(**requests)
        writer.write_table(folder / "requests.parquet", schema.REQUESTS, table)
    if scenario:
        found = yaml.safe_load((folder / "scenario.yaml").read_text())
        for section, values in scenario.items():
            found[section] = {**found[section], **values} if isinstance(values, dict) else values
        writer.write_yaml(folder / "scenario.yaml", found)
    if meta:
        writer.write_json(folder / "meta.json", {**json.loads((folder / "meta.json").read_text()), **meta})
    return compare([Arm("run", folder)], resamples=20)


TENANTS = [{"name": "gold", "slo_ttft_ms": 0.001}, {"name": "free", "slo_ttft_ms": 1e8}]


def test_tenants_have_a_table_and_a_line(tmp_path: Path) -> None:
    rows = SMALL.requests + SMALL.warmup
    names = ["gold" if n % 3 else "free" for n in range(rows)]
    promised = [0.001 if name == "gold" else 1e8 for name in names]
    found = changed(
        tmp_path / "run",
        requests={"tenant": names, "slo_ttft_ms": promised},
        scenario={"serving": {"tenants": TENANTS}},
    )
    (table,) = found.beside()
    assert table.title == "Tenants" and all(len(row) == len(table.columns) for row in table.rows)
    cells = {row[1]: row for row in table.rows}
    assert "100.0 %" in cells["free"] and "0.0 %" in cells["gold"]
    assert "run: objectives met, by tenant: free 100.0 %, gold 0.0 %." in found.headline()
    for text in (console_text(found), render(found)):
        assert "Tenants" in text and "promised TTFT ms" in text and "gold" in text and "by tenant: free 100.0 %" in text


def test_one_tenant_is_no_table(tmp_path: Path) -> None:
    found = changed(tmp_path / "run")
    assert found.beside() == () and "by tenant" not in console_text(found) and "<h2>Background" not in render(found)


def stream(item: int, kind: str, pair: str, **more: object) -> dict[str, object]:
    return {"item": item, "kind": kind, "pair": pair, "bytes_sent": 2_000_000_000, **more}


BACKGROUND = [
    {"kind": "flows", "pairs": ["gpu1->gpu9"], "size_mb": 10},
    {"kind": "iperf3", "pairs": ["gpu2->gpu10"], "gbps": 50},
]


def test_background_is_listed_stream_by_stream_or_in_sums(tmp_path: Path) -> None:
    flows = stream(0, "flows", "gpu1->gpu9", messages=200, bytes_arrived=1_990_000_000)
    silent = {**stream(1, "iperf3", "gpu2->gpu10", gbps_asked=25.0), "bytes_sent": None}
    found = changed(tmp_path / "few", meta={"background": [flows, silent]}, scenario={"background": BACKGROUND})
    (table,) = found.beside()
    assert table.rows == (
        ("run", "background[0], flows", "gpu1 → gpu9", "200", "as fast as it goes", "2 GB", "1.99 GB"),
        ("run", "background[1], iperf3", "gpu2 → gpu10", "–", "50.0", "–", "–"),
    )
    for text in (console_text(found), render(found)):
        assert "Background traffic" in text and "gpu2 → gpu10" in text
    streams = [{**flows, "pair": f"gpu{n}->gpu{n + 40}"} for n in range(MOST_STREAMS + 1)]
    many = changed(tmp_path / "many", meta={"background": streams}, scenario={"background": BACKGROUND})
    ((_, _, pairs, messages, _, sent, _),) = many.beside()[0].rows
    assert (pairs, messages, sent) == ("25 pairs", "5,000", "50 GB")


def labels(found: Comparison) -> dict[str, float | None]:
    return {row.label: row.values[0] for row in found.results if row.group == "Requests"}


def test_what_failed_is_told_apart(tmp_path: Path) -> None:
    statuses = ["ok"] * (SMALL.warmup + SMALL.requests)
    statuses[10:13], statuses[20:21], statuses[30:32] = ["timeout"] * 3, ["cancelled"], ["failed"] * 2
    done = changed(tmp_path / "run", requests={"status": statuses, "handoff_attempts": 1, "recomputed_tokens": 0})
    assert labels(done) == {
        "Completed (n)": 54.0,
        "Failed, for whatever reason": 6.0,
        "of them timed out": 3.0,
        "of them cancelled by their clients": 1.0,
        "of them with a failed handoff": 2.0,
    }
    (warning,) = done.warnings()
    assert "run 6: 3 timed out, 1 cancelled by their clients, 2 with a failed handoff" in warning


@pytest.mark.parametrize(
    ("status", "last", "says"),
    [
        ("timeout", "kv_transfer", "60 timed out.*stage kv_transfer.*serving.timeout_s is 120; handoffs do not end"),
        ("timeout", "prefill_waiting", "stage prefill_waiting.*prefill cannot keep up"),
        ("cancelled", "prefill_forward", "60 cancelled by their clients.*serving.client_cancel_mean_s is 10"),
    ],
)
def test_a_run_without_a_first_token_says_so_and_where_to_look(
    tmp_path: Path, status: str, last: str, says: str
) -> None:
    reached = schema.STAGES[schema.STAGES.index(last) + 1 :]
    gone: dict[str, Any] = {f"t_{stage}_s": np.nan for stage in reached}
    rest = {"status": status, "handoff_attempts": 1, "recomputed_tokens": 0}
    found = changed(tmp_path / "run", requests={**rest, **gone})
    (line,) = found.headline()
    assert "mean TTFT" not in line and "no request got a first token" in line and "requests.parquet" in line
    assert re.search(says, line), line
    for text in (console_text(found), render(found)):  # and no chart or table falls over
        assert "no request got a first token" in text


def test_every_check_that_may_fail_has_a_label_and_a_next_step() -> None:
    measured = fidelity.Measured(
        link_deviations=[0.5], links_total=1, rounds_again=0, lone_deviations=[0.5], lone_ideal_s=0.1,
        losses=Losses.__new__(Losses), resolution_frames=3, budget_used=9, maxmin_ratios=[9.0], transfers_done=2,
        sampler={"unseen_s": 9.0, "serving_s": 9.0}, sampler_period_ms=1, frame_time_ms=1,
        timer_lags_s=[9.0], report_lags_s=[], cpu_share=1.0, complaints=("wrong",),
        waits=Waits(mean_wait_s=9.0, waited_share=1.0), datapath=DatapathCounts(lost=5),
    )  # fmt: skip
    measured.losses.queue_drops = measured.losses.duplicates = 0
    measured.losses.socket_drops = measured.losses.retransmits = 5
    measured.losses.place = "switch sockets"
    verdict = fidelity.judge(measured, FidelitySection(), Scale(1e-4, 2.0, 9000))
    failed = {check["name"] for check in verdict["checks"] if check["ok"] is False}  # type: ignore[attr-defined]
    assert failed == NEXT_STEPS.keys() and failed <= LABELS.keys()


def test_advice_is_that_of_the_checks_that_failed(tmp_path: Path) -> None:
    def verdict(*names: str) -> dict[str, Any]:
        check = {"value": 7.0, "unit": "x", "limit": "<= 2", "ok": False, "text": ""}
        return {"valid": False, "checks": [{**check, "name": name} for name in names]}

    lost, few = why_invalid(verdict("packets_lost", "cpu_pct")), why_invalid(verdict("resolution_frames"))
    assert "Packets lost; CPU of the machine while serving: usually the machine was busy" in lost
    assert "busy" not in few and "handoffs are too few frames" in few and "7 x (limit <= 2)" in few
    assert "busy machine does not explain" in why_invalid(verdict("transfers_verified"))
    assert "it ended before its checks" in why_invalid(None)
    invalid = compare([Arm("bad", make_run(tmp_path / "bad", replace(SMALL, invalid=True)))], resamples=20)
    assert "Failed: Packets lost: 412 packets (limit 0 unexplained). What to do: Packets lost" in invalid.warnings()[0]
