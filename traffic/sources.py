"""From a scenario to its workload."""

from __future__ import annotations

from scenario.models import Scenario
from scenario.synthetic_workloads import BurstWorkload, SyntheticWorkload
from scenario.trace_workloads import SessionsWorkload, TraceWorkload
from scenario.workload_section import without_serving
from traffic.coding_agent import CodingAgentSource
from traffic.flow_sources import flow_source
from traffic.recorded import require_records
from traffic.requests import Source
from traffic.session_source import SessionSource
from traffic.synthetic import BurstSource, SyntheticSource
from traffic.trace_source import TraceSource


def make_source(scenario: Scenario) -> Source:
    """The source that `workload.kind` names; raises `InputError` where its settings or its file do not
    fit."""
    workload = scenario.workload
    if without_serving(workload):
        return flow_source(scenario)
    require_records(scenario)
    if isinstance(workload, TraceWorkload):
        return TraceSource(scenario)
    if isinstance(workload, SessionsWorkload):
        return SessionSource(scenario)
    if isinstance(workload, SyntheticWorkload):
        return SyntheticSource(scenario)
    if isinstance(workload, BurstWorkload):
        return BurstSource(scenario)
    return CodingAgentSource(scenario)
