"""Reads a scenario file. Whatever is wrong with it is one message that names the field, the value and what fits."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from scenario.errors import InputError
from scenario.models import Scenario
from scenario.yaml_file import read_mapping


def load_scenario(path: Path) -> Scenario:
    """Read and check a YAML file. Raises InputError."""
    return check_scenario(read_mapping(path, "scenario", "scenario", "see experiments/ for examples"))


def check_scenario(data: Mapping[Any, Any]) -> Scenario:
    """Scenario from plain data. Raises InputError naming the first thing that is wrong."""
    try:
        return Scenario.model_validate(dict(data))
    except ValidationError as error:
        raise _input_error(error) from None
    except RecursionError:
        raise InputError("scenario", "...", "is nested too deeply") from None


def with_changes(scenario: Scenario, changes: Mapping[str, Mapping[str, object] | object]) -> Scenario:
    """A copy with some settings replaced, checked again: {"section": {"name": value}} or {"seed": 2}."""
    data: dict[str, Any] = scenario.model_dump()
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(data.get(key), dict):
            data[key] = {**data[key], **value}
        else:
            data[key] = value
    return check_scenario(data)


def _input_error(error: ValidationError) -> InputError:
    first = error.errors()[0]
    location = [str(part) for part in first["loc"] if part not in ("coding_agent", "azure")]
    field = ".".join(location) or "scenario"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(location[-1], _known_keys(location[:-1]), 1)
        known = ", ".join(_known_keys(location[:-1]))
        return InputError(
            field, first["input"], "unknown key", f"did you mean {near[0]}?" if near else f"known here: {known}"
        )
    message = str(first["msg"])
    if first["type"] == "value_error":
        message = message.removeprefix("Value error, ")
        if not location and (named := re.match(r"(\S+) = (\d+) (.*)", message)):
            return InputError(named[1], int(named[2]), named[3])
    message = message[:1].lower() + message[1:]
    return InputError(field, first.get("input"), message, "`zcube schema` lists every setting")


def _known_keys(path: list[str]) -> list[str]:
    model: Any = Scenario
    for part in path:
        annotation = model.model_fields[part].annotation if part in getattr(model, "model_fields", {}) else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
        else:
            from scenario.models import AzureWorkload, CodingAgentWorkload

            return sorted({*CodingAgentWorkload.model_fields, *AzureWorkload.model_fields})
    return sorted(model.model_fields)
