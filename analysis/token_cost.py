"""Dollars per 1,000 tokens of a run: its measured throughput, and what GPUs and network cost per hour.

    usd per 1,000 tokens = usd per hour / (tokens per second * 3600) * 1000

Lines of usd per hour: GPUs (number * price per GPU hour), network hardware with spares (CapEx / years / 8760),
network power (W * PUE * usd per kWh), labour (cabling / years / 8760, and so much per switch and year), failures
(percent of hardware CapEx a year). Tokens per second are those of the run's window in model units, so one emulated
run of some minutes decides the result: the network is about a tenth of the sum, GPUs nearly all the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.arms import Arm, ArmResult
from analysis.compare import Comparison, compare
from results.writer import plain
from scenario.errors import InputError
from topologies.build import build
from topologies.cost import HOURS_PER_YEAR, PRESETS, Accounting, FabricCost, cost_of
from topologies.fabric import Fabric
from topologies.prices import PriceBook

TOKENS = 1000.0


@dataclass(frozen=True)
class RunCost:
    """One run: cost of its fabric, its throughput, and what each line costs per hour."""

    label: str
    valid: bool | None
    simulated: bool
    gpus: int
    network: FabricCost
    output_tokens_per_s: float
    total_tokens_per_s: float
    window_s: float
    completed: int
    usd_per_hour: Mapping[str, float]

    @property
    def total_usd_per_hour(self) -> float:
        """Sum of the lines."""
        return sum(self.usd_per_hour.values())

    def per_1k_output(self, usd_per_hour: float) -> float:
        """Dollars per 1,000 output tokens of a line or of the sum."""
        return usd_per_1k(usd_per_hour, self.output_tokens_per_s)

    def per_1k_total(self, usd_per_hour: float) -> float:
        """The same per 1,000 tokens of prompts and output; cached prompt tokens count."""
        return usd_per_1k(usd_per_hour, self.total_tokens_per_s)


@dataclass(frozen=True)
class TokenCosts:
    """Several runs side by side, with the verdict of their comparison."""

    runs: tuple[RunCost, ...]
    comparison: Comparison
    years: float

    @property
    def exit_code(self) -> int:
        """1 when a run was outside the envelope in which the emulation can be trusted."""
        return self.comparison.exit_code

    def warnings(self) -> tuple[str, ...]:
        """Invalid runs, unequal settings, failed requests."""
        return self.comparison.warnings()

    def limits(self) -> tuple[str, ...]:
        """What these dollars do not show."""
        shortest = min(run.window_s for run in self.runs)
        requests = ", ".join(f"{run.label} {run.completed:,}" for run in self.runs)
        found = [
            f"The throughput is that of one short run (window of {shortest:,.0f} model seconds; completed requests: "
            f"{requests}) at the load its scenario offers; it decides the result. Another load, seed or length gives "
            "another figure, and at a load that both fabrics carry they serve about the same tokens.",
            "Decode is a compute model: tokens per second are not those of a real engine, so compare fabrics with "
            "each other and do not take the dollars as a price of a service.",
            "The GPU price per hour holds server, GPU power and space; it and the prices of parts are assumptions "
            "unless the price book says otherwise.",
            "Not counted: software, idle time outside the window, staff other than the line above, discounts, tax.",
        ]
        if any(run.simulated for run in self.runs):
            found.insert(1, "A simulated run has no packets, queues or losses and no fidelity checks.")
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """In JSON's own types."""
        found: dict[str, Any] = plain(
            {
                "exit_code": self.exit_code,
                "valid": not self.comparison.invalid,
                "like_for_like": not self.comparison.unequal,
                "warnings": self.warnings(),
                "amortisation_years": self.years,
                "runs": [
                    {
                        "label": run.label,
                        "valid": run.valid,
                        "simulated": run.simulated,
                        "gpus": run.gpus,
                        "network_capex_usd": run.network.capex_usd,
                        "output_tokens_per_s": run.output_tokens_per_s,
                        "total_tokens_per_s": run.total_tokens_per_s,
                        "window_s": run.window_s,
                        "completed": run.completed,
                        "usd_per_hour": {**run.usd_per_hour, "sum": run.total_usd_per_hour},
                        "usd_per_1k_output_tokens": run.per_1k_output(run.total_usd_per_hour),
                        "usd_per_1k_tokens": run.per_1k_total(run.total_usd_per_hour),
                    }
                    for run in self.runs
                ],
                "does_not_show": self.limits(),
            }
        )
        return found


def usd_per_1k(usd_per_hour: float, tokens_per_s: float) -> float:
    """Dollars per 1,000 tokens."""
    return usd_per_hour / (tokens_per_s * 3600) * TOKENS


def hourly_usd(network: FabricCost, gpus: int, years: float) -> dict[str, float]:
    """Line -> dollars per hour for `gpus` GPUs on that network, its CapEx spread over `years`."""
    book, hours = network.book, years * HOURS_PER_YEAR
    cabling = network.item_usd("cabling")
    hardware = network.capex_usd - cabling
    staff = book.operation.labour_usd_per_switch_year * network.bom.switch_count / HOURS_PER_YEAR
    yearly_failures = hardware * book.operation.failure_percent_of_hardware_per_year / 100
    return {
        "GPUs": gpus * book.operation.gpu_usd_per_hour,
        "network hardware": hardware / hours,
        "network power": network.power_usd_per_year / HOURS_PER_YEAR,
        "labour": cabling / hours + staff,
        "failures": yearly_failures / HOURS_PER_YEAR,
    }


def token_costs(
    arms: Sequence[Arm],
    book: PriceBook,
    accounting: Accounting = PRESETS["full"],
    years: float | None = None,
    switch_model: str | None = None,
) -> TokenCosts:
    """Read the runs and cost their tokens. Raises InputError for a run that cannot be read or served nothing."""
    if any(arm.kind == "bound" for arm in arms):
        bounds = [str(arm.path) for arm in arms if arm.kind == "bound"]
        raise InputError("runs", bounds, "ran on an infinite core: there is no such network to buy", "leave it out")
    comparison = compare(arms, resamples=1)
    used = book.operation.amortisation_years if years is None else years
    runs = tuple(_run_cost(arm, book, accounting, used, switch_model) for arm in comparison.arms)
    return TokenCosts(runs, comparison, used)


def fabric_of(arm: ArmResult) -> Fabric:
    """The fabric of a run in port-rate cables: a trunk is m cables drawn as one, so it is wired again without."""
    section = arm.scenario.fabric
    return build(section.model_copy(update={"bundle": "destination"}) if section.bundle == "trunk" else section)


def _run_cost(
    arm: ArmResult, book: PriceBook, accounting: Accounting, years: float, switch_model: str | None
) -> RunCost:
    network = cost_of(fabric_of(arm), book, accounting, switch_model)
    output, total = (float(arm.summary[key]) for key in ("output_throughput", "total_token_throughput"))
    if not (math.isfinite(output) and output > 0):
        raise InputError(
            f"run {arm.arm.path}: output_throughput",
            output,
            "no token came out inside the run's window: nothing to divide the cost by",
            "give a run that served requests",
        )
    return RunCost(
        label=arm.label,
        valid=arm.valid,
        simulated=arm.simulated,
        gpus=network.gpus,
        network=network,
        output_tokens_per_s=output,
        total_tokens_per_s=total,
        window_s=float(arm.summary["duration"]),
        completed=int(arm.summary["completed"]),
        usd_per_hour=hourly_usd(network, network.gpus, years),
    )
