"""Every shape, layout, transfer mode, NIC map and placement with real handoffs on the emulated fabric of 16 GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests_root import in_sandbox, needs_root

from scenario.serving_section import PlacementName

pytestmark = [pytest.mark.root, needs_root]

NIC_MAPS = ("first", "round_robin", "stripe:2", "nic0=nic1,nic2")
SERVING: dict[str, dict[str, object]] = {
    **{f"shape {shape}": {"shape": shape} for shape in "ABCDEFG"},
    **{f"layout {name}": {"layout": name} for name in ("random", "per_rail", "worst")},
    "layout interleaved": {"layout": "interleaved", "block_servers": 2, "pairing": "same_block", "shape": "A"},
    "chunked": {"transfer_mode": "chunked", "chunked_prefill": True, "prefill_batch_tokens": 1000},
    "layerwise": {"transfer_mode": "layerwise", "layer_groups": 4},
    "delta": {"transfer_content": "delta", "placement": "session_affinity"},
    "local": {"local_handoff_share": 0.5},
    **{f"nics {text}": {"shape": "A", "nic_map": text} for text in NIC_MAPS},
    "max_inbound": {"max_inbound": 1, "placement": "adversarial"},
    "pool": {"prefix_cache": "pool", "placement": "random"},
    "modelled": {"prefix_cache": "modelled"},
    "experts": {"ep_background": {"group_gpus": 8, "steps_per_round": 10, "mb_per_token": 200}},
    **{
        f"placement {name}": {"placement": name}
        for name in PlacementName.__args__  # type: ignore[attr-defined]
        if name != "recorded"
    },
}
FABRICS = {"zcube": "zcube:gpus=16,asic_ports=4", "roft": "roft:gpus=16,asic_ports=8"}


def two_sessions(folder: Path) -> dict[str, object]:
    """Four turns of each of two sessions; a turn's prompt begins with the one before."""
    rows = ["arrival_s,input_tokens,output_tokens,cached_tokens,session_id,turn"]
    for turn in range(4):
        prompt = 3000 + 800 * turn
        rows += [f"{1.5 * turn + 0.2 * s},{prompt},10,{prompt - 800},{s},{turn}" for s in range(2)]
    path = folder / "sessions.csv"
    path.write_text("\n".join(rows) + "\n")
    return {"kind": "table", "path": str(path), "requests": 8}


#: Variants of which the way through the fabric is another with one port a GPU.
ONE_PORT = ("shape A", "shape G", "nics stripe:2", "layerwise", "experts", "placement random")
#: One model second in wall seconds.
DILATION = "0.3"


@pytest.fixture(scope="module", params=["zcube", pytest.param("roft", marks=pytest.mark.deep)])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("serving")
    turns = two_sessions(folder)
    variants = {
        name: {"serving": serving, **({"workload": turns} if name in ("delta", "pool", "modelled") else {})}
        for name, serving in SERVING.items()
    }
    fabric = FABRICS[request.param]
    found: dict[str, Any] = in_sandbox(folder, "tests/emulated_serving.py", fabric, json.dumps(variants), DILATION)
    return found


def test_every_variant_serves_all_requests_and_every_byte_arrives_once(served: dict[str, Any]) -> None:
    assert {name: one["status"] for name, one in served.items()} == {name: {"ok": 8} for name in SERVING}
    assert {name: one["wrong_bytes"] for name, one in served.items() if one["wrong_bytes"]} == {}


def test_roft_serves_too(tmp_path: Path) -> None:
    variants = {name: {"serving": SERVING[name]} for name in ONE_PORT}
    found = in_sandbox(tmp_path, "tests/emulated_serving.py", FABRICS["roft"], json.dumps(variants), DILATION)
    assert {name: (one["status"], one["wrong_bytes"]) for name, one in found.items()} == {
        name: ({"ok": 8}, []) for name in ONE_PORT
    }


def test_variants_differ_as_they_should(served: dict[str, Any]) -> None:
    transfers = {name: one["transfers"] for name, one in served.items()}
    requests = sum(bool(row["kv_bytes_sent"]) for row in served["shape D"]["rows"])
    for shape, flows in {"A": 4, "B": 4, "C": 4, "D": 1, "E": 1, "F": 4, "G": 16}.items():
        assert transfers[f"shape {shape}"] == flows * requests
    assert served["shape D"]["senders"] == ["gpu1", "gpu5"]  # the first rank of each prefill server
    assert served["nics first"]["senders"] == ["gpu1", "gpu5"]
    assert len(served["nics round_robin"]["senders"]) == 8
    assert transfers["nics stripe:2"] == 2 * transfers["shape A"]
    assert served["chunked"]["pieces"] > 0 and served["layerwise"]["pieces"] == 3
    assert any(row["held_tokens"] for row in served["delta"]["rows"])
    sent = [row["local"] for row in served["local"]["rows"] if row["kv_bytes_sent"]]
    assert 0 < sum(sent) < len(sent) and transfers["local"] == len(sent) - sum(sent)
    assert served["pool"]["kinds"].get("prefix", 0) > 0
    assert any(row["cached_tokens"] for row in served["modelled"]["rows"])
    assert served["experts"]["kinds"]["ep"] > 0
    assert served["placement adversarial"]["pairs"] < served["placement round_robin"]["pairs"]
