"""Policies on the emulated fabric: the path that a connection is seen to take is the one its bytes take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests_root import in_sandbox, needs_root

pytestmark = [pytest.mark.root, needs_root]

BOTH = pytest.mark.parametrize("transport", ["tcp", "udp"])
TCP = pytest.mark.parametrize("transport", ["tcp", pytest.param("udp", marks=pytest.mark.deep)])
UDP = pytest.mark.parametrize("transport", [pytest.param("tcp", marks=pytest.mark.deep), "udp"])
ROFT = "roft:gpus=16,asic_ports=8"


def served(tmp_path: Path, fabric: str, policy: str, transport: str) -> dict[str, Any]:
    found: dict[str, Any] = in_sandbox(tmp_path, "tests/emulated_policies.py", fabric, policy, transport)
    assert found["complaints"] == [] and found["verified"] == len(found["handoffs"]) == 6
    for one in found["handoffs"]:
        assert one["off_by"] < 0.02, one
    return found


@BOTH
def test_the_switches_own_hash_is_observed(tmp_path: Path, transport: str) -> None:
    found = served(tmp_path, ROFT, "ecmp_ovs", transport)
    assert found["connections"] == 6
    assert all(len(one["parts"]) == 1 for one in found["handoffs"])


@UDP
def test_spray_uses_every_path_about_equally(tmp_path: Path, transport: str) -> None:
    found = served(tmp_path, ROFT, "spray", transport)
    assert found["as_planned"] == found["connections"] == found["paths"] == 6 * 8
    for one in found["handoffs"]:
        assert len(one["parts"]) == 8
        assert max(one["parts"]) < 0.25 * sum(one["parts"])


@TCP
def test_shortest_uses_the_shared_switch(tmp_path: Path, transport: str) -> None:
    found = served(tmp_path, "zcube:gpus=16,asic_ports=4", "shortest", transport)
    assert found["as_planned"] == found["connections"]
    assert {len(one["parts"]) for one in found["handoffs"]} == {1, 2}
