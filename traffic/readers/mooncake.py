"""Mooncake traces: JSON lines with prefix blocks of 512 tokens, and what is done about their stamps of 3 s.

Data: https://github.com/kvcache-ai/Mooncake (`FAST25-release/traces`, Apache-2.0; Qin et al., FAST'25). The stamps
of the conversation and tool traces lie on a grid of 3 s (some 1 ms beside it), about ten requests on each: replayed
as they are, they make a burst every 3 s that no service had. They are spread over their 3 s; the synthetic trace
lies on no grid and is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby, islice

from traffic.readers.rows import Column, Format, TraceRow
from traffic.rng import uniform

MOONCAKE = Format(
    "mooncake",
    ("jsonl",),
    (
        Column("timestamp", "at_ns", "milliseconds"),
        Column("input_length", "input_tokens"),
        Column("output_length", "output_tokens"),
        Column("hash_ids", "blocks", "ids"),
    ),
    'JSON lines such as {"timestamp": 3000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}',
    block_tokens=512,
)

GRID_NS = 3_000_000_000
#: Stamps of the published files are up to 1 ms beside the grid.
OFF_GRID_NS = 1_000_000
#: A file is on the grid when its first rows are, at no fewer stamps than these: by chance 1 in 10^12.
LOOKED_AT_ROWS, STAMPS = 200, 4


def on_grid(at_ns: int) -> bool:
    """Whether a stamp is a multiple of 3 s, to 1 ms."""
    return (at_ns + OFF_GRID_NS) % GRID_NS <= 2 * OFF_GRID_NS


def spread(rows: Iterator[TraceRow], seed: int) -> Iterator[TraceRow]:
    """The rows with stamps of a 3 s grid drawn uniformly from the 3 s after them (keyed by seed and line), in order
    of time; unchanged where the first rows are on no grid."""
    head = list(islice(rows, LOOKED_AT_ROWS))
    stamps = {row.at_ns for row in head}
    if len(stamps) < STAMPS or not all(map(on_grid, stamps)):
        yield from head
        yield from rows
        return
    last_ns = 0
    for _, group in groupby(chain(head, rows), key=lambda row: row.at_ns):
        drawn = sorted(
            (row.at_ns + int(GRID_NS * uniform(seed, row.line, purpose="spread")), row.line, row) for row in group
        )
        for at_ns, _, row in drawn:
            last_ns = max(last_ns, at_ns)  # a stamp 1 ms early overlaps with the group before
            yield row._replace(at_ns=last_ns)
