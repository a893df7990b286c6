"""What the controller is told: the fabric, the seed, the queue pairs to plan.

A JSON file, or a string as for `mn --topo`. In `plan.json`, `schema_version`, `fabric.kind` and
`fabric.gpus` are required; the rest has these defaults:

    {"schema_version": 1,
     "fabric": {"kind": "zcube", "gpus": 32, "gpus_per_server": 4, "gpu_gbps": 400.0, "asic_ports": 8,
                "gpus_per_switch": null, "links_per_pair": null, "bundle": "destination"},
     "seed": 1,
     "version": 1,              rule-set version, carried in every cookie
     "protocols": [6],          of the exact matches: 6 TCP, 17 UDP
     "planned": [],             [["gpu1", 1, "gpu2", 2, 0], ...]: source, port, destination, port, index;
                                or a number q: q queue pairs for every ordered GPU pair and port pair
     "expected": null}          switches that must confirm; null: all of the fabric
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from controller.repair import Repairer
from controller.rules import rules
from controller.ruleset import RuleSet
from topologies.build import READS, build
from topologies.fabric import End, Fabric, FabricError
from topologies.paths import TCP, UDP, QueuePair, walk_all_pairs

SCHEMA_VERSION = 1
#: Characters of a value that an error shows.
LONGEST_VALUE = 200
KINDS = tuple(READS)
#: Whole numbers and their ranges, those of a scenario's fabric section: a fabric of any of these sizes can be wired.
NEEDED = {"gpus": (2, 16384), "gpus_per_server": (1, 16), "asic_ports": (2, 512), "levels": (2, 3)}
OPTIONAL = {
    "gpus_per_switch": (1, 254),
    "links_per_pair": (1, 128),
    "gpus_per_leaf": (1, 254),
    "uplinks_per_leaf": (1, 511),
    "tiers": (1, 3),
}
MAX_QUEUE_PAIRS = 16
BUNDLES = ("destination", "hashed", "trunk")


class PlanError(ValueError):
    """A plan that cannot be used: names the field, the value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        shown = repr(value)
        if len(shown) > LONGEST_VALUE:
            shown = shown[: LONGEST_VALUE - 3] + "..."
        super().__init__(f"{field} = {shown}: {allowed}")


@dataclass(frozen=True)
class FabricPlan:
    """The settings of a scenario's `fabric` section (`topologies.build.FabricSettings`)."""

    kind: str
    gpus: int
    gpus_per_server: int = 4
    gpu_gbps: float = 400.0
    asic_ports: int = 8
    gpus_per_switch: int | None = None
    links_per_pair: int | None = None
    gpus_per_leaf: int | None = None
    uplinks_per_leaf: int | None = None
    tiers: int | None = None
    levels: int = 2
    partial: bool = False
    equal_cost: bool = False
    bundle: str = "destination"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PlanError("fabric.kind", self.kind, f"must be one of {', '.join(KINDS)}")
        if self.bundle not in BUNDLES:
            raise PlanError("fabric.bundle", self.bundle, f"must be one of {', '.join(BUNDLES)}")
        for name, (least, most) in (NEEDED | OPTIONAL).items():
            value = getattr(self, name)
            if value is None and name in OPTIONAL:
                continue
            if type(value) is not int or not least <= value <= most:
                raise PlanError(f"fabric.{name}", value, f"must be a whole number from {least} to {most}")
        if type(self.gpu_gbps) not in (int, float) or not 1 <= self.gpu_gbps <= 6400:
            raise PlanError("fabric.gpu_gbps", self.gpu_gbps, "must be a number from 1 to 6400")
        for name in ("partial", "equal_cost"):
            _boolean(f"fabric.{name}", getattr(self, name))


@dataclass(frozen=True)
class Plan:
    """A fabric, and what decides its rules."""

    fabric: FabricPlan
    seed: int = 1
    version: int = 1
    protocols: tuple[int, ...] = (TCP,)
    planned: tuple[QueuePair, ...] | int = ()
    expected: tuple[str, ...] | None = None
    detour: bool = False

    def build(self) -> Fabric:
        """Wire the fabric. Raises PlanError when it does not fit."""
        try:
            return build(self.fabric)
        except FabricError as error:
            raise PlanError(f"fabric.{error.parameter}", error.value, error.allowed) from error

    def rules(self, fabric: Fabric) -> RuleSet:
        """The rules of the fabric that `build` gave. Raises PlanError for a queue pair without a path."""
        planned = tuple(walk_all_pairs(fabric, self.planned)) if isinstance(self.planned, int) else self.planned
        try:
            return rules(fabric, seed=self.seed, planned=planned, protocols=self.protocols, version=self.version)
        except (FabricError, KeyError) as error:
            raise PlanError("planned", str(error), "every pair needs two GPU ports that a path joins") from error

    def repairer(self, fabric: Fabric) -> Repairer:
        """What computes the rules after failures, for the fabric that `build` gave."""
        planned = tuple(walk_all_pairs(fabric, self.planned)) if isinstance(self.planned, int) else self.planned
        return Repairer(fabric, seed=self.seed, planned=planned, protocols=self.protocols, detour=self.detour)

    def expected_switches(self, fabric: Fabric) -> tuple[str, ...]:
        """Switches that must confirm. Raises PlanError for one that the fabric does not have."""
        if self.expected is None:
            return tuple(switch.name for switch in fabric.switches)
        for name in self.expected:
            if name not in fabric.switch_by_name:
                raise PlanError("expected", name, f"the fabric has {', '.join(fabric.switch_by_name)}")
        return self.expected

    def to_json(self) -> dict[str, object]:
        """What `save` writes and `load` reads."""
        planned = self.planned
        return {
            "schema_version": SCHEMA_VERSION,
            "fabric": asdict(self.fabric),
            "seed": self.seed,
            "version": self.version,
            "protocols": list(self.protocols),
            "planned": planned
            if isinstance(planned, int)
            else [[qp.src.node, qp.src.port, qp.dst.node, qp.dst.port, qp.index] for qp in planned],
            "expected": None if self.expected is None else list(self.expected),
            "detour": self.detour,
        }

    def save(self, path: Path) -> None:
        """Write plan.json."""
        path.write_text(json.dumps(self.to_json()) + "\n")


def load(path: Path) -> Plan:
    """Read plan.json. Raises PlanError naming the field that is wrong."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise PlanError("plan", str(path), error.strerror or str(error)) from error
    except ValueError as error:
        raise PlanError("plan", str(path), f"is not JSON: {error}") from error
    except RecursionError:
        raise PlanError("plan", str(path), "is nested too deeply") from None
    return from_json(data)


def from_json(data: object) -> Plan:
    """Check plain data and make a Plan of it. Raises PlanError."""
    top = _mapping("plan", data, {"schema_version", *(f.name for f in fields(Plan))})
    if top.get("schema_version") != SCHEMA_VERSION:
        raise PlanError("schema_version", top.get("schema_version"), f"must be {SCHEMA_VERSION}")
    fabric = _mapping("fabric", top.get("fabric"), {f.name for f in fields(FabricPlan)})
    for name in ("kind", "gpus"):
        if name not in fabric:
            raise PlanError(f"fabric.{name}", None, "is required")
    protocols = top.get("protocols", [TCP])
    known = isinstance(protocols, list) and all(type(one) is int and one in (TCP, UDP) for one in protocols)
    if not isinstance(protocols, list) or not known or not protocols:
        raise PlanError("protocols", protocols, f"must be a list of {TCP} (TCP), {UDP} (UDP) or both")
    return Plan(
        fabric=FabricPlan(**fabric),  # type: ignore[arg-type]  # __post_init__ checks
        seed=_integer("seed", top.get("seed", 1)),
        version=_integer("version", top.get("version", 1)),
        protocols=tuple(dict.fromkeys(protocols)),
        planned=_planned(top.get("planned", [])),
        expected=_expected(top.get("expected")),
        detour=_boolean("detour", top.get("detour", False)),
    )


def _mapping(field: str, value: object, keys: set[str]) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise PlanError(field, value, "must be an object")
    if unknown := sorted(set(value) - keys):
        raise PlanError(field, unknown[0], f"unknown key; these exist: {', '.join(sorted(keys))}")
    return value


def _expected(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise PlanError("expected", value, "must be null or a list of switch names, one at least")
    return tuple(dict.fromkeys(value))


def _boolean(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise PlanError(field, value, "must be true or false")
    return value


def _integer(field: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise PlanError(field, value, "must be a whole number from 0")
    return value


def _planned(value: object) -> tuple[QueuePair, ...] | int:
    if type(value) is int and 0 <= value <= MAX_QUEUE_PAIRS:
        return value
    if not isinstance(value, list):
        allowed = f"must be a list of [src, port, dst, port, index], or a number up to {MAX_QUEUE_PAIRS}"
        raise PlanError("planned", value, allowed)
    pairs = []
    for item in value:
        match item:
            case [str(src), int(src_port), str(dst), int(dst_port), int(index)] if src != dst and index >= 0:
                pairs.append(QueuePair(End(src, src_port), End(dst, dst_port), index))
            case _:
                raise PlanError("planned", item, "must be [source GPU, port, another GPU, port, index from 0]")
    return tuple(pairs)


def from_topo(text: str) -> Plan:
    """Plan of a `mn --topo` string: `zcube,N,k[,m]` or `roft,N,R`, then `bundle=`, `gpus_per_server=`.

    Raises PlanError.
    """
    kind, *arguments = text.split(",")
    positional = {"zcube": ["gpus", "gpus_per_switch", "links_per_pair"], "roft": ["gpus", "asic_ports"]}.get(kind)
    usage = "like zcube,32,8 (GPUs, GPUs per switch) or roft,32,8 (GPUs, ports per ASIC)"
    if positional is None:
        raise PlanError("topo", text, f"must be {usage}")
    allowed = [*positional, "gpus_per_server", "bundle"]
    settings: dict[str, object] = {}
    for place, argument in enumerate(arguments):
        name, _, value = argument.rpartition("=")
        if not name:
            if place >= len(positional):
                raise PlanError("topo", text, f"has too many values; must be {usage}")
            name = positional[place]
        if name not in allowed:
            raise PlanError("topo", text, f"{name} is unknown; {kind} takes {', '.join(allowed)}")
        if name != "bundle" and not (value.isdecimal() and len(value) < 10):
            raise PlanError("topo", text, f"{name} must be a whole number; {usage}")
        settings[name] = value if name == "bundle" else int(value)
    if missing := [name for name in positional[:2] if name not in settings]:
        raise PlanError("topo", text, f"{missing[0]} is missing; must be {usage}")
    if kind == "zcube":  # k = R is what one ASIC carries at 1:1
        settings["asic_ports"] = settings["gpus_per_switch"]
    return Plan(fabric=FabricPlan(kind=kind, **settings))  # type: ignore[arg-type]
