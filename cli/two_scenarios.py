"""The demo's second scenario, and what both came to: shared by `zcube compare --demo` and `zcube simulate --demo`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from analysis.compare import Comparison
from cli import options
from cli.app import out
from scenario.models import Scenario


def second(*, seed: int | None, thorough: bool = False) -> Scenario:
    """A short run of shape A, where a rail-optimised fat-tree is at home: one scenario alone would pick the winner."""
    return options.scenario_with_options(options.EXPERIMENTS / "same-rail.yaml", seed=seed, thorough=thorough)


def print_summary(comparisons: Sequence[Comparison]) -> None:
    """The end of a long print-out: every scenario's result in short, side by side."""
    out.rule("In short, both scenarios")
    for comparison in comparisons:
        some = comparison.runs[0]
        shape, seed = some.scenario.serving.shape, some.scenario.seed
        out.print(Text.assemble((some.arm.path.parent.name, "bold"), f" (shape {shape}, seed {seed})"))
        for line in comparison.headline():
            out.print(f"  · {line}", highlight=False)
        out.print(f"  {some.arm.path.parent / 'report.html'}", highlight=False)
