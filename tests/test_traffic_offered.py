"""Offered load against capacity, worked out by hand."""

from __future__ import annotations

import pytest
from test_traffic_driver import FixedSource, req, small

from scenario.models import Scenario
from traffic.offered import offered
from traffic.sources import make_source


def source(every_s: float, tokens: int = 1000) -> FixedSource:
    return FixedSource([(n * every_s, req(n, tokens)) for n in range(101)])


def test_each_stage_by_hand() -> None:
    # 1,000 tokens each 2 s; a full batch of 1,000 takes 1.1 s; 131 MB a prompt over a NIC of 50 GB/s.
    found = offered(small(), source(2.0))
    assert found.seconds == 200
    assert found.shares["prefill"] == pytest.approx(1010 / 2 / 1000 * 1.1, rel=0.01)
    assert found.shares["decode slots"] == pytest.approx((1.1 + 0.1) / 2 / 64, rel=0.02)
    assert found.shares["busiest NIC out"] == pytest.approx(131_072_000 / 2 / 50e9, rel=0.02)
    assert found.too_much == {} and found.sentence() == ""


def test_what_cannot_keep_up_is_named() -> None:
    found = offered(small(), source(0.5))
    assert list(found.too_much) == ["prefill"]
    assert "prefill 2.2" in found.sentence()


@pytest.mark.parametrize(
    ("serving", "out", "into"),
    [
        ({"shape": "A"}, 1 / 16, 1 / 16),  # every rank of the four prefill servers
        ({"shape": "D"}, 1 / 4, 1 / 16),  # the first rank of each
        ({"shape": "C"}, 4 / 16, 4 / 16),  # four copies
        ({"shape": "E"}, 1 / 16, 1 / 16),
        ({"shape": "G"}, 4 / 16, 4 / 16),
        ({"shape": "A", "nic_map": "first"}, 1 / 4, 1 / 4),
        ({"shape": "D", "nic_map": "round_robin"}, 1 / 16, 1 / 16),
        ({"shape": "D", "nic_map": "stripe:2"}, 1 / 8, 1 / 16),
        ({"shape": "D", "local_handoff_share": 0.5}, 1 / 8, 1 / 32),
    ],
)
def test_the_busiest_nic_by_shape_and_map(serving: dict[str, object], out: float, into: float) -> None:
    found = offered(small(gpus=32, tp=4, **serving), source(2.0))
    one = 101 * 131_072_000 / 200 / 50e9
    assert found.shares["busiest NIC out"] == pytest.approx(one * out)
    assert found.shares["busiest NIC in"] == pytest.approx(one * into)


def test_the_default_offers_what_it_says() -> None:
    scenario = Scenario()
    # 0.8 of the formula's rate over the loop's life; a heavy-tailed sample of 374 requests is not its mean.
    assert 0.4 < offered(scenario, make_source(scenario)).shares["prefill"] < 1


def test_a_closed_loop_that_cannot_be_served_and_caches_that_start_cold_are_told() -> None:
    scenario = Scenario.model_validate({"serving": {"prefix_cache": "modelled"}, "fabric": {"gpu_gbps": 1}})
    text = offered(scenario, make_source(scenario)).sentence()
    assert "busiest NIC" in text and "closed loop" in text and "modelled starts with empty caches" in text
    assert offered(small(prefix_cache="modelled"), source(2.0)).sentence() == ""  # nothing of it is cached
