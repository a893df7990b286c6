"""Repair on the emulated fabric: every cable between switches fails and comes back, a controller and a switch die."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests_root import in_sandbox, needs_root

pytestmark = [pytest.mark.root, needs_root]


@pytest.mark.parametrize(
    ("text", "sdn", "cables"),
    [
        ("zcube:gpus=8,asic_ports=4", "ryu", 8),
        ("zcube:gpus=16,asic_ports=8,gpus_per_switch=8", "os-ken", 16),
        ("roft:gpus=8,asic_ports=4", "ryu", 8),
        pytest.param("zcube:gpus=16,asic_ports=4", "ryu", 16, marks=pytest.mark.deep),
        pytest.param("roft:gpus=16,asic_ports=8", "ryu", 16, marks=pytest.mark.deep),
    ],
)
def test_failures_are_repaired_and_a_new_controller_touches_nothing(
    tmp_path: Path, text: str, sdn: str, cables: int
) -> None:
    found = in_sandbox(tmp_path, "tests/emulated_repair.py", text, sdn)
    assert found["wrong"] == []
    assert found["links_failed"] == cables and found["repairs"] == 2 * cables
    assert set(found["rules_sent"].values()) == {0}
    assert found["rules_kept"] == found["rules"]
    # A new controller adds nothing to what the one before had repaired, and repairs what changed in the gap, in order.
    assert found["gaps"] == [
        {"miscounted": [], "rules_sent": 0, "repairs": []},
        {"miscounted": [], "rules_sent": 0, "repairs": [[1, 2]]},
        {"miscounted": [], "rules_sent": 0, "repairs": [[2, 1]]},
    ]
