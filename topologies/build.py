"""From the settings of a scenario's `fabric` section to a wired fabric."""

from __future__ import annotations

from typing import Protocol

from topologies.clos import clos, fat_tree
from topologies.fabric import Fabric, FabricError
from topologies.rails import hpn, rail_only
from topologies.recursive import zcube_recursive
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
    def gpus_per_leaf(self) -> int | None: ...
    @property
    def uplinks_per_leaf(self) -> int | None: ...
    @property
    def tiers(self) -> int | None: ...
    @property
    def levels(self) -> int: ...
    @property
    def partial(self) -> bool: ...
    @property
    def equal_cost(self) -> bool: ...
    @property
    def bundle(self) -> str: ...


#: Kind -> the parameters of `FabricSettings` that it reads besides gpus, gpus_per_server, gpu_gbps and asic_ports.
READS = {
    "zcube": {"gpus_per_switch", "links_per_pair", "bundle"},
    "zcube_recursive": {"gpus_per_switch", "levels", "partial"},
    "roft": {"tiers", "gpus_per_leaf", "uplinks_per_leaf", "equal_cost"},
    "rail_only": {"tiers"},
    "hpn": set[str](),
    "clos": {"gpus_per_leaf", "uplinks_per_leaf"},
    "fat_tree": set[str](),
}


def build(settings: FabricSettings) -> Fabric:
    """Wire the fabric that the settings describe. Raises FabricError naming what does not fit and what would."""
    n, r, g, gbps = settings.gpus, settings.asic_ports, settings.gpus_per_server, settings.gpu_gbps
    if settings.kind == "zcube":
        return zcube(
            n,
            settings.gpus_per_switch or min(r, n),
            settings.links_per_pair,
            asic_ports=r,
            gpus_per_server=g,
            gpu_gbps=gbps,
            bundle=settings.bundle,
        )
    if settings.kind == "zcube_recursive":
        return zcube_recursive(
            n,
            settings.levels,
            partial=settings.partial,
            gpus_per_switch=settings.gpus_per_switch,
            asic_ports=r,
            gpus_per_server=g,
            gpu_gbps=gbps,
        )
    if settings.kind == "roft":
        return roft(
            n,
            r,
            gpus_per_server=g,
            gpu_gbps=gbps,
            tiers=settings.tiers,
            gpus_per_leaf=settings.gpus_per_leaf,
            uplinks_per_leaf=settings.uplinks_per_leaf,
            equal_cost=settings.equal_cost,
        )
    if settings.kind == "rail_only":
        return rail_only(n, r, gpus_per_server=g, gpu_gbps=gbps, tiers=settings.tiers)
    if settings.kind == "hpn":
        return hpn(n, r, gpus_per_server=g, gpu_gbps=gbps)
    if settings.kind == "clos":
        return clos(
            n,
            r,
            gpus_per_server=g,
            gpu_gbps=gbps,
            gpus_per_leaf=settings.gpus_per_leaf,
            uplinks_per_leaf=settings.uplinks_per_leaf,
        )
    if settings.kind == "fat_tree":
        return fat_tree(n, r, gpus_per_server=g, gpu_gbps=gbps)
    raise FabricError("kind", settings.kind, f"must be one of {', '.join(READS)}")
