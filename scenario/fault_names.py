"""Names of cables and switches in `faults.events` and `faults.slow`, held against the scenario's fabric. Pure."""

from __future__ import annotations

import difflib

from scenario.errors import InputError
from scenario.models import Scenario
from topologies.fabric import Fabric, FabricError, port_name
from topologies.routes import Failures

#: Where the names are.
HINT = (
    "`zcube fabric show FABRIC --json` has the ids of all cables in links[].id (FABRIC may be the scenario file);"
    " a comparison needs names that all its arms have"
)


def slow_ports(scenario: Scenario, fabric: Fabric) -> dict[str, float]:
    """Egress port -> share of its rate that `faults.slow` leaves it, for both ends of each cable.

    Raises InputError for a cable that is not there or is named twice.
    """
    known = {link.id: link for link in fabric.links}
    known |= {port_name(end): link for link in fabric.links for end in (link.a, link.b)}
    found: dict[str, float] = {}
    for place, slow in enumerate(scenario.faults.slow):
        field = f"scenario {scenario.name}: faults.slow[{place}].cable"
        if slow.cable not in known:
            near = difflib.get_close_matches(slow.cable, known, 3)
            allowed = "must be a cable of the fabric, or an interface at its end"
            raise InputError(field, slow.cable, allowed + (f"; nearest: {', '.join(near)}" if near else ""), HINT)
        link = known[slow.cable]
        if port_name(link.a) in found:
            raise InputError(field, slow.cable, f"{link.id} is named twice", "leave one of the two out")
        found |= {port_name(end): slow.share for end in (link.a, link.b)}
    return found


def check_events(scenario: Scenario, fabric: Fabric) -> None:
    """Raise InputError for the first name that `fabric` does not have: names the scenario, the event and the list."""
    for place, event in enumerate(scenario.faults.events):
        for which, names in (("down", event.down), ("up", event.up)):
            try:
                Failures.of(fabric, names)
            except FabricError as error:
                field = f"scenario {scenario.name}: faults.events[{place}].{which}"
                raise InputError(field, error.value, error.allowed, HINT) from None
