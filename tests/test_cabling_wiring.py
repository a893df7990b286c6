"""Fabrics plugged otherwise than planned, and what ports say: pure."""

from __future__ import annotations

import json
import random

import pytest

from scenario.errors import InputError
from scenario.load import check_scenario
from scenario.wiring import as_wired
from topologies.build import build
from topologies.cabling_files import observed_from_text
from topologies.cabling_model import Plug, Report, Sighting, planned_cables
from topologies.cabling_neighbours import Neighbours, document
from topologies.cabling_verify import verify
from topologies.cabling_wiring import SPARE_PORTS, Wiring
from topologies.fabric import Fabric, FabricError
from topologies.zcube import zcube

PLAN = zcube(16, 4)


def seen_in(fabric: Fabric) -> dict[str, object]:
    """What all ports of a fabric would say, as the discovered file has it."""
    named = {(o.name, p.number): Plug(o.name, p.name) for o in fabric.nodes for p in o.ports}
    neighbours = Neighbours(named.values())
    for link in fabric.links:
        a, b = named[link.a.node, link.a.port], named[link.b.node, link.b.port]
        assert neighbours.hear(a, b) and neighbours.hear(b, a)
    return document(neighbours.rows())


def report_of(fabric: Fabric, plan: Fabric = PLAN) -> Report:
    observed = observed_from_text(json.dumps(seen_in(fabric)).encode(), "cabling.json")
    return verify(planned_cables(plan), observed, "both")


def test_no_change_is_the_plan_itself() -> None:
    assert Wiring(PLAN).fabric() is PLAN
    wiring = Wiring(PLAN)
    wiring.swap("odd1-eth5", "odd1-eth7")
    wiring.swap("odd1-eth7", "odd1-eth5")
    assert wiring.fabric() is PLAN
    assert report_of(PLAN).clean and report_of(PLAN).both_sides


def test_a_swap_is_reported_as_one_fault_on_its_two_plugs() -> None:
    wiring = Wiring(PLAN)
    wiring.swap("odd1-eth5", "odd1-eth7")
    fabric = wiring.fabric()
    assert len(fabric.links) == len(PLAN.links) and fabric.switches == PLAN.switches
    (fault,) = report_of(fabric).faults
    assert (fault.kind, fault.fix) == ("swapped", "exchange the plugs in odd1 port 5 and odd1 port 7")


@pytest.mark.parametrize("cable", ["odd3-eth6", "odd3-eth6--even4-eth6"])
def test_a_plug_in_a_spare_port_adds_that_port_and_those_before_it(cable: str) -> None:
    wiring = Wiring(PLAN)
    cable = next(link.id for link in PLAN.links if "odd3-eth6" in link.id) if "--" in cable else cable
    wiring.move(cable, "odd3-eth10")
    fabric = wiring.fabric()
    assert [port.name for port in fabric.switch_by_name["odd3"].ports][8:] == ["odd3-eth9", "odd3-eth10"]
    report = report_of(fabric)
    (fault,) = report.faults
    assert (fault.kind, fault.fix) == ("wrong_port", "move the plug in odd3 port 10 to odd3 port 6")
    assert report.unknown_ports == (Plug("odd3", "9"), Plug("odd3", "10"))


def test_a_missing_cable_leaves_both_ports_and_frees_them_for_another() -> None:
    wiring = Wiring(PLAN)
    wiring.unplug("gpu1-eth1")
    fabric = wiring.fabric()
    assert fabric.nodes == PLAN.nodes and ("gpu1", 1) not in fabric.link_at
    (fault,) = report_of(fabric).faults
    assert (fault.kind, fault.cables) == ("missing", ("gpu1-eth1--odd1-eth1",))
    wiring.move("gpu2-eth1--odd3-eth1", "odd1-eth1")
    kinds = [fault.kind for fault in report_of(wiring.fabric()).faults]
    assert wiring.fabric().far_end("gpu2", 1).node == "odd1"
    assert sorted(kinds) == ["missing", "wrong_port"]


@pytest.mark.parametrize("seed", range(50))
def test_any_faults_are_found_unless_they_cancel(seed: int) -> None:
    draw = random.Random(seed)
    wiring = Wiring(PLAN)
    interfaces = [port.name for owner in PLAN.nodes for port in owner.ports]
    for _ in range(draw.randint(1, 6)):
        try:
            match draw.choice(["swap", "move", "unplug"]):
                case "swap":
                    wiring.swap(*draw.sample(interfaces, 2))
                case "move":
                    wiring.move(draw.choice(interfaces), f"odd{draw.choice([1, 3])}-eth{draw.randint(9, 16)}")
                case _:
                    wiring.unplug(draw.choice(interfaces))
        except FabricError:
            continue  # the port is taken, or empty
    fabric = wiring.fabric()
    ends = [end for link in fabric.links for end in (link.a, link.b)]
    assert len(set(ends)) == len(ends)
    for end in ends:
        fabric.port(end.node, end.port)
    assert report_of(fabric).clean == (fabric is PLAN)


def test_neighbours_keep_every_claim_and_the_silent() -> None:
    a, b, c = Plug("odd1", "odd1-eth10"), Plug("odd1", "odd1-eth9"), Plug("even2", "even2-eth1")
    neighbours = Neighbours([a, b])
    assert neighbours.silent == (a, b)
    assert neighbours.hear(a, c) and not neighbours.hear(a, c) and neighbours.hear(a, b)
    assert neighbours.silent == (b,)
    observed = observed_from_text(json.dumps(document(neighbours.rows())).encode(), "x.json")
    assert observed == [
        Sighting(Plug("odd1", "9"), None),
        Sighting(Plug("odd1", "10"), Plug("even2", "1")),
        Sighting(Plug("odd1", "10"), Plug("odd1", "9")),
    ]


def scenario_with(*miscable: dict[str, str], **fabric: object) -> dict[str, object]:
    wired = {"kind": "zcube", "gpus": 16, "gpus_per_switch": 4, **fabric}
    return {"fabric": wired, "faults": {"miscable": list(miscable)}}


def test_the_faults_section_wires_the_fabric_in_its_order() -> None:
    scenario = check_scenario(
        scenario_with(
            {"kind": "missing", "cable": "gpu1-eth1"},
            {"kind": "wrong_port", "cable": "gpu2-eth1--odd3-eth1", "to": "odd1-eth1"},
            {"kind": "swap", "a": "even2-eth5", "b": "even4-eth5"},
        )
    )
    fabric = as_wired(scenario.faults, build(scenario.fabric))
    assert {fault.kind for fault in report_of(fabric).faults} == {"missing", "wrong_port", "swapped"}
    assert check_scenario(scenario.model_dump(mode="json")) == scenario


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        ({"kind": "swap", "a": "odd1-eth5", "b": "odd2-eth1"}, ["miscable[0].b", "odd2-eth1", "gpu1 to gpu16", "odd7"]),
        ({"kind": "swap", "a": "odd1-eth40", "b": "odd1-eth5"}, ["miscable[0].a", f"odd1-eth{8 + SPARE_PORTS}"]),
        ({"kind": "swap", "a": "odd1 port 5", "b": "odd1-eth5"}, ["must be an interface such as odd1-eth1"]),
        ({"kind": "swap", "a": "odd1-eth5", "b": "odd1-eth9"}, ["miscable[0].b", "has no cable"]),
        ({"kind": "swap", "a": "gpu1-eth1", "b": "odd1-eth1"}, ["changes nothing"]),
        ({"kind": "missing", "cable": "gpu1-eth1--odd1-eth2"}, ["is no cable", "gpu1-eth1--odd1-eth1"]),
        ({"kind": "missing", "cable": "gpu1-eth3"}, ["gpu1 has gpu1-eth1 to gpu1-eth2"]),
        ({"kind": "wrong_port", "cable": "gpu1-eth1", "to": "odd3-eth1"}, ["taken by gpu2-eth1--odd3-eth1", "swap"]),
        (
            {"kind": "wrong_port", "cable": "odd1-eth5--even2-eth5", "to": "odd3-eth9"},
            ["which plug goes to odd3", "odd1-eth5 or even2-eth5"],
        ),
        ({"kind": "loose", "cable": "gpu1-eth1"}, ["faults.miscable[0]", "must be one of swap, wrong_port, missing"]),
        ({"kind": "swap", "a": "odd1-eth5"}, ["faults.miscable[0].b", "required"]),
        ({"kind": "missing", "cabel": "gpu1-eth1"}, ["faults.miscable[0]"]),
        ({"kind": "missing", "cable": "gpu1-eth1", "too": "x"}, ["faults.miscable[0].too", "known here: cable, kind"]),
    ],
)
def test_unknown_names_are_errors_that_say_what_there_is(fault: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        check_scenario(scenario_with(fault))
    for part in parts:
        assert part in str(caught.value)
