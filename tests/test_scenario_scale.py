"""The scale model keeps every ratio of a fluid network; what does not scale is told in frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenario.errors import InputError
from scenario.scale import Scale, choose_scale, switch_hops_per_s


def test_figures_worked_by_hand() -> None:
    scale = Scale(rate_factor=5e-5, dilation=3.0, frame_bytes=9000)
    assert scale.rate_bps(400) == pytest.approx(20e6)
    assert scale.frame_time_wall_s(400) == pytest.approx(3.6e-3)
    assert scale.mss_bytes == 8934
    assert scale.payload_bytes(7.3e9) == 1_095_000
    assert scale.model_bytes_per_frame == pytest.approx(8934 / 1.5e-4)
    # 10 full frames and one of 1 byte: 11 headers
    assert scale.wire_bytes(89_341) == 89_341 + 11 * 66
    # four senders of 400 Gb/s, three switches: 4 x 277.8 frames/s x 3 x 1.5
    assert switch_hops_per_s(5e-5, 1600, 3, 9000) == pytest.approx(5000)


@given(st.floats(1e-6, 1e-2), st.floats(0.1, 100), st.floats(1e6, 1e11), st.floats(10, 800))
def test_model_time_of_a_transfer_does_not_depend_on_the_scale(a: float, d: float, size: float, gbps: float) -> None:
    scale = Scale(a, d, 9000)
    wall_s = size * scale.byte_factor * 8 / scale.rate_bps(gbps)
    assert wall_s / d == pytest.approx(size * 8 / (gbps * 1e9))


def test_choice_stays_within_budget_and_resolves_the_median() -> None:
    scale = choose_scale(
        budget_hops_per_s=12_000,
        senders_gbps=1600,
        hops=3,
        frame_bytes=9000,
        median_handoff_bytes=6.17e9,
        queue_pairs=2,
        max_port_mbps=1000,
        max_gpu_gbps=400,
    )
    assert switch_hops_per_s(scale.rate_factor, 1600, 3, 9000) <= 12_000
    assert switch_hops_per_s(scale.rate_factor * 1.1, 1600, 3, 9000) > 12_000  # not needlessly slow
    assert scale.resolution_frames(6.17e9, 2) >= 50
    slower = choose_scale(
        budget_hops_per_s=12_000,
        senders_gbps=1600,
        hops=3,
        frame_bytes=9000,
        median_handoff_bytes=6.17e9,
        queue_pairs=2,
        max_port_mbps=20,
        max_gpu_gbps=400,
    )
    assert slower.rate_bps(400) <= 20e6


def test_no_budget_is_an_error() -> None:
    with pytest.raises(InputError, match="forwarded no packets"):
        choose_scale(
            budget_hops_per_s=0,
            senders_gbps=1600,
            hops=3,
            frame_bytes=9000,
            median_handoff_bytes=1e9,
            queue_pairs=2,
            max_port_mbps=20,
            max_gpu_gbps=400,
        )
