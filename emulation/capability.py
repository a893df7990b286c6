"""Looks for what an emulation needs or could use; nothing is assumed. What is missing is said with its effect."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from emulation import mooncake_extra
from emulation.sandbox import REQUIRED_TOOLS, tool

_SETUP = "bash vagrant/setup.sh"


@dataclass(frozen=True)
class Capability:
    """One thing that was looked for. `needed`: without it there is no emulation at all."""

    name: str
    ok: bool
    needed: bool
    found: str
    effect: str
    remedy: str


def probe() -> list[Capability]:
    """Everything, in the order in which it matters. Changes nothing; qdiscs are tried in a namespace of their own."""
    found = [
        Capability("root", os.geteuid() == 0, True, f"user id {os.geteuid()}", "no sandbox", "sudo .venv/bin/zcube ...")
    ]
    for name, package in REQUIRED_TOOLS.items():
        place = tool(name)
        found.append(Capability(name, place is not None, True, place or "-", f"package {package} is missing", _SETUP))
    found.append(_namespaces())
    congestion = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    found.append(
        Capability("reno", "reno" in congestion, True, " ".join(congestion), "no transport", "modprobe tcp_reno")
    )
    vm = "use the virtual machine: cd vagrant && vagrant up"
    found.append(_qdisc("tbf", ["rate", "10mbit", "burst", "18000", "limit", "100000"], True, "no shaping", vm))
    found.append(_qdisc("netem", ["delay", "1ms"], False, "no added delay or random loss", vm))
    red = ["limit", "400000", "min", "30000", "max", "90000", "avpkt", "9000", "burst", "6", "ecn"]
    found.append(_qdisc("red", red, False, "no ECN marking", vm))
    found.append(Capability("dctcp", "dctcp" in congestion, False, "", "no DCTCP transport", vm))
    why = mooncake_extra.problem()
    found.append(
        Capability(
            "Mooncake Transfer Engine", why is None, False, why or mooncake_extra.version() or "works",
            "no transport.kind: mooncake", mooncake_extra.REMEDY,
        )
    )  # fmt: skip
    module = Path("/sys/module/openvswitch").exists()
    found.append(
        Capability(
            "openvswitch kernel datapath", module, False, "loaded" if module else "not loaded",
            "userspace datapath: about a quarter of the packet budget", vm,
        )
    )  # fmt: skip
    return found


def _namespaces() -> Capability:
    argv = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
    ok = os.geteuid() == 0 and subprocess.run(argv, capture_output=True, check=False).returncode == 0
    return Capability(
        "network, mount and PID namespaces", ok, True, "allowed" if ok else "refused", "no sandbox",
        "run as root on a machine or VM, not in an unprivileged container",
    )  # fmt: skip


def _qdisc(kind: str, arguments: list[str], needed: bool, effect: str, remedy: str) -> Capability:
    if os.geteuid() != 0:
        again = "sudo .venv/bin/zcube doctor"
        return Capability(f"qdisc {kind}", not needed, needed, "not tried without root", effect, again)
    argv = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", kind, *arguments]
    ok = subprocess.run(argv, capture_output=True, check=False).returncode == 0
    return Capability(f"qdisc {kind}", ok, needed, "works" if ok else "not in this kernel", effect, remedy)
