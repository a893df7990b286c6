"""The one place that knows which SDN library runs: Ryu 4.34 (default), or os-ken, its continuation.

`ZCUBE_SDN=ryu` or `ZCUBE_SDN=os-ken` in the environment chooses. The two have one API: import from here,
never from the library.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
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

if NAME == "ryu":
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eventlet says that it is deprecated; Ryu has no other hub
        import eventlet.wsgi

    # Ryu's web service imports this name, which current eventlet no longer has; nothing here serves HTTP.
    eventlet.wsgi.ALREADY_HANDLED = object()


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"{PACKAGE}.{name}")
    except ImportError as error:
        raise SdnError(f"{NAME} cannot be imported ({error}); set up with: bash vagrant/setup.sh") from error


# In this order: os-ken's controller imported first is a circular import.
app_manager = _module("base.app_manager")
controller = _module("controller.controller")
ofp_event = _module("controller.ofp_event")
handler = _module("controller.handler")
ofproto_v1_3 = _module("ofproto.ofproto_v1_3")
hub = _module("lib.hub")
cfg = _module("cfg")

VERSION = f"{NAME} {version(NAME)}"
#: Base class of an application.
App: Any = app_manager.RyuApp if NAME == "ryu" else app_manager.OSKenApp
set_ev_cls = handler.set_ev_cls
HANDSHAKE_DISPATCHER = handler.HANDSHAKE_DISPATCHER
CONFIG_DISPATCHER = handler.CONFIG_DISPATCHER
MAIN_DISPATCHER = handler.MAIN_DISPATCHER
DEAD_DISPATCHER = handler.DEAD_DISPATCHER


def run(apps: Sequence[str], host: str, port: int) -> None:
    """Listen on (host, port) and run the applications (module names). Does not return while they run."""
    cfg.CONF(args=["--ofp-listen-host", host, "--ofp-tcp-listen-port", str(port)], project=PACKAGE)
    app_manager.AppManager.run_apps([f"{PACKAGE}.controller.ofp_handler", *apps])
