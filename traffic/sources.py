"""From a scenario to its workload."""

from __future__ import annotations

from scenario.models import AzureWorkload, Scenario
from traffic.azure import AzureSource
from traffic.coding_agent import CodingAgentSource
from traffic.requests import Source


def make_source(scenario: Scenario) -> Source:
    """The source that `workload.kind` names; raises `InputError` where its settings or its file do not
    fit."""
    if isinstance(scenario.workload, AzureWorkload):
        return AzureSource(scenario)
    return CodingAgentSource(scenario)
