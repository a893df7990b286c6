"""A fabric in one word of a command line: `KIND[:name=value,...]`, or the scenario file whose fabric is meant."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from scenario.errors import InputError
from scenario.load import check_scenario, load_scenario
from scenario.models import FabricSection, Scenario
from topologies.build import READS, build
from topologies.fabric import Fabric

#: Parameters that every kind reads.
COMMON = ("gpus", "gpus_per_server", "gpu_gbps", "asic_ports")
EXAMPLE = "like zcube:gpus=1024,asic_ports=64 or roft:gpus=1024,asic_ports=64, or a scenario file"


def section_from_text(text: str) -> FabricSection:
    """The fabric section that a text means. Raises InputError naming what is wrong and what is allowed."""
    return scenario_from_text(text).fabric


def scenario_from_text(text: str) -> Scenario:
    """The scenario file, or the default scenario on the fabric that a text means. Raises InputError."""
    if not text.strip():
        raise InputError("fabric", text, "is empty", f"a fabric is {EXAMPLE}")
    kind, colon, rest = text.partition(":")
    if kind not in READS:
        if text.endswith((".yaml", ".yml")) or Path(text).exists():
            return load_scenario(Path(text))
        near = difflib.get_close_matches(kind, READS, 1)
        hint = f"did you mean {near[0]}?" if near else f"a fabric is {EXAMPLE}"
        raise InputError("fabric", text, f"kinds are {', '.join(READS)}", hint)
    allowed = (*COMMON, *sorted(READS[kind]))
    given: dict[str, object] = {"kind": kind}
    for part in rest.split(",") if colon else ():
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in allowed:
            near = difflib.get_close_matches(name, allowed, 1)
            raise InputError(
                "fabric",
                part,
                f"{kind} takes {', '.join(f'{each}=' for each in allowed)}",
                f"did you mean {near[0]}=?" if near else f"a fabric is {EXAMPLE}",
            )
        if name in given:
            raise InputError("fabric", text, f"{name} is given twice", "leave one out")
        given[name] = value.strip()
    for name in set(given) - {"kind", "gpu_gbps", "partial", "equal_cost", "bundle"}:
        if not re.fullmatch(r"[0-9]{1,9}", str(given[name])):
            raise InputError(f"fabric.{name}", given[name], "must be a whole number")
        given[name] = int(str(given[name]))
    # k = R is what one ASIC carries at 1:1, so a k alone says which ASIC is meant.
    if kind == "zcube" and "asic_ports" not in given and given.get("gpus_per_switch"):
        given["asic_ports"] = given["gpus_per_switch"]
    return check_scenario({"fabric": given})


def fabric_from_text(text: str) -> Fabric:
    """The fabric that a text means, wired. Raises InputError, and FabricError for sizes that do not fit."""
    return build(section_from_text(text))
