"""Captures read back: packets made by scapy, so lengths and checks come from somebody else's code."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw
from scapy.utils import PcapWriter

from analysis.captures import totals, totals_of_run
from results.reader import RunFolder
from results.writer import write_yaml
from scenario.errors import InputError
from scenario.models import FabricSection, Scenario
from topologies.build import build
from topologies.flows import queue_pair_of
from topologies.paths import FiveTuple, five_tuple, reversed_flow, walk_all_pairs

FABRIC = build(FabricSection(kind="zcube", gpus=16, asic_ports=8))
QPS = list(walk_all_pairs(FABRIC, 2))


def segment(flow: FiveTuple, seq: int, payload: int) -> Packet:
    ip = IP(src=flow.src_ip, dst=flow.dst_ip)
    tcp = TCP(sport=flow.src_port, dport=flow.dst_port, seq=seq % 2**32, flags="A", options=[("Timestamp", (1, 2))])
    return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / ip / tcp / Raw(bytes(payload))


def write(path: Path, packets: list[Packet], snap: int = 94) -> Path:
    """As tcpdump does: cut to headers, the length on the wire beside."""
    with PcapWriter(str(path), linktype=1) as writer:
        writer.write_header(None)
        for each in packets:
            data = bytes(each)
            writer.write_packet(data[:snap], sec=1, usec=0, caplen=min(snap, len(data)), wirelen=len(data))
    return path


def test_every_queue_pair_is_known_from_its_5_tuple_and_from_no_other() -> None:
    for qp in QPS:
        flow = five_tuple(FABRIC, qp)
        assert queue_pair_of(FABRIC, flow, 2) == qp
        assert queue_pair_of(FABRIC, reversed_flow(flow), 2) is None
    third = FiveTuple("198.18.0.1", "198.19.0.2", 6, 55_555, 19_000)
    assert queue_pair_of(FABRIC, third, 2) is None
    assert queue_pair_of(FABRIC, FiveTuple("10.0.0.1", "198.19.0.2", 6, 20_000, 19_000)) is None


def test_bytes_and_packets_of_each_queue_pair_and_direction(tmp_path: Path) -> None:
    one, two = QPS[0], QPS[5]
    flow, other = five_tuple(FABRIC, one), five_tuple(FABRIC, two)
    packets = [
        segment(flow, 2**32 - 1500, 1000),  # the sequence number wraps in the next one
        segment(flow, 2**32 - 500, 1000),
        segment(flow, 2**32 - 500, 1000),  # sent again
        segment(flow, 500, 300),
        segment(reversed_flow(flow), 77, 0),
        segment(other, 5, 10),
        Ether() / ARP(),
        Ether() / IP(src=flow.src_ip, dst=flow.dst_ip) / ICMP(),
        Ether() / IP(src=flow.src_ip, dst=flow.dst_ip) / UDP(sport=1, dport=2) / Raw(b"x"),
    ]
    found = totals(write(tmp_path / "x.pcap", packets), FABRIC, 2)
    data = found.data[one]
    assert (data.packets, data.payload_bytes, data.stream_bytes) == (4, 3300, 2300)
    assert data.wire_bytes == sum(len(each) for each in packets[:4])
    assert found.data[two].payload_bytes == found.data[two].stream_bytes == 10
    assert (found.acks[one].packets, found.acks[one].payload_bytes) == (1, 0)
    assert set(found.data) == {one, two} and set(found.acks) == {one}
    assert found.other_packets == 3


def test_memory_does_not_grow_with_the_capture(tmp_path: Path) -> None:
    flow = five_tuple(FABRIC, QPS[0])
    data = bytes(segment(flow, 1, 8000))
    path = tmp_path / "long.pcap"
    with PcapWriter(str(path), linktype=1) as writer:
        writer.write_header(None)
        for _ in range(30_000):
            writer.write_packet(data[:94], sec=1, usec=0, caplen=94, wirelen=len(data))
    totals(write(tmp_path / "short.pcap", [segment(flow, 1, 10)]), FABRIC)  # imports are not the capture's
    tracemalloc.start()
    found = totals(path, FABRIC)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.data[QPS[0]].packets == 30_000
    assert path.stat().st_size > 3_000_000 and peak < 500_000


def test_files_that_are_no_capture_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "pcap").mkdir()
    bad = tmp_path / "pcap" / "leaf1-eth1.pcap"
    bad.write_bytes(b"this is not a capture at all")
    with pytest.raises(InputError, match="cannot be read"):
        totals(bad, FABRIC)
    with pytest.raises(InputError, match="does not exist"):
        totals(tmp_path / "none.pcap", FABRIC)
    write_yaml(tmp_path / "scenario.yaml", Scenario().model_dump(mode="json"))
    with pytest.raises(InputError, match="captured: leaf1-eth1"):
        totals_of_run(RunFolder(tmp_path), "leaf9-eth9")
