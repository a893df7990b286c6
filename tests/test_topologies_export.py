"""Exports read back by readers of their own, or by the format's library, and held against the fabric."""

from __future__ import annotations

import io
import re
import time
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache

import networkx as nx
import pytest
from export_fabrics import FABRICS, three_tier
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.clos import clos
from topologies.clos import fat_tree as fat_tree_of
from topologies.export_dot import dot
from topologies.export_graphml import graphml
from topologies.export_htsim import (
    LONGEST_LINE,
    PATTERNS,
    HtsimSettings,
    connection_matrix,
    fat_tree_topo,
    generic_topology,
    node_order,
    nodes_table,
    too_many_ports,
)
from topologies.export_simai import SimaiSettings, rates_without_ecn, simai
from topologies.fabric import End, Fabric, FabricError
from topologies.graph_attributes import node_attributes
from topologies.htsim_shape import NotAFatTree, fat_tree
from topologies.paths import QueuePair, path, port_pairs
from topologies.roft import roft
from topologies.switch_graph import SwitchGraph, graph_of_fabric, renaming
from topologies.zcube import zcube

fabrics = pytest.mark.parametrize("fabric", FABRICS.values(), ids=FABRICS)


def read_dot(text: str) -> tuple[dict[str, dict[str, str]], list[tuple[str, str, dict[str, str]]], dict[str, str]]:
    """Nodes, edges and graph attributes of DOT as this package writes it: a statement a line, all strings quoted."""
    word = r'"((?:[^"\\]|\\.)*)"'

    def attributes(found: str) -> dict[str, str]:
        pairs = re.findall(r"(\w+)=" + word, found)
        return {name: re.sub(r"\\(.)", r"\1", value) for name, value in pairs}

    nodes, edges, of_graph = {}, [], {}
    depth = 0
    for line in text.splitlines():
        depth += line.rstrip().endswith("{") - (line.strip() == "}")
        if edge := re.fullmatch(rf"\s*{word} -- {word} \[(.*)\];", line):
            edges.append((edge[1], edge[2], attributes(edge[3])))
        elif node := re.fullmatch(rf"\s*{word} \[(.*)\];", line):
            nodes[node[1]] = attributes(node[2])
        elif depth == 1 and (head := re.fullmatch(r"\s*graph \[(.*)\];", line)):
            of_graph = attributes(head[1])
    assert depth == 0
    return nodes, edges, of_graph


@fabrics
def test_dot_read_back_is_the_same_graph(fabric: Fabric) -> None:
    nodes, edges, head = read_dot(dot(fabric))
    assert list(nodes) == [node.name for node in fabric.gpus] + [node.name for node in fabric.switches]
    for gpu in fabric.gpus:
        said = nodes[gpu.name]
        assert (said["tier"], int(said["number"]), said["server"]) == ("gpu", gpu.number, gpu.server)
        assert [(said[f"ip{p.number}"], said[f"mac{p.number}"]) for p in gpu.ports] == [
            (p.ip, p.mac) for p in gpu.ports
        ]
    for switch in fabric.switches:
        assert nodes[switch.name]["tier"] == switch.tier
        assert int(nodes[switch.name]["dpid"], 16) == switch.dpid
    assert [
        (said["id"], said["tier"], End(a, int(said["a_port"])), End(b, int(said["b_port"])), float(said["gbps"]))
        for a, b, said in edges
    ] == [(link.id, link.tier, link.a, link.b, link.gbps) for link in fabric.links]
    assert head["kind"] == fabric.kind and head["parameter_gpus"] == str(len(fabric.gpus))
    assert dot(fabric).count('subgraph "cluster_') == len({gpu.server for gpu in fabric.gpus})


@fabrics
def test_graphml_read_back_by_networkx_is_the_same_graph(fabric: Fabric) -> None:
    read = nx.read_graphml(io.BytesIO(graphml(fabric).encode()), force_multigraph=True)
    assert isinstance(read, nx.MultiGraph) and not read.is_directed()
    assert dict(read.nodes(data=True)) == {node.name: node_attributes(node) for node in fabric.nodes}
    assert read.graph["parameter_gpus"] == len(fabric.gpus) and read.graph["kind"] == fabric.kind
    found = {
        key: (data["tier"], End(data["a"], data["a_port"]), End(data["b"], data["b_port"]), data["gbps"])
        for _, _, key, data in read.edges(keys=True, data=True)
    }
    assert found == {link.id: (link.tier, link.a, link.b, link.gbps) for link in fabric.links}
    for a, b, data in read.edges(data=True):
        assert {a, b} == {data["a"], data["b"]}


def read_simai(text: str) -> tuple[list[int], str, list[int], list[tuple[int, int, str, str, str]]]:
    """As SimAI reads it: words, whatever the lines."""
    words = iter(text.split())
    head = [int(next(words)) for _ in range(5)]
    gpu_type = next(words)
    ids = [int(next(words)) for _ in range(head[2] + head[3])]
    links = [(int(next(words)), int(next(words)), next(words), next(words), next(words)) for _ in range(head[4])]
    assert next(words, None) is None
    return head, gpu_type, ids, links


@fabrics
@pytest.mark.parametrize("parallel", ["merged", "cables"])
def test_simai_holds_every_cable_and_a_switch_in_every_server(fabric: Fabric, parallel: str) -> None:
    settings = SimaiSettings(gpu_type="H800", nvlink_gbps=1600, link_latency_us=1.5, parallel=parallel)
    head, gpu_type, ids, links = read_simai(simai(fabric, settings))
    n, servers = len(fabric.gpus), len({gpu.server for gpu in fabric.gpus})
    assert head[:4] == [n + servers + len(fabric.switches), n // servers, servers, len(fabric.switches)]
    assert gpu_type == "H800"
    assert ids == list(range(n, head[0]))
    inside = [link for link in links if link[1] in range(n, n + servers)]
    # SimAI computes the NVSwitch of GPU i as n + i / gpus_per_server
    assert inside == [(i, n + i // head[1], "1600Gbps", "0.000025ms", "0") for i in range(n)]
    name = {i: f"gpu{i + 1}" for i in range(n)}
    name |= dict(zip(ids[servers:], (switch.name for switch in fabric.switches), strict=True))
    found: dict[tuple[str, str], float] = defaultdict(float)
    lines: Counter[tuple[str, str]] = Counter()
    for a, b, rate, latency, error in links[len(inside) :]:
        assert (latency, error) == ("0.0015ms", "0")
        found[name[a], name[b]] += float(rate.removesuffix("Gbps"))
        lines[name[a], name[b]] += 1
    wanted: dict[tuple[str, str], float] = defaultdict(float)
    cables: Counter[tuple[str, str]] = Counter()
    for link in fabric.links:
        wanted[link.a.node, link.b.node] += link.gbps
        cables[link.a.node, link.b.node] += 1
    assert found == pytest.approx(wanted)
    assert lines == (cables if parallel == "cables" else Counter(dict.fromkeys(cables, 1)))


def test_simai_says_which_rates_have_no_ecn_thresholds() -> None:
    assert rates_without_ecn(zcube(32, 8), "merged") == ()  # 200 and 2 x 200
    assert rates_without_ecn(zcube(1024, 128), "merged") == (3200.0,)  # 16 x 200
    assert rates_without_ecn(zcube(1024, 128), "cables") == ()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("parallel", "both"),
        ("gpu_type", "H 100"),
        ("nvlink_gbps", 0),
        ("error_rate", 1.0),
        ("link_latency_us", float("nan")),
    ],
)
def test_simai_settings_are_checked(setting: str, value: object) -> None:
    with pytest.raises(FabricError) as error:
        SimaiSettings(**{setting: value})  # type: ignore[arg-type]
    assert error.value.parameter == setting


def read_matrix(text: str) -> tuple[int, list[tuple[int, int, int, int]]]:
    """As htsim's ConnectionMatrix::load does: head, then one connection a line."""
    lines = text.splitlines()
    assert re.fullmatch(r"Nodes \d+", lines[0]) and lines[1] == f"Connections {len(lines) - 2}"
    found = []
    for line in lines[2:]:
        parts = re.fullmatch(r"(\d+)->(\d+) id (\d+) start 0 size (\d+)", line)
        assert parts, line
        found.append(tuple(int(part) for part in parts.groups()))
    return int(lines[0].split()[1]), found  # type: ignore[return-value]


@fabrics
@pytest.mark.parametrize("pattern", PATTERNS)
def test_connection_matrix_moves_the_bytes_between_the_ports_of_a_handoff(fabric: Fabric, pattern: str) -> None:
    nodes, flows = read_matrix(connection_matrix(fabric, HtsimSettings(pattern=pattern, flow_bytes=1001)))
    rows = [row.split(",") for row in nodes_table(fabric).splitlines()[1:]]
    assert nodes == len(rows) == sum(len(gpu.ports) for gpu in fabric.gpus)
    at = {int(node): (gpu, int(port)) for node, gpu, port, _ in rows}
    assert {ip for *_, ip in rows} == {port.ip for gpu in fabric.gpus for port in gpu.ports}
    assert [flow[2] for flow in flows] == list(range(1, len(flows) + 1))
    moved: Counter[tuple[str, str]] = Counter()
    ports = defaultdict(list)
    rails_apart = fabric.kind == "rail_only"  # there a message enters at another GPU of its server, or at none
    for src, dst, _, size in flows:
        (a, a_port), (b, b_port) = at[src], at[dst]
        moved[a, b] += size
        ports[a, b].append((a_port, b_port))
    if rails_apart:
        assert all(path(fabric, QueuePair(End(a, 1), End(b, 1), 0)) for a, b in moved)
        return
    assert set(moved.values()) == {1001} and all(a != b for a, b in moved)
    assert all(tuple(found) == port_pairs(fabric) for found in ports.values())
    n = len(fabric.gpus)
    assert len(moved) == {"permutation": n, "split": n // 2, "all_to_all": n * (n - 1)}[pattern]
    if pattern == "permutation":
        assert len({a for a, _ in moved}) == len({b for _, b in moved}) == n


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_permutation_is_drawn_from_the_seed(seed: int) -> None:
    fabric = FABRICS["zcube-16-4"]
    one, again, other = (connection_matrix(fabric, HtsimSettings(seed=number)) for number in (seed, seed, seed + 1))
    assert one == again != other


def test_a_matrix_that_htsim_could_not_hold_is_refused() -> None:
    with pytest.raises(FabricError, match="connections"):
        connection_matrix(zcube(4096, 64), HtsimSettings(pattern="all_to_all"))
    with pytest.raises(FabricError, match="flow_bytes"):
        HtsimSettings(flow_bytes=2**31)
    with pytest.raises(FabricError, match="flow_bytes"):
        connection_matrix(zcube(16, 4), HtsimSettings(flow_bytes=1))


def tree_built_by_htsim(text: str) -> tuple[list[tuple[str, str]], int]:
    """The links that htsim's FatTreeTopology makes of a .topo file, by its own arithmetic (set_custom_params and
    init_network), and the rate. Its checks are asserts here."""
    said: dict[str, int] = {}
    tiers: list[dict[str, int]] = []
    for line in text.splitlines():
        if line:
            word, value = line.split()
            if word == "Tier":
                tiers.append({})
                assert int(value) == len(tiers) - 1
            else:
                (tiers[-1] if tiers else said)[word] = int(value)
    nodes, pod_hosts, count = said["Nodes"], said["Podsize"], said["Tiers"]
    assert count == len(tiers) and nodes % pod_hosts == 0
    pods = nodes // pod_hosts
    tor_pod = pod_hosts // tiers[0]["Radix_Down"]
    speeds = [tier["Downlink_speed_Gbps"] for tier in tiers]
    tor_up = nodes * speeds[0] // (speeds[1] * tiers[0]["Oversubscribed"])
    assert tiers[0]["Radix_Down"] // tiers[0]["Radix_Up"] == tiers[0]["Oversubscribed"]
    agg_pod = tor_up // (pods * tiers[1]["Radix_Down"])
    bundle = tiers[1].get("Bundle", 1)
    assert agg_pod * bundle == tiers[0]["Radix_Up"]
    links = [(f"h{h}", f"t{h // tiers[0]['Radix_Down']}") for h in range(nodes)]
    for tor in range(tor_pod * pods):
        aggs = range(tor // tor_pod * agg_pod, (tor // tor_pod + 1) * agg_pod) if count == 3 else range(agg_pod * pods)
        links += [(f"t{tor}", f"a{agg}") for agg in aggs for _ in range(bundle)]
    if count == 3:
        agg_up = tor_up * speeds[1] // (speeds[2] * tiers[1]["Oversubscribed"])
        cores = agg_up // tiers[2]["Radix_Down"]
        core_bundle = tiers[2].get("Bundle", 1)
        assert cores * core_bundle // agg_pod == tiers[1]["Radix_Up"]
        for agg in range(agg_pod * pods):
            for place in range(tiers[1]["Radix_Up"] // core_bundle):
                links += [(f"a{agg}", f"c{agg % agg_pod + agg_pod * place}")] * core_bundle
    assert len(set(speeds)) == 1
    return links, speeds[0]


@pytest.mark.parametrize(
    "fabric",
    [roft(32, 8), roft(64, 16), roft(8, 4), three_tier(), three_tier(6, 3), fat_tree_of(16, 4), clos(32, 8)],
    ids=["roft", "roft-parallel", "roft-small", "by-hand", "by-hand-6", "fat-tree", "clos"],
)
def test_topo_is_the_fabric_up_to_the_names_of_switches(fabric: Fabric) -> None:
    tree = fat_tree(fabric)
    links, gbps = tree_built_by_htsim(fat_tree_topo(tree))
    assert {link.gbps for link in fabric.links} == {float(gbps)}
    order = node_order(fabric)
    ends = [(order[int(a[1:])].node if a[0] == "h" else a, b) for a, b in links]
    number = {name: i for i, name in enumerate(dict.fromkeys(end for pair in ends for end in pair if end[0] != "g"))}
    access: list[dict[int, float]] = [{} for _ in number]
    between: list[Counter[int]] = [Counter() for _ in number]
    for a, b in ends:
        if a in fabric.gpu_by_name:
            access[number[b]][fabric.gpu_by_name[a].number] = gbps
        else:
            between[number[a]][number[b]] += gbps
            between[number[b]][number[a]] += gbps
    built = SwitchGraph(len(fabric.gpus), tuple(number), tuple(access), tuple(between))
    assert len(links) == len(fabric.links)
    assert renaming(graph_of_fabric(fabric), built) is not None


def test_what_a_topo_cannot_say_is_refused_with_the_reason() -> None:
    for name, why in (
        ("zcube-32-8-parallel", "2 ports"),
        ("hpn-32-8", "2 ports"),
        ("recursive-64", "3 ports"),
        ("rail-only-32-8", "4 separate"),
        ("rail-only-one-tier", "one tier"),
    ):
        with pytest.raises(NotAFatTree, match=why):
            fat_tree(FABRICS[name])
    tree = three_tier()
    swapped = list(tree.links)
    cores = [i for i, link in enumerate(swapped) if link.tier == "core"]
    one, two = swapped[cores[0]], swapped[cores[2]]  # two spines of a pod exchange a core: no longer place by place
    swapped[cores[0]], swapped[cores[2]] = replace(one, b=two.b), replace(two, b=one.b)
    with pytest.raises(NotAFatTree, match="place by place"):
        fat_tree(replace(tree, links=tuple(swapped)))
    with pytest.raises(NotAFatTree, match="rate"):
        fat_tree(replace(tree, links=(*tree.links[:-1], replace(tree.links[-1], gbps=200.0))))
    assert too_many_ports(fat_tree(roft(32, 8))) is None
    assert "assert" in str(too_many_ports(fat_tree(roft(1024, 128))))


@pytest.mark.parametrize("name", [*FABRICS, "long-lines"])
def test_generic_topology_leads_from_end_to_end(name: str) -> None:
    """Follow queue, pipe, node as the loader links them; lines fit its buffer."""
    fabric = FABRICS.get(name) or zcube(1024, 64)
    lines = generic_topology(fabric, HtsimSettings(link_latency_us=2, queue_bytes=5000)).splitlines()
    assert max(map(len, lines)) <= LONGEST_LINE
    ports = sum(len(gpu.ports) for gpu in fabric.gpus)
    assert lines[:3] == [f"Hosts {ports}", f"Switches {len(fabric.switches)}", f"Links {len(fabric.links)}"]
    owners: dict[str, list[str]] = {}
    queues, pipes = {}, {}
    for line in lines[3:]:
        word, name = line.split(",")[0].split()
        parts = [part.split() for part in line.split(", ")[1:]]
        said = {part[0]: part[1:] for part in parts}
        if word in ("Host", "Switch"):
            assert name not in owners
            owners[name] = [part[1] for part in parts if part[0] == "queue"]
        elif word == "Queue":
            assert said["type"] == ["composite"] and said["size"] == ["5000"] and said["speed"][1] == "Gbps"
            queues[name] = (round(float(said["speed"][0]), 6), said["dst"][0])
        else:
            assert word == "Pipe" and said["latency"] == ["2", "us"]
            pipes[name] = (said["src"][0], said["dst"][0])
    end_of = {f"h{i}": end.node for i, end in enumerate(node_order(fabric))}
    found: Counter[tuple[str, str, float]] = Counter()
    for gbps, pipe in queues.values():
        here, there = pipes[pipe]
        found[end_of.get(here, here), end_of.get(there, there), gbps] += 1
    wanted: Counter[tuple[str, str, float]] = Counter()
    for link in fabric.links:
        wanted[link.a.node, link.b.node, round(link.gbps, 6)] += 1
        wanted[link.b.node, link.a.node, round(link.gbps, 6)] += 1
    assert found == wanted and len(pipes) == len(queues) == 2 * len(fabric.links)
    for owner, names in owners.items():
        assert all(pipes[queues[queue][1]][0] == owner for queue in names)
    said_by_switches = [owners[switch.name] for switch in fabric.switches]
    complete = [len(switch.ports) for switch in fabric.switches]
    assert [len(names) for names in said_by_switches] in (complete, [0] * len(complete))
    assert (len(fabric.gpus) == 1024) == (not said_by_switches[0])


@pytest.mark.parametrize("write", [dot, graphml, simai, connection_matrix, generic_topology])
def test_the_largest_fabric_is_written_within_seconds(write) -> None:  # type: ignore[no-untyped-def]
    fabric = largest()
    began = time.process_time()
    text = write(fabric)
    assert time.process_time() - began < 10
    assert text.count("\n") > 16_384


@cache
def largest() -> Fabric:
    """Not made with the module: every worker loads all modules."""
    return zcube(16_384, 128, gpus_per_server=8)
