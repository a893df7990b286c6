"""The fabric of a scenario as its faults have it plugged."""

from __future__ import annotations

from scenario.errors import InputError
from scenario.models import FaultsSection, MissingFault, SwapFault, WrongPortFault
from topologies.cabling_wiring import Wiring
from topologies.fabric import Fabric, FabricError

_HINT = "`zcube fabric show FABRIC --json` lists every cable; a comparison needs names that all its arms have"


def as_wired(faults: FaultsSection, plan: Fabric) -> Fabric:
    """`plan` with its mis-cablings made; `plan` itself where there are none. Raises InputError for unknown names."""
    wiring = Wiring(plan)
    for place, fault in enumerate(faults.miscable):
        try:
            match fault:
                case SwapFault(a=a, b=b):
                    wiring.swap(a, b)
                case WrongPortFault(cable=cable, to=to):
                    wiring.move(cable, to)
                case MissingFault(cable=cable):
                    wiring.unplug(cable)
        except FabricError as error:
            field = f"faults.miscable.{place}.{error.parameter}"
            raise InputError(field, error.value, error.allowed, _HINT) from None
    return wiring.fabric()
