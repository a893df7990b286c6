"""Groups of experts on the fabric, and what prefix caches keep and read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from test_traffic_driver import Driver, FixedSource, drive, req, small

from scenario.errors import InputError
from traffic.actions import StartTransfer
from traffic.engine import Engine
from traffic.prefix_cache import PrefixCache
from traffic.requests import Request
from traffic.shapes import planned_pairs

# Expert parallelism


def test_decode_waits_for_its_experts_traffic() -> None:
    def run(duration_s: float, **ep: object) -> tuple[Driver, float]:
        scenario = small(gpus=4, ep_background={"group_gpus": 2, "steps_per_round": 10, "mb_per_token": 5, **ep})
        engine = Engine(scenario, FixedSource([(0.0, req(0, 100, output=31))]))

        def lasts(transfer: StartTransfer) -> float:
            return duration_s if transfer.kind == "ep" else 0.1

        done = Driver(engine, duration_s=lasts).run()
        return done, float(str(engine.requests[0]["t_finished_s"])) - float(str(engine.requests[0]["t_first_token_s"]))

    done, fast = run(0.05)
    assert fast == pytest.approx(0.3)  # three rounds of ten steps of 10 ms: traffic is hidden
    rounds = [t for _, t in done.started if t.kind == "ep"]
    assert [(t.src_gpu, t.dst_gpu, t.bytes) for t in rounds] == [("gpu3", "gpu4", 50_000_000)] * 3  # only gpu3 decodes
    _, slow = run(0.25)
    assert slow == pytest.approx(0.75)  # the fabric decides
    scenario = small(gpus=4, ep_background={"group_gpus": 2})
    assert {("gpu3", "gpu4"), ("gpu4", "gpu3")} <= set(planned_pairs(scenario))


def test_groups_of_experts_are_whole_targets_whose_pairs_are_all_planned() -> None:
    """Targets of two GPUs in servers of two (shape C): four GPUs are two targets; five are none."""
    scenario = small(gpus=16, tp=2, shape="C", ep_background={"group_gpus": 4})
    engine = Engine(scenario, FixedSource([(0.0, req(n, 100, output=31)) for n in range(8)]))
    done = Driver(engine, duration_s=lambda _: 0.01).run()
    sent = {(t.src_gpu, t.dst_gpu) for _, t in done.started}
    assert sent <= set(planned_pairs(scenario)) and any(t.kind == "ep" for _, t in done.started)
    for size, said in ((5, "multiple of a decode target's 2 GPUs"), (2, "no group spans two servers")):
        wrong = small(gpus=16, tp=2, shape="C", ep_background={"group_gpus": size})
        with pytest.raises(InputError, match=said):
            planned_pairs(wrong)


# Prefix cache


def test_what_a_full_cache_keeps_of_a_prompt_is_its_start() -> None:
    def blocks(*ids: int) -> Request:
        return replace(req(0, 10 * len(ids)), prefix_blocks=ids, block_tokens=10)

    cache = PrefixCache(100)
    first = blocks(*range(8))
    cache.insert(first, 80)
    cache.insert(blocks(*range(100, 105)), 50)
    assert cache.match(first) == 50  # five of its blocks are left, and they are the first five
    cache.insert(blocks(*range(200, 220)), 200)
    assert cache.match(blocks(*range(200, 220))) == 100  # longer than the cache


def test_a_local_handoff_does_not_take_the_pool_off_the_fabric() -> None:
    def kinds(share: float) -> Counter[str]:
        scenario = small(gpus=8, tp=2, shape="C", prefix_cache="pool", placement="random", local_handoff_share=share)
        turns = [(2.0 * n, replace(req(n, 1000, cached=500, session=0), turn=n)) for n in range(12)]
        return Counter(t.kind for _, t in drive(scenario, FixedSource(turns)).started)

    assert kinds(0.0)["prefix"] == kinds(1.0)["prefix"] > 0
    assert kinds(0.0)["kv"] > kinds(1.0)["kv"] == 0
