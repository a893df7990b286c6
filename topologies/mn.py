"""The fabrics for stock Mininet.

    zcube controller --topo zcube,32,8            in one terminal (or: python -m controller.launch --topo ...)
    sudo mn --custom topologies/mn.py --topo zcube,32,8 --controller remote --switch ovs,datapath=user

(or `--topo roft,32,8` in both). `mn` exec()s this file with the distribution's Python and without __file__, and
copies its names into its own, so only the standard library, Mininet and the pure package `topologies` are used,
and few names are defined.

Hosts need no ARP and no IPv6: each NIC port has a /32 address, ARP is off (a frame then carries the sender's own
MAC, and the last switch rewrites it), and the destination's range picks the port: 198.19/16 (port 2 of the
others) leaves by port 1, 198.18/16 by port 2; with one port, 198.18/16 by port 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from mininet.node import Node
from mininet.topo import Topo


def _repository() -> str:
    """The folder that holds `topologies`: from __file__, from mn's --custom, or the current one."""
    candidates = [globals().get("__file__", "")]
    for place, argument in enumerate(sys.argv):
        if argument == "--custom" and place + 1 < len(sys.argv):
            candidates += sys.argv[place + 1].split(",")
        elif argument.startswith("--custom="):
            candidates += argument[len("--custom=") :].split(",")
    folders = [os.path.dirname(os.path.dirname(os.path.abspath(path))) for path in candidates if path]
    for folder in [*folders, os.getcwd()]:
        if os.path.exists(os.path.join(folder, "topologies", "fabric.py")):
            return folder
    raise ImportError("topologies/ was not found: give the path of this file to --custom, or run mn in the repository")


if (_folder := _repository()) not in sys.path:
    sys.path.insert(0, _folder)

from topologies.addresses import RANGE_OF_PORT  # noqa: E402
from topologies.fabric import Fabric, FabricError, Gpu, port_name  # noqa: E402
from topologies.roft import roft  # noqa: E402
from topologies.zcube import zcube  # noqa: E402


def host_commands(gpu: Gpu) -> list[str]:
    """Shell commands that configure the NIC ports of a GPU inside its namespace. Pure."""
    commands = [
        "! test -d /proc/sys/net/ipv6"
        " || sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1"
    ]
    for port in gpu.ports:
        commands += [
            f"ip link set dev {port.name} down",
            f"ip addr flush dev {port.name}",
            f"ip link set dev {port.name} address {port.mac} arp off up",
            f"ip addr add {port.ip}/32 dev {port.name}",
            # Without this TCP never connects through the userspace datapath: it does not fill in checksums.
            f"! command -v ethtool >/dev/null || ethtool -K {port.name} tx off tso off gso off gro off >/dev/null",
        ]
    for port in gpu.ports:
        # Crosswise: port 1 talks to the port-2 addresses and the reverse.
        far = RANGE_OF_PORT[3 - port.number if len(gpu.ports) == 2 else port.number]
        commands.append(f"ip route add {far}.0.0/16 dev {port.name} src {port.ip}")
    return commands


class GpuHost(Node):
    """A GPU as a host: `pingall`, `iperf` and any program use both of its NIC ports as they are."""

    def config(self, gpu: Gpu | None = None, **_params: object) -> dict[str, object]:
        """Configure the ports. Mininet's own defaults (an address of 10/8, a MAC) are not wanted."""
        if gpu is None:
            raise ValueError(f"{self.name}: the topology must give a GPU")
        done = self.cmd("{ " + " && ".join(host_commands(gpu)) + "; } && echo configured")
        if "configured" not in done:
            raise RuntimeError(f"{self.name} could not be configured: {done.strip()}")
        for port in gpu.ports:
            interface = self.nameToIntf[port.name]
            interface.ip, interface.prefixLen, interface.mac = port.ip, "32", port.mac
        return {}


class FabricTopo(Topo):
    """Hosts, switches and cables of a Fabric, with its DPIDs and port numbers."""

    def add_fabric(self, fabric: Fabric) -> None:
        """Take over a fabric."""
        for gpu in fabric.gpus:
            self.addHost(gpu.name, cls=GpuHost, gpu=gpu)
        for switch in fabric.switches:
            self.addSwitch(switch.name, dpid=f"{switch.dpid:016x}", protocols="OpenFlow13", failMode="secure")
        for link in fabric.links:
            self.addLink(
                link.a.node,
                link.b.node,
                port1=link.a.port,
                port2=link.b.port,
                intfName1=port_name(link.a),
                intfName2=port_name(link.b),
            )


def _or_exit(make: Callable[..., Fabric], *numbers: int | None, **settings: Any) -> Fabric:
    """A fabric, or one message and status 2 instead of mn's traceback."""
    try:
        return make(*(None if number is None else int(number) for number in numbers), **settings)
    except (FabricError, TypeError, ValueError) as error:
        sys.stderr.write(f"--topo: {error}\n")
        raise SystemExit(2) from error


class ZCubeTopo(FabricTopo):
    """`zcube,GPUS,GPUS_PER_SWITCH[,LINKS_PER_PAIR][,bundle=destination|hashed|trunk][,gpus_per_server=4]`."""

    def build(
        self, gpus: int = 32, gpus_per_switch: int = 8, links_per_pair: int | None = None, **settings: Any
    ) -> None:
        """Called by Topo with what follows the name on the command line."""
        self.add_fabric(_or_exit(zcube, gpus, gpus_per_switch, links_per_pair, **settings))


class RoftTopo(FabricTopo):
    """`roft,GPUS,ASIC_PORTS[,gpus_per_server=4]`."""

    def build(self, gpus: int = 32, asic_ports: int = 8, **settings: Any) -> None:
        """Called by Topo with what follows the name on the command line."""
        self.add_fabric(_or_exit(roft, gpus, asic_ports, **settings))


topos = {"zcube": ZCubeTopo, "roft": RoftTopo}
