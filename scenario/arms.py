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


def arms(base: Scenario, labels: tuple[str, ...] = tuple(PAIR)) -> dict[str, Scenario]:
    """`base` on each of the named fabrics. Raises InputError when a setting does not hold on one of them."""
    return {
        label: with_changes(base, {"name": f"{base.name}-{label.lower().replace(' ', '-')}", "fabric": PAIR[label]})
        for label in labels
    }
