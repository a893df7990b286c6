"""Files that a scenario names. A run reads them in another process, whose working directory is not the user's."""

from __future__ import annotations

from pathlib import Path

from scenario.load import with_changes
from scenario.models import Scenario


def with_absolute_paths(scenario: Scenario, folder: Path) -> Scenario:
    """A copy whose relative paths (workload.path, serving.model where it is a file, serving.compute_csv) start at
    `folder`; the scenario itself where there is none."""
    serving: dict[str, object] = {}
    if scenario.serving.model.lower().endswith(".json"):
        serving["model"] = str(folder / scenario.serving.model)
    if scenario.serving.compute_csv is not None:
        serving["compute_csv"] = folder / scenario.serving.compute_csv
    path = getattr(scenario.workload, "path", None)
    workload = {} if path is None else {"path": folder / path}
    changes = {name: section for name, section in (("serving", serving), ("workload", workload)) if section}
    return with_changes(scenario, changes) if changes else scenario
