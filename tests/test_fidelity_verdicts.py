"""Verdicts on runs: each limit alone, a scenario's own limits, and what is advised about an INVALID run. No network."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from typing import Any

import pytest

pytest.importorskip("mininet.net", reason="Mininet comes with the distribution: bash vagrant/setup.sh")

from emulation.cpu import CpuClock, _own_time
from emulation.fidelity import Measured, judge
from emulation.ovs_counters import DatapathCounts, difference, parse
from emulation.pressure import Waits, mean_wait, some_us
from scenario.errors import RunError
from scenario.fidelity_section import FidelitySection
from scenario.scale import Scale

LIMITS, SCALE = FidelitySection(), Scale(1e-4, 2.0, 9000)


@dataclasses.dataclass
class _Losses:
    queue_drops: int = 0
    socket_drops: int = 0
    place: str = "switch sockets"
    retransmits: int = 0
    duplicates: int = 0


GOOD = Measured(
    link_deviations=[0.01, -0.02],
    links_total=2,
    rounds_again=0,
    lone_deviations=[0.01, 0.02, 0.3],
    lone_ideal_s=0.3,
    losses=_Losses(),  # type: ignore[arg-type]
    resolution_frames=55,
    budget_used=0.5,
    maxmin_ratios=[1.0, 1.05, 1.2],
    transfers_done=3,
    transfers_verified=3,
    sampler={"cpu_s": 1.0, "wall_s": 10.0, "lag_p99_ms": 1.0, "skipped_ticks": 0, "ticks": 9},
    sampler_period_ms=2.0,
    frame_time_ms=3.0,
    timer_lags_s=[0.001],
    report_lags_s=[0.002],
    cpu_share=0.5,
)


def test_a_good_run_is_valid() -> None:
    verdict = judge(GOOD, LIMITS, SCALE)
    assert verdict["valid"] is True
    json.dumps(verdict)


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ({"link_deviations": [0.01, -0.031]}, "link_rate_worst_deviation_pct"),
        ({"link_deviations": []}, "link_rate_worst_deviation_pct"),
        ({"lone_deviations": [0.06, 0.07, 0.0]}, "lone_transfer_deviation_pct"),
        ({"lone_deviations": [-0.06, -0.07, 0.0]}, "lone_transfer_deviation_pct"),
        ({"losses": _Losses(retransmits=1)}, "packets_lost"),
        ({"losses": _Losses(retransmits=3, duplicates=2)}, "packets_lost"),
        ({"losses": _Losses(socket_drops=1)}, "packets_lost"),
        ({"resolution_frames": 19.9}, "resolution_frames"),
        ({"budget_used": 2.87}, "packet_budget_used_pct"),
        ({"maxmin_ratios": [1.3] * 9}, "maxmin_ratio_median"),
        ({"maxmin_ratios": [0.9] * 9}, "maxmin_ratio_median"),
        ({"maxmin_ratios": [1.0] * 5 + [3.0]}, "maxmin_ratio_p95"),
        ({"transfers_verified": 2}, "transfers_verified"),
        ({"complaints": ["transfer 7, queue pair gpu1 port 1 to gpu2 port 2"]}, "transfers_verified"),
        ({"report_lags_s": [0.2] * 9}, "engine_lag_p99_ms"),
        ({"cpu_share": 0.99}, "cpu_pct"),
        ({"sampler": {"serving_s": 10.0, "unseen_s": 0.51}}, "sampler_gap_pct"),
        ({"waits": Waits(mean_wait_s=0.0061)}, "switch_wait_frames"),
        ({"datapath": DatapathCounts(lost=1)}, "upcalls_lost"),
        ({"datapath": DatapathCounts(dropped=1)}, "upcalls_lost"),
    ],
)
def test_each_fault_alone_makes_a_run_invalid(change: dict[str, object], culprit: str) -> None:
    verdict = judge(dataclasses.replace(GOOD, **change), LIMITS, SCALE)  # type: ignore[arg-type]
    assert verdict["valid"] is False
    assert [c["name"] for c in verdict["checks"] if c["ok"] is False] == [culprit]  # type: ignore[attr-defined]


#: Each limit of the section, a looser value, and what GOOD would have to measure to fail by the default alone.
LOOSER: list[tuple[dict[str, float], dict[str, Any]]] = [
    ({"link_rate_pct": 10}, {"link_deviations": [0.05]}),
    ({"lone_transfer_pct": 10}, {"lone_deviations": [0.07]}),
    ({"resolution_frames_min": 5}, {"resolution_frames": 10}),
    ({"budget_pct": 200}, {"budget_used": 5}),
    ({"maxmin_median_min": 0.5}, {"maxmin_ratios": [0.9] * 9}),
    ({"maxmin_median_max": 1.5}, {"maxmin_ratios": [1.3] * 9}),
    ({"maxmin_p95_max": 4}, {"maxmin_ratios": [1.0] * 5 + [3.0]}),
    ({"engine_lag_lone_pct": 50}, {"report_lags_s": [0.1] * 9}),
    ({"engine_lag_wall_ms": 200}, {"report_lags_s": [0.1] * 9}),
    ({"cpu_pct": 100}, {"cpu_share": 0.99}),
    ({"switch_wait_frames_max": 4}, {"waits": Waits(mean_wait_s=0.0075)}),
    ({"upcalls_lost_max": 5}, {"datapath": DatapathCounts(lost=5)}),
    ({"sampler_gap_pct": 50}, {"sampler": {"serving_s": 10.0, "unseen_s": 4.0}}),
]


def test_every_limit_of_the_section_is_among_those_tried() -> None:
    tried = {name for limits, _ in LOOSER for name in limits}
    assert tried == set(FidelitySection.model_fields) - {"link_check"}


@pytest.mark.parametrize(("limits", "change"), LOOSER, ids=lambda entry: next(iter(entry)))
def test_a_loosened_limit_passes_and_is_named(limits: dict[str, float], change: dict[str, Any]) -> None:
    measured = dataclasses.replace(GOOD, **change)
    assert judge(measured, LIMITS, SCALE)["valid"] is False
    own = FidelitySection.model_validate(limits)
    verdict = judge(measured, own, SCALE)
    assert verdict["valid"] is True
    name, value = next(iter(limits.items()))
    assert verdict["limits_loosened"] == [f"{name} {LIMITS.model_dump()[name]:g} -> {value:g}"]


@pytest.mark.parametrize("limits", [{"cpu_pct": 80}, {"resolution_frames_min": 50}, {"link_check": "all"}, {}])
def test_a_tighter_limit_is_not_called_loosened(limits: dict[str, Any]) -> None:
    assert FidelitySection.model_validate(limits).loosened() == ()


def advice(**change: Any) -> dict[str, Any]:
    found = judge(dataclasses.replace(GOOD, **change), LIMITS, SCALE)["advice"]
    assert isinstance(found, dict)
    return found


def test_advice_of_a_scale_is_what_was_measured_over_what_is_allowed() -> None:
    # 4 times what is aimed at: a / 4, and d x 4, so that a*d stays 2e-4
    found = advice(budget_used=4)
    assert (found["rate_factor"], found["dilation"]) == (2.5e-5, 8.0)
    assert "--rate-factor 2.5e-05 --dilation 8" in found["text"] and "busy" not in found["text"]
    # everything 1.6 times slower than a fluid network: what was carried is a / 1.6 (6.25e-5, two digits)
    found = advice(maxmin_ratios=[1.6] * 9)
    assert found["rate_factor"] == 6.2e-5
    assert found["rate_factor"] * found["dilation"] == pytest.approx(2e-4, rel=0.01)
    assert "busy with something else" in found["text"]


def test_advice_for_too_few_frames_is_a_longer_run_at_the_same_rate() -> None:
    found = advice(resolution_frames=10)
    assert (found["rate_factor"], found["dilation"]) == (1e-4, 10.0)


def test_no_scale_is_advised_where_it_would_not_help() -> None:
    found = advice(complaints=["transfer 7"])
    assert found["rate_factor"] is None and "transfers_verified" in found["why"][0]
    assert advice(maxmin_ratios=[0.9] * 9)["rate_factor"] is None
    assert judge(GOOD, LIMITS, SCALE)["advice"] is None


def test_accounts_that_the_kernel_does_not_keep_are_left_out() -> None:
    names = {check["name"] for check in judge(GOOD, LIMITS, SCALE)["checks"]}  # type: ignore[attr-defined]
    assert not names & {"switch_wait_frames", "cpu_pressure_pct", "upcalls_lost"}
    assert math.isnan(some_us("")) and math.isnan(mean_wait({}, {})[0])


def test_waits_are_those_between_two_readings() -> None:
    assert some_us("some avg10=1.00 avg60=0.10 avg300=0.00 total=1500\nfull avg10=0 total=9") == 1500
    before = {"1": (1.0, 100), "2": (0.5, 10)}
    after = {"1": (1.6, 200), "3": (0.4, 100)}  # 2 ended, 3 began
    assert mean_wait(before, after) == (pytest.approx(0.005), pytest.approx(1.0))


DPCTL = """netdev@ovs-netdev:
  lookups: hit:{} missed:{} lost:{}
  flows: 12
"""
COVERAGE = """Event coverage, avg rate over last: 5 seconds, last minute, last hour,  hash=8b9d1d5c:
datapath_drop_upcall_error   0.0/sec     0.000/sec        0.0000/sec   total: 7
datapath_drop_lock_error   0.0/sec     0.000/sec        0.0000/sec   total: {}
drop_action_of_pipeline    0.2/sec     0.017/sec        0.0003/sec   total: 99
"""


def test_drops_of_open_vswitch_are_counted_once_and_since_before() -> None:
    before = {"leaf1": parse(DPCTL.format(10, 2, 1), COVERAGE.format(0))}
    after = {"leaf1": parse(DPCTL.format(90, 5, 4), COVERAGE.format(2))}
    assert difference(before, after) == DatapathCounts(missed=3, lost=3, dropped=2)
    with pytest.raises(RunError, match="no lookup counters"):
        parse("ovs-vswitchd: no such command", "")


def test_other_programs_count_where_they_can_hold_a_run_up() -> None:
    busy = dataclasses.replace(GOOD, cpu_share=1.0, own_cpu_share=0.4)
    assert judge(busy, LIMITS, SCALE)["valid"] is False
    assert judge(dataclasses.replace(busy, favoured=True), LIMITS, SCALE)["valid"] is True


def test_what_came_twice_was_not_lost() -> None:
    verdict = judge(dataclasses.replace(GOOD, losses=_Losses(retransmits=3, duplicates=3)), LIMITS, SCALE)  # type: ignore[arg-type]
    assert verdict["valid"] is True and "3 packets came twice" in json.dumps(verdict)


def test_drops_by_full_queues_explain_retransmissions() -> None:
    verdict = judge(dataclasses.replace(GOOD, losses=_Losses(queue_drops=3, retransmits=3)), LIMITS, SCALE)  # type: ignore[arg-type]
    assert verdict["valid"] is True


def test_own_cpu_time_counts_this_process_and_its_ended_children() -> None:
    clock = CpuClock()
    before = _own_time()
    burnt = time.process_time()
    while time.process_time() - burnt < 0.3:
        pass
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-I", "-c", burn], check=True)
    ticks = os.sysconf("SC_CLK_TCK")
    assert _own_time() - before >= 0.55 * ticks
    assert 0 < clock.own_share() <= 1
