"""Start the controller.

    python -m controller.launch --plan plan.json --status status.json --listen 127.0.0.1 --port 6653
    python -m controller.launch --topo zcube,32,8

Our own launcher, because ryu-manager does not start on current eventlet and os-ken no longer has one. The
library is chosen by ZCUBE_SDN=ryu (default) or os-ken. Runs until SIGTERM (exit status 0) or SIGINT (130).
Exit status 1: the controller stopped by itself; 2: bad plan; 3: the port is taken, or the library is
missing.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controller import standby, status_socket
from controller.plan import Plan, PlanError, from_topo, load
from controller.ruleset import RuleSet
from controller.status import failures_before
from topologies.fabric import Fabric, FabricError
from topologies.routes import Failures

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 6653

LOG = logging.getLogger("zcube.controller")


class LaunchError(Exception):
    """The controller cannot start here; exit status 3."""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and serve. Returns an exit status only when it could not."""
    options = _parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if not options.verbose:
        for library in ("ryu", "os_ken"):
            logging.getLogger(library).setLevel(logging.WARNING)
    try:
        plan = load(options.plan) if options.topo is None else from_topo(options.topo)
        places = Places(options.status, options.socket, options.cabling, _polls(options), options.standby_fd)
        serve(plan, places, options.listen, options.port)
    except PlanError as error:
        print(f"controller: {error}", file=sys.stderr)
        return 2
    except LaunchError as error:
        print(f"controller: {error}", file=sys.stderr)
        return 3
    return 1


@dataclass(frozen=True)
class Places:
    """Files and sockets of a controller; what is None is not wanted.

    With `cabling` it also finds out which port hangs on which: see `controller.discovery`; with `socket` it tells its
    state there. `polls`: log, rate and descriptor of `controller.statistics.Settings`. `standby`: descriptor of a
    socket on which a standby waits for its order (`controller.standby`).
    """

    status: Path | None = None
    socket: Path | None = None
    cabling: Path | None = None
    polls: tuple[Path, float, int] | None = None
    standby: int | None = None


def serve(plan: Plan, places: Places, host: str, port: int) -> None:
    """Run the controller in this process until a signal ends it. Raises PlanError, LaunchError."""
    fabric = plan.build()
    expected = plan.expected_switches(fabric)
    ruleset = plan.rules(fabric)
    check_port(host, port)
    for name, path in (("status", places.status), ("socket", places.socket), ("cabling", places.cabling)):
        if path is not None:
            _check_place(name, path)
    if places.socket is not None and places.status is None:
        raise PlanError("socket", str(places.socket), "needs --status FILE: it tells what that file has")
    try:
        from controller import app, sdn  # here, so that bad input is reported before the library is loaded
    except RuntimeError as error:  # sdn.SdnError, which cannot be named when sdn did not load
        raise LaunchError(str(error)) from error
    repairer = plan.repairer(fabric)
    repairer.prepare()
    order = standby.Order(port, discover=places.cabling is not None)
    if places.standby is not None:
        order = standby.leave_behind(places.standby, order)
        check_port(host, order.port)
    _end_at_signal(places.socket)
    if places.socket is not None and places.status is not None:
        status_socket.serve(places.socket, places.status)
    before = _before(fabric, ruleset, places.status)
    app.configure(app.Settings(ruleset, expected, f"{host}:{order.port}", places.status, repairer, before))
    apps = [app.__name__]
    if places.cabling is not None and order.discover:
        from controller import discovery

        discovery.configure(places.cabling)
        apps.append(discovery.__name__)
    LOG.info(
        "%s on %s:%d for %s: %d rules for %d switches",
        sdn.VERSION, host, order.port, fabric.kind, ruleset.rule_count, len(fabric.switches),
    )  # fmt: skip
    if places.polls is not None:
        from controller import statistics

        statistics.configure(statistics.Settings(ruleset, *places.polls))
        apps.append(statistics.__name__)
    sdn.run(apps, host, order.port)


def _check_place(name: str, path: Path) -> None:
    """Raise PlanError when a file cannot be made there, or replaced by a new one."""
    if not path.parent.is_dir():
        raise PlanError(name, str(path), "its folder does not exist")
    if path.is_dir():
        raise PlanError(name, str(path), "is a folder; must be a file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PlanError(name, str(path), "its folder cannot be written to")


def _polls(options: argparse.Namespace) -> tuple[Path, float, int] | None:
    """Log, rate and descriptor of the statistics, if they are wanted. Raises PlanError."""
    if options.statistics is None:
        return None
    _check_place("statistics", options.statistics)
    if not 0 <= options.statistics_hz <= 1000:
        raise PlanError("statistics-hz", options.statistics_hz, "must be from 0 (on order only) to 1000")
    try:
        socket.socket(fileno=os.dup(options.statistics_fd)).close()
    except OSError:
        allowed = "must be an inherited socket, on which the orders come: --statistics needs one"
        raise PlanError("statistics-fd", options.statistics_fd, allowed) from None
    return options.statistics, options.statistics_hz, options.statistics_fd


def _before(fabric: Fabric, ruleset: RuleSet, status_path: Path | None) -> Failures | None:
    """What the controller that left this status file had repaired; None: there was none, or it had another fabric."""
    names = failures_before(status_path, ruleset.dpids, ruleset.version)
    try:
        return None if names is None else Failures.of(fabric, names)
    except FabricError:
        return None


def check_port(host: str, port: int) -> None:
    """Raise LaunchError when one cannot listen there: the library would only log a traceback, and hang."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))  # no listen: somebody might take this process for one that is ready
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise LaunchError(
                f"cannot listen on {host}:{port}: {reason}\n"
                "  choose another with --port, or end the controller that has it (ss -ltnp shows it)"
            ) from error


def _end_at_signal(socket_path: Path | None) -> None:
    """End the process at SIGTERM or SIGINT, at once: neither library stops its threads cleanly, all files are whole.
    The socket goes too.

    A thread waits for the byte that the interpreter writes when a signal comes. A Python handler alone would not do: it
    runs in the main thread, which may be asleep in a lock (os-ken's threads) or in epoll, and not be woken.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def wait() -> None:
        while (number := os.read(reading, 1)[0]) not in (signal.SIGTERM, signal.SIGINT):
            pass
        if socket_path is not None:
            socket_path.unlink(missing_ok=True)
        os._exit(0 if number == signal.SIGTERM else 130)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m controller.launch",
        description="SDN controller of the testbed: installs the plan's paths on every switch that connects.",
        epilog="for stock Mininet: python -m controller.launch --topo zcube,32,8 and, in a second terminal, "
        "sudo mn --custom topologies/mn.py --topo zcube,32,8 --controller remote --switch ovs,datapath=user",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--plan", type=Path, metavar="FILE", help="plan.json: fabric, seed, planned queue pairs")
    source.add_argument("--topo", metavar="TOPO", help="as for mn: zcube,GPUS,GPUS_PER_SWITCH or roft,GPUS,ASIC_PORTS")
    parser.add_argument(
        "--status", type=Path, metavar="FILE", help="where to keep the state of the installation (JSON)"
    )
    parser.add_argument("--socket", type=Path, metavar="FILE", help="private Unix socket that tells the state")
    parser.add_argument(
        "--cabling", type=Path, metavar="FILE", help="discover by LLDP which port hangs on which; kept here (JSON)"
    )
    parser.add_argument("--listen", default=DEFAULT_HOST, metavar="ADDRESS", help="default %(default)s")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="default %(default)s")
    parser.add_argument("--statistics", type=Path, metavar="FILE", help="log of polled counters; needs --statistics-fd")
    parser.add_argument("--statistics-hz", type=float, default=1.0, metavar="HZ", help="default %(default)s")
    parser.add_argument("--statistics-fd", type=int, default=-1, metavar="FD", help="inherited socket with its orders")
    parser.add_argument("--standby-fd", type=int, metavar="FD", help="inherited socket: a standby waits there")
    parser.add_argument("--verbose", action="store_true", help="log the library's messages too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
