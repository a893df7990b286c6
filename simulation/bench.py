"""What the simulation costs: shape E, every sender's NIC at 30 % on average, on ROFT (one queue pair) and ZCube.

    python -m simulation.bench               # 256 to 16,384 GPUs, some minutes
    python -m simulation.bench --million     # 16,384 GPUs and 1,000,000 handoffs, some twenty minutes and 8 GB

A handoff is one GPU's KV cache to one other GPU; every request has one. Prefill and decode are made fast, so that the
network is what is busy. Times are CPU seconds of one process, with the serving engine and the tables that are written;
reading and analysing them is not in it. An event of the network is a start or an end of a handoff.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scenario.load import check_scenario
from scenario.models import Scenario
from simulation.executor import VirtualTime
from simulation.run import Model, simulate_into
from traffic.offered import offered
from traffic.sources import make_source

LOAD = 0.30
#: GPUs -> ports of a switch, such that ZCube and two tiers of ROFT fit; handoffs of the curve.
SIZES = {256: 64, 1024: 64, 4096: 128, 16384: 512}
#: Much KV a token, so that the rate of requests stays within what a scenario may ask for.
MODEL = "llama-3.1-70b"
HANDOFFS = 100_000
MILLION, MILLION_GOAL_S, MEMORY_GOAL_GB = 1_000_000, 1800.0, 8.0
_WARM_REQUESTS, _GUESS_PER_S = 2000, 100.0
FABRICS: dict[str, dict[str, Any]] = {"roft": {"kind": "roft"}, "zcube": {"kind": "zcube"}}


def scenario(kind: str, gpus: int, requests: int) -> Scenario:
    """Poisson requests whose handoffs load the senders' NICs by LOAD."""

    def at(rate_per_s: float, count: int) -> Scenario:
        serving = {
            "shape": "E", "model": MODEL, "layout": "split", "prefix_cache": "assumed",
            "prefill_tokens_per_s_per_gpu": 1_000_000.0, "prefill_base_ms": 1.0, "decode_step_ms": 1.0,
        }  # fmt: skip
        arrivals = {"kind": "poisson", "rate_per_s": rate_per_s}
        return check_scenario(
            {
                "name": f"bench-{kind}-{gpus}",
                "fabric": {**FABRICS[kind], "gpus": gpus, "asic_ports": SIZES[gpus], **_address_room(kind, gpus)},
                "serving": serving,
                "workload": {"kind": "synthetic", "requests": count, "warmup_requests": 0, "arrivals": arrivals},
            }
        )

    # So slow that the offered load is a mean over many seconds: it is never taken over less than one.
    guess = at(_GUESS_PER_S, _WARM_REQUESTS)
    share = offered(guess, make_source(guess)).shares["busiest NIC out"]
    return at(_GUESS_PER_S * LOAD / share, requests)


def _address_room(kind: str, gpus: int) -> dict[str, int]:
    """The address plan has room for 254 GPUs on a switch."""
    if gpus < 16384:
        return {}
    return {"gpus_per_switch": 128} if kind == "zcube" else {"asic_ports": 256}


def measure(kind: str, gpus: int, requests: int) -> str:
    """One run; a line of the table."""
    made = scenario(kind, gpus, requests)
    with tempfile.TemporaryDirectory(prefix="zcube-bench-") as folder:
        warm = scenario(kind, 256, 50)
        simulate_into(Path(folder) / "warm", warm, Model.of(warm))  # loads and compiles
        handoffs = 0

        def watch(_: VirtualTime, __: float) -> None:
            nonlocal handoffs
            handoffs += 1

        began = time.process_time()
        result = simulate_into(Path(folder) / "run", made, Model.of(made), watch)
        cpu_s = time.process_time() - began
    assert result.work is not None
    events = 2 * handoffs
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return (
        f"{kind:6} {gpus:6,} GPUs: {handoffs:9,} handoffs in {cpu_s:7.1f} s of CPU, {cpu_s / events * 1e6:5.0f} us an"
        f" event; solved {result.work.mean_flows:.1f} flows a change (most {result.work.most_flows}), largest connected"
        f" component {result.work.largest_component:,} of {result.work.component_flows:,} flows; {memory_gb:.1f} GB"
    )


def _each(sizes: Iterator[tuple[str, int, int]]) -> None:
    """Each in a process of its own, so that memory is that run's."""
    for kind, gpus, requests in sizes:
        argv = [sys.executable, "-m", "simulation.bench", "--one", kind, str(gpus), str(requests)]
        print(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.rstrip(), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--million", action="store_true", help=f"16,384 GPUs and {MILLION:,} handoffs")
    parser.add_argument("--one", nargs=3, metavar=("KIND", "GPUS", "REQUESTS"), help="one row")
    asked = parser.parse_args()
    if asked.one:
        kind, gpus, requests = asked.one
        print(measure(kind, int(gpus), int(requests)))
        return
    if asked.million:
        print(f"goal: under {MILLION_GOAL_S / 60:.0f} min and {MEMORY_GOAL_GB:g} GB")
        _each((kind, 16384, MILLION) for kind in FABRICS)
        return
    print(f"simulation, shape E, senders' NICs at {LOAD:.0%} (goal: 1,024 GPUs and {HANDOFFS:,} handoffs under 60 s):")
    _each((kind, gpus, HANDOFFS) for gpus in SIZES for kind in FABRICS)


if __name__ == "__main__":
    main()
