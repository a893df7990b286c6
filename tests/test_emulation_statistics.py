"""Statistics over OpenFlow on real switches: equal to the kernel's counters and to what was sent, on both libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests_root import in_sandbox, needs_root

pytestmark = [pytest.mark.root, needs_root]

from emulated_statistics import SIZES, UNPLANNED_FLOWS  # noqa: E402

#: Ethernet 14, IPv4 20, UDP 8.
HEADERS = 42


@pytest.mark.parametrize("library", ["ryu", "os-ken"])
def test_openflow_counters_are_the_kernels_and_buckets_sum_to_their_group(tmp_path: Path, library: str) -> None:
    found = in_sandbox(tmp_path, "tests/emulated_statistics.py", library)
    assert found["sdn"].startswith(library)
    assert found["rules_reported"] == found["rules_wanted"] > 0

    # Ports: bytes and packets, both directions, without any difference to explain.
    assert not found["kernel_moved"]
    assert found["openflow"] == found["kernel"]
    packets = len(SIZES) * (UNPLANNED_FLOWS + 8)
    assert sum(counted[3] for name, counted in found["kernel"].items() if name.startswith("spine")) == packets

    # Groups: each bucket's packets are in its group, and all that nobody planned went through one on its leaf and one
    # on its spine, which has two cables to each leaf.
    assert found["buckets"] == found["groups"]
    unplanned = 2 * len(SIZES) * UNPLANNED_FLOWS
    assert sum(packets for _, packets in found["groups"]) == found["fallback_packets"] == unplanned
    assert sum(octets for octets, _ in found["groups"]) == 2 * UNPLANNED_FLOWS * (sum(SIZES) + HEADERS * len(SIZES))

    # Rules: every planned packet hit its exact rule on leaf and spine.
    assert found["planned_packets"] == 2 * 8 * len(SIZES)
    assert found["planned_bytes"] == 2 * 8 * (sum(SIZES) + HEADERS * len(SIZES))

    assert found["account"]["ticks"] >= 3 and found["times"] >= 5
    assert found["account"]["failure"] is None and found["account"]["unanswered"] == []
    assert found["clocks_agree"]  # ours and the switch's both go forward from poll to poll
