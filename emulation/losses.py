"""Where packets were lost while serving: full queues, inside switches, or nowhere (sent again for nothing).

Inside: the sockets of an Open vSwitch, or the input queues and the IP layer of a switch that is the kernel.

A UDP receiver knows which packets came twice: those were sent again, and not lost. TCP's do not tell; they are patient
(docs/fidelity.md), so what they send again without a drop counts as lost.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from emulation.kernel_switch import dropped
from emulation.network import EmulatedNetwork
from emulation.qdisc_dump import QdiscDump, decode
from emulation.sockbuf import packet_sockets, taken

_SOL_PACKET, _PACKET_STATISTICS = 263, 6


class Losses:
    """Counters from its making until `finish`. `agents` are the totals of `AgentPool.statistics`, here those before."""

    def __init__(self, network: EmulatedNetwork, agents: Mapping[str, float]) -> None:
        self._network = network
        self._before = agents
        self._queue_before = self._queue_drops()
        self._kernel_before = self._kernel_drops()
        #: Where the packets of `socket_drops` were.
        self.place = "switch sockets" if network.data_plane == "ovs" else "the switches' kernel"
        self._sockets_since()  # reading resets them
        self.queue_drops = self.socket_drops = self.retransmits = self.duplicates = 0

    def finish(self, agents: Mapping[str, float], later: Mapping[str, float]) -> None:
        """Read everything again. `later`: the agents' totals when what was under way then has come."""
        self.queue_drops = self._queue_drops() - self._queue_before
        self.socket_drops = self._sockets_since() + self._kernel_drops() - self._kernel_before
        self.retransmits = int(agents["retransmits"] - self._before["retransmits"])
        self.duplicates = min(self.retransmits, int(later["duplicates"] - self._before["duplicates"]))

    def _queue_drops(self) -> int:
        total = 0
        for owner in self._network.fabric.nodes:
            dump = QdiscDump(self._network.node_pid(owner.name))
            data = dump.read()
            layout = dump.layout(data)
            total += sum(int(decode(data, layout, port.name)["drops"].item()) for port in owner.ports)
        return total

    def _kernel_drops(self) -> int:
        return sum(dropped(switch.pid) for switch in self._network.kernel_switches)

    def _sockets_since(self) -> int:
        """Frames that arrived at a switch and found its receive buffer full, since the last reading."""
        total = 0
        for switch in self._network.switches:
            for sock in taken(switch.daemon_pid, packet_sockets(switch.daemon_pid)):
                with sock:
                    _, drops = struct.unpack("II", sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
                    total += drops
        return total
