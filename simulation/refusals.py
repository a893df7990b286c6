"""What a scenario may ask for that the simulation does not have. It is refused, not left out in silence."""

from __future__ import annotations

from collections.abc import Iterator

from scenario.errors import InputError
from scenario.models import Scenario

_QUEUES = "the simulation has flows and no queues"
_EMULATE = "run it emulated (sudo .venv/bin/zcube run), or leave it out"


def check_simulated(scenario: Scenario) -> None:
    """Raises InputError for the first setting that the simulation does not model, with what to do."""
    for field, value, why in _missing(scenario):
        raise InputError(field, value, why, _EMULATE)


def _missing(scenario: Scenario) -> Iterator[tuple[str, object, str]]:
    transport, marks = scenario.transport, scenario.flow_control
    if marks.ecn != "off":
        yield "flow_control.ecn", marks.ecn, f"{_QUEUES}, so nothing to mark by; allowed: off"
    if transport.congestion_control != _default(transport, "congestion_control"):
        what = f"{_QUEUES} and no windows: every rate is the max-min fair one; allowed: not set"
        yield "transport.congestion_control", transport.congestion_control, what
    if transport.kind == "mooncake":
        yield "transport.kind", "mooncake", "that engine is a program, which no flow stands for; allowed: tcp, udp"
    for section, names, why in (
        ("transport", ("asic_buffer_frames", "inflight_cap_frames", "chunk_frames"), f"{_QUEUES}, frames or windows"),
        ("telemetry", ("xoff_frames", "xon_frames", "backlog_threshold_frames"), f"{_QUEUES}, so none is held to it"),
    ):
        given = getattr(scenario, section)
        for name in names:
            default = _default(given, name)
            if getattr(given, name) != default:
                yield f"{section}.{name}", getattr(given, name), f"{why}; allowed: {default} (not set)"
    if scenario.policy == "ecmp_ovs":
        yield "routing.policy", "ecmp_ovs", "Open vSwitch's own hash is not modelled; allowed: ecmp, with our hash"
    if scenario.faults.miscable:
        what = "cables are those of the plan here, and nothing looks for wrong ones; allowed: none"
        yield "faults.miscable", len(scenario.faults.miscable), what


def _default(section: object, name: str) -> object:
    return type(section).model_fields[name].default  # type: ignore[attr-defined]
