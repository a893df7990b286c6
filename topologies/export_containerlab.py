"""A fabric as a containerlab topology (https://containerlab.dev/manual/topo-def-file/): GPUs are `linux` nodes,
switches `ovs-bridge` nodes, every cable a link.

containerlab does not make the Open vSwitch bridges of `ovs-bridge` nodes and knows nothing of their rules:
`controller.ovs_scripts` writes the scripts that do.

Hosts are configured as the testbed's own are (topologies.mn): /32 addresses, the destination's range picks the NIC
port, and ARP is off, so that no neighbour has to be learnt or listed: a frame leaves with the sender's own MAC as its
destination and the last switch rewrites it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from topologies.addresses import port_range
from topologies.fabric import End, Fabric, FabricError, Gpu, port_name
from topologies.paths import port_pairs

#: Longest interface name of Linux.
LONGEST_INTERFACE = 15
DEFAULT_IMAGE = "alpine:3"


def containerlab(fabric: Fabric, name: str, image: str = DEFAULT_IMAGE) -> str:
    """The topology file. `image` must have `ip` with `arp off` (busybox does). Raises FabricError."""
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9._-]*", name):
        raise FabricError("name", name, "letters, digits, dot, dash and underscore, not a sign first")
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9._/:@-]*", image):
        raise FabricError("image", image, "a container image such as alpine:3")
    lines = [
        "# Needs Open vSwitch with its kernel datapath, containerlab and root. In this folder, in this order:",
        "#   bash 1-bridges.sh && containerlab deploy -t fabric.clab.yml && bash 2-rules.sh",
        "# and to remove it all: containerlab destroy -t fabric.clab.yml && bash 3-remove.sh",
        f"name: {_text(name)}",
        "topology:",
        "  kinds:",
        "    linux:",
        f"      image: {_text(image)}",
        "      network-mode: none",
        "      sysctls: {net.ipv6.conf.all.disable_ipv6: 1}",
        "  nodes:",
    ]
    for switch in fabric.switches:
        lines += [f"    {_text(switch.name)}:", "      kind: ovs-bridge"]
    pairs = port_pairs(fabric)
    for gpu in fabric.gpus:
        lines += [f"    {_text(gpu.name)}:", "      kind: linux"]
        lines += ["      labels:", f"        server: {_text(gpu.server)}", "      exec:"]
        lines += [*(f"      - {_text(command)}" for command in _host_commands(gpu, pairs))]
    lines.append("  links:")
    for link in fabric.links:
        a, b = (_text(f"{end.node}:{interface(fabric, end)}") for end in (link.a, link.b))
        lines.append(f"  - endpoints: [{a}, {b}]")
    return "\n".join(lines) + "\n"


def interface(fabric: Fabric, end: End) -> str:
    """Interface name: eth1.. inside a GPU's container; a switch's ports are interfaces of the machine itself, so
    they carry the switch's name. Raises FabricError for a name that Linux would not take."""
    if end.node in fabric.gpu_by_name:
        return f"eth{end.port}"
    for name in (port_name(end), f"{end.node}-{end.port}"):
        if len(name) <= LONGEST_INTERFACE:
            return name
    raise FabricError("interface", port_name(end), f"an interface name has at most {LONGEST_INTERFACE} characters")


def _host_commands(gpu: Gpu, pairs: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """What containerlab runs in a GPU's container, one program a line and no shell."""
    for port in gpu.ports:
        if port.ip is None or port.mac is None:
            raise FabricError("GPU port", port.name, "has no address")
        yield f"ip link set dev eth{port.number} down"
        yield f"ip link set dev eth{port.number} address {port.mac}"
        yield f"ip link set dev eth{port.number} arp off"
        yield f"ip link set dev eth{port.number} up"
        yield f"ip addr add {port.ip}/32 dev eth{port.number}"
    for source, destination in pairs:
        # The range is the same for every GPU, so this one's own address tells it.
        far = port_range(destination, str(gpu.ports[destination - 1].ip))
        yield f"ip route add {far} dev eth{source} src {gpu.ports[source - 1].ip}"


def _text(value: str) -> str:
    """A YAML string that nothing can be mistaken in: YAML takes JSON's double-quoted form."""
    return json.dumps(value)
