"""LLDP discovery as an OpenFlow application: which port hangs on which, as the switches see it before traffic.

Once, when all rules are confirmed: a rule that punts LLDP to the controller on every switch, an announcement out of
every port by packet-out, and whatever the switches hear comes back as packet-in: from other switches, and from GPUs
that announce themselves. When every port has heard somebody, or nothing new comes, the rules are taken back, so that
nothing of it is left when traffic starts.

The library has a discovery of its own (`topology.switches` with `observe_links`). It is not used, because it

* leaves out a cable between two ports of one switch, which a plug in the wrong port easily makes,
* believes the last word where a port hears several (os-ken: keeps all), and takes announcements of its own format
  only, so GPUs are not seen,
* cannot be stopped: it announces out of every port each second, into the queues that are measured, and ages links out
  that wait behind traffic,
* gives its punt rule the cookie 0, so it could not be told from foreign rules.

The library's packet classes are.

The file that this writes, whole at every change:

    {"state": "waiting" | "listening" | "done" | "failed", "error": null or text, "neighbors": [rows]}

Rows are those of `topologies.cabling_neighbours`, for switch ports. GPUs are to speak while it is `listening`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from controller import sdn
from controller.app import EventRulesConfirmed
from controller.ruleset import COOKIE_KIND, COOKIE_OWNER, TABLE
from topologies.cabling_model import Plug
from topologies.cabling_neighbours import Neighbours

lldp, ethernet, packet = (sdn.library(f"lib.packet.{name}") for name in ("lldp", "ethernet", "packet"))

ETH_TYPE_LLDP = 0x88CC
#: Above every rule of ours and of others.
PRIORITY = 0xFFFF
COOKIE = COOKIE_OWNER | COOKIE_KIND["lldp"]
_WHOLE_COOKIE = (1 << 64) - 1

#: Every port announces itself again after this long, as long as one has heard nobody.
AGAIN_S = 0.3
#: Wait no longer for the silent ones when nothing new came for this long. A healthy fabric never waits for it.
PATIENCE_S = 2.0
#: For what is answered at once: the ports' description, barriers.
ANSWER_S = 10.0
_POLL_S = 0.005
_TTL_S = 120

_path: Path | None = None


def configure(path: Path) -> None:
    """Where the file goes; to be called before the application manager makes the application."""
    global _path
    _path = path


class DiscoveryFailed(Exception):
    """A switch did not answer."""


class DiscoveryApp(sdn.App):
    """Asks once, then rests."""

    OFP_VERSIONS = [sdn.ofproto_v1_3.OFP_VERSION]  # noqa: RUF012  the library's interface

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if _path is None:
            raise RuntimeError("controller.discovery.configure() was not called")
        self.path = _path
        self.switches: Mapping[str, Any] = {}
        self.interfaces: dict[tuple[int, int], Plug] = {}
        self.neighbours = Neighbours([])
        self.news_s = 0.0
        self.barriers: set[tuple[int, int]] = set()
        self._write("waiting")

    @sdn.set_ev_cls(EventRulesConfirmed)
    def on_confirmed(self, event: Any) -> None:
        """All rules are there; the switches are those of the fabric. Only the first time counts."""
        if not self.switches:
            self.switches = event.datapaths
            sdn.hub.spawn(self._run)  # handlers run one after the other: packet-in must not wait for it

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPPacketIn, sdn.MAIN_DISPATCHER)
    def on_packet_in(self, event: Any) -> None:
        """A port has heard somebody."""
        message = event.msg
        local = self.interfaces.get((message.datapath.id, message.match["in_port"]))
        remote = sender(message.data)
        if local is not None and remote is not None and self.neighbours.hear(local, remote):
            self.news_s = time.monotonic()

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPBarrierReply, sdn.MAIN_DISPATCHER)
    def on_barrier(self, event: Any) -> None:
        """A switch has done what was sent before."""
        self.barriers.discard((event.msg.datapath.id, event.msg.xid))

    def _run(self) -> None:
        try:
            self._discover()
        except DiscoveryFailed as error:
            self._write("failed", str(error))
        except Exception as error:  # the thread's end would be seen by nobody
            self.logger.exception("discovery")
            self._write("failed", repr(error))

    def _discover(self) -> None:
        datapaths = self.switches.values()
        described = self._until(lambda: all(each.state == sdn.MAIN_DISPATCHER for each in datapaths), ANSWER_S)
        if not described:
            raise DiscoveryFailed("a switch left, or did not describe its ports")
        announcements = self._announcements()
        self._send_all({name: _serialised(each, [_punt(each)]) for name, each in self.switches.items()})
        self._write("listening")
        self.news_s = time.monotonic()
        while self.neighbours.silent and time.monotonic() - self.news_s < PATIENCE_S:
            self._send_all(announcements)
            self._until(lambda: not self.neighbours.silent, AGAIN_S)
        self._send_all(announcements)  # who has been heard by now listens by now, too: GPUs may have begun late
        self._send_all({name: _serialised(each, [_no_punt(each)]) for name, each in self.switches.items()})
        self._write("done")

    def _announcements(self) -> dict[str, bytes]:
        """For every switch, packet-outs for all of its ports; notes the ports on the way."""
        found = {}
        for name, datapath in self.switches.items():
            batch = []
            for port in datapath.ports.values():
                if not datapath.is_reserved_port(port.port_no):
                    here = Plug(name, port.name.decode())
                    self.interfaces[datapath.id, port.port_no] = here
                    batch.append(_packet_out(datapath, port.port_no, announcement(here, port.hw_addr)))
            found[name] = _serialised(datapath, batch)
        self.neighbours = Neighbours(self.interfaces.values())
        return found

    def _send_all(self, messages: Mapping[str, bytes]) -> None:
        """Send each switch its messages and a barrier, and wait until all have answered it."""
        for name, data in messages.items():
            datapath = self.switches[name]
            barrier = datapath.ofproto_parser.OFPBarrierRequest(datapath)
            batch = data + _serialised(datapath, [barrier])
            self.barriers.add((datapath.id, barrier.xid))
            datapath.send(batch)
            sdn.hub.sleep(0)
        if not self._until(lambda: not self.barriers, ANSWER_S):
            silent = {dpid for dpid, _ in self.barriers}
            names = ", ".join(name for name, datapath in self.switches.items() if datapath.id in silent)
            raise DiscoveryFailed(f"{names} did not answer within {ANSWER_S:g} s")

    @staticmethod
    def _until(true: Callable[[], bool], wait_s: float) -> bool:
        deadline = time.monotonic() + wait_s
        while not (done := true()) and time.monotonic() < deadline:
            sdn.hub.sleep(_POLL_S)
        return done

    def _write(self, state: str, error: str | None = None) -> None:
        content = {"state": state, "error": error, "neighbors": self.neighbours.rows() if state == "done" else []}
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps(content) + "\n")
        part.replace(self.path)


def announcement(port: Plug, mac: str) -> bytes:
    """The LLDP frame of a port of that MAC address; chassis ID is the device, port ID the interface."""
    tlvs = (
        lldp.ChassisID(subtype=lldp.ChassisID.SUB_LOCALLY_ASSIGNED, chassis_id=port.device.encode()),
        lldp.PortID(subtype=lldp.PortID.SUB_INTERFACE_NAME, port_id=port.port.encode()),
        lldp.TTL(ttl=_TTL_S),
        lldp.End(),
    )
    frame = packet.Packet()
    frame.add_protocol(ethernet.ethernet(dst=lldp.LLDP_MAC_NEAREST_BRIDGE, src=mac, ethertype=ETH_TYPE_LLDP))
    frame.add_protocol(lldp.lldp(tlvs))
    frame.serialize()
    return bytes(frame.data)


def sender(data: bytes) -> Plug | None:
    """Device and interface that sent an announcement; None for any other frame."""
    found = packet.Packet(data).get_protocol(lldp.lldp)
    if found is None:
        return None
    chassis, port = found.tlvs[:2]
    if (chassis.subtype, port.subtype) != (lldp.ChassisID.SUB_LOCALLY_ASSIGNED, lldp.PortID.SUB_INTERFACE_NAME):
        return None
    try:
        return Plug(chassis.chassis_id.decode(), port.port_id.decode())
    except UnicodeDecodeError:
        return None


def _serialised(datapath: Any, messages: Iterable[Any]) -> bytes:
    """Messages as they go to a switch, one after the other."""
    data = bytearray()
    for message in messages:
        datapath.set_xid(message)
        message.serialize()
        data += message.buf
    return bytes(data)


def _punt(datapath: Any) -> Any:
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    to_controller = parser.OFPActionOutput(ofproto.OFPP_CONTROLLER, ofproto.OFPCML_NO_BUFFER)
    return parser.OFPFlowMod(
        datapath,
        cookie=COOKIE,
        table_id=TABLE,
        command=ofproto.OFPFC_ADD,
        priority=PRIORITY,
        buffer_id=ofproto.OFP_NO_BUFFER,
        match=parser.OFPMatch(eth_type=ETH_TYPE_LLDP),
        instructions=[parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, [to_controller])],
    )


def _no_punt(datapath: Any) -> Any:
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    return parser.OFPFlowMod(
        datapath,
        cookie=COOKIE,
        cookie_mask=_WHOLE_COOKIE,
        table_id=TABLE,
        command=ofproto.OFPFC_DELETE,
        out_port=ofproto.OFPP_ANY,
        out_group=ofproto.OFPG_ANY,
    )


def _packet_out(datapath: Any, port: int, frame: bytes) -> Any:
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    return parser.OFPPacketOut(
        datapath=datapath,
        buffer_id=ofproto.OFP_NO_BUFFER,
        in_port=ofproto.OFPP_CONTROLLER,
        actions=[parser.OFPActionOutput(port)],
        data=frame,
    )
