"""How long the largest fabrics take, each in a fresh process on one core: wiring, next hops, prefixes, memory.

Part of `make bench`. Times on a shared machine are noisy: the ratio to a fixed piece of work of the same run (a million
dictionary entries, in the last column) is what to compare between machines.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

from topologies.fabric import Fabric
from topologies.roft import roft
from topologies.tables import Tables
from topologies.zcube import zcube

GPUS, ASIC_PORTS = 16_384, 128
GOAL_S, GOAL_MB = 3.0, 1024


def _make(kind: str) -> Fabric:
    if kind == "zcube":
        return zcube(GPUS, ASIC_PORTS, gpus_per_server=8)
    return roft(GPUS, ASIC_PORTS, gpus_per_server=8, tiers=3)


def one(kind: str) -> str:
    """Build one fabric and its tables; a line of figures."""
    began = time.perf_counter()
    fabric = _make(kind)
    wired = time.perf_counter()
    tables = Tables(fabric)
    hops = sum(int(tables.next_hops(here).sum()) for here in range(len(tables.names)))
    found = time.perf_counter()
    prefixes = sum(table.prefixes for table in tables.switch_tables())
    done = time.perf_counter()
    unit = dict.fromkeys(map(str, range(1_000_000)))
    work = time.perf_counter() - done
    assert len(unit) == 1_000_000
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return (
        f"{kind:6} {len(fabric.switches):5,} {len(fabric.links):7,} {wired - began:8.2f} s {found - wired:9.2f} s"
        f" {hops:11,} {done - found:8.2f} s {prefixes:9,} {done - began:7.2f} s (goal {GOAL_S:g}) {memory:5,} MB (goal"
        f" {GOAL_MB:,}) {(done - began) / work:6.1f}"
    )


def main() -> None:
    """Run each kind in a process of its own."""
    if len(sys.argv) == 2:
        print(one(sys.argv[1]))
        return
    print(f"{GPUS:,} GPUs, switches of {ASIC_PORTS} x 400 Gb/s, one core, n = 1 each")
    print("kind switches  cables   wiring  next hops     entries prefixes     count   total           memory     ratio")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for kind in ("zcube", "roft"):
        subprocess.run([sys.executable, "-m", "topologies.bench", kind], check=True, env=environment)


if __name__ == "__main__":
    main()
