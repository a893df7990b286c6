"""One comparison, as data: the equality table, the figures, the bound, the fidelity, and what it does not
show.

The renderers (`analysis.console`, `analysis.report`, `Comparison.to_json`) add nothing of their own to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.arms import Arm, ArmResult, read_arm
from analysis.beside import TextTable, background_table, tenant_line, tenant_table
from analysis.caveats import limits, must_know
from analysis.diagnosis import Diagnosis
from analysis.diagnosis_lines import diagnoses, diagnosis_lines
from analysis.equality import EqualityRow, equality_rows
from analysis.failover import Failover, failover
from analysis.failures import causes, nothing_completed
from analysis.fidelity import FidelityRow, fidelity_rows, loosened_limits, why_invalid
from analysis.flow_lines import flow_bound_lines, flow_headline
from analysis.formats import NONE, change, number
from analysis.notes import run_notes
from analysis.paired import paired_differences
from analysis.rows import ResultRow, result_rows
from analysis.stats import RESAMPLES
from results.schema import SCHEMA_VERSION
from results.writer import plain
from scenario.errors import InputError

__all__ = ["Arm", "ArmResult", "Comparison", "FidelityRow", "compare"]


@dataclass(frozen=True)
class Comparison:
    """Everything a comparison found."""

    arms: tuple[ArmResult, ...]
    equality: tuple[EqualityRow, ...]
    results: tuple[ResultRow, ...]
    fidelity: tuple[FidelityRow, ...]
    #: Label and faults of each run whose scenario has some.
    faults: tuple[tuple[str, Failover], ...] = ()
    #: Label and diagnosis of each run that served something.
    diagnoses: tuple[tuple[str, Diagnosis], ...] = ()

    @property
    def alone(self) -> bool:
        """Whether this is one run, with nothing to compare it with."""
        return len(self.arms) == 1

    @property
    def runs(self) -> tuple[ArmResult, ...]:
        """The arms that are runs on a fabric."""
        return tuple(arm for arm in self.arms if not arm.is_bound)

    @property
    def bound(self) -> ArmResult | None:
        """The fabric-free bound, when there is one."""
        return next((arm for arm in self.arms if arm.is_bound), None)

    @property
    def flows(self) -> bool:
        """Whether messages were played, and no requests served."""
        return "makespan_s" in self.arms[0].summary

    @property
    def unequal(self) -> tuple[EqualityRow, ...]:
        """Rows that must match and do not: with any, this is not like for like."""
        return tuple(row for row in self.equality if row.unequal)

    @property
    def invalid(self) -> tuple[str, ...]:
        """Labels of arms whose fidelity checks failed."""
        return tuple(arm.label for arm in self.arms if arm.valid is False)

    @property
    def exit_code(self) -> int:
        """0, or 1 when a run was outside the envelope in which the emulation can be trusted."""
        return 1 if self.invalid else 0

    def warnings(self) -> tuple[str, ...]:
        """What must be read before the figures; empty when all is well."""
        found = [
            f"INVALID: {arm.label} was outside the envelope in which the emulation can be trusted; do not use its"
            f" figures. {why_invalid(arm.fidelity)}"
            for arm in self.arms
            if arm.valid is False
        ]
        loosened = [(arm.label, loosened_limits(arm.scenario)) for arm in self.runs if not arm.simulated]
        for label, wider in loosened:
            if wider:
                found.append(
                    f"LIMITS LOOSENED: {label} was judged with wider fidelity limits than usual ({wider}): valid there"
                    " means less."
                )
        if self.unequal:
            names = "; ".join(row.name for row in self.unequal)
            found.append(f"NOT LIKE FOR LIKE: the arms differ in what should be equal: {names}.")
        failed = [arm for arm in self.arms if arm.summary["failed"]]
        if failed:
            counts = "; ".join(
                f"{arm.label} {arm.summary['failed']}{f': {text}' if (text := causes(arm.summary)) else ''}"
                for arm in failed
            )
            found.append(
                f"Failed {'messages' if self.flows else 'requests'} ({counts}) are not in the"
                f" {'' if self.flows else 'TTFT '}figures, which are over completed ones only: the figures of an arm"
                " with failures look better than it was."
            )
        return tuple(found)

    def headline(self) -> tuple[str, ...]:
        """The result in sentences, one an arm; no claim of significance."""
        if not self.runs:
            return ()
        if self.flows:
            return flow_headline(self.runs)
        first = self.runs[0]
        lines = []
        for arm in self.runs:
            if not arm.summary["completed"]:
                lines.append(f"{nothing_completed(arm)}{' — INVALID RUN' if arm.valid is False else ''}.")
                continue
            mean, p90 = arm.summary["mean_ttft_ms"], arm.summary["p90_ttft_ms"]
            text = f"{arm.label}: mean TTFT {number(mean)} ms, P90 {number(p90)} ms"
            text += f", mean exposed KV transfer {number(arm.summary['mean_kv_transfer_exposed_ms'])} ms"
            text += f", n = {arm.summary['completed']:,}"
            if arm is not first and (differences := paired_differences(first, arm)):
                text += f". Against {first.label}, request by request: " + "; ".join(d.text for d in differences)
            lines.append(f"{text}{' — INVALID RUN' if arm.valid is False else ''}.")
        lines += [line for arm in self.runs if (line := tenant_line(arm))]
        if self.alone:
            return tuple(lines)
        lines.append(
            "Brackets: 95 % over sessions of this one run. TTFT also holds prefill and its queue, the same work on "
            "every fabric; the KV transfer is what the fabric does."
        )
        return tuple(lines)

    def bound_lines(self) -> tuple[str, ...]:
        """The TTFT on an infinite core with fair NICs, and how far above it each arm is."""
        bound = self.bound
        if bound is None:
            return ("No fabric-free bound was computed for this comparison.",)
        if self.flows:
            return flow_bound_lines(bound, self.runs)
        keys = (("mean", "mean"), ("p50", "P50"), ("p90", "P90"), ("p99", "P99"))
        best = ", ".join(f"{label} {number(bound.summary[f'{key}_ttft_ms'])} ms" for key, label in keys)
        lines = [
            f"{bound.label}: {best} (n = {bound.summary['completed']:,}). The core is infinite and "
            "NICs share fairly: the same service with no fabric in the way. A reference for means, not a limit."
        ]
        for arm in self.runs:
            above = ", ".join(
                f"{label} {change(arm.summary[f'{key}_ttft_ms'], bound.summary[f'{key}_ttft_ms']) or NONE}"
                for key, label in keys
            )
            lines.append(f"{arm.label} against the bound: {above}.")
        below = any(
            arm.summary[f"{key}_ttft_ms"] < bound.summary[f"{key}_ttft_ms"] for arm in self.runs for key, _ in keys
        )
        if below:
            lines.append(
                "A figure below the bound is possible: a fabric that holds one handoff back lets its neighbour at the "
                "same NIC end earlier, and then requests meet other batches and queues."
            )
        return tuple(lines)

    def notes(self) -> tuple[str, ...]:
        """What else the runs left: captures, and paths where switches or the agents chose among several."""
        return tuple(line for arm in self.runs for line in run_notes(arm))

    def beside(self) -> tuple[TextTable, ...]:
        """Tenants, where there are several, and traffic beside the workload."""
        found = tenant_table(self.arms), background_table(self.runs)
        return tuple(table for table in found if table is not None)

    def diagnosis_lines(self) -> tuple[tuple[str, str, str], ...]:
        """Of each run that was diagnosed: what was named, where handoffs lost time, congestion by class."""
        return tuple(diagnosis_lines(label, found) for label, found in self.diagnoses)

    def must_know(self) -> tuple[str, ...]:
        """The four things that a reader must know before any figure."""
        return must_know(self.runs)

    def limits(self) -> tuple[str, ...]:
        """What this result does not show."""
        return limits(self.runs, any(row.indicative for row in self.results))

    def to_json(self) -> dict[str, Any]:
        """The comparison in JSON's own types, for `zcube compare --json`."""
        arms = [
            {
                "label": arm.label,
                "kind": arm.arm.kind,
                "path": arm.arm.path,
                "valid": arm.valid,
                "summary": arm.summary,
                "fidelity": arm.fidelity,
            }
            for arm in self.arms
        ]
        equality = [
            {
                "name": row.name,
                "values": row.values,
                "must_match": row.must_match,
                "same": row.same,
                "note": row.note,
            }
            for row in self.equality
        ]
        results = [
            {
                "key": row.key,
                "label": row.label,
                "unit": row.unit,
                "values": row.values,
                "intervals": [[found.low, found.high] if found else None for found in row.intervals],
                "indicative": row.indicative,
            }
            for row in self.results
        ]
        found: dict[str, Any] = plain(
            {
                "schema_version": SCHEMA_VERSION,
                "valid": not self.invalid,
                "like_for_like": not self.unequal,
                "exit_code": self.exit_code,
                "warnings": self.warnings(),
                "headline": self.headline(),
                "arms": arms,
                "equality": equality,
                "results": results,
                "bound": self.bound_lines(),
                "faults": {label: one.to_json() for label, one in self.faults},
                "diagnoses": {label: one.to_json() for label, one in self.diagnoses},
                "notes": self.notes(),
                "does_not_show": self.limits(),
            }
        )
        return found


def compare(
    arms: Sequence[Arm], seed: int | None = None, resamples: int = RESAMPLES, *, diagnosed: bool = True
) -> Comparison:
    """Reads the arms and compares them; differences are to the first one that is not a bound.

    `seed` is that of the bootstrap; by default the first run's own. One arm alone is allowed: a report on one
    run. `diagnosed`: each run is diagnosed, which at a thousand GPUs takes minutes. Raises InputError for a folder that
    cannot be read.
    """
    if not any(arm.kind == "run" for arm in arms):
        raise InputError("arms", [arm.label for arm in arms], "at least one run is needed")
    labels = [arm.label for arm in arms]
    if len(set(labels)) < len(labels):
        raise InputError("arms", labels, "every arm needs a name of its own")
    ordered = [arm for arm in arms if arm.kind == "run"] + [arm for arm in arms if arm.kind == "bound"]
    results: list[ArmResult] = []
    for arm in ordered:
        used = int(results[0].summary["interval_seed"]) if results else seed
        results.append(read_arm(arm, used, resamples))
    return Comparison(
        arms=tuple(results),
        equality=equality_rows(results),
        results=result_rows(results),
        fidelity=fidelity_rows(results),
        faults=tuple((one.label, failover(one.arm.path)) for one in results if _had_faults(one)),
        diagnoses=diagnoses(results) if diagnosed else (),
    )


def _had_faults(arm: ArmResult) -> bool:
    return bool(arm.scenario.faults.events) and not arm.simulated and arm.fidelity is not None
