"""Topology files against a fabric: equal under any renaming of switches, named when not, and bad files by line."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import networkx as nx
import pytest
from export_fabrics import FABRICS, renumbered, same_index_zcube, three_tier
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.compare import compare
from topologies.export_simai import SimaiSettings, simai
from topologies.fabric import Fabric
from topologies.simai_file import SimaiFileError, SimaiTopology, parse_simai
from topologies.switch_graph import SwitchGraph, graph_of_fabric, graph_of_file, renaming
from topologies.switch_matching import best_matching
from topologies.zcube import zcube

ALL = {**FABRICS, "fat-tree": three_tier()}
fabrics = pytest.mark.parametrize("fabric", ALL.values(), ids=ALL)


@fabrics
@pytest.mark.parametrize("parallel", ["merged", "cables"])
def test_our_own_export_is_equal(fabric: Fabric, parallel: str) -> None:
    report = compare(fabric, parse_simai(simai(fabric, SimaiSettings(parallel=parallel))))
    assert report.equal and not (report.findings or report.missing or report.extra)
    assert all(count.fabric == count.file for count in report.counts)
    assert all(tier.fabric_switches == tier.file_switches for tier in report.tiers)


@fabrics
def test_names_of_switches_and_order_of_links_do_not_matter(fabric: Fabric) -> None:
    topology = parse_simai(renumbered(fabric))
    mapping = renaming(graph_of_fabric(fabric), graph_of_file(topology))
    assert mapping is not None and mapping != sorted(mapping)
    assert compare(fabric, topology).equal


def vf2_equal(ours: SwitchGraph, theirs: SwitchGraph) -> bool:
    """The same question, put to networkx's VF2 with the GPUs as nodes of their own colour."""

    def graph(of: SwitchGraph) -> nx.Graph[object]:
        found: nx.Graph[object] = nx.Graph()
        for gpu in range(1, of.gpus + 1):
            found.add_node(("gpu", gpu), colour=gpu)
        for switch in range(len(of.names)):
            found.add_node(switch, colour=0)
        for switch, (access, between) in enumerate(zip(of.access, of.between, strict=True)):
            found.add_edges_from((switch, ("gpu", gpu), {"gbps": rate}) for gpu, rate in access.items())
            found.add_edges_from((switch, there, {"gbps": rate}) for there, rate in between.items())
        return found

    matcher = nx.isomorphism.GraphMatcher(
        graph(ours),
        graph(theirs),
        node_match=lambda a, b: a["colour"] == b["colour"],
        edge_match=lambda a, b: a["gbps"] == b["gbps"],
    )
    return bool(matcher.is_isomorphic())


@given(
    st.integers(0, 10**9),
    st.sampled_from(["zcube-16-4", "zcube-32-8-parallel", "roft-32-8", "fat-tree"]),
    st.integers(0, 2),
)
@settings(max_examples=40, deadline=None)
def test_verdict_is_that_of_vf2_on_rewired_files(seed: int, name: str, swaps: int) -> None:
    """Rename the switches at random, then exchange the far ends of some pairs of cables."""
    fabric, draw = ALL[name], random.Random(seed)
    topology = parse_simai(simai(fabric))
    names = list(topology.switches)
    draw.shuffle(names)
    new = dict(zip(topology.switches, names, strict=True))
    links = [
        replace(link, source=new.get(link.source, link.source), destination=new.get(link.destination, link.destination))
        for link in topology.links
    ]
    network = [i for i, link in enumerate(links) if link.destination not in topology.nvswitches]
    for _ in range(swaps):
        i, j = draw.sample(network, 2)
        links[i], links[j] = (
            replace(links[i], destination=links[j].destination),
            replace(links[j], destination=links[i].destination),
        )
    links = [link for link in links if link.source != link.destination]
    rewired = replace(topology, links=tuple(links))
    ours, theirs = graph_of_fabric(fabric), graph_of_file(rewired)
    report = compare(fabric, rewired)
    assert report.equal == (renaming(ours, theirs) is not None) == vf2_equal(ours, theirs)
    assert report.equal or report.findings
    assert report.equal == (not report.missing and not report.extra)


def test_like_neighbours_need_a_guess() -> None:
    """Two rings of three switches are not one of six: refinement cannot tell, the search must."""
    rings = [{1, 2}, {0, 2}, {0, 1}, {4, 5}, {3, 5}, {3, 4}]
    circle = [{(i - 1) % 6, (i + 1) % 6} for i in range(6)]
    one, other = (
        SwitchGraph(0, tuple("abcdef"), ({},) * 6, tuple(dict.fromkeys(there, 1.0) for there in part))
        for part in (rings, circle)
    )
    assert renaming(one, other) is None and renaming(one, one) is not None and renaming(other, other) is not None


def test_a_wrong_guess_is_taken_back() -> None:
    """Rings of three, three and six: all switches look alike, and only those of rings of one size correspond."""

    def rings(*sizes: int) -> SwitchGraph:
        between: list[dict[int, float]] = []
        for size in sizes:
            first = len(between)
            between += [{first + (i + 1) % size: 1.0, first + (i - 1) % size: 1.0} for i in range(size)]
        return SwitchGraph(0, tuple(map(str, range(12))), ({},) * 12, tuple(between))

    assert renaming(rings(3, 3, 6), rings(6, 3, 3)) is not None
    assert renaming(rings(3, 3, 6), rings(6, 6)) is None


@pytest.mark.parametrize(("gpus", "k"), [(32, 8), (16, 4), (256, 16)])
def test_the_public_generator_that_uses_one_index_for_both_ports_is_named(gpus: int, k: int) -> None:
    fabric, groups = zcube(gpus, k), gpus // k
    report = compare(fabric, parse_simai(same_index_zcube(gpus, k)))
    assert not report.equal
    assert "same running index" in report.findings[0] and "not complementary" in report.findings[0]
    assert f"{groups * groups} with {k * k // gpus} GPUs in the fabric" in report.findings[0]
    assert f"{groups} with {k} GPUs in the file" in report.findings[0]
    # One group can be matched whole (its switches hold j modulo G, as odd ones do); of the other each switch keeps
    # the GPUs of one cell. All cables between switches agree.
    cell = k * k // gpus
    assert len(report.missing) == len(report.extra) == gpus - groups * cell
    assert all(link.a.startswith("gpu") and link.fabric_gbps == 200 and link.file_gbps == 0 for link in report.missing)
    assert all(link.b.startswith("even") for link in report.missing)


def test_one_swapped_cable_is_found_where_it_is() -> None:
    fabric = zcube(32, 8)
    topology = parse_simai(renumbered(fabric))
    ours, theirs = graph_of_fabric(fabric), graph_of_file(topology)
    mapping = renaming(ours, theirs)
    assert mapping is not None
    node = {switch.name: topology.switches[mapping[i]] for i, switch in enumerate(fabric.switches)}

    def at(link: object) -> tuple[int, int]:
        return link.source, link.destination  # type: ignore[attr-defined]

    # gpu3's even cable and gpu20's are exchanged: even2 <-> even6
    swap = {node["even2"]: node["even6"], node["even6"]: node["even2"]}
    links = [
        replace(link, source=swap[link.source]) if link.destination in (2, 19) and link.source in swap else link
        for link in topology.links
    ]
    report = compare(fabric, replace(topology, links=tuple(links)))
    assert {(link.a, link.b) for link in report.missing} == {("gpu3", "even2"), ("gpu20", "even6")}
    assert {(link.a, link.b) for link in report.extra} == {("gpu3", "even6"), ("gpu20", "even2")}
    assert not report.equal and at(links[0]) != ()


def test_too_few_switches_too_few_gpus_and_a_slow_link() -> None:
    fabric = zcube(16, 4)
    assert not compare(fabric, parse_simai(simai(zcube(32, 8)))).equal
    slow = parse_simai(simai(fabric).replace("200Gbps", "100Gbps", 1))
    report = compare(fabric, slow)
    assert [(link.a, link.fabric_gbps, link.file_gbps) for link in report.missing] == [("gpu1", 200, 100)]
    topology = parse_simai(simai(fabric))
    last = topology.switches[-1]
    without = replace(
        topology,
        switches=topology.switches[:-1],
        links=tuple(link for link in topology.links if last not in (link.source, link.destination)),
    )
    report = compare(fabric, without)
    assert not report.equal and len(report.missing) == 4 + 4 and not report.extra
    assert {link.b for link in report.missing} == {"even8"} | {link.b for link in report.missing if link.a == "even8"}


def test_gpus_of_one_nvswitch_must_be_a_server() -> None:
    fabric = zcube(32, 8)
    text = simai(fabric)
    assert compare(fabric, parse_simai(text.replace("\n3 32 ", "\n3 33 "))).findings[0].startswith("NVSwitches")
    other = zcube(32, 8, gpus_per_server=8)
    report = compare(other, parse_simai(text))
    assert not report.equal and "servers" in report.findings[0]


@pytest.mark.parametrize(
    "fabric", [zcube(16_384, 128, gpus_per_server=8), three_tier(32, 16)], ids=["zcube", "fat-tree"]
)
def test_the_largest_files_within_seconds(fabric: Fabric) -> None:
    began = time.process_time()
    assert compare(fabric, parse_simai(renumbered(fabric))).equal
    if fabric.kind == "zcube":
        report = compare(fabric, parse_simai(same_index_zcube(16_384, 128)))
        assert "same running index" in report.findings[0]
    assert time.process_time() - began < 15


def test_matching_is_one_to_one() -> None:
    ours, theirs = (graph_of_fabric(fabric) for fabric in (zcube(32, 8), FABRICS["roft-32-8"]))
    matching = best_matching(ours, theirs)
    assert len(matching) == 8 == len(set(matching.values()))


GOOD = simai(zcube(16, 4))


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", 1, "nodes gpus_per_server"),
        ("\n\n", 1, "nodes gpus_per_server"),
        ("24 4 x 8 64 H100\n", 1, "five whole numbers"),
        ("24 4 4 8\n", 1, "five whole numbers"),
        ("999999999 4 4 8 64 H100\n", 1, "at most"),
        ("4 4 4 8 64 H100\n", 1, "the rest are GPUs"),
        ("28 0 4 8 64 H100\n", 1, "at least one GPU"),
        ("28 4 4 8 64 H100\n", 1, "ids of NVSwitches and switches, 0 were given"),
        ("28 4 4 8 64 H100\n16 17 18 99\n", 2, "0 to 27"),
        ("28 4 4 8 64 H100\n16 17 18 16\n", 2, "once"),
        (GOOD.replace("0 16 2880Gbps", "0 16 fast"), 3, "a bandwidth such as"),
        (GOOD.replace("0 16 2880Gbps", "0 16 -5Gbps"), 3, "a bandwidth such as"),
        (GOOD.replace("0 16 2880Gbps", "0 16 0Gbps"), 3, "more than 0"),
        (GOOD.replace("0 16 2880Gbps", "0 16 1e999Gbps"), 3, "a bandwidth such as"),
        (GOOD.replace("0 16 2880Gbps", "0 0 2880Gbps"), 3, "two different nodes"),
        (GOOD.replace("0 16 2880Gbps", "0 28 2880Gbps"), 3, "0 to 27"),
        (GOOD.replace("0.000025ms 0\n", "0.000025 0\n", 1), 3, "a latency such as"),
        (GOOD.replace("0.000025ms 0\n", "0.000025ms\n", 1), 3, "source destination"),
        (GOOD + "1 2 3 4 5\n", len(GOOD.splitlines()) + 1, "nothing after"),
        (GOOD[: len(GOOD) // 2], 34, None),
        ("\x00\x01\x02", 1, "five whole numbers"),
    ],
)
def test_a_bad_line_is_named(text: str, line: int, expected: str | None) -> None:
    with pytest.raises(SimaiFileError) as error:
        parse_simai(text)
    if expected is not None:
        assert error.value.line == line
        assert expected in error.value.expected


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_damage_is_an_error_with_a_line_or_a_file(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(GOOD)))
    cut = data.draw(st.integers(0, 30))
    text = GOOD[:at] + data.draw(st.text(max_size=8)) + GOOD[at + cut :]
    try:
        assert isinstance(parse_simai(text), SimaiTopology)
    except SimaiFileError as error:
        assert 1 <= error.line <= len(text.splitlines()) + 1
