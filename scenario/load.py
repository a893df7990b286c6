"""Reads a scenario file. Whatever is wrong with it is one message that names the field, the value and what fits."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from scenario.background_section import BACKGROUND_TAGS
from scenario.errors import InputError, cut
from scenario.fault_names import check_events, slow_ports
from scenario.models import (
    MissingFault,
    Scenario,
    SwapFault,
    WrongPortFault,
)
from scenario.wiring import as_wired
from scenario.workload_section import TAGS
from scenario.yaml_file import read_mapping
from topologies.build import build

#: Value of a section's `kind` -> its model; pydantic names these in the location of an error.
_TAGGED: Mapping[str, type[BaseModel]] = {
    **TAGS,
    **BACKGROUND_TAGS,
    "swap": SwapFault,
    "wrong_port": WrongPortFault,
    "missing": MissingFault,
}


def load_scenario(path: Path) -> Scenario:
    """Read and check a YAML file. Raises InputError."""
    return check_scenario(read_mapping(path, "scenario", "scenario", "see experiments/ for examples"))


def check_scenario(data: Mapping[Any, Any]) -> Scenario:
    """Scenario from plain data. Raises InputError naming the first thing that is wrong.

    Where it has faults, also FabricError for a fabric that cannot be wired: only then is it wired here.
    """
    try:
        scenario = Scenario.model_validate(dict(data))
    except ValidationError as error:
        raise _input_error(error) from None
    except RecursionError:
        raise InputError("scenario", "...", "is nested too deeply") from None
    if scenario.faults.miscable or scenario.faults.events or scenario.faults.slow:
        fabric = build(scenario.fabric)
        as_wired(scenario.faults, fabric, scenario.name)
        check_events(scenario, fabric)
        slow_ports(scenario, fabric)
    return scenario


def with_changes(scenario: Scenario, changes: Mapping[str, Mapping[str, object] | object]) -> Scenario:
    """A copy with some settings replaced, checked again: {"section": {"name": value}} or {"seed": 2}."""
    data: dict[str, Any] = scenario.model_dump()
    for key, value in changes.items():
        before = data.get(key)
        # A workload of another kind has other settings: it replaces the one that is there.
        if isinstance(value, Mapping) and isinstance(before, dict):
            another = key == "workload" and value.get("kind", before["kind"]) != before["kind"]
            data[key] = {**value} if another else {**before, **value}
        else:
            data[key] = value
    return check_scenario(data)


def _input_error(error: ValidationError) -> InputError:
    first = error.errors()[0]
    # The first part is a section, never a tag: `routing` is both a section and a kind of workload.
    location = [str(part) for at, part in enumerate(first["loc"]) if at == 0 or part not in _TAGGED]
    field = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", ".".join(location)) or "scenario"  # faults.events[0].down
    if first["type"] == "extra_forbidden":
        keys = _known_keys(first["loc"][:-1])
        near = difflib.get_close_matches(location[-1], keys, 1)
        known = ", ".join(keys)
        return InputError(
            field, first["input"], "unknown key", f"did you mean {near[0]}?" if near else f"known here: {known}"
        )
    message = str(first["msg"])
    if first["type"] == "value_error":
        message = message.removeprefix("Value error, ")
        if not location and (named := re.match(r"(\S+) = (\S+) (.*)", message)):
            return InputError(named[1], int(named[2]) if named[2].isdecimal() else named[2], named[3])
    context = first.get("ctx") or {}
    listed = context.get("expected_tags") or context.get("expected")  # kinds of a section; values of a setting
    if listed and first["type"] in ("union_tag_invalid", "literal_error"):
        choices = re.findall(r"'([^']*)'", str(listed))
        given = context.get("tag", first.get("input"))
        near = difflib.get_close_matches(str(given), choices, 1)
        hint = f"did you mean {near[0]}?" if near else "`zcube schema` describes every setting"
        name = f"{field}.{context['discriminator'].strip(chr(39))}" if "discriminator" in context else field
        return InputError(name, given, f"must be one of {', '.join(choices)}", hint)
    message = cut(message[:1].lower() + message[1:])
    return InputError(field, first.get("input"), message, "`zcube schema` lists every setting")


def _known_keys(path: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Scenario
    for at, part in enumerate(path):
        if at and part in _TAGGED:
            model = _TAGGED[str(part)]
        elif isinstance(part, str) and part in model.model_fields:
            model = next(_models_in(model.model_fields[part].annotation), model)
    return sorted(model.model_fields)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """Sections in a type: alone, optional, in a list, of several kinds (then the tag that follows names it)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models_in(each)
