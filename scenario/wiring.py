"""The fabric of a scenario as its faults have it plugged."""

from __future__ import annotations

from scenario.errors import InputError
from scenario.fault_names import HINT
from scenario.models import FaultsSection, MissingFault, SwapFault, WrongPortFault
from topologies.cabling_wiring import Wiring
from topologies.fabric import Fabric, FabricError


def as_wired(faults: FaultsSection, plan: Fabric, scenario_name: str = "") -> Fabric:
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
            of = f"scenario {scenario_name}: " if scenario_name else ""
            field = f"{of}faults.miscable[{place}].{error.parameter}"
            raise InputError(field, error.value, error.allowed, HINT) from None
    return wiring.fabric()
