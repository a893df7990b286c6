"""A Mininet switch with an Open vSwitch of its own: namespace, database, daemon, run folder (userspace datapath).

One instance per switch, because one AF_PACKET socket sends for a whole ovs-vswitchd and one instance polls all its
ports on one core: a shared instance loses packets with idle links beside it, and saturates first.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from mininet.node import Switch

from emulation.netns import Batch, inside
from emulation.sandbox import STATE_DIR
from topologies.fabric import Switch as FabricSwitch

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")


class NamespacedOvs(Switch):
    """`start` and `stop` work one by one as in Mininet; `batchStartup` starts all at the same time."""

    def __init__(self, name: str, *, plan: FabricSwitch, controller: str, **params: object) -> None:
        """`plan` gives ports and DPID; `controller` is an OpenFlow target such as tcp:100.64.0.1:6653."""
        self.plan, self.controller_target = plan, controller
        self.rundir = STATE_DIR / name
        super().__init__(name, dpid=f"{plan.dpid:016x}", **{**params, "inNamespace": True})

    @property
    def environment(self) -> dict[str, str]:
        """Environment for ovs-* tools that talk to this instance."""
        return {"OVS_RUNDIR": str(self.rundir), "OVS_DBDIR": str(self.rundir), "OVS_LOGDIR": str(self.rundir)}

    @property
    def daemon_pid(self) -> int:
        """PID of this switch's ovs-vswitchd."""
        return int((self.rundir / "ovs-vswitchd.pid").read_text())

    def ovs(self, *argv: str) -> str:
        """Run an ovs-* tool against this instance and return its output, e.g. ovs('ovs-ofctl', ...)."""
        batch = Batch()
        batch.start(inside(self.pid, list(argv)), env=self.environment)
        return batch.finish()[0]

    def bridge_transaction(self) -> list[str]:
        """The one ovs-vsctl command that makes the bridge with all its ports and its controller."""
        name = self.name
        argv = [
            # Without --no-wait: when it returns the daemon has the ports, and has dropped their qdiscs already.
            *("ovs-vsctl", f"--db=unix:{self.rundir}/db.sock", "--timeout=20"),
            *("set", "Open_vSwitch", ".", "other_config:max-idle=600000", "other_config:n-handler-threads=1"),
            *("other_config:n-revalidator-threads=1",),
            *("--", "add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure"),
            *("protocols=OpenFlow13", f"other-config:datapath-id={self.dpid}", "other-config:disable-in-band=true"),
        ]
        for port in self.plan.ports:
            argv += ["--", "add-port", name, port.name]
            argv += ["--", "set", "interface", port.name, f"ofport_request={port.number}"]
        return [*argv, "--", *self._to_controller()]

    def _to_controller(self) -> list[str]:
        # max_backoff is asked for and not heeded by Open vSwitch 3.1 (it waits 1, 2, 4, 8 s): see `connect`.
        settings = ["connection_mode=out-of-band", "max_backoff=1000"]
        return ["set-controller", self.name, self.controller_target, "--", "set", "controller", self.name, *settings]

    @classmethod
    def connect(cls, switches: Sequence[NamespacedOvs], controller: str) -> Batch:
        """Let all switches connect to a controller at another target, at once; their rules stay. Does not wait.

        A switch that has lost its controller tries the same target again after 1, 2, 4, then every 8 s; a target that
        is new to it, it tries at once.
        """
        batch = Batch()
        for switch in switches:
            switch.controller_target = controller
            argv = ["ovs-vsctl", f"--db=unix:{switch.rundir}/db.sock", "--timeout=20", "--no-wait"]
            batch.start(inside(switch.pid, [*argv, *switch._to_controller()]), env=switch.environment)
        return batch

    @classmethod
    def batchStartup(cls, switches: Sequence[NamespacedOvs]) -> Sequence[NamespacedOvs]:
        """Start all instances together, in three waves. Raises RuntimeError."""
        with tempfile.TemporaryDirectory(dir=STATE_DIR) as folder:
            empty = Path(folder) / "conf.db"
            subprocess.run(["ovsdb-tool", "create", str(empty), str(SCHEMA)], check=True, capture_output=True)
            for switch in switches:
                switch.rundir.mkdir(mode=0o700)
                shutil.copy(empty, switch.rundir / "conf.db")
        for wave in (cls._database, cls._daemon, cls.bridge_transaction):
            batch = Batch()
            for switch in switches:
                batch.start(inside(switch.pid, wave(switch)), env=switch.environment)
            batch.finish()
        return switches

    def _database(self) -> list[str]:
        return [
            *("ovsdb-server", str(self.rundir / "conf.db"), f"--remote=punix:{self.rundir}/db.sock"),
            *("--pidfile", "--detach", "--no-chdir", "--log-file", "-vconsole:off", "-vsyslog:off"),
        ]

    def _daemon(self) -> list[str]:
        return [
            *("ovs-vswitchd", f"unix:{self.rundir}/db.sock", "--pidfile", "--detach", "--no-chdir"),
            *("--log-file", "-vconsole:off", "-vsyslog:off"),
        ]

    def start(self, controllers: Iterable[object]) -> None:
        """Mininet calls it for each switch; after `batchStartup` there is nothing left to do."""
        if not (self.rundir / "ovs-vswitchd.pid").exists():
            self.batchStartup([self])

    def connected(self) -> bool:
        """Is the OpenFlow channel up?"""
        return "true" in self.ovs("ovs-vsctl", "--timeout=5", "get", "controller", self.name, "is_connected")

    def stop(self, deleteIntfs: bool = True) -> None:
        """Nothing: the sandbox's end removes daemons and interfaces."""
