"""Examine `zcube diagnose`: runs with hidden causes, and what it names. `python -m cli.diagnosis_check --help`.

Not a verb of `zcube`: it judges the tool, not somebody's cluster.
"""

from __future__ import annotations

import os
import platform
import secrets
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from analysis.confusion import NOTHING, Judged, confusion, rates
from analysis.console_table import plain_table
from analysis.diagnosis import diagnose
from cli.app import err, out, print_json
from emulation.launch import MACHINE_CHECK, interrupted, require_new_folder
from emulation.launch import run as run_emulation
from emulation.machine import measure
from emulation.sandbox import require_machine
from emulation.scaling import resolve
from results.reader import RunFolder
from results.writer import create_folder, write_json
from scenario.errors import InputError, RunError
from scenario.hidden_causes import CAUSES, Case, draw
from scenario.load import with_changes
from simulation.run import simulate, write_run

SHORT = {cause: "".join(word[0] for word in cause.replace("-", " ").split()) for cause in CAUSES}
#: Frames of a median handoff: half of the default, still faithful, and half as long.
_RESOLUTION = 25


def check(
    out_folder: Annotated[Path, typer.Option("--out", help="folder for the runs; new or empty")],
    seed: Annotated[int | None, typer.Option(help="of the cases", show_default="drawn, and printed")] = None,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="cases")] = 30,
    executor: Annotated[str, typer.Option(help="emulation or simulation")] = "emulation",
    requests: Annotated[int, typer.Option(min=20, max=10_000, help="measured requests of a case")] = 60,
    json: Annotated[bool, typer.Option("--json", help="machine-readable output on stdout")] = False,
) -> None:
    """Draw cases, run them, diagnose each, and print the confusion matrix. Exit code 1 when a run failed."""
    if executor not in ("emulation", "simulation"):
        raise InputError("--executor", executor, "must be emulation or simulation")
    require_new_folder(out_folder)
    chosen = secrets.randbelow(2**31) if seed is None else seed
    cases = draw(chosen, count, requests)
    create_folder(out_folder)
    budget = _budget(out_folder) if executor == "emulation" else 0.0
    judged, rows = [], []
    began = time.monotonic()
    for case in cases:
        folder = out_folder / f"case-{case.number}"
        valid = _run(case, folder, executor, budget)
        found = diagnose(RunFolder(folder))
        named = [cause.name for cause in found.causes]
        one = Judged(frozenset(case.causes), frozenset(named))
        judged.append(one)
        rows.append(
            {
                "case": case.number,
                "fabric": case.scenario.fabric.kind,
                "true": dict(zip(case.causes, case.strength, strict=True)),
                "named": named,
                "valid": valid,
                "exact": one.exact,
            }
        )
        err.print(
            f"{time.monotonic() - began:6.0f} s  {case.number + 1} of {count}:"
            f" put in {', '.join(case.causes) or NOTHING}; named {', '.join(named) or NOTHING}"
            f"{'' if one.exact else '  <--'}{'' if valid else '  (INVALID run)'}"
        )
    result = {
        "seed": chosen,
        "cases": count,
        "executor": executor,
        "requests": requests,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.release()}",
        "exact": sum(one.exact for one in judged),
        "matrix": confusion(judged, CAUSES),
        "found_missed_wrong": rates(judged, CAUSES),
        "rows": rows,
    }
    write_json(out_folder / "diagnosis-check.json", result)
    if json:
        print_json(result)
    else:
        out.print(_table(result))
        healthy = [one for one in judged if not one.true]
        out.print(
            f"{result['exact']} of {count} cases exact (seed {chosen}, {executor}); healthy control: nothing named in"
            f" {sum(not one.named for one in healthy)} of {len(healthy)}"
        )


def _budget(folder: Path) -> float:
    require_machine()
    return measure(9000, folder / MACHINE_CHECK, lambda _: None).budget_hops_per_s


def _run(case: Case, folder: Path, executor: str, budget: float) -> bool:
    if executor == "simulation":
        write_run(folder, simulate(case.scenario))
        return True
    scenario = with_changes(case.scenario, {"scale": {"resolution_frames": _RESOLUTION}})
    resolved = resolve({scenario.name: scenario}, budget)[scenario.name]
    ended = run_emulation(folder, resolved, budget, lambda _: None, [])
    if ended.exit_code == 130:
        err.print(interrupted(folder), highlight=False)
        raise KeyboardInterrupt
    if ended.exit_code:
        raise RunError(f"{case.scenario.name} ended with {ended.exit_code}; see {folder}")
    return bool(RunFolder(folder).fidelity().get("valid"))


def _table(result: dict[str, object]) -> Table:
    matrix = result["matrix"]
    assert isinstance(matrix, dict)
    shown = [name for name in matrix if any(matrix[name].values()) or any(row[name] for row in matrix.values())]
    table = plain_table("Put in (rows) against named (columns)")
    table.add_column("")
    for name in shown:
        table.add_column(SHORT.get(name, name), justify="right")
    for true in shown:
        table.add_row(f"{true} ({SHORT[true]})" if true in SHORT else true, *(_cell(matrix[true][n]) for n in shown))
    return table


def _cell(count: int) -> str:
    return str(count) if count else "."


def main() -> None:
    """Entry point."""
    import sys

    from cli import app as frame

    frame.app.command("check")(check)
    sys.argv.insert(1, "check")
    frame.run()


if __name__ == "__main__":
    main()
