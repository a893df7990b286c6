"""Planned against observed cables: every mis-wiring found and named, none invented, and the fixes lead to the plan."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from cabling_faults import Vandal, cables_in, replug, seen_from_both_sides, seen_from_one_side, wired
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scenario.fabric_spec import fabric_from_text
from topologies.cabling_model import Cable, Plug, Report, Sighting, planned_cables, repaired
from topologies.cabling_verify import verify
from topologies.fabric import FabricError
from topologies.roft import roft
from topologies.zcube import zcube

FABRICS = [zcube(16, 4), zcube(8, 8, gpus_per_server=4), roft(16, 8), fabric_from_text("hpn:gpus=16,asic_ports=4"),
           zcube(32, 8)]  # fmt: skip
PLANS = [planned_cables(fabric) for fabric in FABRICS]
CUBE = planned_cables(zcube(32, 8))


def plug(text: str) -> Plug:
    device, port = text.split(":")
    return Plug(device, port)


def observed(plan: tuple[Cable, ...], moves: dict[str, str]) -> list[Sighting]:
    wiring = wired(plan)
    replug(wiring, {plug(a): plug(b) for a, b in moves.items()})
    return seen_from_both_sides(wiring, random.Random(1))


def told(report: Report) -> list[tuple[str, str]]:
    return [(fault.kind, fault.fix) for fault in report.faults]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("look", [seen_from_one_side, seen_from_both_sides])
def test_as_planned_is_clean_from_either_side(plan: tuple[Cable, ...], look: object) -> None:
    report = verify(plan, look(wired(plan), random.Random(3)))  # type: ignore[operator]
    assert report.clean and report.agreeing == report.planned == len(plan)
    assert not report.unknown_devices and not report.unknown_ports


def test_a_swap_is_one_fault_with_its_fix() -> None:
    report = verify(CUBE, observed(CUBE, {"odd1:3": "odd1:7", "odd1:7": "odd1:3"}))
    assert told(report) == [("swapped", "exchange the plugs in odd1 port 3 and odd1 port 7")]
    assert set(report.faults[0].cables) == {"gpu9-eth1--odd1-eth3", "gpu25-eth1--odd1-eth7"}


def test_a_swap_at_either_end_is_fixed_where_one_device_is_touched() -> None:
    """Exchanged at the GPUs' ends of two cables of one switch: ports see the same, and one walk fixes it."""
    report = verify(CUBE, observed(CUBE, {"gpu9:1": "gpu25:1", "gpu25:1": "gpu9:1"}))
    assert told(report) == [("swapped", "exchange the plugs in odd1 port 3 and odd1 port 7")]


def test_a_rotation_is_one_fault() -> None:
    report = verify(CUBE, observed(CUBE, {"odd1:3": "odd1:7", "odd1:7": "odd1:10", "odd1:10": "odd1:3"}))
    ring = "odd1 port 3 -> odd1 port 10 -> odd1 port 7 -> odd1 port 3"
    assert told(report) == [("rotated", f"take 3 plugs out and put each into the next port of the ring: {ring}")]


def test_a_moved_plug_is_in_the_wrong_port() -> None:
    report = verify(CUBE, observed(CUBE, {"even2:3": "even2:40"}))
    assert told(report) == [("wrong_port", "move the plug in even2 port 40 to even2 port 3")]
    assert report.unknown_ports == (Plug("even2", "40"),)


def test_missing_extra_and_strangers_are_named() -> None:
    wiring = wired(CUBE)
    del wiring[wiring.pop(Plug("odd1", "3"))]
    a, b = Plug("even2", "50"), Plug("toaster", "1")
    wiring[a], wiring[b] = b, a
    report = verify(CUBE, seen_from_both_sides(wiring, random.Random(1)))
    assert sorted(told(report)) == [
        ("extra", "take out the cable from even2 port 50 to toaster port 1"),
        ("missing", "plug cable gpu9-eth1--odd1-eth3 into gpu9 port 1 and odd1 port 3"),
    ]
    assert report.unknown_devices == ("toaster",)


def test_a_plug_in_the_place_of_a_missing_cable() -> None:
    """Two faults: what was pulled out, and what was put there."""
    wiring = wired(CUBE)
    del wiring[wiring.pop(Plug("odd1", "3"))]
    replug(wiring, {Plug("odd1", "7"): Plug("odd1", "3")})
    report = verify(CUBE, seen_from_both_sides(wiring, random.Random(1)))
    assert told(report) == [
        ("wrong_port", "move the plug in odd1 port 3 to odd1 port 7"),
        ("missing", "plug cable gpu9-eth1--odd1-eth3 into gpu9 port 1 and odd1 port 3"),
    ]


def test_a_dead_fibre_is_one_sided() -> None:
    rows = [row for row in observed(CUBE, {}) if row.local != Plug("odd1", "9")]
    report = verify(CUBE, rows)
    (fault,) = report.faults
    assert fault.kind == "one_sided" and fault.cables == ("odd1-eth9--even2-eth9",)
    assert fault.seen == "even2 port 9 sees odd1 port 9, odd1 port 9 sees nobody"
    # the same from a map that has each cable once only: nothing to say
    assert verify(CUBE, rows, sides="one").clean


def test_a_dead_fibre_of_a_device_with_one_port() -> None:
    plan = planned_cables(roft(16, 8))
    rows = [row for row in observed(plan, {}) if row.local.device != "gpu5"]
    assert [fault.kind for fault in verify(plan, rows).faults] == ["one_sided"]


def test_gpus_without_lldp_are_no_faults() -> None:
    plan = planned_cables(roft(16, 8))
    rows = [row for row in observed(plan, {}) if not row.local.device.startswith("gpu")]
    report = verify(plan, rows)
    assert report.clean and report.both_sides
    assert any("16 devices report nothing themselves" in note for note in report.notes)
    assert len(verify(plan, rows, sides="both").faults) == 16


def test_contradictions_are_named_with_every_claim() -> None:
    rows = [*observed(CUBE, {}), Sighting(Plug("odd1", "3"), Plug("even4", "1")), Sighting(plug("x:1"), plug("odd1:3"))]
    report = verify(CUBE, rows)
    by_plug = {fault.plugs[0]: fault for fault in report.faults}
    assert {fault.kind for fault in report.faults} == {"contradictory"}
    assert set(by_plug) == {Plug("odd1", "3"), Plug("even4", "1")}
    assert by_plug[Plug("odd1", "3")].seen == (
        "odd1 port 3 sees even4 port 1; odd1 port 3 sees gpu9 port 1; x port 1 sees odd1 port 3"
    )
    assert "the plan has gpu9 port 1 there" in by_plug[Plug("odd1", "3")].fix


def test_what_two_ends_say_goes_before_the_plan() -> None:
    plan = [Cable("1", plug("a:1"), plug("b:1")), Cable("2", plug("a:2"), plug("b:2"))]
    rows = [Sighting(plug("a:1"), plug("b:2")), Sighting(plug("b:2"), plug("a:1")), Sighting(plug("a:2"), plug("b:2"))]
    report = verify(plan, rows)
    assert [fault.kind for fault in report.faults] == ["contradictory", "wrong_port", "missing"]


def test_a_loopback_plug() -> None:
    rows = [*observed(CUBE, {}), Sighting(Plug("odd1", "77"), Plug("odd1", "77"))]
    assert told(verify(CUBE, rows)) == [("loop", "take the loopback plug out of odd1 port 77")]


def test_nothing_seen_is_everything_missing() -> None:
    report = verify(CUBE, [])
    assert report.counts() == {"missing": len(CUBE)}
    assert verify([], []).clean


def test_the_plan_of_another_fabric_is_said() -> None:
    report = verify(CUBE, seen_from_both_sides(wired(planned_cables(roft(32, 8))), random.Random(1)))
    assert report.agreeing == 0 and any("plan of this fabric?" in note for note in report.notes)
    assert "leaf1" in report.unknown_devices
    assert repaired(wired(planned_cables(roft(32, 8))), report.faults) == wired(CUBE)


def test_domain_names_and_case_get_a_hint() -> None:
    rows = [row._replace(local=Plug("ODD1.hall.example", row.local.port)) if row.local.device == "odd1" else row
            for row in observed(CUBE, {})]  # fmt: skip
    assert any("did you mean odd1?" in note for note in verify(CUBE, rows).notes)


@pytest.mark.parametrize(
    "plan",
    [
        [Cable("1", plug("a:1"), plug("b:1")), Cable("1", plug("a:2"), plug("b:2"))],
        [Cable("1", plug("a:1"), plug("b:1")), Cable("2", plug("a:1"), plug("b:2"))],
        [Cable("1", plug("a:1"), plug("a:1"))],
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan: list[Cable]) -> None:
    with pytest.raises(FabricError):
        verify(plan, [])


@pytest.mark.parametrize(("plan", "seed"), [(plan, seed) for seed in range(2) for plan in PLANS])
def test_ten_thousand_miswirings(plan: tuple[Cable, ...], seed: int) -> None:
    """1,000 each: one fault, several apart, several on top of each other; the repairs are done and give the plan."""
    draw = random.Random(f"{len(plan)} {seed}")
    right = wired(plan)
    for number in range(1000):
        disjoint = number % 2 == 0
        wiring = dict(right)
        vandal = Vandal(wiring, draw, disjoint)
        for _ in range(draw.choice([1, 1, 2, 3, 6])):
            vandal.one()
        look = draw.choice([seen_from_one_side, seen_from_both_sides])
        report = verify(plan, look(wiring, draw))
        assert report.clean == (wiring == right)
        assert repaired(wiring, report.faults) == right
        steps = [fault.repair for fault in report.faults]
        assert sum(len(r.moves) + len(r.add) + len(r.remove) for r in steps) <= vandal.plugs  # no detour
        if disjoint:
            assert Counter(fault.kind for fault in report.faults) == Counter(vandal.kinds)
        named = {p for fault in report.faults for p in fault.plugs}
        wrong = {p for p in {**right, **wiring} if right.get(p) != wiring.get(p)}
        assert named <= wrong


@examples(150)
@given(st.integers(0, 10**9))
def test_dead_fibres_among_miswirings(seed: int) -> None:
    draw = random.Random(seed)
    wiring = wired(CUBE)
    vandal = Vandal(wiring, draw, disjoint=False)
    for _ in range(draw.randint(0, 4)):
        vandal.one()
    pairs = [pair for pair in cables_in(wiring) if "stranger" not in (pair[0].device, pair[1].device)]
    dead = {draw.choice(pair) for pair in draw.sample(pairs, draw.randint(1, 5))}
    blind = {device for device in {p.device for p in wiring} if {p for p in wiring if p.device == device} <= dead}
    rows = [row for row in seen_from_both_sides(wiring, draw) if row.local not in dead]
    report = verify(CUBE, rows)
    found = {fault.plugs[1] for fault in report.faults if fault.kind == "one_sided"}
    # A device that says nothing at all may be without LLDP; all others are found, and nothing else is.
    assert {p for p in dead if p.device not in blind} <= found <= dead
    assert repaired(wiring, report.faults) == wired(CUBE)


def test_49152_cables_in_seconds() -> None:
    """A ZCube of 16,384 GPUs, with every port of one switch turned by one: a long ring among many cables."""
    plan = tuple(
        Cable(f"C{i}", Plug(f"odd{i // 256}", str(i % 256)), Plug(f"even{i % 192}", str(i // 192)))
        for i in range(49152)
    )
    wiring = wired(plan)
    ends = [Plug("odd3", str(i)) for i in range(256)]
    replug(wiring, dict(zip(ends, ends[1:] + ends[:1], strict=True)))
    rows = [Sighting(a, b) for a, b in wiring.items()]
    began = time.process_time()
    report = verify(plan, rows)
    assert time.process_time() - began < 8
    assert report.counts() == {"rotated": 1} and len(report.faults[0].repair.moves) == 256
    assert repaired(wiring, report.faults) == wired(plan)
