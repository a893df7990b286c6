"""Placement policies: what each picks, and why; and the load of paths that two of them look at."""

from __future__ import annotations

from collections import Counter

import pytest
from test_traffic_driver import FixedSource, drive, req, small

from scenario.errors import InputError
from scenario.models import Scenario
from traffic.engine import Engine
from traffic.path_load import PathLoad
from traffic.placement import Asked, Choice, Load, Placer
from traffic.requests import Request

NOTHING = Load({}, {})


def pick(policy: str, names: tuple[str, ...], load: Load = NOTHING, asked: Asked | None = None) -> Choice:
    return Placer(policy).choose(names, load, asked or Asked(0))


def test_round_robin_takes_turns() -> None:
    names = ("gpu9", "gpu10", "gpu11")
    placer = Placer("round_robin")
    picks = [placer.choose(names, NOTHING, Asked(n)) for n in range(4)]
    assert [p.name for p in picks] == ["gpu9", "gpu10", "gpu11", "gpu9"]
    assert picks[1].scores == {"gpu9": 2.0, "gpu10": 0.0, "gpu11": 1.0}


def test_sets_of_candidates_have_their_own_turns() -> None:
    placer = Placer("round_robin")
    sets = (("a", "b"), ("c", "d"), ("a", "b"))
    assert [placer.choose(c, NOTHING, Asked(0)).name for c in sets] == ["a", "c", "b"]


def test_drift_makes_every_pair_meet_equally_often() -> None:
    prefill, decode = Placer("round_robin"), Placer("round_robin", drift=True)
    servers, targets = tuple("wxyz"), tuple(f"gpu{i}" for i in range(16))
    met = Counter(
        (prefill.choose(servers, NOTHING, Asked(n)).name, decode.choose(targets, NOTHING, Asked(n)).name)
        for n in range(2 * 16 * 16)
    )
    assert len(met) == 64 and set(met.values()) == {8}


@pytest.mark.parametrize("policy", ["token_jsq", "least_loaded"])
def test_fewest_tokens_and_ties(policy: str) -> None:
    names = ("gpu9", "gpu10", "gpu11")
    found = pick(policy, names, Load({}, {"gpu9": 50, "gpu10": 20, "gpu11": 20}))
    assert found.name == "gpu10"  # number order, not text order
    assert found.scores == {"gpu9": 50.0, "gpu10": 20.0, "gpu11": 20.0}
    assert pick(policy, names).name == "gpu9"


def test_jsq_counts_requests_and_not_tokens() -> None:
    assert pick("jsq", ("a", "b"), Load({"a": 2, "b": 1}, {"a": 1, "b": 900})).name == "b"


def test_random_is_even_and_keyed_by_request() -> None:
    names = tuple(f"gpu{n}" for n in range(8))
    placer = Placer("random", seed=4)
    found = [placer.choose(names, NOTHING, Asked(n)).name for n in range(4000)]
    assert all(400 < count < 600 for count in Counter(found).values())
    assert found[7] == Placer("random", seed=4).choose(names, NOTHING, Asked(7)).name


def test_power_of_two_takes_the_better_of_two() -> None:
    names = tuple(f"gpu{n}" for n in range(8))
    load = Load({name: n for n, name in enumerate(names)}, {})
    found = [Placer("power_of_two").choose(names, load, Asked(n)) for n in range(4000)]
    assert all(len(one.scores) == 2 for one in found)
    count = Counter(one.name for one in found)
    assert count["gpu7"] == 0  # never the better one
    # The best of two distinct ones of eight is the first with 2/8, the second with 2/8 * 6/7, ...
    assert abs(count["gpu0"] / 4000 - 2 / 8) < 0.03 and abs(count["gpu1"] / 4000 - 12 / 56) < 0.03
    assert pick("power_of_two", ("only",)).name == "only"


def test_cache_aware_weighs_hits_against_load() -> None:
    asked = Asked(0, uncached={"a": 100.0, "b": 1000.0}.__getitem__)
    assert pick("cache_aware", ("a", "b"), asked=asked).name == "a"
    assert pick("cache_aware", ("a", "b"), Load({}, {"a": 901}), asked).name == "b"


def test_sessions_stick() -> None:
    load = Load({}, {"a": 5000})
    assert pick("session_affinity", ("a", "b"), load, Asked(0, last="a")).name == "a"
    assert pick("session_affinity", ("a", "b"), load, Asked(0)).name == "b"


def test_topology_aware_avoids_a_busy_path_and_a_busy_target_and_adversarial_seeks_it() -> None:
    asked = Asked(0, path_s={"a": 0.5, "b": 0.1}.__getitem__)
    assert pick("topology_aware", ("a", "b"), asked=asked).name == "b"
    assert pick("topology_aware", ("a", "b"), Load({"b": 1}, {}), asked).name == "a"
    assert pick("adversarial", ("a", "b"), asked=asked).name == "a"


def test_recorded_places_where_the_record_says() -> None:
    requests = [
        (0.0, Request(n, n, 0, "t", 10, 0, 11, "measured", prefill_gpu=f"gpu{1 + n}", decode_gpu=f"gpu{4 - n}"))
        for n in range(2)
    ]
    done = drive(small(gpus=4, placement="recorded"), FixedSource(requests))
    assert [(t.src_gpu, t.dst_gpu) for _, t in done.started] == [("gpu1", "gpu4"), ("gpu2", "gpu3")]
    with pytest.raises(InputError, match="placement recorded needs one of") as caught:
        drive(small(gpus=4, placement="recorded"), FixedSource([(0.0, req(0, 10))]))
    assert "prefill of request 0" in str(caught.value)


def test_unknown_policy() -> None:
    with pytest.raises(InputError, match="psychic"):
        pick("psychic", ("a",))


def test_path_load_is_the_fullest_port_and_goes_away() -> None:
    load = PathLoad(Scenario())
    assert load.seconds_ahead("gpu1", "gpu17") == 0
    load.add("gpu1", "gpu17", 50e9)  # over two ports of 200 Gb/s: a second each
    assert load.seconds_ahead("gpu1", "gpu17") == pytest.approx(1.0)
    assert load.seconds_ahead("gpu1", "gpu25") > 0  # shares the NIC at least
    assert load.seconds_ahead("gpu2", "gpu26") == 0
    load.add("gpu1", "gpu17", -50e9)
    assert load.seconds_ahead("gpu1", "gpu17") == pytest.approx(0)


def test_adversarial_gathers_handoffs_on_one_path_and_topology_aware_spreads_them() -> None:
    source = FixedSource([(0.0, req(n, 1000, output=2)) for n in range(16)])

    def targets(placement: str) -> int:
        scenario = small(gpus=32, tp=4, shape="D", decode_placement=placement, prefill_batch_tokens=10_000)
        return len({t.dst_gpu for _, t in drive(scenario, source).started})

    assert targets("adversarial") == 1
    assert targets("topology_aware") == 16


def test_the_adversary_is_of_the_fabric_and_not_of_one_prefill_queue() -> None:
    scenario = small(gpus=8, placement="adversarial")
    done = drive(scenario, FixedSource([(n / 10, req(n, 100)) for n in range(16)]))
    assert set(Counter(row["prefill_instance"] for row in done.engine.requests).values()) == {4}


def test_path_load_is_asked_of_the_nics_that_carry() -> None:
    """All handoffs leave by, and arrive at, the first NIC of a server: a path to its other GPU is as full."""
    scenario = small(gpus=8, tp=2, placement="topology_aware", nic_map="first", shape="D", layout="split")
    engine = Engine(scenario, FixedSource([(0.0, req(0, 100))]))
    gateway = engine._gateway
    assert gateway.path_load is not None
    prefill = next(iter(engine._prefills.values()))
    gateway.path_load.add("gpu3", "gpu5", 10**9)  # the destination's NIC alone is in common
    scores = gateway._decode(req(1, 100), None, prefill).scores
    assert scores["gpu5"] == scores["gpu6"] > scores["gpu7"] == scores["gpu8"]
