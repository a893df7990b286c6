"""`python -m emulation.envelope`: up to which load this machine carries traffic as a fluid network would.

A full permutation of large flows (every GPU sends to one of another server, all at once) is played at rate factors in
steps of 1.4, each in a run of its own with all its checks. The error is measured against the max-min replay of the same
flows, and held beside the verdict: a run should turn INVALID where the error grows beyond the goal, within a step, and
not before. The flows last equally long in wall time at every rate, so higher rates mean more frames.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from emulation.launch import run
from emulation.machine import Machine, measure
from emulation.meta import cpu_model
from emulation.scaling import resolve
from results.reader import RunFolder
from scenario.errors import TestbedError
from scenario.load import check_scenario, with_changes
from scenario.models import Scenario
from scenario.scale import floor_2_digits

KINDS = ("zcube", "roft")
#: GPUs -> largest error of the makespan and of the median transfer, in per cent, that is called faithful.
GOALS_PCT: Mapping[int, tuple[float, float]] = {32: (3.0, 5.0), 64: (5.0, 10.0)}
STEP = 1.4
#: Wall seconds that a flow alone lasts, and how many permutations are played one after the other.
FLOW_WALL_S, REPEATS = 1.5, 3
_SIZE_MB = 1600


@dataclass(frozen=True)
class Step:
    """One run. Errors are measured over ideal less 1, in per cent; ratios are of transfers' durations."""

    kind: str
    gpus: int
    rate_factor: float
    nic_mbps: float
    serving_s: float
    makespan_error_pct: float
    median_ratio: float
    p95_ratio: float
    cpu_pct: float
    budget_used_pct: float
    hops_per_s: float
    valid: bool
    failed: tuple[str, ...]
    checks: Mapping[str, float | None]

    def faithful(self, lightest: Step | None = None) -> bool:
        """Whether the errors are within the goals; that of the makespan beyond the error at the `lightest` load, where
        the machine is idle: windows are not fair shares, whatever the load (2 to 8 % where hashes collide on ROFT)."""
        makespan, median = goals_pct(self.gpus)
        own = max(0.0, lightest.makespan_error_pct) if lightest else 0.0
        return self.makespan_error_pct - own <= makespan and 100 * abs(self.median_ratio - 1) <= median


def goals_pct(gpus: int) -> tuple[float, float]:
    """Largest error of makespan and median transfer at so many GPUs, in per cent."""
    return GOALS_PCT[32] if gpus <= 32 else GOALS_PCT[64]


def scenario_of(kind: str, gpus: int, rate_factor: float | None, seed: int) -> Scenario:
    """The permutation, at a rate factor; None: to be chosen."""
    base = check_scenario(
        {
            "name": f"envelope-{kind}-{gpus}",
            "seed": seed,
            "fabric": {"kind": kind, "gpus": gpus, "asic_ports": 8},
            "routing": {"striping": "static"},
            "workload": {"kind": "collective", "operation": "permutation", "size_mb": _SIZE_MB, "repeats": REPEATS},
        }
    )
    lone_s = 8 * _SIZE_MB * 1e6 / (base.fabric.gpu_gbps * 1e9)
    scale = {"rate_factor": rate_factor, "dilation": math.ceil(100 * FLOW_WALL_S / lone_s) / 100}
    return with_changes(base, {"scale": scale if rate_factor else {}})


def step(folder: Path, scenario: Scenario, machine: Machine) -> Step:
    """Run it and read what came of it. Raises RunError, MachineError or KeyboardInterrupt."""
    if run(folder, scenario, machine.budget_hops_per_s, lambda _: None).exit_code:
        raise KeyboardInterrupt
    found = RunFolder(folder)
    verdict = found.fidelity()
    checks = {str(check["name"]): check["value"] for check in verdict["checks"]}
    rate_factor = float(scenario.scale.rate_factor or 0.0)
    flows = {str(name): column.tolist() for name, column in found.transfers().items()}
    return Step(
        kind=scenario.fabric.kind,
        gpus=scenario.fabric.gpus,
        rate_factor=rate_factor,
        nic_mbps=rate_factor * scenario.fabric.gpu_gbps * 1e3,
        **errors(flows, float(scenario.scale.dilation or 1.0)),
        cpu_pct=float(checks["cpu_pct"]),
        budget_used_pct=float(checks["packet_budget_used_pct"]),
        hops_per_s=float(checks["packet_budget_used_pct"]) / 100 * machine.hops_per_s,
        valid=bool(verdict["valid"]),
        failed=tuple(str(check["name"]) for check in verdict["checks"] if check["ok"] is False),
        checks=checks,
    )


def errors(flows: Mapping[str, Sequence[Any]], dilation: float) -> dict[str, float]:
    """Of the rows of transfers.parquet: error of the makespan, median and P95 of durations over ideal ones, and how
    long it all took in wall seconds. The makespan is summed over the permutations, each from its own first start."""
    start, done, ideal = (np.asarray(flows[name], dtype=float) for name in ("t_submit_s", "t_done_s", "ideal_s"))
    transfer, message = np.asarray(flows["transfer_id"]), np.asarray(flows["request_id"])
    took = took_ideally = 0.0
    for one in np.unique(message):
        rows = message == one
        took += done[rows].max() - start[rows].min()
        took_ideally += (start + ideal)[rows].max() - start[rows].min()
    ratios = [(done[rows].max() - start[rows][0]) / ideal[rows][0] for rows in (transfer == t for t in set(transfer))]
    median, p95 = (float(np.percentile(ratios, q)) for q in (50, 95))
    return {
        "makespan_error_pct": 100 * (took / took_ideally - 1),
        "median_ratio": median,
        "p95_ratio": p95,
        "serving_s": (done.max() - start.min()) * dilation,
    }


def sweep(
    folder: Path, kind: str, gpus: int, machine: Machine, seed: int, most_steps: int, console: Console
) -> list[Step]:
    """From a step below the rate factor that `resolve` chooses, upwards until two steps in a row are not faithful."""
    chosen = resolve({kind: scenario_of(kind, gpus, None, seed)}, machine.budget_hops_per_s)[kind].scale.rate_factor
    found: list[Step] = []
    for number in range(most_steps):
        rate_factor = floor_2_digits(float(chosen or 0.0) * STEP ** (number - 1))
        one = step(folder / f"{kind}-{gpus}-{number}", scenario_of(kind, gpus, rate_factor, seed), machine)
        found.append(one)
        console.print(line(one), highlight=False)
        if len(found) > 1 and not any(one.faithful(found[0]) for one in found[-2:]):
            break
    return found


def line(one: Step) -> str:
    """A step in one line, as it ends."""
    return (
        f"{one.kind} {one.gpus}: a = {one.rate_factor:g}, makespan {one.makespan_error_pct:+.1f} %, median"
        f" {one.median_ratio:.3f}, P95 {one.p95_ratio:.2f}, CPU {one.cpu_pct:.0f} %, budget {one.budget_used_pct:.0f} %"
        f": {'valid' if one.valid else 'INVALID (' + ', '.join(one.failed) + ')'}"
    )


def table(steps: Sequence[Step]) -> Table:
    """All steps for people."""
    shown = Table("fabric", "a", "NIC Mb/s", "hops/s", "makespan", "median", "P95", "CPU", "budget", "verdict")
    for one in steps:
        lightest = next(other for other in steps if (other.kind, other.gpus) == (one.kind, one.gpus))
        shown.add_row(
            f"{one.kind} {one.gpus}",
            f"{one.rate_factor:g}",
            f"{one.nic_mbps:.1f}",
            f"{one.hops_per_s:,.0f}",
            f"{one.makespan_error_pct:+.1f} %",
            f"{one.median_ratio:.3f}",
            f"{one.p95_ratio:.2f}",
            f"{one.cpu_pct:.0f} %",
            f"{one.budget_used_pct:.0f} %",
            ("valid" if one.valid else f"INVALID: {', '.join(one.failed)}")
            + ("" if one.faithful(lightest) else " (off)"),
        )
    return shown


def conclusion(steps: Sequence[Step]) -> str:
    """Where one sweep leaves the goals and where it turns INVALID, in steps; steps rise."""
    makespan, median = goals_pct(steps[0].gpus)
    off = next((number for number, one in enumerate(steps) if not one.faithful(steps[0])), None)
    invalid = next((number for number, one in enumerate(steps) if not one.valid), None)
    name = f"{steps[0].kind} {steps[0].gpus}"
    goals = f"makespan {makespan:g} %, median {median:g} %"

    def at(number: int | None) -> str:
        return "at no step" if number is None else f"from a = {steps[number].rate_factor:g}"

    text = f"{name}: beyond {goals} {at(off)}; INVALID {at(invalid)}"
    if off is None or invalid is None:
        return f"{text}."
    apart = off - invalid
    verdict = "within one step" if abs(apart) <= 1 else f"{abs(apart)} steps {'early' if apart > 0 else 'LATE'}"
    return f"{text}: {verdict}."


def sweep_all(
    kinds: Sequence[str], sizes: Sequence[int], seed: int, most_steps: int, console: Console
) -> Mapping[str, object]:
    """Every sweep; prints as it goes, returns the whole as plain data."""
    with tempfile.TemporaryDirectory(prefix="zcube-envelope-") as name:
        folder = Path(name)
        machine = measure(9000, folder / "machine", lambda _: None)
        console.print(
            f"{cpu_model()}, {os.cpu_count()} cores; {machine.hops_per_s:,.0f} switch-hops/s at saturation, budget"
            f" {machine.budget_hops_per_s:,.0f}.",
            highlight=False,
        )
        sweeps = [sweep(folder, kind, gpus, machine, seed, most_steps, console) for gpus in sizes for kind in kinds]
    steps = [one for found in sweeps for one in found]
    console.print(table(steps))
    for found in sweeps:
        console.print(conclusion(found), highlight=False)
    messages = f"n = {REPEATS} permutations a step, each flow {FLOW_WALL_S:g} s alone; seed {seed}"
    off = "(off): beyond the goals, the makespan's counted from the first step's"
    console.print(f"{messages}. {off}.", highlight=False)
    return {
        "machine": {"cpu_model": cpu_model(), "cores": os.cpu_count(), **asdict(machine)},
        "permutations_a_step": REPEATS,
        "flow_wall_s": FLOW_WALL_S,
        "seed": seed,
        "steps": [{**asdict(one), "faithful": one.faithful(found[0])} for found in sweeps for one in found],
        "conclusions": [conclusion(found) for found in sweeps],
    }


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m emulation.envelope", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="+", default=[32], help="sizes, multiples of 4 (32; 64 takes longer)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-steps", type=int, default=8, help="of 1.4 each, the first one below the chosen rate")
    parser.add_argument("--json", action="store_true", help="machine-readable output on stdout; progress on stderr")
    options = parser.parse_args(argv)
    shown = Console(stderr=options.json, width=None if sys.stdout.isatty() else 160)
    try:
        found = sweep_all(options.kinds, options.gpus, options.seed, options.most_steps, shown)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
