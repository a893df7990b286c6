"""From the settings of a scenario's `fabric` section to a wired fabric."""

from __future__ import annotations

from typing import Protocol

from topologies.fabric import Fabric
from topologies.roft import roft
from topologies.zcube import zcube


class FabricSettings(Protocol):
    """What `build` reads; `scenario.models.FabricSection` has it."""

    @property
    def kind(self) -> str: ...
    @property
    def gpus(self) -> int: ...
    @property
    def gpus_per_server(self) -> int: ...
    @property
    def gpu_gbps(self) -> float: ...
    @property
    def asic_ports(self) -> int: ...
    @property
    def gpus_per_switch(self) -> int | None: ...
    @property
    def links_per_pair(self) -> int | None: ...
    @property
    def bundle(self) -> str: ...


def build(settings: FabricSettings) -> Fabric:
    """Wire the fabric that the settings describe. Raises FabricError naming what does not fit and what would."""
    if settings.kind == "roft":
        return roft(
            settings.gpus,
            settings.asic_ports,
            gpus_per_server=settings.gpus_per_server,
            gpu_gbps=settings.gpu_gbps,
        )
    return zcube(
        settings.gpus,
        settings.gpus_per_switch or min(settings.asic_ports, settings.gpus),
        settings.links_per_pair,
        gpus_per_server=settings.gpus_per_server,
        gpu_gbps=settings.gpu_gbps,
        bundle=settings.bundle,
    )
