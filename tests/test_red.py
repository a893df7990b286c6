"""ECN: the chain of a switch port and its read-back, RED's counters in a netlink dump, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.ecn import reduce_marks
from analysis.ports import port_infos
from emulation import capability
from emulation.marks import flow_rows, port_rows
from emulation.qdisc_dump import COUNTERS, RedCounts, red_counts
from emulation.red import chain, check_thresholds, difference, red_of, weight_log
from emulation.shaping import PortShape, port_shape
from scenario.errors import InputError, MachineError
from scenario.flow_control_section import FlowControlSection
from scenario.load import load_scenario, with_changes
from scenario.models import Scenario
from topologies.build import build
from topologies.fabric import End
from topologies.paths import QueuePair
from topologies.zcube import zcube

MARKING = FlowControlSection(ecn="red", ecn_min_frames=8, ecn_max_frames=24, ecn_probability=0.1)
SHAPE = port_shape("odd1-eth9", 10e6, 9000, 512)
TBF = "qdisc replace dev odd1-eth9 root handle 1: tbf rate 10000000bit burst 18000b limit 4608000b"


def test_the_chain_of_a_port_that_marks() -> None:
    red = (
        "qdisc replace dev odd1-eth9 parent 1:1 handle 10: red limit 4608000 min 72000 max 216000 avpkt 9000 burst 13"
        " probability 0.1 bandwidth 10000000bit ecn nodrop"
    )
    assert chain(SHAPE, red_of(SHAPE, MARKING, 9000)) == (TBF, red)


def test_with_ecn_off_the_chain_is_the_shaper_alone() -> None:
    assert red_of(SHAPE, FlowControlSection(), 9000) is None
    assert chain(SHAPE, None) == (TBF,)


@given(
    frame_bytes=st.integers(576, 9214),
    low=st.integers(2, 60),
    more=st.integers(1, 60),
    rate_bps=st.floats(1e5, 1e9),
)
def test_thresholds_are_frames_and_burst_is_what_tc_accepts(
    frame_bytes: int, low: int, more: int, rate_bps: float
) -> None:
    flow_control = FlowControlSection(ecn="red", ecn_min_frames=low, ecn_max_frames=low + more)
    shape = port_shape("x", rate_bps, frame_bytes, 1024)
    red = red_of(shape, flow_control, frame_bytes)
    assert red is not None
    assert (red.min_bytes, red.max_bytes) == (low * frame_bytes, (low + more) * frame_bytes)
    assert red.limit_bytes == shape.limit_bytes and red.rate_bps == shape.rate_bps
    assert low <= red.burst_packets < low + more  # tc: burst + 1 - min/avpkt >= 1
    log = weight_log(red)
    room = red.burst_packets + 1 - low
    assert room <= (1 - (1 - 2.0**-log) ** red.burst_packets) * 2**log
    assert log == 1 or room > (1 - (1 - 2.0 ** (1 - log)) ** red.burst_packets) * 2 ** (log - 1)
    assert red.min_bytes.bit_length() + log < 32


#: What Linux 6.1 and iproute2 6.1 print (`tc -j -d qdisc show`) for the chain above.
PRINTED = {
    "kind": "red",
    "handle": "10:",
    "parent": "1:1",
    "options": {
        "limit": 4_608_000, "min": 72_000, "max": 216_000, "ecn": True, "harddrop": False, "adaptive": False,
        "nodrop": True, "ewma": 3, "probability": 0.1, "Scell_log": 16,
    },
}  # fmt: skip


def test_read_back_of_what_was_asked() -> None:
    red = red_of(SHAPE, MARKING, 9000)
    assert red is not None and difference(red, PRINTED) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"min": 71_000}, "min is 71000, not 72000"),
        ({"max": 1}, "max is 1, not 216000"),
        ({"limit": 60_000}, "limit is 60000"),
        ({"ecn": False}, "ecn is False, not True"),
        ({"nodrop": False}, "nodrop is False, not True"),
        ({"adaptive": True}, "adaptive is True, not False"),
        ({"ewma": 9}, "ewma is 9"),
        ({"probability": 0.02}, "probability is 0.02, not 0.1"),
    ],
)
def test_read_back_sees_each_difference(change: dict[str, object], words: str) -> None:
    red = red_of(SHAPE, MARKING, 9000)
    assert red is not None
    assert words in difference(red, {**PRINTED, "options": {**PRINTED["options"], **change}})  # type: ignore[dict-item]


@pytest.mark.parametrize("qdisc", [None, {"kind": "bfifo", "parent": "1:1"}])
def test_read_back_sees_that_nothing_marks(qdisc: dict[str, object] | None) -> None:
    red = red_of(SHAPE, MARKING, 9000)
    assert red is not None and "not red: nothing is marked" in difference(red, qdisc)


def test_thresholds_beyond_a_ports_queue_are_refused() -> None:
    with pytest.raises(InputError, match=r"ecn_max_frames = 24.*queue limit of a port, 24 frames"):
        red_of(port_shape("x", 1e7, 9000, 24), MARKING, 9000)
    scenario = with_changes(
        Scenario(), {"transport": {"asic_buffer_frames": 256}, "flow_control": {"ecn": "red", "ecn_max_frames": 16}}
    )
    with pytest.raises(InputError, match="queue limit of a port, 16 frames"):
        check_thresholds(scenario, build(scenario.fabric))
    off = with_changes(scenario, {"flow_control": {"ecn": "off"}})
    check_thresholds(off, build(off.fabric))


def test_thresholds_beyond_the_kernels_arithmetic_are_refused() -> None:
    wide = FlowControlSection(ecn="red", ecn_min_frames=2000, ecn_max_frames=9000)
    with pytest.raises(InputError, match="more than the kernel's RED can average"):
        red_of(PortShape("x", 10_000_000, 18_000, 90_000_000), wide, 9000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"flow_control": {"ecn_min_frames": 24}}, ("flow_control.ecn_min_frames = 24", "below")),
        ({"flow_control": {"ecn": "red"}, "transport": {"kind": "udp"}}, ("flow_control.ecn", "kind: tcp", "Swift")),
        (
            {"flow_control": {"ecn": "red"}, "transport": {"congestion_control": "bbr"}},
            ("transport.congestion_control = 'bbr", "dctcp or reno or cubic"),
        ),
        (
            {"flow_control": {"ecn": "red", "ecn_max_frames": 90}, "transport": {"asic_buffer_frames": 80}},
            ("flow_control.ecn_max_frames = 90", "asic_buffer_frames (80)"),
        ),
        ({"flow_control": {"ecn": "blue"}}, ("flow_control.ecn = 'blue'", "off, red")),
        ({"flow_control": {"ecn_min_frames": 1}}, ("flow_control.ecn_min_frames = 1", "greater than or equal to 2")),
        ({"flow_control": {"ecn_probability": 0}}, ("flow_control.ecn_probability = 0",)),
        ({"flow_control": {"ecn_frames": 3}}, ("flow_control.ecn_frames = 3", "unknown key")),
        (
            {
                "transport": {"kind": "mooncake", "congestion_control": "dctcp"},
                "routing": {"striping": "static"},
            },
            ("transport.congestion_control = 'dctcp", "mooncake"),
        ),
        (
            {"transport": {"kind": "mooncake"}, "routing": {"striping": "static"}, "flow_control": {"ecn": "red"}},
            ("flow_control.ecn = 'red", "mooncake"),
        ),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, dict[str, object]], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        with_changes(Scenario(), change)
    for word in words:
        assert word in str(caught.value)


def test_off_may_be_written_plainly_though_yaml_reads_false(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("flow_control: {ecn: off}\n")
    assert load_scenario(path).flow_control == FlowControlSection()
    path.write_text("flow_control: {ecn: on}\n")
    with pytest.raises(InputError, match="must be one of off, red"):
        load_scenario(path)


def test_thresholds_out_of_use_are_no_error() -> None:
    scenario = with_changes(
        Scenario(), {"transport": {"kind": "udp", "asic_buffer_frames": 64}, "flow_control": {"ecn_max_frames": 100}}
    )
    assert scenario.flow_control.ecn == "off"


def test_a_machine_without_red_or_dctcp_refuses_and_names_both() -> None:
    scenario = with_changes(Scenario(), {"transport": {"congestion_control": "dctcp"}, "flow_control": {"ecn": "red"}})
    found = {item.name: item for item in capability.probe()}
    missing = [name for name in ("qdisc red", "dctcp") if not found[name].ok]
    if not missing:
        capability.require_flow_control(scenario)
        return
    with pytest.raises(MachineError, match="vagrant up") as caught:
        capability.require_flow_control(scenario)
    assert caught.value.exit_code == 3
    for name in missing:
        assert name in str(caught.value) and found[name].remedy in str(caught.value)


def test_a_machine_needs_neither_without_ecn() -> None:
    capability.require_flow_control(Scenario())


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _qdisc(ifindex: int, handle: int, parent: int, kind: bytes, backlog: int, xstats: bytes = b"") -> bytes:
    """RTM_NEWQDISC: struct nlmsghdr, struct tcmsg, TCA_KIND, TCA_OPTIONS, TCA_STATS, TCA_XSTATS."""
    stats = struct.pack("QIIIIIII", 1000, 10, 0, 0, 0, 0, 1, backlog)
    assert len(stats) == COUNTERS.itemsize
    body = struct.pack("BxHiIII", 0, 0, ifindex, handle, parent, 1) + _attribute(1, kind + b"\0")
    body += _attribute(2, b"\1\2\3\4\5") + _attribute(3, stats + bytes(4))
    if xstats:
        body += _attribute(4, xstats)
    return struct.pack("IHHII", 16 + len(body), 36, 2, 1, 0) + body


def test_reds_counters_in_a_dump() -> None:
    root = 0xFFFFFFFF
    dump = b"".join(
        (
            _qdisc(1, 0, root, b"noqueue", 0),
            _qdisc(7, 0x10000, root, b"tbf", 27_000),
            _qdisc(7, 0x100000, 0x10001, b"red", 27_000, struct.pack("IIII", 1, 2, 3, 4)),
            _qdisc(8, 0x10000, root, b"tbf", 0, struct.pack("IIII", 9, 9, 9, 9)),
            _qdisc(8, 0x100000, 0x10001, b"red", 0, struct.pack("IIII", 0, 0, 0, 0xFFFFFFFF)),
        )
    )
    names = {1: "lo", 7: "odd1-eth7", 8: "odd1-eth8"}
    counts = {"odd1-eth7": RedCounts(early=1, pdrop=2, other=3, marked=4), "odd1-eth8": RedCounts(0, 0, 0, 0xFFFFFFFF)}
    assert red_counts(dump, names) == counts
    assert RedCounts(5, 5, 5, 5) - counts["odd1-eth7"] == RedCounts(4, 3, 2, 1)
    with pytest.raises(ValueError, match="message type 2"):
        red_counts(struct.pack("IHHII", 36, 2, 0, 0, 0) + bytes(20), names)


def test_the_tables_hold_what_grew() -> None:
    before = {("odd1", 1): (100, RedCounts(0, 0, 0, 5)), ("odd1", 2): (7, RedCounts(0, 1, 0, 0))}
    after = {("odd1", 1): (150, RedCounts(0, 0, 0, 25)), ("odd1", 2): (7, RedCounts(0, 1, 0, 0))}
    rows = port_rows(before, after)
    assert [(r["node"], r["port"], r["packets"], r["marked"], r["pdrop"]) for r in rows] == [
        ("odd1", 1, 50, 20, 0),
        ("odd1", 2, 0, 0, 0),
    ]
    qp = QueuePair(End("gpu1", 1), End("gpu2", 2), 3)
    (flow,) = flow_rows([qp], {0: (10, 1)}, {0: (110, 31)})
    assert flow == {
        "src_gpu": "gpu1", "src_port": 1, "dst_gpu": "gpu2", "dst_port": 2, "qp": 3,
        "delivered": 100, "delivered_ce": 30,
    }  # fmt: skip


def test_marks_by_tier() -> None:
    fabric = zcube(8, 4)
    infos = port_infos(fabric.to_json())
    to_gpu = next(key for key, info in infos.items() if info.tier == "odd to gpu")
    between = next(key for key, info in infos.items() if info.tier == "odd to even")
    ports = pd.DataFrame(
        [
            {"node": to_gpu[0], "port": to_gpu[1], "packets": 100, "marked": 25},
            {"node": between[0], "port": between[1], "packets": 100, "marked": 5},
            {"node": "odd1", "port": 99, "packets": 1, "marked": 1},
        ]
    )
    found = reduce_marks(ports, pd.DataFrame({"delivered": [50, 0], "delivered_ce": [10, 0]}), infos)
    assert (found["ecn_marked_packets"], found["ecn_marked_share"]) == (30, 0.15)
    assert found["ecn_tiers"] == {
        "odd to even": {"marked": 5, "packets": 100, "share": 0.05},
        "odd to gpu": {"marked": 25, "packets": 100, "share": 0.25},
    }
    assert (found["ecn_delivered_ce"], found["ecn_delivered_ce_share"]) == (10, 0.2)
