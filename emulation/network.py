"""A fabric as a Mininet network: every GPU a host, every switch an Open vSwitch or the kernel, every cable a veth pair.

Mininet's objects are all there (`net['gpu1'].cmd(...)` works); only its one-command-at-a-time set-up is replaced by
batches, since forty nodes and a hundred cables would take it half a minute.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mininet.link import Intf, Link
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Host

from emulation import kernel_switch, shaping
from emulation.kernel_routes import SwitchRoutes, cable_macs
from emulation.kernel_switch import KernelSwitch
from emulation.netns import Batch, inside, write_sysctls
from emulation.offloads import switch_off
from emulation.ovs import NamespacedOvs
from emulation.shaping import PortShape
from topologies.addresses import RANGE_OF_PORT
from topologies.fabric import End, Fabric, Gpu
from topologies.paths import port_pairs

MANAGEMENT_IP = "100.64.0.1"
#: A controller that takes over listens on the other one: switches try a target that is new to them at once.
OPENFLOW_PORTS = (6653, 6654, 6655, 6656)

#: Per namespace; the host's own are never written.
HOST_SYSCTLS = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/tcp_slow_start_after_idle": "0",  # queue pairs stay open and idle between handoffs
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv4/tcp_congestion_control": "reno",
    # Nothing is lost on a healthy fabric, but a queue of frames of 4 ms makes the round trip jump: what TCP then sends
    # again would be traffic that RDMA never sends.
    "net/ipv4/tcp_rto_min_us": "1000000",
    "net/ipv4/tcp_early_retrans": "0",
    # The source ports of flows are planned: one that ended must not keep its port for the minute of TIME_WAIT.
    "net/ipv4/tcp_max_tw_buckets": "0",
}
SWITCH_SYSCTLS = {"net/ipv6/conf/all/disable_ipv6": "1", "net/ipv6/conf/default/disable_ipv6": "1"}
#: Ends of cables have interface indices of their own from here: the index that the kernel gives for the far end of a
#: veth pair then says which port of which node it is.
FIRST_IFINDEX = 10_001
OFFLOADS_OFF = ("tx", "off", "tso", "off", "gso", "off", "gro", "off")


class QuietIntf(Intf):
    """An interface that is configured in batches, not by commands of its own."""

    def config(self, **_params: object) -> dict[str, object]:
        """Nothing to do here."""
        return {}


class Cable(Link):
    """A link whose veth pair exists already."""

    @classmethod
    def makeIntfPair(cls, *_args: object, **_kwargs: object) -> None:
        """The pair was made in a batch."""


class GpuHost(Host):
    """A GPU: one namespace with the ports of its NIC."""

    def config(self, **_params: object) -> dict[str, object]:
        """Addresses and routes are set in batches."""
        return {}


@dataclass(frozen=True)
class EmulatedRates:
    """How model units become emulated ones, as far as the network needs to know."""

    bps_per_gbps: float
    frame_bytes: int
    asic_buffer_frames: int

    @property
    def mtu_bytes(self) -> int:
        """IP packet size of a full frame (14 B of Ethernet header)."""
        return self.frame_bytes - 14


@dataclass
class EmulatedNetwork:
    """The running network. `shapes` keeps what was asked of each port, by the PID of its node."""

    fabric: Fabric
    rates: EmulatedRates
    net: Mininet
    data_plane: Literal["ovs", "linux"] = "ovs"
    shapes: dict[int, list[PortShape]] = field(default_factory=dict)
    bringup_wall_s: dict[str, float] = field(default_factory=dict)

    def node_pid(self, name: str) -> int:
        """PID whose namespaces are those of the node."""
        return int(self.net[name].pid)

    @property
    def switches(self) -> list[NamespacedOvs]:
        """The Open vSwitches, in the fabric's order; none where the kernel forwards."""
        return [switch for switch in self.net.switches if isinstance(switch, NamespacedOvs)]

    @property
    def kernel_switches(self) -> list[KernelSwitch]:
        """The switches where the kernel forwards."""
        return [switch for switch in self.net.switches if isinstance(switch, KernelSwitch)]

    def queue_limit_frames(self, node: str) -> int:
        """Frames in one port's queue: a switch shares its ASIC's buffer evenly; a NIC has as much as one port."""
        switch = self.fabric.switch_by_name.get(node) or self.fabric.switches[0]
        return shaping.queue_limit_frames(self.rates.asic_buffer_frames, len(switch.ports))


def build(fabric: Fabric, rates: EmulatedRates, data_plane: Literal["ovs", "linux"] = "ovs") -> EmulatedNetwork:
    """Nodes, cables, addresses: everything up to, but without, the switches' daemons or routes. Raises RuntimeError."""
    setLogLevel("warning")
    Mininet.inited = True  # Mininet.init() would change sysctls of the whole machine, for good
    began = time.monotonic()
    net = Mininet(link=Cable, host=GpuHost, intf=QuietIntf, build=False)
    network = EmulatedNetwork(fabric, rates, net, data_plane)
    for gpu in fabric.gpus:
        net.addHost(gpu.name)
    for switch in fabric.switches:
        if data_plane == "linux":
            net.addSwitch(switch.name, cls=KernelSwitch, plan=switch)
        else:
            target = f"tcp:{MANAGEMENT_IP}:{OPENFLOW_PORTS[0]}"
            net.addSwitch(switch.name, cls=NamespacedOvs, plan=switch, controller=target)
    network.bringup_wall_s["nodes"] = time.monotonic() - began
    began = time.monotonic()
    for gpu in fabric.gpus:
        write_sysctls(network.node_pid(gpu.name), HOST_SYSCTLS)
    for switch in fabric.switches:
        write_sysctls(network.node_pid(switch.name), kernel_switch.SYSCTLS if data_plane == "linux" else SWITCH_SYSCTLS)
    _make_cables(network)
    if data_plane == "linux":
        _configure_kernel_switches(network)
    else:
        _make_management_network(network)
    _configure_interfaces(network)
    net.built = True
    network.bringup_wall_s["links"] = time.monotonic() - began
    return network


def start_switches(network: EmulatedNetwork, routes: Mapping[str, SwitchRoutes] | None = None) -> None:
    """Start every Open vSwitch, or give every kernel switch its `routes` and read them back; then shape all ports (in
    this order: add-port removes qdiscs) and read them back. Raises RuntimeError."""
    began = time.monotonic()
    if network.data_plane == "linux":
        for switch in network.kernel_switches:
            switch.routes = (routes or {}).get(switch.name)
        KernelSwitch.batchStartup(network.kernel_switches)
        if differing := kernel_switch.read_back(network.kernel_switches):
            name, what = next(iter(differing.items()))
            raise RuntimeError(f"{len(differing)} switches have not the planned routes: {name}: {what}")
    else:
        NamespacedOvs.batchStartup(network.switches)
    network.bringup_wall_s["switches"] = time.monotonic() - began
    began = time.monotonic()
    network.shapes = {}
    for owner in network.fabric.nodes:
        network.shapes[network.node_pid(owner.name)] = [
            shaping.port_shape(
                port.name,
                port.gbps * network.rates.bps_per_gbps,
                network.rates.frame_bytes,
                network.queue_limit_frames(owner.name),
            )
            for port in owner.ports
        ]
    shaping.apply(network.shapes)
    wrong = shaping.read_back(network.shapes)
    if wrong:
        raise RuntimeError(f"shaping was not accepted on {len(wrong)} ports: {next(iter(wrong.items()))}")
    network.bringup_wall_s["shaping"] = time.monotonic() - began


def make_management_bridge() -> None:
    """A bridge in the sandbox; the controller listens on its address and nowhere else. Before the controller starts."""
    lines = ["link add mgmt type bridge", f"addr add {MANAGEMENT_IP}/16 dev mgmt", "link set mgmt up"]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, capture_output=True)


def _make_cables(network: EmulatedNetwork) -> None:
    mtu = network.rates.mtu_bytes
    queues = "numtxqueues 1 numrxqueues 1"
    lines = []
    for number, link in enumerate(network.fabric.links):
        index = FIRST_IFINDEX + 2 * number
        a, b = (network.fabric.port(end.node, end.port).name for end in (link.a, link.b))
        lines.append(
            f"link add {a} index {index} netns {network.node_pid(link.a.node)} mtu {mtu} {queues}"
            f" type veth peer name {b} index {index + 1} netns {network.node_pid(link.b.node)} mtu {mtu} {queues}"
        )
    unplugged = [End(o.name, p.number) for o in network.fabric.nodes for p in o.ports]
    unplugged = [end for end in unplugged if (end.node, end.port) not in network.fabric.link_at]
    for number, end in enumerate(unplugged, 1):
        # The other end stays down in the sandbox's own namespace: the port is there and has no carrier.
        name = network.fabric.port(end.node, end.port).name
        lines.append(
            f"link add {name} netns {network.node_pid(end.node)} mtu {mtu} {queues} type veth peer name u{number}"
        )
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, capture_output=True)
    for link in network.fabric.links:
        network.net.addLink(
            network.net[link.a.node], network.net[link.b.node], port1=link.a.port, port2=link.b.port, intf=QuietIntf
        )
    for end in unplugged:
        name, node = network.fabric.port(end.node, end.port).name, network.net[end.node]
        QuietIntf(name, node=node, port=end.port, moveIntfFn=lambda *_, **__: True)  # it is there already


def _make_management_network(network: EmulatedNetwork) -> None:
    """One veth per switch to the management bridge: out of band, never part of the fabric under test."""
    lines = []
    batch = Batch()
    for number, switch in enumerate(network.fabric.switches, 1):
        pid = network.node_pid(switch.name)
        lines.append(f"link add m{number} type veth peer name mgmt0 netns {pid}")
        lines.append(f"link set m{number} master mgmt up")
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, capture_output=True)
    for number, switch in enumerate(network.fabric.switches, 1):
        address = f"100.64.{1 + number // 250}.{1 + number % 250}"
        batch.start(
            inside(network.node_pid(switch.name), ["ip", "-batch", "-"]),
            f"addr add {address}/16 dev mgmt0\nlink set mgmt0 up\nlink set lo up\n"
            + "".join(f"link set {port.name} up\n" for port in switch.ports),
        )
    batch.finish()


def _configure_kernel_switches(network: EmulatedNetwork) -> None:
    """Every cable's MAC, ARP off, up."""
    macs = cable_macs(network.fabric)
    batch = Batch()
    for switch in network.fabric.switches:
        lines = ["link set lo up"]
        for port in switch.ports:
            link = network.fabric.link_at.get((switch.name, port.number))
            address = f"address {macs[link.id]} " if link else ""
            lines.append(f"link set {port.name} {address}arp off up")
        batch.start(inside(network.node_pid(switch.name), ["ip", "-batch", "-"]), "\n".join(lines) + "\n")
    batch.finish()


def _configure_interfaces(network: EmulatedNetwork) -> None:
    batch = Batch()
    for gpu in network.fabric.gpus:
        batch.start(inside(network.node_pid(gpu.name), ["ip", "-batch", "-"]), host_commands(network.fabric, gpu))
    batch.finish()
    for gpu in network.fabric.gpus:
        host = network.net[gpu.name]
        for port in gpu.ports:
            intf = host.nameToIntf[port.name]
            intf.ip, intf.prefixLen, intf.mac = port.ip, "32", port.mac
    for owner in network.fabric.nodes:
        switch_off(network.node_pid(owner.name), [port.name for port in owner.ports])


def host_commands(fabric: Fabric, gpu: Gpu) -> str:
    """`ip -batch` lines of a GPU: /32 addresses, ARP off, and the port chosen by the destination's range.

    Routes by destination let programs use both ports that bind no source address. What binds an address leaves by its
    port, whatever the destination: after a failure two GPUs may have only ports of one group left.
    """
    lines = ["link set lo up"]
    for port in gpu.ports:
        lines += [
            f"link set {port.name} address {port.mac} arp off up",
            f"addr add {port.ip}/32 dev {port.name}",
        ]
    for src, dst in port_pairs(fabric):
        port = gpu.ports[src - 1]
        lines.append(f"route add {RANGE_OF_PORT[dst]}.0.0/16 dev {port.name} src {port.ip}")
    for port in gpu.ports if len(gpu.ports) > 1 else ():
        table = 100 + port.number
        lines += [
            f"rule add from {port.ip} lookup {table}",
            f"route add 198.18.0.0/15 dev {port.name} table {table}",
        ]
    return "\n".join(lines) + "\n"
