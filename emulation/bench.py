"""`make bench`: what this machine can carry, measured: packet budget, bring-up, link rates, lone transfers, sampler.

Prints n, seed, machine and scale with the figures. Times on a shared machine are noisy: compare ratios of one run.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emulation import bench_agents
from emulation.launch import run
from emulation.machine import SAFE_SHARE, measure
from emulation.meta import cpu_model
from emulation.scaling import resolve
from scenario.arms import arms
from scenario.errors import TestbedError
from scenario.load import with_changes
from scenario.models import Scenario

_REQUESTS = 30


def bench(console: Console) -> int:
    """Run the check of the machine and a short run of each arm; print one table. Returns 1 when one is INVALID."""
    base = with_changes(Scenario(name="bench"), {"workload": {"requests": _REQUESTS, "warmup_requests": 5}})
    with tempfile.TemporaryDirectory(prefix="zcube-bench-") as folder:
        machine = measure(base.scale.frame_bytes, Path(folder), lambda _: None)
    console.print(
        f"{cpu_model()}, {os.cpu_count()} cores. {machine.hops_per_s:,.0f} switch-hops/s at saturation"
        f" ({base.scale.frame_bytes} B frames), of which runs use at most {SAFE_SHARE:.0%}."
    )
    table = Table("figure", "goal")
    rows: dict[str, list[str]] = {}
    failed: list[str] = []
    resolved = resolve(arms(base), machine.budget_hops_per_s)
    with tempfile.TemporaryDirectory(prefix="zcube-bench-") as folder:
        for label, scenario in resolved.items():
            table.add_column(label)
            path = Path(folder) / label.replace(" ", "-")
            ended = run(path, scenario, machine.budget_hops_per_s, lambda _: None)
            if ended.exit_code:
                raise KeyboardInterrupt
            failed += [f"{label}: {what}" for what in _failed(path)]
            for name, (goal, value) in _figures(path, ended.wall_s).items():
                rows.setdefault(name, [goal]).append(value)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    scale = next(iter(resolved.values())).scale
    console.print(table)
    console.print(f"n = {_REQUESTS} requests an arm, seed {base.seed}, a = {scale.rate_factor}, d = {scale.dilation}")
    for what in failed:
        console.print(f"INVALID: {what}. Is the machine busy with something else?")
    return 1 if failed else 0


def _failed(path: Path) -> list[str]:
    verdict: dict[str, Any] = json.loads((path / "fidelity.json").read_text())
    if verdict["valid"]:
        return []
    return [check["name"] for check in verdict["checks"] if check["ok"] is False] or ["see fidelity.json"]


def _figures(path: Path, wall_s: float) -> dict[str, tuple[str, str]]:
    meta: dict[str, Any] = json.loads((path / "meta.json").read_text())
    verdict: dict[str, Any] = json.loads((path / "fidelity.json").read_text())
    found = {
        "fabric up, all rules confirmed, s": ("< 10", f"{meta['bringup_wall_s']['all rules confirmed']:.2f}"),
        "whole run, s": ("", f"{wall_s:.1f}"),
    }
    for check in verdict["checks"]:
        value = "-" if check["value"] is None else f"{check['value']:.2f}"
        found[f"{check['name']}, {check['unit']}"] = (check["limit"], value)
    found["verdict"] = ("valid", "valid" if verdict["valid"] else "INVALID")
    return found


if __name__ == "__main__":
    try:
        shown = Console(width=None if sys.stdout.isatty() else 120)
        code = bench(shown)
        sys.exit(code or (0 if bench_agents.table(shown) else 1))
    except TestbedError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
