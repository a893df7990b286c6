"""What the infinite core bounds, and what it does not."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from scenario.load import with_changes
from scenario.models import Scenario
from simulation.run import fabric_free_ttft_s, simulate
from topologies.fluid import Lane, Transfer, core_lanes, replay
from topologies.paths import End, QueuePair

FABRICS = ({"kind": "roft"}, {"kind": "zcube"}, {"kind": "zcube", "bundle": "trunk"})


def open_loop(folder: Path, gap_s: float, shape: str, seed: int) -> Scenario:
    """80 requests at random times with prompts of very different length."""
    rng, at_s, path = random.Random(seed), 0.0, folder / "trace.csv"
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens\n"]
    for _ in range(80):
        at_s += rng.expovariate(1 / gap_s)
        minutes, seconds = divmod(at_s, 60)
        stamp = f"2024-05-10 00:{int(minutes):02d}:{seconds:010.7f}"
        lines.append(f"{stamp},{min(150_000, int(rng.lognormvariate(9.5, 1)))},5\n")
    path.write_text("".join(lines))
    return Scenario.model_validate(
        {"workload": {"kind": "azure", "path": path, "requests": 80}, "serving": {"shape": shape}}
    )


@pytest.mark.parametrize("fabric", FABRICS, ids=str)
@pytest.mark.parametrize("shape", ["A", "D"])
@pytest.mark.parametrize("gap_s", [0.5, 0.1])
def test_open_loop_no_request_is_earlier_on_a_fabric(
    tmp_path: Path, gap_s: float, shape: str, fabric: dict[str, object]
) -> None:
    base = open_loop(tmp_path, gap_s, shape, 1)
    bound, real = fabric_free_ttft_s(base), simulate(with_changes(base, {"fabric": fabric})).ttft_s()
    assert bound.keys() == real.keys()
    for number, ttft_s in real.items():
        assert bound[number] <= ttft_s + 1e-9


@pytest.mark.parametrize("fabric", FABRICS, ids=str)
def test_closed_loop_the_mean_is_lower(fabric: dict[str, object]) -> None:
    """In distribution only: an earlier token moves the session's later arrivals."""
    base = Scenario.model_validate({"workload": {"kind": "coding_agent", "requests": 150, "warmup_requests": 20}})
    bound, real = fabric_free_ttft_s(base), simulate(with_changes(base, {"fabric": fabric})).ttft_s()
    assert bound.keys() == real.keys()
    assert statistics.fmean(bound.values()) <= statistics.fmean(real.values())


def test_no_kv_transfer_is_faster_than_its_bytes_over_the_nic() -> None:
    """This does hold for each request, on every fabric and on the infinite core."""
    base = Scenario.model_validate({"workload": {"kind": "coding_agent", "requests": 60, "warmup_requests": 10}})
    runs = [simulate(with_changes(base, {"fabric": fabric})) for fabric in FABRICS]
    for result in [*runs, simulate(base, infinite_core=True)]:
        for row in result.transfers:
            if row["status"] == "ok":
                spent_s = float(str(row["t_done_s"])) - float(str(row["t_submit_s"]))
                assert spent_s >= float(str(row["bytes"])) / 50e9 * (1 - 1e-9)


def test_counterexample_for_a_single_handoff() -> None:
    """Two senders into one GPU of 10 B/s. A fabric holds the second at 2 B/s, so the first has 8 B/s and ends 80 B at
    10 s; on the infinite core both have 5 B/s and it ends at 16 s. The last of both is earlier there all the same."""

    def through(src: str, *links: str) -> tuple[Lane, ...]:
        return (Lane(QueuePair(End(src, 1), End("gpu3", 1), 0), (f"{src}-out", *links, "gpu3-in")),)

    nics = {"gpu1-out": 10.0, "gpu2-out": 10.0, "gpu3-in": 10.0}
    fabric = [(Transfer(1, 80, through("gpu1")), 0.0), (Transfer(2, 80, through("gpu2", "slow")), 0.0)]
    core = [(Transfer(n, 80, core_lanes(f"gpu{n}", "gpu3")), 0.0) for n in (1, 2)]
    assert replay({**nics, "slow": 2.0}, fabric) == {1: 10.0, 2: 40.0}
    assert replay(nics, core) == {1: 16.0, 2: 16.0}
