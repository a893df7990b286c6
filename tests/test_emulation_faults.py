"""Every switch and every cable between switches fails in turn while handoffs are under way: none is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests_root import in_sandbox, needs_root

pytestmark = [pytest.mark.root, needs_root]


@pytest.mark.parametrize(
    ("text", "sdn", "transport", "switches", "cables"),
    [
        ("zcube:gpus=8,asic_ports=4", "ryu", "tcp", 4, 8),
        # a queue pair with several source ports, each on a path of its own
        ("roft:gpus=8,asic_ports=4", "ryu", "udp spray", 6, 8),
        # GPUs with both switches in common: stand-ins for what is cut
        ("zcube:gpus=16,asic_ports=8,gpus_per_switch=8", "os-ken", "udp", 4, 16),
        pytest.param("zcube:gpus=16,asic_ports=4", "ryu", "tcp", 8, 16, marks=pytest.mark.deep),
        pytest.param("roft:gpus=16,asic_ports=8", "ryu", "udp spray", 6, 16, marks=pytest.mark.deep),
    ],
    ids=["zcube", "roft-udp-spray", "zcube-wide-udp", "zcube-16", "roft-16-udp-spray"],
)
def test_no_handoff_is_lost_whatever_fails(
    tmp_path: Path, text: str, sdn: str, transport: str, switches: int, cables: int
) -> None:
    found = in_sandbox(tmp_path, "tests/emulated_faults.py", text, sdn, transport)
    # Each handoff once, with its bytes, by its GPU pair; nothing of any is left at a receiver.
    assert found["wrong"] == [] and found["half_arrived"] == 0
    assert found["faults"] == switches + cables and found["repairs"] >= 2 * found["faults"]
    assert found["still_cut"] == [] and found["switch_errors"] == []
    # And it was a test: handoffs were under way, some had to move, some had to wait.
    assert found["handoffs_hit"] > found["faults"]
    assert found["queue_pairs_cut"] > 0 and found["moved_bytes"] > 0 and found["waited"] > 0
