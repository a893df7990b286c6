"""Windows of the real trace files, with real handoffs on the emulated fabric of 16 GPUs. The files are no part of this
project: without them the tests are skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests_root import needs_root

from emulation.sandbox import Sandbox

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"

pytestmark = [
    pytest.mark.root,
    needs_root,
    pytest.mark.skipif(not TRACES.is_dir(), reason=f"real traces are not beside the project ({TRACES})"),
]

FABRICS = {"zcube": "zcube:gpus=16,asic_ports=4", "roft": "roft:gpus=16,asic_ports=8"}
REQUESTS = 12
#: Kind of workload, file or folder, and what makes some seconds of it: the traces are of whole clusters.
WINDOWS: dict[str, tuple[str, str, dict[str, object]]] = {
    "azure code": ("azure", "azure-2023/AzureLLMInferenceTrace_code.csv", {"skip": 4000}),
    "azure conversation": ("azure", "azure-2023/AzureLLMInferenceTrace_conv.csv", {"skip": 9000}),
    "mooncake conversation": ("mooncake", "mooncake-fast25/conversation_trace.head.jsonl", {"skip": 100}),
    "mooncake synthetic": ("mooncake", "mooncake-fast25/synthetic_trace.head.jsonl", {"skip": 50}),
    "coding sessions": ("sessions", "kv-cache-tester", {"users": 4, "ramp_s": 2.0, "speedup": 20}),
}
#: 12 prompts of up to 100,000 tokens at once would wait for memory; what is tested is the way, not the queue.
SERVING = {"model": "glm-5.1", "timeout_s": 600, "prefix_cache": "modelled"}


@pytest.fixture(scope="module", params=FABRICS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    variants = {
        name: {
            "serving": SERVING,
            "workload": {"kind": kind, "path": str(TRACES / path), "requests": REQUESTS, **window},
        }
        for name, (kind, path, window) in WINDOWS.items()
    }
    log_path = tmp_path_factory.mktemp("traces") / "log"
    with (
        open(log_path, "wb") as log,
        Sandbox(["tests/emulated_serving.py", FABRICS[request.param], json.dumps(variants)], stderr=log) as sandbox,
    ):
        assert sandbox.process.stdout is not None
        output = sandbox.process.stdout.read()
        code = sandbox.wait(10)
    assert code == 0, log_path.read_text()[-2000:]
    found: dict[str, Any] = json.loads(output)
    return found


def test_every_window_is_served_and_every_byte_arrives_once(served: dict[str, Any]) -> None:
    assert {name: one["status"] for name, one in served.items()} == {name: {"ok": REQUESTS} for name in WINDOWS}
    assert {name: one["wrong_bytes"] for name, one in served.items() if one["wrong_bytes"]} == {}


def test_handoffs_are_those_of_the_files(served: dict[str, Any]) -> None:
    """Bytes grow with the prompt; prompts are the files' own; where the file has blocks, prefixes are hit."""
    for name, one in served.items():
        rows = one["rows"]
        assert one["transfers"] >= sum(bool(row["kv_bytes_sent"]) for row in rows) > 0, name
        by_tokens = {row["input_tokens"]: row["kv_bytes_sent"] for row in rows if row["kv_bytes_sent"]}
        ordered = [by_tokens[tokens] for tokens in sorted(by_tokens)]
        assert ordered == sorted(ordered) and len(ordered) > 1, name
    assert sum(row["cached_tokens"] for row in served["mooncake conversation"]["rows"]) > 0
