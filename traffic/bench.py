"""How fast traces are read, each format in a fresh process on one core, and what memory that takes.

Part of `make bench`. The files are generated (constant seed) in a temporary folder. Memory is what reading adds to
the process, so that it can be compared between sizes: it must not grow with the rows.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from traffic import bench_engine
from traffic.readers.trace import FORMATS, Trace, detect

GOAL_ROWS_PER_S = 200_000
ROWS = {"csv": 500_000, "jsonl": 50_000}


def _azure(i: int, draw: random.Random) -> str:
    at = f"2024-05-10 {i // 36000 % 24:02d}:{i // 600 % 60:02d}:{i // 10 % 60:02d}.{i % 10}00000+00:00"
    return f"{at},{draw.randint(1, 7000)},{draw.randint(1, 900)}"


def _burstgpt(i: int, draw: random.Random) -> str:
    prompt, answer = draw.randint(1, 7000), draw.randint(1, 900)
    return f"{i / 8},{i % 977},0.5,ChatGPT,{prompt},{answer},{prompt + answer},Conversation log"


def _routing(i: int, draw: random.Random) -> str:
    return f"{1758 * 10**15 + i * 10**6},{i % 8},{i % 7},122000,{draw.randint(1, 900)},0,0,4100,{i % 90}.5,{i % 9}.25"


def _transfers(i: int, draw: random.Random) -> str:
    return f"{i / 100},gpu{i % 8 + 1},gpu{i % 7 + 17},{draw.randint(10**6, 10**10)},r{i}"


def _table(i: int, draw: random.Random) -> str:
    sizes = f"{draw.randint(500, 7000)},{draw.randint(1, 900)},{draw.randint(0, 400)}"
    return f"{i / 100},{sizes},s{i % 999},t{i % 3},{i % 40}"


def _blocks(i: int, draw: random.Random, time_value: float, **more: object) -> str:
    tokens = draw.randint(1, 12_000)
    ids = [i + k for k in range(-(-tokens // 512))]
    row = {"timestamp": time_value, "input_length": tokens, "output_length": 300, "hash_ids": ids}
    return json.dumps({**row, **more})


#: Name -> (header, row): `table_json` is `table` as JSON lines.
MAKERS: dict[str, tuple[str, Callable[[int, random.Random], str]]] = {
    "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens", _azure),
    "burstgpt": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        _burstgpt,
    ),
    "routing": (
        "start_ns,p_rank,d_rank,input_tokens,output_tokens,device_tokens,host_tokens,miss_tokens,ttft_ms,p_queue_ms",
        _routing,
    ),
    "transfers": ("time_s,src_gpu,dst_gpu,bytes,request", _transfers),
    "table": ("arrival_s,input_tokens,output_tokens,cached_tokens,session_id,tenant,turn", _table),
    "table_json": ("", lambda i, draw: json.dumps({"arrival_s": i / 100, "input_tokens": 900, "output_tokens": 9})),
    "mooncake": ("", lambda i, draw: _blocks(i, draw, i // 10 * 3000)),
    "qwen": ("", lambda i, draw: _blocks(i, draw, i / 10, chat_id=i, parent_chat_id=-1, turn=1, type="text")),
}


def lines(name: str, rows: int) -> Iterator[str]:
    """The lines of a generated file of this format."""
    header, row = MAKERS[name]
    if header:
        yield header + "\n"
    draw = random.Random(1)
    for i in range(rows):
        yield row(i, draw) + "\n"


def write(path: Path, name: str, rows: int) -> None:
    """Generate a file of this format."""
    with path.open("w") as handle:
        handle.writelines(lines(name, rows))


def _memory_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def one(path: Path) -> tuple[str, int, float, int]:
    """Read a file to its end: (format, rows, seconds, KiB that it added to the process)."""
    form = detect(path)
    before, began = _memory_kib(), time.perf_counter()
    rows = sum(1 for _ in Trace(path, form))
    return form.name, rows, time.perf_counter() - began, _memory_kib() - before


def main() -> None:
    """Read a generated file of each format in a process of its own; with a path: read that one."""
    if len(sys.argv) == 2:
        name, rows, seconds, added = one(Path(sys.argv[1]))
        print(f"{name:10} {rows:9,} rows {rows / seconds:11,.0f} rows/s {added / 1024:7.1f} MiB more")
        return
    print(f"{', '.join(FORMATS)}: one core, n = 1 each; goal for CSV {GOAL_ROWS_PER_S:,} rows/s")
    with tempfile.TemporaryDirectory() as folder:
        for name, (header, _) in MAKERS.items():
            path = Path(folder) / f"{name}.{'csv' if header else 'jsonl'}"
            write(path, name, ROWS["csv" if header else "jsonl"])
            subprocess.run([sys.executable, "-m", "traffic.bench", str(path)], check=True)
            path.unlink()
    print(bench_engine.text())


if __name__ == "__main__":
    main()
