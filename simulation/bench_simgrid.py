"""Our networks beside SimGrid on equal platforms and flows: events a second, and whether the times agree.

    python -m simulation.bench_simgrid [--network flow|fluid] [--gpus 64 256 1024] [--kinds zcube roft] [--repeats 3]

Handoffs between random GPUs come as a Poisson process, sizes are exponential (mean 1 GB); a handoff is one flow for
each port pair, on the path that the fabric's routing plans. An event is a start or an end of a flow. Times are
processor time of one process, without set-up: fabric, paths, platform, compilation. SimGrid is optional; where it is
missing this says so and ends with 0.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence

from scenario.errors import TestbedError
from simulation.flow_sets import HOW_TO_INSTALL, NETWORKS, Flow, has_simgrid, network_class, play, play_in_simgrid
from topologies.fabric import Fabric
from topologies.fluid import capacities, lanes
from topologies.roft import roft
from topologies.zcube import zcube

#: GPUs -> (GPUs per switch of a 1:1 ZCube, ports of a ROFT's ASIC in two tiers, handoffs). So many that the number of
#: flows under way is level for most of the run (SimGrid gets slower with it), and neither simulator takes a minute.
SIZES = {16: (4, 8, 1000), 64: (8, 16, 4000), 256: (16, 32, 4000), 1024: (32, 64, 8000)}
MEAN_BYTES = 1e9
LOAD = 0.3


def make(kind: str, gpus: int) -> Fabric:
    """A fabric without oversubscription, of 4 GPUs a server and 400 Gb/s a GPU."""
    per_switch, asic_ports, _ = SIZES[gpus]
    return zcube(gpus, per_switch) if kind == "zcube" else roft(gpus, asic_ports, tiers=2)


def handoffs(fabric: Fabric, count: int, seed: int, load: float = LOAD) -> list[Flow]:
    """Poisson handoffs between random pairs of GPUs that load every NIC, in each direction, to `load` in the mean."""
    rng, at_s, flows = random.Random(seed), 0.0, []
    names = [gpu.name for gpu in fabric.gpus]
    nic = sum(port.gbps for port in fabric.gpus[0].ports) * 1e9 / 8
    gap_s = MEAN_BYTES / (load * nic * len(names))
    for _ in range(count):
        at_s += rng.expovariate(1 / gap_s)
        src, dst = rng.sample(names, 2)
        ways = lanes(fabric, src, dst)
        size = rng.expovariate(1 / MEAN_BYTES)
        flows += [Flow(lane.resources, max(1, round(size / len(ways))), at_s) for lane in ways]
    return flows


def furthest(flows: Sequence[Flow], one: Sequence[float], other: Sequence[float]) -> float:
    """Largest difference of a flow's duration between two simulators, as a share of the duration."""
    return max(abs(a - b) / (b - flow.start_s) for flow, a, b in zip(flows, one, other, strict=True))


def row(kind: str, gpus: int, name: str | None, count: int | None, repeats: int, seed: int) -> str:
    """One line of the table: medians over repeats, the two simulators in turn."""
    _, network = network_class(name)
    fabric = make(kind, gpus)
    flows, rates = handoffs(fabric, count or SIZES[gpus][2], seed), capacities(fabric)
    play(rates, flows[:8], network)  # compiles, where there is something to compile
    pairs = [(play(rates, flows, network), play_in_simgrid(rates, flows)) for _ in range(repeats)]
    events = 2 * len(flows)
    ours, theirs = (statistics.median(events / run[side].cpu_s for run in pairs) for side in (0, 1))
    ratios = [their.cpu_s / our.cpu_s for our, their in pairs]
    apart = max(furthest(flows, our.done_s, their.done_s) for our, their in pairs)
    return (
        f"{kind:6} {gpus:6,} {len(flows):7,} {ours:11,.0f} {theirs:11,.0f} {statistics.median(ratios):8.2f}"
        f" {min(ratios):8.2f} to {max(ratios):.2f} {apart:10.1e}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each fabric."""
    parser = argparse.ArgumentParser(prog="python -m simulation.bench_simgrid", description=__doc__.split("\n")[0])
    parser.add_argument("--network", choices=tuple(NETWORKS), help="which of our networks; the fastest there is")
    parser.add_argument("--gpus", type=int, nargs="+", choices=tuple(SIZES), default=[64, 256, 1024])
    parser.add_argument("--kinds", nargs="+", choices=("zcube", "roft"), default=["zcube", "roft"])
    parser.add_argument("--handoffs", type=int, help="how many handoffs, for every size; each size has its own number")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    if not has_simgrid():
        print(HOW_TO_INSTALL)
        return
    try:
        name, _ = network_class(chosen.network)
    except TestbedError as error:
        raise SystemExit(str(error)) from error
    version = play_in_simgrid({"a": 1.0}, [Flow(("a",), 1, 0.0)]).version
    print(
        f"network {name} against SimGrid {version}; load {LOAD:.0%}, seed {chosen.seed}, median of n = {chosen.repeats}"
    )
    print("                       events per CPU second     ratio of events per second   largest")
    print("kind     GPUs   flows        ours     SimGrid   median   range            difference")
    for kind in chosen.kinds:
        for gpus in chosen.gpus:
            print(row(kind, gpus, chosen.network, chosen.handoffs, chosen.repeats, chosen.seed), flush=True)


if __name__ == "__main__":
    main()
