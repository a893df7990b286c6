"""The statistics log, from bytes that the SDN library itself packs or that the specification gives; and its tables."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pandas as pd
import pytest

from controller import statistics_log as log
from controller.ruleset import COOKIE_KIND, COOKIE_OWNER
from emulation.openflow_polls import Tables
from results.schema import OF_FLOWS, OF_GROUPS, OF_PORTS
from results.writer import write_table
from scenario.models import FabricSection
from scenario.scale import Scale
from topologies.build import build

FABRIC = build(FabricSection(kind="roft", gpus=16, asic_ports=8))
LEAF = FABRIC.switches[0]
SCALE = Scale(rate_factor=2e-5, dilation=4.0, frame_bytes=9000)
START_NS = 1_000_000_000
LOCAL_PORT = 0xFFFFFFFE


def record(t_ns: int, kind: int, body: bytes, dpid: int = LEAF.dpid, flags: int = 0) -> bytes:
    message = struct.pack("!BBHIHH4x", 4, 19, 16 + len(body), 7, kind, flags) + body
    return log.RECORD.pack(t_ns, dpid, len(message)) + message


def port_body(port: int, rx: tuple[int, int], tx: tuple[int, int], duration_s: float, drops: int = 0) -> bytes:
    """struct ofp_port_stats: 112 bytes. rx and tx are (packets, bytes)."""
    sec, nsec = int(duration_s), round(duration_s % 1 * 1e9)
    counters = (rx[0], tx[0], rx[1], tx[1], drops, drops + 1, 0, 0, 0, 0, 0, 0)
    return struct.pack("!I4x12QII", port, *counters, sec, nsec)


def group_body(group: int, duration_s: int, total: tuple[int, int], buckets: list[tuple[int, int]]) -> bytes:
    head = struct.pack("!H2xII4xQQII", 40 + 16 * len(buckets), group, 1, *total, duration_s, 0)
    return head + b"".join(struct.pack("!QQ", *bucket) for bucket in buckets)


def group_desc_body(group: int, ports: list[int]) -> bytes:
    buckets = b"".join(
        struct.pack("!HHII4x", 32, 1, 0xFFFFFFFF, 0xFFFFFFFF) + struct.pack("!HHIH6x", 0, 16, port, 0xFFFF)
        for port in ports
    )
    return struct.pack("!HBxI", 8 + len(buckets), 1, group) + buckets


#: An instruction to output to port 3.
OUTPUT = struct.pack("!HH4x", 4, 24) + struct.pack("!HHIH6x", 0, 16, 3, 0xFFFF)


def flow_body(kind: str, match: list[tuple[str, Any]], packets: int, octets: int, duration_s: int) -> bytes:
    """An entry with a match and an output action as the SDN library packs them."""
    from controller import sdn

    parser = sdn.ofproto_v1_3_parser
    matched, packed = parser.OFPMatch(_ordered_fields=match), bytearray()
    length = matched.serialize(packed, 0)
    action = OUTPUT
    cookie = COOKIE_OWNER | 1 << 8 | COOKIE_KIND[kind]
    size = 48 + length + len(action)
    head = struct.pack("!HBxIIHHHH4xQQQ", size, 0, duration_s, 0, 300, 0, 0, 0, cookie, packets, octets)
    return head + bytes(packed[:length]) + action


def tables(*records: bytes) -> Tables:
    return Tables(FABRIC, SCALE, START_NS, io.BytesIO(b"".join(records)))


def test_port_rates_are_over_the_switches_own_time_and_the_bridge_itself_is_left_out() -> None:
    # Polled 1.5 s apart on our clock, 2 s apart on the switch's: 1,000 B in 2 s are 4,000 bit/s.
    found = tables(
        record(START_NS, log.PORT, port_body(5, (1, 60), (10, 5_000), 7.25) + port_body(LOCAL_PORT, (9, 9), (9, 9), 9)),
        record(START_NS + 1_500_000_000, log.PORT, port_body(5, (1, 60), (14, 6_000), 9.25, drops=3)),
    ).ports()
    assert found["port"].tolist() == [5, 5]
    assert found["t_wall_s"].tolist() == [0.0, 1.5] and found["t_s"].tolist() == [0.0, 0.375]
    assert np.isnan(found["tx_bps_raw"][0]) and found["tx_bps_raw"][1] == 4_000
    assert found["tx_gbps"][1] == pytest.approx(4_000 / 2e-5 / 1e9)
    assert found["tx_packets_per_wall_s"][1] == 2 and found["rx_bps_raw"][1] == 0
    assert (found["rx_drops"][1], found["tx_drops"][1]) == (3, 4)
    link = FABRIC.link_at[LEAF.name, 5]
    assert set(found["link"]) == {link.id}
    far = FABRIC.far_end(LEAF.name, 5)
    assert (found["peer"][0], found["peer_port"][0]) == (far.node, far.port)


def test_a_port_made_anew_has_no_rate_until_its_second_row() -> None:
    found = tables(
        record(START_NS, log.PORT, port_body(1, (5, 500), (5, 500), 100)),
        record(START_NS + 10**9, log.PORT, port_body(1, (1, 100), (1, 100), 0.5)),
        record(START_NS + 2 * 10**9, log.PORT, port_body(1, (2, 200), (3, 300), 1.5)),
    ).ports()
    assert np.isnan(found["tx_bps_raw"][1]) and found["tx_bps_raw"][2] == 1_600 and found["rx_bps_raw"][2] == 800


def test_buckets_have_their_ports_and_follow_a_group_that_was_repaired() -> None:
    found = tables(
        record(START_NS, log.GROUP_DESC, group_desc_body(1, [5, 6])),
        record(START_NS, log.GROUP, group_body(1, 10, (7, 700), [(3, 300), (4, 400)])),
        record(START_NS + 10**9, log.GROUP_DESC, group_desc_body(1, [6])),
        record(START_NS + 10**9, log.GROUP, group_body(1, 11, (9, 900), [(5, 500)])),
    ).groups()
    assert found["port"].tolist() == [5, 6, 6] and found["bucket"].tolist() == [0, 1, 0]
    assert found["link"].tolist() == [FABRIC.link_at[LEAF.name, port].id for port in (5, 6, 6)]
    assert found.groupby("t_s")["bytes_raw"].sum().tolist() == [700, 500]
    assert found["group_bytes_raw"].tolist() == [700, 700, 900]
    assert found["bps_raw"][2] == 1_600


def test_flows_are_named_by_their_addresses_and_a_reply_in_two_parts_is_one() -> None:
    gpu1, gpu9 = FABRIC.gpus[0], FABRIC.gpus[8]
    planned = [
        ("eth_type", 0x0800), ("ip_proto", 6), ("ipv4_src", gpu1.ports[0].ip), ("ipv4_dst", gpu9.ports[0].ip),
        ("tcp_src", 20_016), ("tcp_dst", 19_000),
    ]  # fmt: skip
    prefix = [("eth_type", 0x0800), ("ipv4_dst", ("198.18.2.0", "255.255.255.0"))]
    parts = [
        record(t, log.FLOW, flow_body(kind, match, packets, packets * 100, 50 + t // 10**9), flags=flags)
        for t, packets in ((START_NS, 1), (START_NS + 2 * 10**9, 5))
        for kind, match, flags in (("planned", planned, 1), ("prefix", prefix, 0))
    ]
    found = tables(*parts).flows()
    assert found["kind"].tolist() == ["planned", "prefix"] * 2
    assert found["match"][0] == (
        f"ip_proto=6,ipv4_src={gpu1.ports[0].ip},ipv4_dst={gpu9.ports[0].ip},tp_src=20016,tp_dst=19000"
    )
    assert found["match"][1] == "ipv4_dst=198.18.2.0/24"
    assert found.loc[0, ["src_gpu", "src_port", "dst_gpu", "dst_port"]].tolist() == ["gpu1", 1, "gpu9", 1]
    assert found.loc[1, ["src_gpu", "dst_gpu"]].isna().all()
    assert found["bps_raw"].tolist()[2:] == [1_600, 1_600] and found["packets_per_wall_s"][2] == 2


def test_the_library_reads_the_same_from_the_same_bytes() -> None:
    """Against the SDN library's own parsers, which are somebody else's reading of the specification."""
    from controller import sdn

    parser = sdn.ofproto_v1_3_parser
    body = port_body(3, (1, 2), (3, 4), 5.5, drops=7)
    (entry,), theirs = log.port_entries(body), parser.OFPPortStats.parser(body, 0)
    for name in ("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_dropped", "tx_dropped", "duration_nsec"):
        assert entry[name] == getattr(theirs, name), name
    group = parser.OFPGroupStats.parser(group_body(2, 3, (4, 5), [(1, 2), (3, 4)]), 0)
    (ours,) = log.group_entries(group_body(2, 3, (4, 5), [(1, 2), (3, 4)]))
    assert (ours.group_id, ours.packets, ours.bytes) == (group.group_id, group.packet_count, group.byte_count)
    assert list(ours.buckets) == [(b.packet_count, b.byte_count) for b in group.bucket_stats]
    described = parser.OFPGroupDescStats.parser(group_desc_body(2, [5, 6]), 0)
    ports = tuple(bucket.actions[0].port for bucket in described.buckets)
    assert list(log.bucket_ports(group_desc_body(2, [5, 6]))) == [(2, ports)]
    flow = flow_body("host", [("eth_type", 0x0800), ("ipv4_dst", "198.18.0.1")], 5, 6, 7)
    theirs, (mine,) = parser.OFPFlowStats.parser(flow, 0), log.flow_entries(flow)
    assert (mine.packets, mine.bytes, mine.cookie, mine.priority) == (
        theirs.packet_count, theirs.byte_count, theirs.cookie, theirs.priority,
    )  # fmt: skip
    assert log.match_fields(mine.match) == dict(theirs.match.items()) and mine.kind == "host"


def test_a_rule_that_leads_to_a_group_names_it_so_that_flows_join_groups() -> None:
    match = [("eth_type", 0x0800), ("ipv4_dst", ("198.18.2.0", "255.255.254.0"))]
    to_port = flow_body("fallback", match, 1, 100, 7)
    to_group = to_port[: -len(OUTPUT)] + struct.pack("!HH4x", 4, 16) + struct.pack("!HHI", 22, 8, 9)
    to_group = struct.pack("!H", len(to_group)) + to_group[2:]
    assert [entry.group_id for entry in log.flow_entries(to_port + to_group + to_port)] == [None, 9, None]
    found = tables(
        record(START_NS, log.GROUP_DESC, group_desc_body(9, [5, 6])),
        record(START_NS, log.GROUP, group_body(9, 3, (4, 500), [(1, 200), (3, 300)])),
        record(START_NS, log.FLOW, to_group),
    )
    assert found.flows().merge(found.groups(), on=["node", "group_id"])["port"].tolist() == [5, 6]
    assert found.flows()["match"].tolist() == ["ipv4_dst=198.18.2.0/23"]


def test_a_log_that_was_cut_short_gives_what_is_whole_and_a_wrong_length_is_an_error() -> None:
    whole = record(START_NS, log.PORT, port_body(1, (1, 1), (1, 1), 1))
    assert len(list(log.replies(io.BytesIO(whole + whole[:-1])))) == 1
    assert len(list(log.replies(io.BytesIO(whole + whole[:5])))) == 1
    broken = bytearray(whole)
    broken[log.RECORD.size + 3] ^= 1
    with pytest.raises(log.LogError):
        list(log.replies(io.BytesIO(bytes(broken))))


def test_tables_fit_their_schemas_also_when_nothing_was_polled(tmp_path: Any) -> None:
    full = tables(
        record(START_NS, log.PORT, port_body(1, (1, 1), (1, 1), 1)),
        record(START_NS, log.GROUP_DESC, group_desc_body(1, [5])),
        record(START_NS, log.GROUP, group_body(1, 1, (1, 1), [(1, 1)])),
        record(START_NS, log.FLOW, flow_body("host", [("eth_type", 0x0800), ("ipv4_dst", "198.18.0.1")], 5, 6, 7)),
    )
    for number, each in enumerate((full, tables())):
        for name, schema, frame in (
            ("ports", OF_PORTS, each.ports()),
            ("flows", OF_FLOWS, each.flows()),
            ("groups", OF_GROUPS, each.groups()),
        ):
            path = tmp_path / f"{name}{number}.parquet"
            write_table(path, schema, frame)
            back = pd.read_parquet(path)
            assert len(back) == 1 - number
            assert set(frame.columns) in (set(), set(schema.names))  # nothing is missing, nothing is only null
