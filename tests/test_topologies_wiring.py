"""Wiring of ZCube and ROFT against tables worked by hand from the published figures, and invariants at any size."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wiring_checks import check_plugs

from topologies.build import build
from topologies.fabric import Builder, End, Fabric, FabricError
from topologies.roft import roft
from topologies.zcube import zcube

#: N = 16, k = 4: GPU -> (odd, even). Every port-1 row is 1 3 5 7 again and again, every four GPUs share an even switch.
ZCUBE_16_4 = {
    1: (1, 2), 2: (3, 2), 3: (5, 2), 4: (7, 2),
    5: (1, 4), 6: (3, 4), 7: (5, 4), 8: (7, 4),
    9: (1, 6), 10: (3, 6), 11: (5, 6), 12: (7, 6),
    13: (1, 8), 14: (3, 8), 15: (5, 8), 16: (7, 8),
}  # fmt: skip

#: The blog's figure: N = 32, k = 8, drawn for these GPUs.
ZCUBE_32_8 = {1: (1, 2), 5: (1, 2), 8: (7, 2), 9: (1, 4), 11: (5, 4), 18: (3, 6), 32: (7, 8)}


def switches_of(fabric: Fabric, gpu: int) -> tuple[int, ...]:
    ports = fabric.gpus[gpu - 1].ports
    ends = [fabric.attachment[f"gpu{gpu}", port.number] for port in ports]
    return tuple(fabric.switch_by_name[end.node].number for end in ends)


@pytest.mark.parametrize(("fabric", "table"), [(zcube(16, 4), ZCUBE_16_4), (zcube(32, 8), ZCUBE_32_8)])
def test_zcube_ports_equal_the_table(fabric: Fabric, table: dict[int, tuple[int, int]]) -> None:
    assert {gpu: switches_of(fabric, gpu) for gpu in table} == table


def test_zcube_16_4_has_one_cable_per_odd_even_pair() -> None:
    fabric = zcube(16, 4)
    between = {(link.a.node, link.b.node) for link in fabric.links if link.tier == "inter"}
    assert between == {(f"odd{o}", f"even{e}") for o in (1, 3, 5, 7) for e in (2, 4, 6, 8)}
    assert len(fabric.switches) == 8 and all(len(switch.ports) == 8 for switch in fabric.switches)
    assert Counter(link.tier for link in fabric.links) == {"access": 32, "inter": 16}


def test_addresses_say_where_a_port_is_plugged() -> None:
    first, last = zcube(32, 8).gpus[0], zcube(32, 8).gpus[17]  # gpu18: odd3 as its 5th GPU, even6 as its 2nd
    assert [port.ip for port in first.ports] == ["198.18.0.1", "198.19.0.1"]
    assert [port.ip for port in last.ports] == ["198.18.1.5", "198.19.2.2"]
    assert last.ports[1].mac == "02:00:c6:13:02:02"


def check_zcube(fabric: Fabric, gpus: int, k: int, m: int) -> None:
    groups = gpus // k
    tiers = Counter(switch.tier for switch in fabric.switches)
    assert tiers == {"odd": groups, "even": groups}
    cables = Counter((link.a.node, link.b.node) for link in fabric.links if link.tier == "inter")
    assert len(cables) == groups * groups
    assert set(cables.values()) == {1 if fabric.bundle == "trunk" else m}
    load = Counter(end.node for end in fabric.attachment.values())
    assert set(load.values()) == {k}
    if k % groups == 0:  # the two groupings are complementary: what a mis-wired generator gets wrong
        cells = Counter(switches_of(fabric, gpu.number) for gpu in fabric.gpus)
        assert len(cells) == groups * groups and set(cells.values()) == {k * k // gpus}
    check_plugs(fabric)


@pytest.mark.parametrize(
    ("gpus", "k", "m"), [(16, 4, 1), (32, 8, 2), (64, 8, 1), (256, 16, 1), (1024, 128, 16), (8, 8, 8)]
)
@pytest.mark.parametrize("bundle", ["destination", "trunk"])
def test_zcube_one_to_one(gpus: int, k: int, m: int, bundle: str) -> None:
    fabric = zcube(gpus, k, bundle=bundle)
    assert fabric.parameters["links_per_pair"] == m and fabric.parameters["oversubscription"] == 1.0
    check_zcube(fabric, gpus, k, m)
    # 1:1: each switch has as much bandwidth across as down
    for switch in fabric.switches:
        assert sum(p.gbps for p in switch.ports[:k]) == sum(p.gbps for p in switch.ports[k:]) == 200 * k


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 4), st.sampled_from(["destination", "hashed", "trunk"]))
def test_zcube_at_any_size(groups: int, k: int, m: int, bundle: str) -> None:
    fabric = zcube(groups * k, k, m, gpus_per_server=1, bundle=bundle)
    assert fabric.parameters["oversubscription"] == pytest.approx(k / (m * groups))
    check_zcube(fabric, groups * k, k, m)


def test_roft_32_8_is_the_figure() -> None:
    """Blog figure 1: 8 servers of 4 GPUs, 2 blocks, 8 leaves, 4 spines, one cable per leaf and spine."""
    fabric = roft(32, 8)
    assert Counter(switch.tier for switch in fabric.switches) == {"leaf": 8, "spine": 4}
    # rail r of a block's four servers meets on one leaf: gpu1, 5, 9, 13 on leaf1; server 5 begins the second block
    leaves = {gpu: switches_of(fabric, gpu)[0] for gpu in range(1, 33)}
    assert [gpu for gpu, leaf in leaves.items() if leaf == 1] == [1, 5, 9, 13]
    assert [gpu for gpu, leaf in leaves.items() if leaf == 4] == [4, 8, 12, 16]
    assert [gpu for gpu, leaf in leaves.items() if leaf == 5] == [17, 21, 25, 29]
    assert fabric.gpus[20].ports[0].ip == "198.18.4.2"
    assert set(fabric.parallel_ports) == {
        pair
        for x in range(1, 9)
        for y in range(1, 5)
        for pair in ((f"leaf{x}", f"spine{y}"), (f"spine{y}", f"leaf{x}"))
    }
    assert all(len(ports) == 1 for ports in fabric.parallel_ports.values())


@pytest.mark.parametrize(
    ("gpus", "r", "per_server"), [(32, 8, 4), (8, 4, 4), (64, 16, 4), (128, 16, 8), (128, 16, 4), (1024, 64, 8)]
)
def test_roft_invariants(gpus: int, r: int, per_server: int) -> None:
    fabric = roft(gpus, r, gpus_per_server=per_server)
    assert Counter(switch.tier for switch in fabric.switches) == {"leaf": 2 * gpus // r, "spine": gpus // r}
    assert all(len(switch.ports) == r for switch in fabric.switches)  # every ASIC is full
    assert len({len(ports) for ports in fabric.parallel_ports.values()}) == 1
    for gpu in fabric.gpus:  # rail-optimised: the GPUs of a leaf have one rank in their servers
        (leaf,) = switches_of(fabric, gpu.number)
        assert (gpu.number - 1) % per_server == (leaf - 1) % per_server
    check_plugs(fabric)


def test_equal_hardware() -> None:
    """The pair that is compared: equal NIC rate per GPU, equal ASICs, and a third fewer switches."""
    cube, tree = zcube(32, 8), roft(32, 8)
    assert {sum(p.gbps for p in gpu.ports) for gpu in (*cube.gpus, *tree.gpus)} == {400.0}
    assert {sum(p.gbps for p in switch.ports) for switch in (*cube.switches, *tree.switches)} == {3200.0}
    assert (len(cube.switches), len(tree.switches)) == (8, 12)


@pytest.mark.parametrize(
    ("make", "parameter", "fits"),
    [
        (lambda: zcube(40, 8), "gpus", "[32, 16, 64, 8]"),
        (lambda: zcube(36, 8), "gpus", "[32, 16, 8, 64]"),
        (lambda: zcube(18, 6, gpus_per_server=4), "gpus", "these fit"),
        (lambda: roft(40, 8, tiers=2), "gpus", "[32, 16]"),
        (lambda: roft(32, 7), "asic_ports", "even"),
        (lambda: zcube(32, 8, bundle="lacp"), "bundle", "destination, hashed, trunk"),
    ],
)
def test_errors_name_what_fits(make: object, parameter: str, fits: str) -> None:
    with pytest.raises(FabricError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.parameter == parameter
    assert fits in str(caught.value)


def test_what_an_error_offers_can_be_built() -> None:
    for count in (8, 16, 32, 64):
        zcube(count, 8)
    for count in (16, 32):
        roft(count, 8)


def test_a_port_takes_one_cable() -> None:
    cables = Builder()
    cables.cable("access", End("gpu1", 1), End("leaf1", 1), 1.0)
    with pytest.raises(FabricError, match="cable already"):
        cables.cable("access", End("gpu2", 1), End("leaf1", 1), 1.0)
    cables.cable("access", End("gpu3", 1), End("leaf1", 3), 1.0)
    with pytest.raises(FabricError, match="without a gap"):
        cables.rates("leaf1")


def test_the_public_form_is_stable() -> None:
    from scenario.models import FabricSection

    fabric = build(FabricSection())
    data = fabric.to_json()
    assert data == zcube(32, 8).to_json()
    assert set(data) == {"schema_version", "kind", "parameters", "bundle", "gpus", "switches", "links"}
    assert data["links"][0] == {  # type: ignore[index]
        "id": "gpu1-eth1--odd1-eth1",
        "tier": "access",
        "a": {"node": "gpu1", "port": 1},
        "b": {"node": "odd1", "port": 1},
        "gbps": 200.0,
    }
