"""The one place that knows which SDN library runs: Ryu 4.34 (default), or os-ken, its continuation.

`ZCUBE_SDN=ryu` or `ZCUBE_SDN=os-ken` in the environment chooses. The two have one API: import from here,
never from the library.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

CHOICES = ("ryu", "os-ken")
VARIABLE = "ZCUBE_SDN"


class SdnError(RuntimeError):
    """The SDN library cannot be used; the text says what to do."""


def _chosen() -> str:
    name = os.environ.get(VARIABLE) or CHOICES[0]
    if name not in CHOICES:
        raise SdnError(f"{VARIABLE} = {name!r}: must be one of {', '.join(CHOICES)}")
    return name


NAME = _chosen()
PACKAGE = {"ryu": "ryu", "os-ken": "os_ken"}[NAME]

# Both libraries on one hub. os-ken's default (native threads) never reports a switch that has left: the thread that
# should is waiting for another one that nothing ends.
os.environ.setdefault("OSKEN_HUB_TYPE", "eventlet")


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SdnError(f"{NAME} cannot be imported ({error}); set up with: bash vagrant/setup.sh") from error


def library(name: str) -> Any:
    """A further module of the library, such as lib.packet.lldp, for applications that need it."""
    return _module(f"{PACKAGE}.{name}")


# No name is looked up here; eventlet's own resolver takes a tenth of a second to import.
os.environ.setdefault("EVENTLET_NO_GREENDNS", "yes")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # eventlet says that it is deprecated; Ryu has no other hub
    # Ryu's web service imports this name, which current eventlet no longer has; nothing here serves HTTP.
    _module("eventlet.wsgi").ALREADY_HANDLED = object()

# In this order: os-ken's controller imported first is a circular import.
app_manager = _module(f"{PACKAGE}.base.app_manager")
controller = _module(f"{PACKAGE}.controller.controller")
ofp_event = _module(f"{PACKAGE}.controller.ofp_event")
handler = _module(f"{PACKAGE}.controller.handler")
ofproto_v1_3 = _module(f"{PACKAGE}.ofproto.ofproto_v1_3")
ofproto_parser = _module(f"{PACKAGE}.ofproto.ofproto_parser")
ofproto_v1_3_parser = _module(f"{PACKAGE}.ofproto.ofproto_v1_3_parser")
hub = _module(f"{PACKAGE}.lib.hub")
cfg = _module(f"{PACKAGE}.cfg")

VERSION = f"{NAME} {version(NAME)}"
#: Base class of an application.
App: Any = app_manager.RyuApp if NAME == "ryu" else app_manager.OSKenApp
#: Base class of an event between applications.
EventBase: Any = _module(f"{PACKAGE}.controller.event").EventBase
set_ev_cls = handler.set_ev_cls
HANDSHAKE_DISPATCHER = handler.HANDSHAKE_DISPATCHER
CONFIG_DISPATCHER = handler.CONFIG_DISPATCHER
MAIN_DISPATCHER = handler.MAIN_DISPATCHER
DEAD_DISPATCHER = handler.DEAD_DISPATCHER


def tap_multipart(take: Callable[[Any, int, bytes], bool]) -> None:
    """Show every multipart reply to `take(datapath, xid, message)` before it is parsed; True: it is taken.

    The libraries make several objects of every rule in a reply before any handler sees it, a tenth of a millisecond
    each. What `take` refuses goes the usual way. To be called once, before switches connect.
    """
    parse = ofproto_v1_3_parser.msg_parser

    @ofproto_parser.register_msg_parser(ofproto_v1_3.OFP_VERSION)
    def parse_others(datapath: Any, version: int, kind: int, length: int, xid: int, data: bytearray) -> Any:
        if kind == ofproto_v1_3.OFPT_MULTIPART_REPLY and take(datapath, xid, bytes(data[:length])):
            return None
        return parse(datapath, version, kind, length, xid, data)


def wait_readable(descriptor: int) -> None:
    """Suspend this green thread until the descriptor can be read, and let the others run."""
    _module("eventlet.hubs").trampoline(descriptor, read=True)


def run(apps: Sequence[str], host: str, port: int) -> None:
    """Listen on (host, port) and run the applications (module names). Does not return while they run."""
    cfg.CONF(args=["--ofp-listen-host", host, "--ofp-tcp-listen-port", str(port)], project=PACKAGE)
    app_manager.AppManager.run_apps([f"{PACKAGE}.controller.ofp_handler", *apps])
