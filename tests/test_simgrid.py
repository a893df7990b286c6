"""Our networks against SimGrid, which has a max-min solver of its own: equal completion times on equal flows.

SimGrid is optional: without it these tests skip. Each flow has a queue pair of its own, for SimGrid has no queue pairs.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scenario.errors import InputError, MachineError, RunError
from simulation import bench_simgrid, flow_sets
from simulation.flow_sets import NETWORKS, Flow, NetworkClass, has_simgrid, network_class, play, play_in_simgrid
from topologies.fabric import Fabric
from topologies.fluid import capacities, lanes

needs_simgrid = pytest.mark.skipif(not has_simgrid(), reason=flow_sets.HOW_TO_INSTALL)

#: Largest difference of a flow's duration, as a share of the duration.
EQUAL = 1e-6
FABRICS = [bench_simgrid.make(kind, gpus) for kind in ("zcube", "roft") for gpus in (16, 64)]


@pytest.fixture(scope="module", params=list(NETWORKS))
def network(request: pytest.FixtureRequest) -> NetworkClass:
    try:
        return network_class(request.param)[1]
    except InputError as error:
        pytest.skip(str(error))


def assert_equal_times(rates: dict[str, float], flows: Sequence[Flow], network: NetworkClass) -> None:
    ours, theirs = play(rates, flows, network), play_in_simgrid(rates, flows)
    for flow, our_s, their_s in zip(flows, ours.done_s, theirs.done_s, strict=True):
        assert our_s - flow.start_s == pytest.approx(their_s - flow.start_s, rel=EQUAL), flow


HAND_SOLVED = {
    # 5 B/s each until the short one ends at 10 s; the other's 50 B take 5 s more.
    "two flows over one link": ({"a": 10.0}, [Flow(("a",), 100, 0.0), Flow(("a",), 50, 0.0)], [15.0, 10.0]),
    # 60 B are left at 4 s; 30 B beside them take until 10 s; then 30 B are left, 3 s alone.
    "one comes later": ({"a": 10.0}, [Flow(("a",), 100, 0.0), Flow(("a",), 30, 4.0)], [13.0, 10.0]),
    # The long flow and the first have 3 B/s each on `a` until 10 s; the last has the 9 B/s that `b` has left, 90 B by
    # then. After it 6 B/s and 6 B/s: the long one's 30 B until 15 s, the last's 30 B too.
    "parking lot": (
        {"a": 6.0, "b": 12.0},
        [Flow(("a", "b"), 60, 0.0), Flow(("a",), 30, 0.0), Flow(("b",), 120, 0.0)],
        [15.0, 10.0, 15.0],
    ),
    # The two directions of a cable are two links.
    "two directions": ({"to": 10.0, "fro": 10.0}, [Flow(("to",), 100, 0.0), Flow(("fro",), 100, 0.0)], [10.0, 10.0]),
    # Two routes with the first and last link in common are two routes.
    "two ways between the same ends": (
        {"a": 10.0, "slow": 1.0, "fast": 100.0, "z": 10.0},
        [Flow(("a", "slow", "z"), 10, 0.0), Flow(("a", "fast", "z"), 90, 0.0)],
        [10.0, 10.0],
    ),
}


@needs_simgrid
@pytest.mark.parametrize("case", HAND_SOLVED)
def test_simgrid_is_set_to_plain_max_min(case: str) -> None:
    rates, flows, expected = HAND_SOLVED[case]
    assert play_in_simgrid(rates, flows).done_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("case", HAND_SOLVED)
def test_ours_give_the_same_answers(case: str, network: NetworkClass) -> None:
    rates, flows, expected = HAND_SOLVED[case]
    assert play(rates, flows, network).done_s == pytest.approx(expected, rel=1e-12)


def at_random(routes: Sequence[tuple[str, ...]], rng: random.Random, *, even: bool, span_s: float) -> list[Flow]:
    """A flow a route within `span_s`. `even`: few sizes and start times, so that many begin and end together."""
    if even:
        return [Flow(route, 10**9 * rng.randint(1, 4), span_s * rng.randint(0, 4) / 4) for route in routes]
    return [Flow(route, round(10 ** rng.uniform(6, 10)), rng.uniform(0, span_s)) for route in routes]


seeds, evens = st.integers(0, 2**32 - 1), st.booleans()


@needs_simgrid
@examples(80)
@given(seed=seeds, even=evens)
def test_one_link(network: NetworkClass, seed: int, even: bool) -> None:
    rng = random.Random(seed)
    flows = at_random([("only",)] * rng.randint(1, 60), rng, even=even, span_s=1.0)
    assert_equal_times({"only": rng.choice([12.5e9, 25e9, 50e9])}, flows, network)


@needs_simgrid
@examples(80)
@given(seed=seeds, even=evens)
def test_random_graphs(network: NetworkClass, seed: int, even: bool) -> None:
    """Links of different rates; shortest paths by random lengths, so that they cross and part."""
    rng = random.Random(seed)
    graph = nx.gnp_random_graph(rng.randint(3, 25), 0.3, seed=seed, directed=True)
    nx.add_cycle(graph, list(graph.nodes))
    rates = {f"{a} to {b}": rng.choice([10e9, 25e9, 50e9, rng.uniform(5e9, 50e9)]) for a, b in graph.edges}
    for a, b in graph.edges:
        graph.edges[a, b]["length"] = rng.uniform(1, 3)
    routes = []
    for _ in range(rng.randint(1, 120)):
        way = nx.shortest_path(graph, *rng.sample(list(graph.nodes), 2), weight="length")
        routes.append(tuple(f"{a} to {b}" for a, b in nx.utils.pairwise(way)))
    assert_equal_times(rates, at_random(routes, rng, even=even, span_s=2.0), network)


@needs_simgrid
@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: f"{fabric.kind}-{len(fabric.gpus)}")
@examples(40)
@given(seed=seeds, even=evens)
def test_fabrics(network: NetworkClass, fabric: Fabric, seed: int, even: bool) -> None:
    """Random pairs of GPUs, some of them often, on the paths that the fabric's routing plans."""
    rng = random.Random(seed)
    names = [gpu.name for gpu in fabric.gpus]
    some = rng.sample(names, rng.choice([4, len(names)]))
    routes = [lane.resources for _ in range(rng.randint(1, 150)) for lane in lanes(fabric, *rng.sample(some, 2))]
    assert_equal_times(capacities(fabric), at_random(routes, rng, even=even, span_s=0.5), network)


@needs_simgrid
@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: f"{fabric.kind}-{len(fabric.gpus)}")
def test_the_benchmarks_flows(network: NetworkClass, fabric: Fabric) -> None:
    """A longer timeline at the load of `simulation.bench_simgrid`."""
    assert_equal_times(capacities(fabric), bench_simgrid.handoffs(fabric, 600, seed=3), network)


def test_the_benchmarks_load_is_what_it_says() -> None:
    fabric = FABRICS[1]
    flows = bench_simgrid.handoffs(fabric, 20_000, seed=2)
    sent = sum(flow.bytes for flow in flows)
    assert sent / (flows[-1].start_s * 50e9 * 64) == pytest.approx(bench_simgrid.LOAD, rel=0.05)


@needs_simgrid
def test_the_benchmark_prints_a_line_a_fabric(capsys: pytest.CaptureFixture[str]) -> None:
    bench_simgrid.main(["--network", "fluid", "--gpus", "16", "--handoffs", "40", "--repeats", "1", "--seed", "5"])
    told = capsys.readouterr().out
    assert "network fluid against SimGrid 3" in told and "seed 5, median of n = 1" in told
    lines = [line.split() for line in told.splitlines() if line.startswith(("zcube", "roft"))]
    assert [line[:3] for line in lines] == [["zcube", "16", "80"], ["roft", "16", "40"]]


@pytest.mark.parametrize("there", [True, False])
def test_without_simgrid_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    """A system's Python that sees no installed packages (-S), or none at all."""
    python = tmp_path / "python3"
    if there:
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        python.chmod(0o755)
    monkeypatch.setattr(flow_sets, "SYSTEM_PYTHON", str(python))
    bench_simgrid.main(["--gpus", "16"])
    told = capsys.readouterr().out
    assert "apt-get install python3-simgrid" in told and told.count("\n") == 1
    with pytest.raises(MachineError, match="python3-simgrid"):
        play_in_simgrid({"a": 1.0}, [Flow(("a",), 1, 0.0)])


@needs_simgrid
def test_an_error_of_simgrid_is_told() -> None:
    with pytest.raises(RunError, match=r"(?s)SimGrid ended with 1: .*KeyError"):
        play_in_simgrid({}, [Flow(("missing",), 1, 0.0)])
