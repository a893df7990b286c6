"""A diagnosis as one HTML file that needs no network: causes, then each question with its answer and picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from analysis import diagnosis_charts as charts
from analysis.diagnosis import Diagnosis
from analysis.diagnosis_answers import Answer, headline
from analysis.report import figure_html
from analysis.what_if import WhatIf
from results.reader import RunFolder
from results.writer import write_text
from scenario.simulation_section import NO_QUEUES

_PICTURES = (
    "Mean TTFT by where it went. Orange, red and violet is what the fabric, or other handoffs on it, took.",
    "Load of each port over the run, busiest first: payload bytes over what the port can carry.",
    "When ports were congested: incast cannot be removed by a topology, avoidable congestion can.",
    "What each decode target was given, over the mean of all targets.",
    "The same scenario in the simulator, every port at half and at double its rate, and without any link in the way.",
)


def judged_valid(run: RunFolder) -> bool:
    """Whether the figures can be trusted: a simulation always, an emulation by its verdict, which it must have left."""
    if run.meta().get("executor") == "simulation":
        return True
    return run.has("fidelity.json") and run.fidelity().get("valid") is True


def no_queues(run: RunFolder) -> str:
    """What to know first of a simulated run; empty for an emulated one."""
    return NO_QUEUES if run.meta().get("executor") == "simulation" else ""


def write_page(
    found: Diagnosis, answered: Sequence[Answer], what_if: WhatIf | None, run: RunFolder, path: Path
) -> Path:
    """Writes the page as a whole and returns its path."""
    meta, scenario = run.meta(), run.scenario()
    figures = (
        charts.parts(found), charts.port_loads(found), charts.intervals(found), charts.targets(found),
        charts.nic_rates(what_if),
    )  # fmt: skip
    environment = Environment(
        loader=PackageLoader("analysis"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    valid = judged_valid(run)
    text = environment.get_template("diagnosis.html.j2").render(
        name=scenario.name,
        fabric=f"{scenario.fabric.kind}, {scenario.fabric.gpus} GPUs, routing {scenario.policy}",
        executor=meta.get("executor", "emulation"),
        no_queues=no_queues(run),
        seed=meta.get("seed"),
        headline=headline(found),
        causes=found.causes,
        valid=valid,
        unmeasured=found.congestion.unmeasured,
        left_out=found.congestion.flows.left_out,
        questions=[
            (number, answer, figure_html(figure, f"picture-{number}"), caption)
            for number, (answer, figure, caption) in enumerate(zip(answered, figures, _PICTURES, strict=True), 1)
        ],
        plotly_js=Markup(get_plotlyjs()),  # noqa: S704 - the library's own code
    )
    write_text(path, text)
    return path
