"""Names of cables and switches in `faults.events`, held against the scenario's fabric. Pure."""

from __future__ import annotations

from scenario.errors import InputError
from scenario.models import Scenario
from topologies.fabric import Fabric, FabricError
from topologies.routes import Failures

#: Where the names are.
HINT = (
    "`zcube fabric show FABRIC --json` has the ids of all cables in links[].id (FABRIC may be the scenario file);"
    " a comparison needs names that all its arms have"
)


def check_events(scenario: Scenario, fabric: Fabric) -> None:
    """Raise InputError for the first name that `fabric` does not have: names the scenario, the event and the list."""
    for place, event in enumerate(scenario.faults.events):
        for which, names in (("down", event.down), ("up", event.up)):
            try:
                Failures.of(fabric, names)
            except FabricError as error:
                field = f"scenario {scenario.name}: faults.events[{place}].{which}"
                raise InputError(field, error.value, error.allowed, HINT) from None
