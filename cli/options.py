"""Options that several verbs share, and how they change a scenario."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, get_args

import typer

from scenario.errors import InputError
from scenario.fabric_section import SWITCHES
from scenario.file_paths import with_absolute_paths
from scenario.load import check_scenario, load_scenario, with_changes
from scenario.models import Scenario
from scenario.serving_section import PlacementName
from scenario.workload_section import REPLAYS
from traffic.readers.trace import detect

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"

Out = Annotated[Path | None, typer.Option("--out", help="folder for the results; new or empty", show_default=False)]
Seed = Annotated[int | None, typer.Option(help="of every draw and of the ECMP hash", show_default="the scenario's")]
Gpus = Annotated[int | None, typer.Option(help="number of GPUs", show_default="the scenario's")]
Requests = Annotated[int | None, typer.Option(help="measured requests per fabric", show_default="the scenario's")]
Placement = Annotated[str | None, typer.Option(help=", ".join(get_args(PlacementName)), show_default="the scenario's")]
Trace = Annotated[Path | None, typer.Option(help="replay a window of this trace or folder", show_default=False)]
TraceFormat = Annotated[str, typer.Option(help=f"auto (by content), {', '.join(REPLAYS)}")]
Skip = Annotated[int, typer.Option(help="trace rows (or sessions) to leave out at the start")]
Speedup = Annotated[float, typer.Option(help="divide the gaps between the trace's arrivals by this")]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="count rows of the trace that do not parse, in place of stopping there")
]
RateFactor = Annotated[float | None, typer.Option(help="a of the scale model", show_default="from the machine")]
Dilation = Annotated[float | None, typer.Option(help="d of the scale model", show_default="from the machine")]
Resolution = Annotated[
    int | None, typer.Option(help="frames per connection of the median handoff; fewer is faster", show_default="50")
]
Thorough = Annotated[
    bool, typer.Option("--thorough", help="measure every link before the run, on large fabrics too, not a sample")
]
Switch = Annotated[
    str | None, typer.Option(help=f"data plane: {', '.join(SWITCHES)}", show_default="the scenario's, else ovs")
]
Json = Annotated[bool, typer.Option("--json", help="machine-readable output on stdout")]


def scenario_with_options(
    path: Path | None,
    *,
    seed: int | None = None,
    gpus: int | None = None,
    requests: int | None = None,
    placement: str | None = None,
    trace: Path | None = None,
    trace_format: str = "auto",
    skip: int = 0,
    speedup: float = 1.0,
    skip_bad_rows: bool = False,
    rate_factor: float | None = None,
    dilation: float | None = None,
    resolution: int | None = None,
    thorough: bool = False,
    switch: str | None = None,
) -> Scenario:
    """The scenario file (default: coding-agent) with the command line's changes. Raises InputError."""
    scenario = load_scenario(path or EXPERIMENTS / "coding-agent.yaml")
    changes: dict[str, object] = {}
    if seed is not None:
        changes["seed"] = seed
    if switch is not None and switch not in SWITCHES:
        raise InputError("--switch", switch, f"allowed: {', '.join(SWITCHES)}")
    fabric = {"gpus": gpus, "switch": switch}
    changes["fabric"] = {name: value for name, value in fabric.items() if value is not None}
    if placement is not None:
        changes["serving"] = {"placement": placement}
    scale = {"rate_factor": rate_factor, "dilation": dilation, "resolution_frames": resolution}
    changes["scale"] = {name: value for name, value in scale.items() if value is not None}
    if thorough:
        changes["fidelity"] = {"link_check": "all"}
    if trace_format not in ("auto", *REPLAYS):
        raise InputError("--trace-format", trace_format, f"allowed: auto, {', '.join(REPLAYS)}")
    if trace is not None:
        kind = detect(trace).name if trace_format == "auto" else trace_format
        workload: dict[str, object] = {"kind": kind, "path": str(trace), "skip": skip, "speedup": speedup}
        workload["skip_bad_rows"] = skip_bad_rows
        workload["requests"] = requests if requests is not None else REPLAYS[kind].model_fields["requests"].default
        # Replaced as a whole: a trace has none of the settings of synthetic sessions.
        name = re.sub(r"[^A-Za-z0-9._-]", "-", trace.stem).lstrip(".-_")[:60] or "trace"
        scenario = check_scenario({**scenario.model_dump(), "name": name, "workload": workload})
    elif skip or speedup != 1.0:
        raise InputError("--skip / --speedup", skip or speedup, "need --trace FILE")
    elif skip_bad_rows:
        hint = "a workload of the scenario that replays a file has skip_bad_rows of its own"
        raise InputError("--skip-bad-rows", True, "needs --trace FILE", hint)
    elif requests is not None:
        changes["workload"] = {"requests": requests}
    return with_absolute_paths(with_changes(scenario, changes), Path.cwd())
