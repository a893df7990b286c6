"""The sides of a comparison: which run, under which name, and what was found in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from analysis.metrics import RunData, load, summarise_data
from analysis.stats import RESAMPLES
from results.reader import RunFolder
from scenario.errors import InputError
from scenario.models import Scenario

Kind = Literal["run", "bound"]


@dataclass(frozen=True)
class Arm:
    """One side. `bound` is a run on an infinite core: its mean TTFT is the best that any topology could reach."""

    label: str
    path: Path
    kind: Kind = "run"


@dataclass(frozen=True)
class ArmResult:
    """What was read and computed for one arm."""

    arm: Arm
    scenario: Scenario
    meta: Mapping[str, Any]
    fabric: Mapping[str, Any] | None
    fidelity: Mapping[str, Any] | None
    summary: Mapping[str, Any]
    data: RunData

    @property
    def label(self) -> str:
        """The arm's name."""
        return self.arm.label

    @property
    def is_bound(self) -> bool:
        """Whether this is the fabric-free bound."""
        return self.arm.kind == "bound"

    @property
    def simulated(self) -> bool:
        """Whether the run was computed instead of emulated."""
        return self.meta.get("executor") == "simulation"

    @property
    def valid(self) -> bool | None:
        """The verdict of the fidelity checks; None for a simulation, which has none. An emulation that left
        no verdict did not finish its checks and is not valid."""
        if self.fidelity is None:
            return None if self.simulated else False
        return self.fidelity.get("valid") is True

    @property
    def figure(self) -> str:
        """The policy and bundle in short: what distinguishes arms on the same fabric."""
        if self.is_bound:
            return "infinite core"
        many = self.scenario.fabric.kind == "zcube"
        return f"{self.scenario.policy}, bundle={self.scenario.fabric.bundle}" if many else self.scenario.policy


def read_arm(arm: Arm, seed: int | None = None, resamples: int = RESAMPLES) -> ArmResult:
    """Reads one arm's run folder and computes its metrics; `seed` is the bootstrap's, by default the run's
    own."""
    run = RunFolder(arm.path)
    meta = run.meta()
    if meta.get("executor") not in ("emulation", "simulation"):
        raise InputError(f"{run.path / 'meta.json'}: executor", meta.get("executor"), "must be emulation or simulation")
    data = load(run)
    return ArmResult(
        arm=arm,
        scenario=run.scenario(),
        meta=meta,
        fabric=run.fabric() if run.has("fabric.json") else None,
        fidelity=run.fidelity() if run.has("fidelity.json") else None,
        summary=summarise_data(data, int(meta.get("seed", 0)) if seed is None else seed, resamples),
        data=data,
    )
