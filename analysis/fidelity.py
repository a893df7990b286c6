"""The fidelity checks of several runs side by side, whatever checks they have (`fidelity.json`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.arms import ArmResult
from analysis.formats import NONE, short
from scenario.models import Scenario

#: What the known checks are about; a check that is not here goes by its own name.
LABELS = {
    "link_rate_worst_deviation_pct": "Link rate, measured against configured, worst",
    "lone_transfer_deviation_pct": "A lone handoff against its ideal time",
    "packets_lost": "Packets lost",
    "resolution_frames": "Resolution: frames a connection in the median handoff",
    "packet_budget_used_pct": "Packet budget of this machine used",
    "maxmin_ratio_median": "Transfers against the max-min reference, median",
    "maxmin_ratio_p95": "Transfers against the max-min reference, P95",
    "engine_lag_p99_ms": "Lag of the serving engine, P99",
    "upcalls_lost": "Packets that Open vSwitch dropped for reasons of its own",
    "sampler_gap_pct": "Time in which a switch's queues went unseen",
    "switch_wait_frames": "Mean wait of a switch for a core",
    "cpu_pressure_pct": "Time in which anything waited for a core",
    "sampler_lag_p99_ms": "Lag of the queue sampler, P99",
    "sampler_cpu_pct": "CPU of the queue sampler",
    "sampler_gap_max_ms": "Longest gap of the queue sampler",
    "openflow_bytes_worst_difference_frames": "Sent bytes, OpenFlow's count against the queues', worst",
    "cpu_pct": "CPU of the machine while serving",
    "controller_restarts": "Controllers that were replaced during the run",
    "transfers_verified": "Transfers whose every byte was verified",
}

_BUSY = "usually the machine was busy with something else: run it again on a quiet one; if it stays, {}"
_SLOWER = "a larger --dilation or a smaller --rate-factor"
#: Check -> the next step where it fails. docs/fidelity.md says what each check is for.
NEXT_STEPS = {
    "link_rate_worst_deviation_pct": _BUSY.format(_SLOWER),
    "lone_transfer_deviation_pct": _BUSY.format("a larger --resolution or transport.inflight_cap_frames"),
    "packets_lost": _BUSY.format(_SLOWER),
    "resolution_frames": "handoffs are too few frames here: leave scale.rate_factor and scale.dilation out, or raise"
    " --dilation; a larger model or longer prompts help too",
    "packet_budget_used_pct": "all senders together are too much for this machine at this scale: leave"
    " scale.rate_factor out, or lower it",
    "maxmin_ratio_median": "transfers did not take as long as fair shares would: where GPUs send and receive at once,"
    " routing.striping: static (docs/collectives.md); else " + _BUSY.format(_SLOWER),
    "maxmin_ratio_p95": "some transfers took far longer than fair shares would: where GPUs send and receive at once,"
    " routing.striping: static (docs/collectives.md); else " + _BUSY.format(_SLOWER),
    "engine_lag_p99_ms": _BUSY.format(_SLOWER),
    "cpu_pct": _BUSY.format(_SLOWER),
    "switch_wait_frames": _BUSY.format(_SLOWER),
    "sampler_gap_pct": _BUSY.format(_SLOWER),
    "upcalls_lost": _BUSY.format(_SLOWER),
    "transfers_verified": "bytes are missing or wrong, which a busy machine does not explain: agents.log and"
    " fidelity.json of the run say of which transfer; please report it",
}
_UNKNOWN_STEP = "fidelity.json of the run has its details"


@dataclass(frozen=True)
class FidelityRow:
    """One check over the arms: value, verdict (None: measured and not judged, or not there) and detail of each."""

    name: str
    label: str
    texts: tuple[str, ...]
    verdicts: tuple[bool | None, ...]
    details: tuple[str, ...]
    limit: str

    @property
    def common_detail(self) -> str:
        """The detail, when all arms that have the check say the same."""
        found = {detail for detail in self.details if detail}
        return found.pop() if len(found) == 1 else ""


def loosened_limits(scenario: Scenario) -> str:
    """Fidelity limits of a scenario that allow more than usual; empty when there are none."""
    return ", ".join(scenario.fidelity.loosened())


def fidelity_rows(arms: Sequence[ArmResult]) -> tuple[FidelityRow, ...]:
    """Every check that any arm has, in the order in which they are met."""
    checks = [{str(check.get("name")): check for check in (arm.fidelity or {}).get("checks", ())} for arm in arms]
    rows = []
    for name in dict.fromkeys(name for found in checks for name in found):
        present = [found[name] for found in checks if name in found]
        rows.append(
            FidelityRow(
                name=name,
                label=LABELS.get(name, name),
                texts=tuple(_text(found.get(name)) for found in checks),
                verdicts=tuple(_verdict(found.get(name)) for found in checks),
                details=tuple(str((found.get(name) or {}).get("text") or "") for found in checks),
                limit=next((_limit(check) for check in present if check.get("limit") is not None), ""),
            )
        )
    return tuple(rows)


def _with_unit(check: Mapping[str, Any], key: str) -> str:
    value = check.get(key)
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    text = short(value) if isinstance(value, (int, float)) else str(value)
    return f"{text} {check.get('unit') or ''}".strip()


def _text(check: Mapping[str, Any] | None) -> str:
    return NONE if check is None else _with_unit(check, "value")


def _limit(check: Mapping[str, Any]) -> str:
    limit = check["limit"]
    return limit if isinstance(limit, str) else _with_unit(check, "limit")


def _verdict(check: Mapping[str, Any] | None) -> bool | None:
    found = None if check is None else check.get("ok")
    return found if isinstance(found, bool) else None


def failed_checks(fidelity: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The checks that make a run INVALID, as they are in fidelity.json."""
    return [check for check in (fidelity or {}).get("checks", ()) if check.get("ok") is False]


def next_steps(failed: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What to do about failed checks: a line for each different step, with the checks that it is for."""
    checks: dict[str, list[str]] = {}
    for check in failed:
        name = str(check.get("name"))
        checks.setdefault(NEXT_STEPS.get(name, _UNKNOWN_STEP), []).append(LABELS.get(name, name))
    return tuple(f"{'; '.join(labels)}: {step}" for step, labels in checks.items())


def why_invalid(fidelity: Mapping[str, Any] | None) -> str:
    """What made a run INVALID, and the next step of each: sentences."""
    failed = failed_checks(fidelity)
    if not failed:
        return "It left no verdict: it ended before its checks were done. runner.log in its folder says why."
    found = [
        f"{LABELS.get(str(check.get('name')), str(check.get('name')))}: {_text(check)} (limit {_limit(check)})"
        for check in failed
    ]
    scale = ((fidelity or {}).get("advice") or {}).get("text")
    steps = [*next_steps(failed), *([str(scale)] if scale else [])]
    return f"Failed: {'; '.join(found)}. What to do: " + ". ".join(steps) + "."
