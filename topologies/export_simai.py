"""A fabric as a SimAI topology file (github.com/aliyun/SimAI, astra-sim-alibabacloud/inputs/topo).

The form, as SimAI's ns-3 front end reads it (network_frontend/ns3/common.h, SetupNetwork):

    nodes gpus_per_server nvswitches switches links gpu_type
    ids of the NVSwitches, then of the switches
    source destination bandwidth latency error_rate        once for each link

What that reader expects beyond the form, and what this writer does about it:

* Nodes are numbered GPUs, NVSwitches, switches; GPU i uses NVSwitch `gpus + i / gpus_per_server` (AstraSimNetwork.cc),
  so there is exactly one NVSwitch a server and the GPUs of a server are consecutive.
* It keeps one interface for each pair of neighbours: of several parallel links only the last one carries traffic.
  Parallel cables are therefore written as one link of the summed rate (`parallel="merged"`); `cables` writes each
  one, for readers that keep them apart.
* ECN thresholds are looked up by link rate (KMAX_MAP, KMIN_MAP, PMAX_MAP of SimAI.conf): `rates_without_ecn` names
  the rates of a file that the shipped map lacks.
* Routes are its own shortest paths with a hash over equal ones, not ZCube's crosswise rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topologies.fabric import Fabric, FabricError

PARALLEL = ("merged", "cables")
#: GPU types that the ns-3 front end knows; any other is read as "none".
GPU_TYPES = ("A100", "A800", "H100", "H800")
#: Rates (Gb/s) in KMAX_MAP of the SimAI.conf that SimAI ships.
ECN_GBPS = (25, 50, 100, 200, 400, 1600)


@dataclass(frozen=True)
class SimaiSettings:
    """What the graph does not say. Defaults are those of SimAI's own generator (gen_Topo_Template.py); the NVLink
    rate is 80 % of an H100's 450 GB/s per direction."""

    gpu_type: str = "H100"
    nvlink_gbps: float = 2880.0
    nvlink_latency_us: float = 0.025
    link_latency_us: float = 0.5
    error_rate: float = 0.0
    parallel: str = "merged"

    def __post_init__(self) -> None:
        """Raises FabricError for a value that the format cannot hold."""
        if self.parallel not in PARALLEL:
            raise FabricError("parallel", self.parallel, f"must be one of {', '.join(PARALLEL)}")
        if not self.gpu_type or not self.gpu_type.isalnum():
            raise FabricError("gpu_type", self.gpu_type, f"one word, such as {', '.join(GPU_TYPES)}")
        for name in ("nvlink_gbps", "nvlink_latency_us", "link_latency_us"):
            if not 0 < getattr(self, name) < 1e9:
                raise FabricError(name, getattr(self, name), "must be more than 0 and less than 1e9")
        if not 0 <= self.error_rate < 1:
            raise FabricError("error_rate", self.error_rate, "packets lost per packet: 0 or more, less than 1")


@dataclass(frozen=True)
class SimaiNumbers:
    """Node numbers of a file: GPU n is n - 1, then an NVSwitch a server, then the switches in fabric order."""

    gpus: int
    gpus_per_server: int
    nvswitches: int
    switches: dict[str, int]

    @property
    def nodes(self) -> int:
        """All nodes."""
        return self.gpus + self.nvswitches + len(self.switches)


def simai_numbers(fabric: Fabric) -> SimaiNumbers:
    """Node numbers. Raises FabricError where servers are not blocks of one size, which the format takes for granted."""
    servers: dict[str, list[int]] = {}
    for gpu in fabric.gpus:
        servers.setdefault(gpu.server, []).append(gpu.number)
    size = len(next(iter(servers.values())))
    if [number for members in servers.values() for number in members] != list(range(1, len(fabric.gpus) + 1)) or any(
        len(members) != size for members in servers.values()
    ):
        raise FabricError("servers", len(servers), "SimAI needs servers of one size with consecutive GPUs")
    first = len(fabric.gpus) + len(servers)
    return SimaiNumbers(
        len(fabric.gpus), size, len(servers), {switch.name: first + i for i, switch in enumerate(fabric.switches)}
    )


def simai(fabric: Fabric, settings: SimaiSettings | None = None) -> str:
    """The topology file. Raises FabricError."""
    settings = settings or SimaiSettings()
    numbers = simai_numbers(fabric)
    links = list(_links(fabric, settings.parallel))
    first = numbers.gpus
    head = (numbers.nodes, numbers.gpus_per_server, numbers.nvswitches, len(numbers.switches))
    lines = [
        f"{' '.join(map(str, head))} {numbers.gpus + len(links)} {settings.gpu_type}",
        " ".join(str(node) for node in range(first, numbers.nodes)),
    ]
    nvlink = _tail(settings.nvlink_gbps, settings.nvlink_latency_us, settings.error_rate)
    lines += [f"{gpu} {first + gpu // numbers.gpus_per_server} {nvlink}" for gpu in range(numbers.gpus)]
    number_of = {gpu.name: gpu.number - 1 for gpu in fabric.gpus} | numbers.switches
    lines += [
        f"{number_of[a]} {number_of[b]} {_tail(gbps, settings.link_latency_us, settings.error_rate)}"
        for a, b, gbps in links
    ]
    return "\n".join(lines) + "\n"


def rates_without_ecn(fabric: Fabric, parallel: str) -> tuple[float, ...]:
    """Rates in Gb/s that a file of this fabric has and the KMAX_MAP of SimAI's own configuration lacks."""
    return tuple(sorted({gbps for _, _, gbps in _links(fabric, parallel)} - set(ECN_GBPS)))


def _links(fabric: Fabric, parallel: str) -> Iterator[tuple[str, str, float]]:
    """(node, node, Gb/s) in fabric order, parallel cables as one link when `merged`."""
    if parallel == "cables":
        yield from ((link.a.node, link.b.node, link.gbps) for link in fabric.links)
        return
    merged: dict[tuple[str, str], float] = {}
    for link in fabric.links:
        pair = (link.a.node, link.b.node)
        merged[pair] = merged.get(pair, 0.0) + link.gbps
    yield from ((a, b, gbps) for (a, b), gbps in merged.items())


def _tail(gbps: float, latency_us: float, error_rate: float) -> str:
    """Bandwidth, latency and error rate as ns-3 reads them; no exponent, which its parsers do not all take."""
    return f"{_plain(gbps)}Gbps {_plain(latency_us / 1000)}ms {_plain(error_rate)}"


def _plain(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")
