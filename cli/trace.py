"""`zcube trace`: what a trace is like, before anything is run with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from cli import options
from cli.app import out, print_json
from cli.outputs import write_file
from results.reader import RunFolder
from scenario.errors import InputError
from traffic.kv import kv_model
from traffic.readers.trace import FORMATS, Trace, format_named
from traffic.trace_stats import measure

verbs = typer.Typer(
    no_args_is_help=True,
    help="Traces and logs of requests.\n\nExample: .venv/bin/zcube trace stats AzureLLMInferenceTrace_code.csv",
)

#: Column of requests.parquet -> of the table format.
_RECORDED = {
    "t_arrival_s": "arrival_s",
    **{name: name for name in ("input_tokens", "output_tokens", "cached_tokens", "session_id", "tenant", "turn")},
}
#: A matrix with more rows or columns is not printed; --json has it all.
_SHOWN_GPUS = 24


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.add_typer(verbs, name="trace")


@verbs.command()
def stats(
    file: Annotated[Path, typer.Argument(help="trace, log, or folder of sessions")],
    form: Annotated[str, typer.Option("--format", help=f"auto, {', '.join(FORMATS)}")] = "auto",
    model: Annotated[str, typer.Option(help="KV preset that turns tokens into bytes")] = "glm-5.1-fp8",
    raw_timestamps: Annotated[bool, typer.Option("--raw-timestamps", help="keep Mooncake's stamps of 3 s")] = False,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="count rows that do not parse")] = False,
    seed: Annotated[int, typer.Option(help="of the spreading of Mooncake's stamps")] = 1,
    json: options.Json = False,
) -> None:
    """Rows, lengths, burstiness, prefix hits, flow sizes; for logs, who sends to whom."""
    preset = kv_model(model)
    trace = Trace(
        file,
        format_named(form, file, "--format"),
        skip_bad_rows=skip_bad_rows,
        seed=seed,
        raw_timestamps=raw_timestamps,
    )
    found = measure(trace, preset).to_json()
    if not found["rows"]:
        raise InputError("FILE", str(file), "has no rows", found["first_bad_row"])
    if json:
        print_json(found)
        return
    _print(found)


@verbs.command()
def record(
    run: Annotated[Path, typer.Argument(help="folder of a run that served requests")],
    to: Annotated[Path, typer.Option("--out", help="CSV file to write, for --trace or workload.kind: table")],
    force: Annotated[bool, typer.Option("--force", help="replace the file if it is there")] = False,
) -> None:
    """The requests of a run, each at the time at which it arrived: the same load as an open loop."""
    columns = ["request_id", *_RECORDED]
    rows = RunFolder(run).requests(columns).dropna(subset=["t_arrival_s"])
    if rows.empty:
        raise InputError("run folder", str(run), "no request arrived in it")
    rows = rows.sort_values(["t_arrival_s", "request_id"]).drop(columns="request_id").rename(columns=_RECORDED)
    write_file(to, rows.dropna(axis="columns", how="all").to_csv(index=False), force=force)
    out.print(f"{to}: {len(rows):,} requests over {rows['arrival_s'].max():,.1f} s", highlight=False, markup=False)


def _print(found: dict[str, Any]) -> None:
    skipped = f", {found['bad_rows_skipped']:,} bad ones left out" if found["bad_rows_skipped"] else ""
    sessions = f" in {found['sessions']:,} sessions (closed loop)" if "sessions" in found else ""
    out.print(f"{found['file']}: {found['format']}, {found['rows']:,} rows{sessions}{skipped}", highlight=False)
    if found["bad_rows_skipped"]:
        out.print(f"  the first: {found['first_bad_row']}", highlight=False, markup=False)
    arrivals = found.get("arrivals")
    if arrivals:
        table = Table("span s", "per s", "gap CV", "IDC 1 s", "IDC 60 s", "empty seconds")
        share = arrivals["empty_seconds_share"]
        table.add_row(
            f"{arrivals['span_s']:,.1f}",
            *(_short(arrivals[name]) for name in ("per_s", "gap_cv", "idc_1s", "idc_60s")),
            "-" if share is None else f"{share:.0%}",
        )
        out.print(table)
    prefix = found.get("prefix", {})
    table = Table("", "mean", "p50", "p90", "p99", "max")
    for label, part, unit in (
        ("prompt tokens", found.get("input_tokens"), 1),
        ("of them not cached", prefix.get("uncached_tokens"), 1),
        ("output tokens", found.get("output_tokens"), 1),
        (f"flow MB ({found['flow_bytes']['model'] or 'logged'})", found["flow_bytes"], 1e6),
    ):
        if part:
            table.add_row(label, *(_short(part[name], unit) for name in ("mean", "p50", "p90", "p99", "max")))
    out.print(table)
    if prefix:
        source = "of the log" if found["format"] in ("routing", "table") else "infinite cache"
        out.print(f"Prefix hits ({source}): {prefix['hit_share']:.1%} of prompt tokens", highlight=False)
    if "pairs" in found:
        _print_pairs(found)


def _print_pairs(found: dict[str, Any]) -> None:
    senders = list(dict.fromkeys(pair["prefill"] for pair in found["pairs"]))
    receivers = sorted({pair["decode"] for pair in found["pairs"]}, key=lambda label: (len(label), label))
    if max(len(senders), len(receivers)) <= _SHOWN_GPUS:
        rows = {(pair["prefill"], pair["decode"]): pair["rows"] for pair in found["pairs"]}
        table = Table("rows: prefill \\ decode", *receivers)
        for sender in senders:
            table.add_row(sender, *(f"{rows.get((sender, receiver), 0):,}" for receiver in receivers))
        out.print(table)
    else:
        out.print(f"{len(senders)} prefill and {len(receivers)} decode GPUs: --json has the matrix", highlight=False)
    moves = ", ".join(f"{m['total_variation']:.3f} (by chance {m['by_chance']:.3f})" for m in found["moves"])
    out.print(f"Total-variation distance between successive thirds: {moves or 'too few rows'}", highlight=False)


def _short(value: float | None, unit: float = 1) -> str:
    if value is None:
        return "-"
    value /= unit
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
