"""The sides of the default comparison: one scenario on each fabric, everything else equal."""

from __future__ import annotations

from scenario.load import with_changes
from scenario.models import Scenario

#: Label -> what the fabric section changes to. The first is the one that differences are taken against.
PAIR: dict[str, dict[str, object]] = {
    "ROFT": {"kind": "roft"},
    "ZCube": {"kind": "zcube", "bundle": "destination"},
    "ZCube trunk": {"kind": "zcube", "bundle": "trunk"},
}


def arms(
    base: Scenario, labels: tuple[str, ...] = tuple(PAIR), switches: tuple[str, ...] = ()
) -> dict[str, Scenario]:
    """`base` on each of the named fabrics; with several data planes each fabric on each of them ("ROFT", "ROFT linux":
    the first has no suffix). Raises InputError when a setting does not hold on one of them."""
    found = {}
    for label in labels:
        for switch in switches or (base.fabric.switch,):
            name = f"{label} {switch}" if switches and switch != switches[0] else label
            changes = {**PAIR[label], "switch": switch}
            found[name] = with_changes(base, {"name": f"{base.name}-{slug(name)}", "fabric": changes})
    return found


def slug(label: str) -> str:
    """A label as part of a name or a path."""
    return label.lower().replace(" ", "-")
