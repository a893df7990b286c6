"""Runs inside a sandbox: known packets over a fabric, then OpenFlow's counters beside the kernel's and the truth.

    python tests/emulated_statistics.py SDN

16 GPUs on ROFT. Planned flows go by exact rules, unplanned ones by select groups. Prints what each side counted.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

from controller.plan import FabricPlan, Plan
from emulation import network
from emulation.control import Controller
from emulation.netns import entered, inside
from emulation.openflow_polls import Polls, Tables
from emulation.sandbox import STATE_DIR
from scenario.models import FabricSection
from scenario.scale import Scale
from topologies.build import build
from topologies.paths import TCP, UDP, QueuePair, five_tuple, queue_pairs

FABRIC = FabricSection(kind="roft", gpus=16, asic_ports=8)
SIZES = (20, 700, 1400, 3000)
UNPLANNED_FLOWS = 24


def flows(fabric: Any) -> dict[str, list[tuple[QueuePair, int]]]:
    """Queue pairs between leaves with the source port to use, planned and not."""
    pairs = [queue_pairs(fabric, f"gpu{n}", f"gpu{(n + 8) % 16 + 1}")[0] for n in range(1, 9)]
    planned = [(qp, five_tuple(fabric, qp).src_port) for qp in pairs]
    return {"planned": planned, "unplanned": [(pairs[n % 8], 40_000 + n) for n in range(UNPLANNED_FLOWS)]}


def send(net: network.EmulatedNetwork, qp: QueuePair, source_port: int) -> None:
    flow = five_tuple(net.fabric, qp)
    with entered(net.node_pid(qp.src.node)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((flow.src_ip, source_port))
        for size in SIZES:
            sock.sendto(bytes(size), (flow.dst_ip, flow.dst_port))
            time.sleep(0.001)


def kernel_counters(net: network.EmulatedNetwork) -> dict[str, list[int]]:
    """Interface -> [rx bytes, rx packets, tx bytes, tx packets] of every switch port, as `ip -s link` has them."""
    found = {}
    for switch in net.fabric.switches:
        command = inside(net.node_pid(switch.name), ["ip", "-j", "-s", "link", "show"])
        names = {port.name for port in switch.ports}
        for link in json.loads(subprocess.run(command, capture_output=True, check=True).stdout):
            if link["ifname"] in names:
                counted = link["stats64"]
                found[link["ifname"]] = [counted[way][what] for way in ("rx", "tx") for what in ("bytes", "packets")]
    return found


def tables(polls: Polls, fabric: Any) -> Tables:
    with polls.log.open("rb") as file:
        return Tables(fabric, Scale(1e-3, 1.0, 9000), 0, file)


def latest(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    return frame.groupby(keys, as_index=False).last()


def main(sdn: str) -> dict[str, Any]:
    fabric = build(FABRIC)
    used = flows(fabric)
    plan = Plan(FabricPlan(**FABRIC.wiring), planned=tuple(qp for qp, _ in used["planned"]), protocols=(TCP, UDP))
    network.make_management_bridge()
    polls = Polls(STATE_DIR / "openflow.log", hz=20)
    with tempfile.TemporaryFile() as log:
        controller = Controller(plan, STATE_DIR, log, sdn=sdn, polls=polls)
        net = network.build(fabric, network.EmulatedRates(1e6, 9000, 4096))
        network.start_switches(net)
        status = controller.wait_confirmed()
    first = polls.start()
    receivers = []
    for gpu in fabric.gpus:
        with entered(net.node_pid(gpu.name)):
            receivers.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        receivers[-1].bind((gpu.ports[0].ip, 19_000))  # a closed port would answer with ICMP
    for kind in used.values():
        for qp, source_port in kind:
            send(net, qp, source_port)
    wanted = 2 * len(SIZES) * UNPLANNED_FLOWS  # a group on the leaf and one on the spine
    deadline = time.monotonic() + 15
    while True:  # a switch adds a flow's packets to its rule and group only now and then
        account = polls.poll()
        groups = tables(polls, fabric).groups()
        total = latest(groups, ["node", "group_id"])["group_packets"].sum()
        if (total >= wanted and account["ticks"] >= 3) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    before = kernel_counters(net)
    account = polls.finish()
    after = kernel_counters(net)
    found = tables(polls, fabric)
    ports = latest(found.ports(), ["node", "port"])
    columns = ["rx_bytes_raw", "rx_packets", "tx_bytes_raw", "tx_packets"]
    rules = latest(found.flows(), ["node", "kind", "match"])
    groups = latest(found.groups(), ["node", "group_id", "bucket"])
    summed = groups.groupby(["node", "group_id"], as_index=False)[["bytes_raw", "packets"]].sum()
    whole = latest(groups, ["node", "group_id"])
    controller.close()
    return {
        "sdn": status["sdn"],
        "rules_wanted": sum(switch["rules_wanted"] for switch in status["switches"].values()),  # type: ignore[attr-defined]
        "rules_reported": len(rules),
        "first": first,
        "account": account,
        "kernel_moved": before != after,
        "kernel": after,
        "openflow": {f"{r.node}-eth{r.port}": [int(getattr(r, c)) for c in columns] for r in ports.itertuples()},
        "buckets": summed[["bytes_raw", "packets"]].to_numpy().tolist(),
        "groups": whole[["group_bytes_raw", "group_packets"]].to_numpy().tolist(),
        "fallback_packets": int(rules.loc[rules["kind"] == "fallback", "packets"].sum()),
        "planned_packets": int(rules.loc[rules["kind"] == "planned", "packets"].sum()),
        "planned_bytes": int(rules.loc[rules["kind"] == "planned", "bytes_raw"].sum()),
        "times": int(found.ports()["t_wall_s"].nunique()),
        "clocks_agree": bool(
            (found.ports().groupby(["node", "port"])[["t_wall_s", "duration_s"]].diff().dropna() > 0).all().all()
        ),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])), flush=True)
    Path(STATE_DIR / "openflow.log").unlink()
