"""Racks, lengths and lists of cables."""

from __future__ import annotations

import csv
import io
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scenario.fabric_spec import fabric_from_text
from topologies.cabling_plan import DAC, FIBRE, STOCK_M, plan_cabling, stock_length_m
from topologies.cabling_room import Layout, Place, Room, home_switches, lay_out, room_from_text, with_more_switches
from topologies.fabric import Fabric, FabricError
from topologies.roft import roft
from topologies.zcube import zcube


def check_layout(layout: Layout, fabric: Fabric) -> None:
    """Everything stands somewhere, nothing overlaps, nothing sticks out of its rack or row."""
    room = layout.room
    assert set(layout.places) == {gpu.server for gpu in fabric.gpus} | {s.name for s in fabric.switches}
    taken: Counter[tuple[str, int]] = Counter()
    for place in layout.places.values():
        assert place.u >= 1 and place.u + place.height_u - 1 <= room.rack_u
        assert 1 <= place.position <= room.racks_per_row
        taken.update((place.rack, u) for u in range(place.u, place.u + place.height_u))
    assert max(taken.values()) == 1


OTHERS = [
    fabric_from_text(text)
    for text in (
        "hpn:gpus=128,asic_ports=16", "rail_only:gpus=128,asic_ports=16", "clos:gpus=128,asic_ports=16",
        "fat_tree:gpus=128,asic_ports=8", "zcube_recursive:gpus=64,levels=3,gpus_per_switch=4",
    )
]  # fmt: skip

rooms = st.builds(
    lambda per_rack, server_u, switch_u, more_u, per_row, network: Room(
        rack_u=per_rack * server_u + more_u + network * switch_u,
        server_u=server_u,
        servers_per_rack=per_rack,
        switch_u=switch_u,
        racks_per_row=per_row,
        network_switches_per_rack=network,
    ),
    st.integers(1, 6), st.integers(1, 10), st.integers(1, 3), st.integers(0, 9), st.integers(1, 20), st.integers(1, 5),
)  # fmt: skip
fabrics = st.sampled_from(
    [zcube(32, 8), zcube(16, 4, gpus_per_server=8), zcube(64, 16, gpus_per_server=8), zcube(64, 8), roft(32, 8),
     zcube(24, 12, 1, gpus_per_server=8), roft(128, 16), *OTHERS]
)  # fmt: skip


@examples(120)
@given(fabrics, rooms)
def test_layouts_hold_in_any_room(fabric: Fabric, room: Room) -> None:
    layout = lay_out(fabric, room)
    check_layout(layout, fabric)
    more = with_more_switches(layout, [f"more{i}" for i in range(7)])
    places = [(p.rack, u) for p in more.places.values() for u in range(p.u, p.u + p.height_u)]
    assert len(set(places)) == len(places) and len(more.places) == len(layout.places) + 7
    assert all(p.u >= 1 and p.position <= room.racks_per_row for p in more.places.values())


def test_home_switches_come_from_the_graph() -> None:
    homes = home_switches(zcube(32, 8))
    assert homes == {f"even{2 * i}": (f"server{2 * i - 1}", f"server{2 * i}") for i in (1, 2, 3, 4)}
    leaves = home_switches(roft(32, 8))
    assert list(leaves) == [f"leaf{i}" for i in range(1, 9)]
    assert leaves["leaf5"] == ("server5", "server6", "server7", "server8")


def test_length_is_worked_by_hand() -> None:
    layout = lay_out(zcube(32, 8))
    server, switch = Place(1, 1, 1, 8), Place(1, 1, 20, 2)  # centres 4 U and 20 U: 16 x 44.45 mm, and 0.5 m of slack
    assert layout.length_m(server, switch) == pytest.approx(0.71 + 0.5, abs=0.005)
    next_rack = Place(1, 2, 20, 2)
    assert layout.length_m(server, next_rack) == pytest.approx(0.71 + 0.6 + 0.5, abs=0.005)
    far = Place(3, 5, 20, 2)  # up 38 U and 22 U, 0.3 m of tray twice, 4 racks, 2 rows
    assert layout.length_m(server, far) == pytest.approx(60 * 0.04445 + 0.6 + 2.4 + 4.8 + 0.5, abs=0.005)
    assert not layout.copper(server, Place(2, 1, 1, 8))  # the next row is not a neighbouring rack
    across = 2 * 38 * 0.04445 + 0.6 + 2.4 + 0.5
    assert layout.length_m(server, Place(2, 1, 1, 8)) == pytest.approx(across, abs=0.005)
    assert layout.length_m(far, server) == layout.length_m(server, far)
    assert layout.copper(server, switch) and layout.copper(server, next_rack) and not layout.copper(server, far)


@pytest.mark.parametrize(("length", "medium", "stock"), [(0.9, DAC, 1), (1.01, DAC, 2), (3, DAC, 3), (0.5, FIBRE, 5),
                                                        (5.01, FIBRE, 10), (100, FIBRE, 100)])  # fmt: skip
def test_lengths_are_rounded_up_to_stock(length: float, medium: str, stock: float) -> None:
    assert stock_length_m(medium, length) == stock


def test_what_no_stock_cable_spans_is_refused() -> None:
    with pytest.raises(FabricError, match="longest fibre"):
        plan_cabling(zcube(64, 8), Room(racks_per_row=1, row_pitch_m=50))


def test_1024_gpus_contiguous_ports_are_on_copper() -> None:
    """k = 64: 8 servers in 2 racks, the even switch in one of them: all 1,024 port-2 cables within 3 m."""
    plan = plan_cabling(zcube(1024, 64, gpus_per_server=8))
    media = Counter((cable.tier, cable.a.port if cable.tier == "access" else 0, cable.medium) for cable in plan.cables)
    assert media["access", 2, DAC] == 1024 and media["access", 2, FIBRE] == 0
    assert media["access", 1, FIBRE] > 900 and plan.beyond_reach() == []
    assert sum(int(str(total["cables"])) for total in plan.totals()) == 3 * 1024


def test_16_servers_do_not_all_fit_within_reach_and_it_says_where() -> None:
    """k = 128: 4 racks; the even switch reaches its own and both neighbours, not the fourth (4 servers, 32 GPUs)."""
    fabric = zcube(1024, 128, gpus_per_server=8)
    beyond = plan_cabling(fabric).beyond_reach()
    assert len(beyond) == 8 and {(found.cables, found.beyond) for found in beyond} == {(128, 32)}
    for found in beyond:
        row, rack = found.rack.split("-")
        far_row, far_rack = found.farthest_rack.split("-")
        assert row == far_row and abs(int(rack) - int(far_rack)) == 2
    # twice as many servers a rack: two racks, and all are within reach
    assert plan_cabling(fabric, Room(server_u=4, servers_per_rack=8)).beyond_reach() == []
    # closed racks: only the switch's own rack
    assert {found.beyond for found in plan_cabling(fabric, Room(open_sides=0)).beyond_reach()} == {96}


def test_roft_leaves_stand_in_their_block() -> None:
    fabric = roft(1024, 64, gpus_per_server=8)
    layout = lay_out(fabric)
    for leaf, servers in layout.home_switches.items():
        racks = {layout.places[server].position for server in servers if layout.places[server].row ==
                 layout.places[leaf].row}  # fmt: skip
        assert len({layout.places[server].row for server in servers}) == 1
        assert min(racks) < layout.places[leaf].position < max(racks)
    compute = {layout.places[gpu.server].rack for gpu in fabric.gpus}
    assert not compute & {layout.places[s.name].rack for s in fabric.switches if s.tier == "spine"}


@pytest.mark.parametrize("fabric", [zcube(32, 8), roft(32, 8), zcube(64, 16)])
def test_plan_lists_every_cable_once(fabric: Fabric) -> None:
    plan = plan_cabling(fabric)
    rows = list(csv.DictReader(io.StringIO(plan.to_csv())))
    assert len(rows) == len(fabric.links) == len({row["id"] for row in rows}) == len({row["label"] for row in rows})
    ends = [(row[f"{s}_device"], int(row[f"{s}_port"])) for row in rows for s in "ab"]
    assert ends == [(end.node, end.port) for link in fabric.links for end in (link.a, link.b)]
    for row, cable in zip(rows, plan.cables, strict=True):
        assert float(row["class_m"]) in STOCK_M[row["medium"]] and float(row["length_m"]) <= float(row["class_m"])
        assert (row["medium"] == DAC) == (cable.length_m <= 3 and plan.layout.direct(
            plan.layout.place_of(cable.a.device), plan.layout.place_of(cable.b.device)))  # fmt: skip
        assert row["a_device"] in row["label"] and row["b_rack"] in row["label"]
    assert plan.to_csv() == plan_cabling(fabric).to_csv()


def test_a_trunk_is_refused() -> None:
    with pytest.raises(FabricError, match="destination"):
        plan_cabling(zcube(32, 8, bundle="trunk"))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("rack_u=x", ["room.rack_u", "whole number"]),
        ("rack_u=4.5", ["room.rack_u", "whole number"]),
        ("rack_u=0", ["room.rack_u", "from 1"]),
        ("slack_m=nan", ["room.slack_m"]),
        ("slack_m=-1", ["room.slack_m"]),
        ("row_pitch_m=inf", ["room.row_pitch_m"]),
        ("height=3", ["room", "servers_per_rack"]),
        ("rack_u", ["NAME=VALUE"]),
        ("rack_u=42,rack_u=43", ["twice"]),
        ("servers_per_rack=6", ["at most 5"]),
        ("network_switches_per_rack=40", ["at most 21"]),
    ],
)
def test_rooms_that_cannot_be(text: str, parts: list[str]) -> None:
    with pytest.raises(FabricError) as caught:
        room_from_text(text)
    for part in parts:
        assert part in str(caught.value)


def test_room_text() -> None:
    assert room_from_text("") == room_from_text(None) == Room()
    assert room_from_text(" rack_u = 48 , slack_m=1") == Room(rack_u=48, slack_m=1.0)
