"""Bill of materials of a fabric: which parts, how many, at which rate and tier; no money.

Everything is counted on the graph. The only choice made here is which access cables are short enough for copper:
those that end on a switch of one of `dac_tiers`. ZCube's port 2 goes to the even switch of its block, in reach of
3 m (SIGCOMM'25, https://doi.org/10.1145/3718958.3750503 section 4.1 and appendix L); rail-optimised fabrics spread a
server over several leaves, so theirs are fibre.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from topologies.fabric import Fabric, FabricError

#: Switch tiers whose access cables are copper unless told otherwise.
DAC_TIERS = frozenset({"even"})
#: One transceiver of this rate is the unit of "400G-equivalent modules".
MODULE_GBPS = 400.0


@dataclass(frozen=True)
class SwitchGroup:
    """Equal switches of one tier; rates in Gb/s per direction."""

    tier: str
    count: int
    ports: int
    gbps: float
    port_gbps: float


@dataclass(frozen=True)
class CableGroup:
    """Cables of one link tier, rate and material. `nic_ends` of the 2 * count ends are at GPUs."""

    tier: str
    gbps: float
    copper: bool
    count: int
    nic_ends: int

    @property
    def switch_ends(self) -> int:
        """Ends at switches."""
        return 2 * self.count - self.nic_ends

    def optics(self, nic_side: bool = True) -> int:
        """Transceivers (pieces): one for each end of a fibre, none for copper."""
        if self.copper:
            return 0
        return 2 * self.count if nic_side else self.switch_ends


@dataclass(frozen=True)
class NicGroup:
    """NICs with the same ports; one a GPU."""

    count: int
    ports: int
    port_gbps: float


@dataclass(frozen=True)
class BillOfMaterials:
    """Parts of one fabric."""

    kind: str
    gpus: int
    switches: tuple[SwitchGroup, ...]
    cables: tuple[CableGroup, ...]
    nics: tuple[NicGroup, ...]

    @property
    def switch_count(self) -> int:
        """All switches."""
        return sum(group.count for group in self.switches)

    def cable_count(self, copper: bool | None = None) -> int:
        """Cables, or only the copper ones, or only the fibre ones."""
        return sum(group.count for group in self.cables if copper in (None, group.copper))

    @property
    def cable_gbps(self) -> float:
        """Sum of the cables' rates, one direction."""
        return sum(group.count * group.gbps for group in self.cables)

    def optics(self, nic_side: bool = True) -> int:
        """Transceivers in pieces, with or without those in NICs."""
        return sum(group.optics(nic_side) for group in self.cables)

    def modules(self, nic_side: bool = True) -> float:
        """Transceivers in 400G-equivalents: a 200G end is half a module."""
        return sum(group.optics(nic_side) * group.gbps / MODULE_GBPS for group in self.cables)

    def only(self, tiers: Iterable[str]) -> BillOfMaterials:
        """The same with the cables of these link tiers only."""
        wanted = frozenset(tiers)
        cables = tuple(group for group in self.cables if group.tier in wanted)
        return BillOfMaterials(self.kind, self.gpus, self.switches, cables, self.nics)


def bill_of_materials(fabric: Fabric, dac_tiers: Iterable[str] = DAC_TIERS) -> BillOfMaterials:
    """Count the parts of a fabric. Tiers in `dac_tiers` that it does not have change nothing.

    Raises FabricError for a fabric whose bundles are trunks: there a link is not a cable.
    """
    if fabric.bundle == "trunk":
        raise FabricError("bundle", "trunk", "a trunk is several cables drawn as one: use destination to count them")
    copper_tiers = frozenset(dac_tiers)
    switches = Counter(
        (s.tier, len(s.ports), sum(p.gbps for p in s.ports), max((p.gbps for p in s.ports), default=0.0))
        for s in fabric.switches
    )
    cables: Counter[tuple[str, float, bool]] = Counter()
    nic_ends: Counter[tuple[str, float, bool]] = Counter()
    for link in fabric.links:
        far = [fabric.switch_by_name[end.node] for end in (link.a, link.b) if end.node in fabric.switch_by_name]
        gpu_ends = 2 - len(far)
        key = (link.tier, link.gbps, gpu_ends > 0 and any(switch.tier in copper_tiers for switch in far))
        cables[key] += 1
        nic_ends[key] += gpu_ends
    nics = Counter(_nic_ports([port.gbps for port in gpu.ports], gpu.name) for gpu in fabric.gpus)
    return BillOfMaterials(
        kind=fabric.kind,
        gpus=len(fabric.gpus),
        switches=tuple(
            SwitchGroup(tier, n, ports, gbps, fastest) for (tier, ports, gbps, fastest), n in switches.items()
        ),
        cables=tuple(CableGroup(*key, count, nic_ends[key]) for key, count in cables.items()),
        nics=tuple(NicGroup(count, *ports) for ports, count in nics.items()),
    )


def whole_server_tiers(fabric: Fabric) -> frozenset[str]:
    """Switch tiers on which a server's GPUs meet on one switch, so that copper could reach them."""
    switches: defaultdict[tuple[str, str], set[str]] = defaultdict(set)  # (tier, server) -> its switches
    gpus_of: Counter[str] = Counter(gpu.server for gpu in fabric.gpus)
    server_of = {gpu.name: gpu.server for gpu in fabric.gpus}
    for (gpu, _), end in fabric.attachment.items():
        switches[fabric.switch_by_name[end.node].tier, server_of[gpu]].add(end.node)
    tiers = {tier for tier, _ in switches}
    return frozenset(
        tier
        for tier in tiers
        if max(gpus_of.values()) > 1 and all(len(found) == 1 for (t, _), found in switches.items() if t == tier)
    )


def _nic_ports(rates: list[float], gpu: str) -> tuple[int, float]:
    if len(set(rates)) != 1:
        raise FabricError("gpus", gpu, f"all ports of a NIC must have one rate, got {rates}")
    return len(rates), rates[0]
