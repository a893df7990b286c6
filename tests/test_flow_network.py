"""The compiled network against the reference (`topologies.fluid`), and the properties of max-min rates."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from scenario.fabric_spec import fabric_from_text
from simulation.network import WIDTH, FlowNetwork
from topologies.fabric import End
from topologies.fluid import Completion, FluidNetwork, Lane, Transfer, capacities, lanes
from topologies.maxmin import bottlenecks, max_min_rates
from topologies.paths import QueuePair
from topologies.routing import Routing

Network = FluidNetwork | FlowNetwork
Step = tuple[float, Transfer | int]


def lane(number: int, *resources: str) -> Lane:
    return Lane(QueuePair(End("a", number), End("b", number), 0), resources)


def one(number: int, size: float, *which: Lane, static: bool = False) -> Transfer:
    return Transfer(number, size, which, "static" if static else "adaptive")


def play(network: Network, steps: Sequence[Step]) -> dict[int, Completion]:
    """Start transfers, cancel (by number) those that are still under way; every end by transfer id."""
    ends: list[Completion] = []
    for t_s, what in steps:
        ends += network.advance(t_s)
        if isinstance(what, Transfer):
            network.start(what, t_s)
        elif what in network.active:
            ends.append(network.cancel(what, t_s))
    while (next_s := network.next_completion()) is not None:
        ends += network.advance(next_s)
    assert not network.active
    return {end.transfer.transfer_id: end for end in ends}


def random_case(seed: int) -> tuple[dict[str, float], list[Step]]:
    """A few ports and queue pairs with many ties: equal capacities, sizes and times, transfers of nothing."""
    rng = random.Random(seed)
    ports = {f"port{n}": rng.choice([1.0, 2.0, 3.0, rng.uniform(0.5, 5)]) for n in range(rng.randint(2, 12))}
    some = [lane(n, *rng.sample(sorted(ports), rng.randint(1, min(len(ports), 5)))) for n in range(rng.randint(1, 12))]
    steps: list[Step] = []
    t_s = 0.0
    for number in range(rng.randint(1, 60)):
        t_s += rng.choice([0, 0, rng.expovariate(2)])
        if number and rng.random() < 0.12:
            steps.append((t_s, rng.randrange(number)))
            continue
        size = rng.choice([0, 1.0, rng.uniform(0, 5)])
        which = rng.sample(some, rng.randint(1, min(4, len(some))))
        steps.append((t_s, one(number, size, *which, static=rng.random() < 0.5)))
    return ports, steps


@pytest.mark.parametrize("block", range(10))
def test_agrees_with_the_reference_on_random_cases(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        ports, steps = random_case(seed)
        expected, found = play(FluidNetwork(ports), steps), play(FlowNetwork(ports), steps)
        assert expected.keys() == found.keys()
        for number, end in expected.items():
            assert found[number].done_s == pytest.approx(end.done_s, rel=1e-9, abs=1e-9), (seed, number)
            assert found[number].lane_bytes == pytest.approx(end.lane_bytes, rel=1e-7, abs=1e-7), (seed, number)
            assert found[number].lane_done_s == pytest.approx(end.lane_done_s, rel=1e-9, abs=1e-9), (seed, number)


def traffic(spec: str, policy: str, queue_pairs: int, count: int) -> tuple[dict[str, float], list[Step]]:
    """Handoffs between random GPUs of a fabric at a load at which many share ports."""
    fabric, rng = fabric_from_text(spec), random.Random(1)
    routing = Routing(policy, queue_pairs, 1, False)
    names = [gpu.name for gpu in fabric.gpus]
    steps: list[Step] = []
    t_s = 0.0
    for number in range(count):
        t_s += rng.expovariate(40.0 * len(names))
        way: tuple[Lane, ...] = ()
        while not way:  # rail-only has none between rails
            way = lanes(fabric, *rng.sample(names, 2), routing)
        steps.append((t_s, one(number, rng.expovariate(1e-9), *way)))
    return capacities(fabric), steps


FABRICS = pytest.mark.parametrize(
    ("spec", "policy", "queue_pairs"),
    [
        ("zcube:gpus=64,asic_ports=16", "unique", 1),
        ("roft:gpus=64,asic_ports=16", "ecmp", 1),
        ("roft:gpus=64,asic_ports=16", "spray", 1),
        ("rail_only:gpus=64,asic_ports=64", "ecmp", 2),
    ],
)


@FABRICS
def test_rates_are_the_reference_solvers_at_every_change(spec: str, policy: str, queue_pairs: int) -> None:
    ports, steps = traffic(spec, policy, queue_pairs, 250)
    network, resources = FlowNetwork(ports), dict[QueuePair, tuple[str, ...]]()
    for t_s, transfer in steps:
        network.advance(t_s)
        assert isinstance(transfer, Transfer)
        network.start(transfer, t_s)
        resources.update((each.qp, each.resources) for each in transfer.lanes)
        rates = network.rates()
        flows = {qp: resources[qp] for qp in rates}
        assert rates == pytest.approx(max_min_rates(flows, ports), rel=1e-8)
        assert all(bottlenecks(flows, ports, rates, 1e-7).values())
    assert network.work.most_flows > 20  # it was no easy case
    assert sum(network.component_sizes()) == len(network.rates())


@FABRICS
def test_ends_are_those_of_the_reference_on_fabrics(spec: str, policy: str, queue_pairs: int) -> None:
    ports, steps = traffic(spec, policy, queue_pairs, 150)
    expected, found = play(FluidNetwork(ports), steps), play(FlowNetwork(ports), steps)
    for number, end in expected.items():
        assert found[number].done_s == pytest.approx(end.done_s, rel=1e-8)
        assert sum(found[number].lane_bytes) == pytest.approx(end.transfer.bytes)


def test_an_event_solves_only_what_it_can_affect() -> None:
    ports = {f"port{n}": 1.0 for n in range(100)}
    network = FlowNetwork(ports)
    for number in range(100):
        network.start(one(number, 10.0, lane(number, f"port{number}")), 0.0)
    network.next_completion()
    before = network.work.flows
    network.start(one(100, 1.0, lane(100, "port7")), 1.0)
    assert network.rates()[lane(7).qp] == network.rates()[lane(100).qp] == 0.5
    assert network.work.flows - before == 2
    # One that is held back elsewhere takes nothing from others, and a chain of ports does not join it.
    network.start(one(101, 1.0, lane(101, "port8", "port9", "port10")), 1.0)
    assert network.rates()[lane(101).qp] == 0.5
    assert network.work.flows - before == 2 + 4


def test_the_order_of_starts_at_one_instant_does_not_matter() -> None:
    ports, steps = traffic("zcube:gpus=64,asic_ports=16", "unique", 1, 120)
    at_once = [(0.0, transfer) for _, transfer in steps if isinstance(transfer, Transfer)]
    # One transfer a queue pair: those of one are served in the order in which they come.
    first = {transfer.lanes: (t_s, transfer) for t_s, transfer in reversed(at_once)}
    there, back = list(first.values()), list(reversed(first.values()))
    expected, found = play(FlowNetwork(ports), there), play(FlowNetwork(ports), back)
    for number, end in expected.items():
        assert found[number].done_s == pytest.approx(end.done_s, rel=1e-12)


REFUSED: list[tuple[str, Callable[[FlowNetwork], object]]] = [
    ("under way already", lambda network: network.start(one(1, 1.0, lane(2, "a")), 0.0)),
    ("time went back", lambda network: network.start(one(2, 1.0, lane(2, "a")), -1.0)),
    ("advance to 1.0 s first", lambda network: network.start(one(2, 1.0, lane(2, "a")), 2.0)),
    ("each once", lambda network: network.start(one(2, 1.0, lane(2, "a", "a")), 0.0)),
    ("each once", lambda network: network.start(one(2, 1.0, lane(2)), 0.0)),
    ("must be positive", lambda network: network.start(one(2, 1.0, lane(2, "nothing")), 0.0)),
    (f"1 to {WIDTH}", lambda network: network.start(one(2, 1.0, lane(2, *(f"p{n}" for n in range(17)))), 0.0)),
]


@pytest.mark.parametrize(("message", "what"), REFUSED)
def test_what_is_refused(message: str, what: Callable[[FlowNetwork], object]) -> None:
    ports = {"a": 1.0, **{f"p{n}": 1.0 for n in range(17)}}
    network = FlowNetwork(ports)
    network.start(one(1, 1.0, lane(1, "a")), 0.0)
    ports["nothing"] = 0.0
    with pytest.raises(ValueError, match=message):
        what(network)
    with pytest.raises(KeyError):
        network.cancel(77, 0.5)
    assert network.next_completion() == 1.0


def test_numbers_are_used_again_and_the_arrays_grow() -> None:
    ports = {"a": 1e6}
    network = FlowNetwork(ports)
    for number in range(3000):  # more than there is room for at first
        ports[f"own{number}"] = 1.0
        network.start(one(number, 1.0, lane(number, "a", f"own{number}")), 0.0)
    network.start(one(5000, 1.0, lane(0, "a", "own0")), 0.0)  # waits, and never sends
    network.cancel(5000, 0.0)
    assert len(network.advance(1.0)) == 3000
    flows = len(network._s.rate)
    for turn in range(20):
        for number in range(3000):
            network.start(one(number, 1.0, lane(number, "a", f"own{number}")), 1.0 + turn)
        assert len(network.advance(2.0 + turn)) == 3000
    assert len(network._s.rate) == flows and not network._pool and not network._queues
