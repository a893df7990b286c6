"""`zcube run --pcap`, and the OpenFlow tables of the same run, held against the run's other tables."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests_root import REPOSITORY, needs_root

from analysis.captures import totals_of_run
from emulation.capture import MAX_PACKETS, check_ports
from results.reader import RunFolder
from scenario.errors import InputError
from scenario.models import FabricSection
from topologies.build import build
from topologies.fabric import End
from topologies.paths import QueuePair
from traffic.agent_tcp import HEADER

SMALL = """
name: small
fabric: {kind: roft, gpus: 16, asic_ports: 8}
scale: {rate_factor: 2.0e-5, dilation: 3.0}
workload: {kind: coding_agent, requests: 8, warmup_requests: 1, utilisation: 0.8}
telemetry: {openflow_hz: 2}
"""
NIC, UPLINKS = ("leaf1-eth1",), tuple(f"leaf1-eth{number}" for number in range(5, 9))


def test_ports_that_do_not_exist_are_named_with_those_that_do() -> None:
    fabric = build(FabricSection(kind="roft", gpus=16, asic_ports=8))
    check_ports(fabric, ["leaf1-eth5", "gpu1-eth1"])
    with pytest.raises(InputError, match=r"--pcap = 'leaf1-eth9': leaf1 has leaf1-eth1, .*leaf1-eth8"):
        check_ports(fabric, ["leaf1-eth9"])
    with pytest.raises(InputError, match=r"must be NODE-ethNUMBER of gpu1, gpu2, \.\.\. "):
        check_ports(fabric, ["odd1-eth1"])


def holders(folder: Path) -> list[str]:
    """Processes that have a file below `folder` open."""
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # processes come and go
            if os.readlink(descriptor).startswith(str(folder)):
                found.append((descriptor.parent.parent / "cmdline").read_text())
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("capture")
    (folder / "small.yaml").write_text(SMALL)
    command = [sys.executable, "-m", "cli.main", "run", str(folder / "small.yaml"), "--out", str(folder / "out")]
    asked = [text for port in (*NIC, *UPLINKS) for text in ("--pcap", port)]
    done = subprocess.run([*command, *asked, "--json"], cwd=REPOSITORY, capture_output=True, text=True, timeout=240)
    assert done.returncode in (0, 1), done.stderr  # 1: measured, and INVALID on a machine that is too busy
    json.loads(done.stdout)
    assert holders(folder) == []  # tcpdump and everything else has ended with the run
    return RunFolder(folder / "out")


@pytest.mark.root
@pytest.mark.alone
@needs_root
@pytest.mark.parametrize("ports", [NIC, UPLINKS], ids=["nic", "uplinks"])
def test_a_capture_has_every_byte_of_every_queue_pair_on_that_cable(run: RunFolder, ports: tuple[str, ...]) -> None:
    # Which uplinks carry something is the seed's choice and the placement's.
    assert sum(compared(run, port) for port in ports) > 0


def compared(run: RunFolder, port: str) -> int:
    """Hold the capture of a port against transfers.parquet; returns the rows compared."""
    captured = totals_of_run(run, port)
    (cable,) = (link["id"] for link in run.fabric()["links"] if port in link["id"].split("--"))
    transfers = run.transfers()
    # A run ends with its last measured request: handoffs of others may be under way, and are left out.
    pairs = list(zip(transfers["src_gpu"], transfers["dst_gpu"], strict=True))
    under_way = {pair for pair, status in zip(pairs, transfers["status"], strict=True) if status != "ok"}
    here = transfers[
        [cable in way and pair not in under_way for way, pair in zip(transfers["path"], pairs, strict=True)]
    ]
    scale = run.scale()
    sent: dict[QueuePair, tuple[float, float]] = {}
    for keys, rows in here.groupby(["src_gpu", "src_port", "dst_gpu", "dst_port", "qp"]):
        src, src_port, dst, dst_port, index = keys
        sent[QueuePair(End(src, int(src_port)), End(dst, int(dst_port)), index)] = (
            rows["bytes"].sum() * scale.rate_factor * scale.dilation,
            rows["wire_bytes_raw"].sum(),
        )
    with_payload = {qp for qp, traffic in captured.data.items() if traffic.payload_bytes}
    assert {qp for qp in with_payload if (qp.src.node, qp.dst.node) not in under_way} == set(sent)
    for qp, (payload, wire) in sent.items():
        traffic = captured.data[qp]
        # Model bytes are whole: one byte a row at most. A connection's greeting leaves with its first chunk.
        assert min(abs(traffic.stream_bytes - payload - more) for more in (0, HEADER.size)) <= len(here)
        assert wire * 0.999 <= traffic.wire_bytes <= 1.05 * wire  # frames sent again, or not full
        if port in NIC:  # on the way through the fabric acknowledgements have a hash of their own
            assert captured.acks[qp].packets > 0
    assert captured.other_packets == 0
    (account,) = (e for e in run.events() if e["event"] == "capture" and e["port"] == port)
    both = [*captured.data.values(), *captured.acks.values()]
    assert account["packets"] == sum(traffic.packets for traffic in both) < MAX_PACKETS
    assert account["dropped_by_kernel"] == 0 and not account["full"]
    return len(here)


@pytest.mark.root
@pytest.mark.alone
@needs_root
def test_openflow_and_the_sampler_counted_the_same_bytes(run: RunFolder) -> None:
    """Two ways to the same number: OpenFlow's port counters, and the qdiscs that `ports.parquet` is made of.

    A counter was read after the reply to the poll before had come and before its own reply did, so it lies between the
    sampler's values at these times, and equals them where they are equal.
    """
    polled, sampled = run.table("of_ports").to_pandas(), run.ports()
    by_port = dict(iter(sampled.groupby(["node", "port"], observed=True)))
    exact = moved = 0
    for key, rows in polled.groupby(["node", "port"]):
        samples = by_port[key].sort_values("t_wall_s")
        times, arrived = samples["t_wall_s"].to_numpy(), rows["t_wall_s"].to_numpy()
        for column in ("tx_bytes_raw", "tx_packets"):
            counted, values = rows[column].to_numpy(), samples[column].to_numpy()
            counted, values = counted - counted[0], values - values[0]  # nothing moves just before serving
            for number in range(2, len(rows)):
                first = np.searchsorted(times, arrived[number - 1]) - 1
                last = np.searchsorted(times, arrived[number])
                if first >= 0 and last < len(times):
                    assert values[first] <= counted[number] <= values[last], (key, column, arrived[number])
                    exact += values[first] == values[last]
            moved += counted[-1]
    assert exact > 500 and moved > 1_000_000


@pytest.mark.root
@pytest.mark.alone
@needs_root
def test_the_openflow_tables_join_with_the_rest(run: RunFolder) -> None:
    of_ports, of_flows, of_groups = (run.table(name).to_pandas() for name in ("of_ports", "of_flows", "of_groups"))
    links = {link["id"] for link in run.fabric()["links"]}
    assert set(of_ports["link"]) == links and set(of_groups["link"]) < links
    spread = of_ports.groupby(["node", "port"])["t_s"].agg(["count", "min", "max"])
    assert (spread["count"] >= 3).all() and (spread["min"] <= 0).all()
    latest = of_flows.groupby(["node", "kind", "match"], as_index=False).last()
    rules = run.rules()
    assert len(latest) == rules["rule_count"]
    planned = latest[latest["kind"] == "planned"]
    assert planned[["src_gpu", "src_port", "dst_gpu", "dst_port"]].notna().all().all()
    rates = of_ports.dropna(subset=["tx_gbps"])
    assert rates["tx_gbps"].max() > 1 and pd.notna(rates["rx_gbps"]).all()
    (account,) = (event for event in run.events() if event["event"] == "openflow polls")
    assert account["failure"] is None and account["unanswered"] == []
    assert not list(run.path.glob("*.partial"))
