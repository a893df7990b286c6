"""Every kind of workload, and windows of the real trace files, with real handoffs on an emulated ZCube of 16 GPUs.

The files are no part of this project: where they are not beside it, their windows are left out, and a test says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests_root import in_sandbox, needs_root

from scenario.fabric_spec import section_from_text
from scenario.models import Scenario
from scenario.workload_section import REPLAYS
from traffic import bench
from traffic.layout import roles

pytestmark = [pytest.mark.root, needs_root]

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
FABRIC = "zcube:gpus=16,asic_ports=4"
REQUESTS = 9
#: Kind of workload, file or folder, and what makes some seconds of it: the traces are of whole clusters.
REAL: dict[str, tuple[str, str, dict[str, object]]] = {
    "azure code": ("azure", "azure-2023/AzureLLMInferenceTrace_code.csv", {"skip": 4000}),
    "azure conversation": ("azure", "azure-2023/AzureLLMInferenceTrace_conv.csv", {"skip": 9000}),
    "mooncake conversation": ("mooncake", "mooncake-fast25/conversation_trace.head.jsonl", {"skip": 100}),
    "mooncake synthetic": ("mooncake", "mooncake-fast25/synthetic_trace.head.jsonl", {"skip": 50}),
    "coding sessions": ("sessions", "kv-cache-tester", {"users": 4, "ramp_s": 2.0, "speedup": 20}),
}
#: Long enough for prompts of 100,000 tokens that come at once: what is tested is the way, not the queue.
SERVING = {"model": "glm-5.1", "timeout_s": 600, "prefix_cache": "modelled"}
LOGS = ("transfers", "routing")
#: In shape E every GPU sends for itself, as the rows of the log of transfers do.
RECORDED = {"transfers": {"placement": "recorded", "shape": "E"}, "routing": {"placement": "recorded"}}
#: Pairs that the rows of a log go round: as many as there are GPUs of a role.
LOG_PAIRS = 8
POISSON = {"kind": "poisson", "rate_per_s": 6}
LENGTHS = {"kind": "quantiles", "input": {"0": 1000, "1": 9000}, "output": {"0": 1, "1": 20}}


def real() -> dict[str, dict[str, object]]:
    if not TRACES.is_dir():
        return {}
    windows = {
        name: {"kind": kind, "path": str(TRACES / path), "requests": REQUESTS, **window}
        for name, (kind, path, window) in REAL.items()
    }
    arrivals = {"kind": "servegen", "path": str(TRACES / "servegen-m-large")}
    return {
        **windows,
        "servegen": {"kind": "synthetic", "requests": REQUESTS, "arrivals": arrivals, "lengths": LENGTHS},
    }


def generated(folder: Path) -> dict[str, dict[str, object]]:
    """A file of each format, and what is drawn. The logs name GPUs of the fabric by their roles."""
    found: dict[str, dict[str, object]] = {}
    for name in bench.MAKERS:
        if name not in LOGS:
            bench.write(folder / name, name, 40)
            kind = name.removesuffix("_json")
            found[name] = {"kind": kind, "path": str(folder / name), "requests": REQUESTS, "skip": 3}
    scenario = Scenario(fabric=section_from_text(FABRIC))
    sides = roles(scenario)
    prefill, decode = ([gpu for server in side for gpu in server.gpus] for side in (sides.prefill, sides.decode))
    ranks = [(n % LOG_PAIRS, n * 3 % LOG_PAIRS) for n in range(REQUESTS)]
    rows = {
        "transfers": [
            f"{n / 10},{prefill[p]},{decode[d]},{(n + 1) * 10**8},r{n}"
            for n, (p, d) in enumerate(ranks)
        ],
        "routing": [
            f"{10**15 + n * 10**8},{p},{d},{9000 + n},30,0,0,{4000 + n},90.5,0.25" for n, (p, d) in enumerate(ranks)
        ],
    }
    for name in LOGS:
        (folder / name).write_text("\n".join([bench.MAKERS[name][0], *rows[name]]) + "\n")
        found[name] = {"kind": name, "path": str(folder / name), "requests": REQUESTS}
    drawn = {"kind": "synthetic", "requests": REQUESTS, "lengths": LENGTHS}
    return {
        **found,
        "poisson": {**drawn, "arrivals": POISSON},
        "gamma": {**drawn, "arrivals": {"kind": "gamma", "rate_per_s": 6, "cv": 3}},
        "sampled": {**drawn, "arrivals": POISSON, "lengths": {"kind": "sampled", "path": str(folder / "azure")}},
        "burst": {"kind": "burst", "handoffs": REQUESTS, "tokens": [3000, 9000], "window_ms": 10, "repeats": 1},
        "coding_agent": {"kind": "coding_agent", "requests": REQUESTS, "utilisation": 0.8},
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("traces")
    variants = {
        name: {"serving": {**SERVING, **RECORDED.get(name, {})}, "workload": workload}
        for name, workload in {**generated(folder), **real()}.items()
    }
    found: dict[str, Any] = in_sandbox(folder, "tests/emulated_serving.py", FABRIC, json.dumps(variants), "0.2")
    return found


def test_every_workload_is_served_and_every_byte_arrives_once(served: dict[str, Any]) -> None:
    assert {*REPLAYS, "burst", "poisson", "gamma", "coding_agent"} - {"sessions"} <= {*served}
    assert {name: one["status"] for name, one in served.items()} == {name: {"ok": REQUESTS} for name in served}
    assert {name: one["wrong_bytes"] for name, one in served.items() if one["wrong_bytes"]} == {}


def test_bytes_grow_with_the_prompt_and_what_is_cached_is_still_sent(served: dict[str, Any]) -> None:
    for name, one in served.items():
        by_tokens = {row["input_tokens"]: row["kv_bytes_sent"] for row in one["rows"] if row["kv_bytes_sent"]}
        ordered = [by_tokens[tokens] for tokens in sorted(by_tokens)]
        assert ordered == sorted(ordered) and ordered, name
        assert one["transfers"] >= sum(bool(row["kv_bytes_sent"]) for row in one["rows"]), name


def test_logs_go_where_they_say(served: dict[str, Any]) -> None:
    """Each row between its pair, chosen by the file and by no placement."""
    for name in LOGS:
        assert served[name]["pairs"] == LOG_PAIRS and served[name]["transfers"] == REQUESTS
    assert len(served["transfers"]["senders"]) == LOG_PAIRS
    assert len(served["routing"]["senders"]) == 2  # shape D: the first rank of the instance that has the rank


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"real traces are not beside the project ({TRACES})")
def test_real_windows_are_served_too_and_their_prefixes_hit(served: dict[str, Any]) -> None:
    assert {*REAL, "servegen"} <= {*served}
    assert sum(row["cached_tokens"] for row in served["mooncake conversation"]["rows"]) > 0
    assert len({row["input_tokens"] for row in served["coding sessions"]["rows"]}) > 5
