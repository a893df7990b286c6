"""`zcube calibrate`: constants of a scenario from a user's measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.table import Table

from cli import options
from cli.app import out, print_json
from traffic.calibration import Calibration, LineFit, fit_line
from traffic.measurements import Measurements, read_measurements

#: Rows left out that are named.
_SHOWN_OUTLIERS = 10

Files = Annotated[list[Path], typer.Argument(help="CSV files: bytes,ms of transfers; prefill_tokens,ms of prefill")]
Nics = Annotated[int, typer.Option(min=1, max=1024, help="NICs that a transfer was spread over")]
Gpus = Annotated[int, typer.Option(min=1, max=1024, help="GPUs that prefilled together")]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "calibrate",
        help="Constants of a scenario from your measurements: transfer overhead, effective NIC rate, prefill speed.\n\n"
        "Example: .venv/bin/zcube calibrate transfers.csv prefill.csv --nics 8 --gpus 8",
    )(calibrate)


def calibrate(files: Files, nics: Nics = 1, gpus: Gpus = 1, json: options.Json = False) -> None:
    """Read, fit, print."""
    rows = Measurements()
    for file in files:
        rows += read_measurements(file)
    found = Calibration(
        transfer=fit_line(rows.transfers, "transfers") if rows.transfers else None,
        prefill=fit_line(rows.prefills, "prefill") if rows.prefills else None,
        nics=nics,
        gpus=gpus,
    )
    for_scenario = found.settings  # raises, before anything is printed
    if json:
        print_json(_as_json(found))
        return
    if found.transfer:
        _print_fit("transfers", rows.transfers, found.transfer, 8 / 1e9 / nics, f"Gb/s a NIC (over {nics})", "bytes")
    if found.prefill:
        _print_fit("prefill", rows.prefills, found.prefill, 1 / gpus, f"tokens/s a GPU (over {gpus})", "tokens")
    out.print("For the scenario file:\n")
    typer.echo(yaml.safe_dump(for_scenario, sort_keys=False), nl=False)


def _print_fit(
    what: str, rows: Sequence[tuple[float, float]], fit: LineFit, factor: float, unit: str, size: str
) -> None:
    table = Table(what, "fitted", "95 % interval")
    table.add_row("fixed time, ms", f"{fit.base_s * 1e3:.4g}", _interval(fit.base_interval_s, 1e3))
    table.add_row(unit, f"{fit.rate * factor:.4g}", _interval(fit.rate_interval, factor))
    out.print(table)
    left_out = f"; {len(fit.outliers)} left out as outliers" if fit.outliers else ""
    for at in fit.outliers[:_SHOWN_OUTLIERS]:
        measured, seconds = rows[at]
        out.print(
            f"Left out: row {at + 1}, {measured:,.0f} {size} in {seconds * 1e3:,.4g} ms"
            f" (the line: {fit.seconds(measured) * 1e3:,.4g} ms)", highlight=False,
        )  # fmt: skip
    if len(fit.outliers) > _SHOWN_OUTLIERS:
        out.print(f"and {len(fit.outliers) - _SHOWN_OUTLIERS} more: --json numbers all, from 0", highlight=False)
    low, high = fit.size_range
    out.print(
        f"n = {fit.n} from {low:,.0f} to {high:,.0f} {size}{left_out}; residual {100 * fit.residual_median:.1f} %"
        f" median, {100 * fit.residual_max:.1f} % at most",
        highlight=False,
    )
    if what == "prefill":
        out.print(
            f"Measured for prefill batches of {low:,.0f} to {high:,.0f} tokens; beyond: the same line, not measured.",
            highlight=False,
        )
    if what == "prefill" and fit.residual_max > 0.1:
        out.print("A straight line is over 10 % off: use the rows themselves, serving.compute: csv.", highlight=False)


def _interval(interval: tuple[float, float] | None, factor: float) -> str:
    if interval is None:
        return "none: two rows"
    return f"{interval[0] * factor:.4g} to {interval[1] * factor:.4g}"


def _as_json(found: Calibration) -> dict[str, object]:
    def one(fit: LineFit | None, factor: float, rate: str) -> dict[str, object] | None:
        if fit is None:
            return None
        rates = fit.rate_interval and [value * factor if value < float("inf") else None for value in fit.rate_interval]
        return {
            "base_ms": fit.base_s * 1e3,
            "base_ms_interval": fit.base_interval_s and [value * 1e3 for value in fit.base_interval_s],
            rate: fit.rate * factor,
            f"{rate}_interval": rates,
            "n": fit.n,
            "outliers": list(fit.outliers),
            "residual_median": fit.residual_median,
            "residual_max": fit.residual_max,
        }

    return {
        "transfer": one(found.transfer, 8 / 1e9 / found.nics, "nic_gbps"),
        "prefill": one(found.prefill, 1 / found.gpus, "tokens_per_s_per_gpu"),
        "scenario": found.settings,
    }
