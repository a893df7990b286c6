"""Hashes that say whether two runs are of the same scenario or the same workload."""

from __future__ import annotations

import hashlib

from scenario.models import Scenario


def scenario_sha256(scenario: Scenario) -> str:
    """Hash of the scenario's JSON."""
    return hashlib.sha256(scenario.model_dump_json().encode()).hexdigest()


def workload_sha256(scenario: Scenario) -> str:
    """Hash of what decides the requests: workload, serving, background and seed (not the fabric or the scale)."""
    parts = [scenario.workload.model_dump_json(), scenario.serving.model_dump_json(), str(scenario.seed)]
    parts += [item.model_dump_json() for item in scenario.background]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
