"""Servers, roles, decode targets, and who sends what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenario.errors import InputError
from scenario.models import Scenario
from traffic.layout import decode_targets, roles, servers
from traffic.shapes import handoff, planned_pairs
from traffic.sources import make_source


def scenario(gpus: int = 32, tp: int = 4, **serving: object) -> Scenario:
    return Scenario.model_validate({"fabric": {"gpus": gpus, "gpus_per_server": tp}, "serving": serving})


def names(group: object) -> list[str]:
    return [s.name for s in group]  # type: ignore[attr-defined]


def test_servers_hold_contiguous_gpus() -> None:
    everyone = servers(scenario())
    assert names(everyone) == [f"server{i}" for i in range(1, 9)]
    assert everyone[0].gpus == ("gpu1", "gpu2", "gpu3", "gpu4")
    assert everyone[7].gpus == ("gpu29", "gpu30", "gpu31", "gpu32")
    assert [s.block for s in everyone] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_split_and_interleaved() -> None:
    split = roles(scenario())
    assert names(split.prefill) == ["server1", "server2", "server3", "server4"]
    assert names(split.decode) == ["server5", "server6", "server7", "server8"]
    mixed = roles(scenario(layout="interleaved"))
    assert names(mixed.prefill) == ["server1", "server2", "server5", "server6"]
    assert names(mixed.decode) == ["server3", "server4", "server7", "server8"]


@pytest.mark.parametrize(
    ("gpus", "tp", "serving", "field", "hint"),
    [
        (12, 4, {}, "fabric.gpus", "16"),
        (4, 4, {}, "fabric.gpus", "8"),
        (32, 4, {"layout": "interleaved", "block_servers": 3}, "serving.block_servers", r"\[2, 4, 8\]"),
        (32, 4, {"layout": "interleaved", "block_servers": 6}, "serving.block_servers", r"\[2, 4, 8\]"),
        (12, 4, {"layout": "interleaved"}, "serving.block_servers", "multiple of 8 GPUs"),
    ],
)
def test_layouts_that_do_not_divide(gpus: int, tp: int, serving: dict[str, object], field: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint) as error:
        roles(scenario(gpus, tp, **serving))
    assert error.value.field == field


def test_same_block_keeps_to_the_block_or_says_what_fits() -> None:
    mixed = scenario(layout="interleaved", pairing="same_block", shape="A")
    assert [t.name for t in decode_targets(mixed, roles(mixed).prefill[0])] == ["server3", "server4"]
    assert [t.name for t in decode_targets(mixed, roles(mixed).prefill[3])] == ["server7", "server8"]
    split = scenario(pairing="same_block")
    with pytest.raises(InputError, match="interleaved") as error:
        planned_pairs(split)
    assert error.value.field == "serving.pairing"


def test_shape_d_sends_all_from_rank_0() -> None:
    assert handoff("D", ["gpu5", "gpu6"], ["gpu9"], 7) == [("gpu5", "gpu9", 7)]
    assert handoff("D", ["gpu5", "gpu6"], "gpu9", 7) == [("gpu5", "gpu9", 7)]
    with pytest.raises(InputError):
        handoff("D", ["gpu5"], ["gpu9", "gpu10"], 7)


def test_shape_a_sends_a_share_from_each_rank() -> None:
    assert handoff("A", ["gpu1", "gpu2"], ["gpu5", "gpu6"], 7) == [("gpu1", "gpu5", 4), ("gpu2", "gpu6", 3)]
    with pytest.raises(InputError):
        handoff("A", ["gpu1", "gpu2"], ["gpu5"], 7)
    with pytest.raises(InputError, match="A, B, C"):
        handoff("Q", ["gpu1"], ["gpu5"], 7)


@given(total=st.integers(0, 10**13), tp=st.sampled_from([1, 2, 4, 8, 16]))
def test_shares_sum_to_the_whole(total: int, tp: int) -> None:
    flows = handoff("A", [f"a{i}" for i in range(tp)], [f"b{i}" for i in range(tp)], total)
    sizes = [size for _, _, size in flows]
    assert sum(sizes) == total
    assert max(sizes) - min(sizes) <= 1


def test_planned_pairs() -> None:
    shape_d = planned_pairs(scenario())
    assert len(shape_d) == len(set(shape_d)) == 4 * 16
    assert {src for src, _ in shape_d} == {"gpu1", "gpu5", "gpu9", "gpu13"}
    shape_a = planned_pairs(scenario(shape="A"))
    assert len(shape_a) == len(set(shape_a)) == 4 * 4 * 4
    assert all((int(src[3:]) - int(dst[3:])) % 4 == 0 for src, dst in shape_a)
    same = planned_pairs(scenario(shape="D", layout="interleaved", pairing="same_block"))
    assert len(same) == 4 * 8
    assert all((int(src[3:]) - 1) // 16 == (int(dst[3:]) - 1) // 16 for src, dst in same)


def test_a_server_of_one_gpu_has_no_rails_to_split_wherever_that_is_asked() -> None:
    one_gpu = scenario(tp=1, layout="per_rail")
    with pytest.raises(InputError, match="no two halves"):
        roles(one_gpu)
    with pytest.raises(InputError, match="no two halves"):
        make_source(one_gpu)
