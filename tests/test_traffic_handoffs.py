"""Handoffs: shapes, NIC maps, transfer modes, content, limits and failures; timelines worked out by hand."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from test_traffic_driver import Driver, FixedSource, drive, req, small

from scenario.errors import InputError
from scenario.models import Scenario
from traffic.actions import TransferDone, TransferFailed
from traffic.engine import Engine
from traffic.layout import prefill_instances, roles
from traffic.nic_map import nic_map
from traffic.records import STAGES
from traffic.shapes import SHAPES, handoff, planned_pairs

TOKEN = 131_072


def sizes(done: Driver) -> list[tuple[float, int]]:
    """(submission, tokens) of each transfer."""
    return [(round(at, 6), t.bytes // TOKEN) for at, t in done.started]


# Shapes and NICs


def test_every_shape_sends_what_its_definition_says() -> None:
    prefill, decode = ["gpu1", "gpu2"], ["gpu5", "gpu6"]
    assert handoff("B", ["gpu1"], decode, 9) == [("gpu1", "gpu5", 5), ("gpu1", "gpu6", 4)]
    assert handoff("C", prefill, decode, 9) == [("gpu1", "gpu5", 9), ("gpu2", "gpu6", 9)]
    assert handoff("D", prefill, ["gpu6"], 9) == [("gpu1", "gpu6", 9)]
    assert handoff("E", ["gpu2"], ["gpu6"], 9) == [("gpu2", "gpu6", 9)]
    assert handoff("F", prefill, decode, 9) == [("gpu1", "gpu5", 9), ("gpu1", "gpu6", 9)]
    assert handoff("G", prefill, decode, 9) == [
        ("gpu1", "gpu5", 5), ("gpu1", "gpu6", 5), ("gpu2", "gpu5", 4), ("gpu2", "gpu6", 4),
    ]  # fmt: skip


def test_bytes_that_leave_are_copies_times_the_cache() -> None:
    """Of facts on eight GPUs: A and B one copy, C, F and G eight, D and E one."""
    eight = [f"gpu{n}" for n in range(1, 9)]
    there = [f"gpu{n}" for n in range(9, 17)]
    for shape, copies, flows in (
        ("A", 1, 8),
        ("B", 1, 8),
        ("C", 8, 8),
        ("D", 1, 1),
        ("E", 1, 1),
        ("F", 8, 8),
        ("G", 8, 64),
    ):
        found = handoff(shape, eight[:1] if shape in "BE" else eight, there[:1] if shape in "DE" else there, 8000)
        assert (sum(flow.bytes for flow in found), len(found)) == (8000 * copies, flows)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("own", [{(1, 2)}, {(1, 2)}]),
        ("first", [{(0, 0)}, {(0, 0)}]),
        ("round_robin", [{(1, 2)}, {(2, 3)}]),
        ("stripe:2", [{(1, 2), (2, 3)}, {(1, 2), (2, 3)}]),
        ("nic1=nic3,nic0; nic0=nic1", [{(1, 3)}, {(1, 0)}]),
        ("mlx5_0=mlx5_1", [{(1, 2)}, {(1, 2)}]),
    ],
)
def test_nic_maps(text: str, pairs: list[set[tuple[int, int]]]) -> None:
    found = nic_map(text, 4)
    assert [set(found.carriers(1, 2, nth)) for nth in (0, 1)] == pairs
    assert set.union(*pairs) <= found.possible(1, 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stripe:5", "from 1 to 4"),
        ("stripe:x", "from 1 to 4"),
        ("mine", "must be own, first"),
        ("nic9=nic1", "0 to 3"),
        ("nic0=", "local=peer"),
        ("nic0=nic1;nic0=nic2", "twice"),
        ("", "must be own"),
    ],
)
def test_a_nic_map_that_does_not_fit_is_named(text: str, says: str) -> None:
    with pytest.raises(InputError, match=r"serving\.nic_map") as caught:
        nic_map(text, 4)
    assert says in str(caught.value)


def test_layouts() -> None:
    rail = roles(small(gpus=8, tp=4, layout="per_rail"))
    assert [s.gpus for s in rail.prefill] == [("gpu1", "gpu2"), ("gpu5", "gpu6")]
    assert [s.gpus for s in rail.decode] == [("gpu3", "gpu4"), ("gpu7", "gpu8")]
    drawn = {tuple(s.name for s in roles(Scenario(seed=n, serving={"layout": "random"})).prefill) for n in range(20)}  # type: ignore[arg-type]
    assert len(drawn) > 10 and all(len(names) == 4 for names in drawn)
    worst = roles(Scenario(serving={"layout": "worst"}))  # type: ignore[arg-type]
    assert [s.name for s in worst.decode] == ["server1", "server2"] and len(worst.prefill) == 6
    single = prefill_instances(small(gpus=8, tp=2, shape="E"))
    assert [one.gpus for one in single] == [("gpu1",), ("gpu2",), ("gpu3",), ("gpu4",)]


# Modes and content


def test_chunked_sends_after_each_chunk_and_only_the_last_is_exposed() -> None:
    serving = {"chunked_prefill": True, "transfer_mode": "chunked", "prefill_batch_tokens": 400}
    done = drive(small(**serving), FixedSource([(0.0, req(0, 1000))]))
    # Batches of 400, 400, 200 tokens: 0.5, 0.5 and 0.3 s. A handoff of n tokens takes n ms.
    assert sizes(done) == [(0.5, 400), (1.0, 400), (1.3, 200)]
    assert done.instants("decode_alloc") == done.instants("kv_transfer") == [1.3]
    assert done.instants("decode_waiting") == [1.5]  # 0.2 s exposed instead of 1.0
    whole = drive(small(chunked_prefill=True, prefill_batch_tokens=400), FixedSource([(0.0, req(0, 1000))]))
    assert sizes(whole) == [(1.3, 1000)]


def test_chunked_prefill_shares_batches_between_prompts() -> None:
    serving = {"chunked_prefill": True, "prefill_batch_tokens": 400}
    done = drive(small(**serving), FixedSource([(0.0, req(0, 600)), (0.0, req(1, 100))]))
    # 0: 400 of request 0 (0.5 s). Then its 200 and 100 of request 1 (0.4 s).
    assert done.instants("decode_alloc") == [0.9, 0.9]
    assert [row["batch"] for row in done.engine.requests] == [1, 1]


def test_chunked_sends_the_cached_prefix_with_the_first_chunk() -> None:
    serving = {"chunked_prefill": True, "transfer_mode": "chunked", "prefill_batch_tokens": 400}
    done = drive(small(**serving), FixedSource([(0.0, req(0, 1000, cached=500))]))
    assert sizes(done) == [(0.5, 900), (0.7, 100)]


def test_layerwise_sends_while_the_batch_runs() -> None:
    done = drive(small(transfer_mode="layerwise", layer_groups=4), FixedSource([(0.0, req(0, 900))]))
    assert sizes(done) == [(0.25, 225), (0.5, 225), (0.75, 225), (1.0, 225)]
    assert done.instants("kv_transfer") == [1.0] and done.instants("decode_waiting") == [1.225]


def test_layerwise_waits_for_space_at_decode() -> None:
    scenario = small(transfer_mode="layerwise", layer_groups=2, decode_slots_per_gpu=1)
    source = FixedSource([(0.0, req(0, 100, output=201)), (0.0, req(1, 900))])
    done = drive(scenario, source)
    # Request 0: batch 0 to 0.2, pieces at 0.1 and 0.2, first token 0.25, last token 2.25. Request 1: 0.2 to 1.2.
    assert done.instants("first_token")[0] == 0.25
    assert sizes(done)[2:] == [(2.25, 450), (2.25, 450)]
    assert done.instants("decode_alloc")[1] == 1.2 and done.instants("kv_transfer")[1] == 2.25


def test_delta_sends_what_the_decode_target_lacks() -> None:
    later = req(1, 1500, session=0, cached=1100)
    source = FixedSource([(0.0, req(0, 1000, output=101))], {0: (1.0, later)})
    done = drive(small(transfer_content="delta"), source)
    # The target holds the first turn's 1,101 tokens, of which the new prompt begins with 1,100.
    assert [tokens for _, tokens in sizes(done)] == [1000, 400]
    assert [row["held_tokens"] for row in done.engine.requests] == [0, 1100]
    assert [t for _, t in sizes(drive(small(), source))] == [1000, 1500]


# Limits


def test_max_inbound_lets_handoffs_in_one_by_one() -> None:
    source = FixedSource([(0.0, req(0, 400)), (0.0, req(1, 300)), (0.0, req(2, 300))])
    done = drive(small(max_inbound=1), source)
    assert done.instants("decode_alloc") == [0.5, 1.2, 1.2]
    assert done.instants("kv_transfer") == [0.5, 1.2, 1.5]
    assert drive(small(), source).instants("kv_transfer") == [0.5, 1.2, 1.2]


def test_local_handoffs_do_not_touch_the_fabric() -> None:
    done = drive(small(local_handoff_share=1.0, nvlink_gbps=TOKEN * 8 * 1e4 / 1e9), FixedSource([(0.0, req(0, 1000))]))
    assert done.started == [] and done.engine.requests[0]["local"] is True
    assert done.instants("decode_waiting") == [1.2]  # 10,000 tokens/s over NVLink
    rail = drive(small(gpus=4, tp=4, layout="per_rail", shape="A"), FixedSource([(0.0, req(0, 1000))]))
    assert rail.started == []  # both halves of one server


def test_a_share_of_handoffs_is_local_by_request() -> None:
    source = FixedSource([(0.0, req(n, 10)) for n in range(400)])
    done = drive(small(local_handoff_share=0.25, timeout_s=1e6), source)
    assert 70 < sum(bool(row["local"]) for row in done.engine.requests) < 130


# Failures


def failing(**serving: object) -> Driver:
    """The first transfer of a request takes ten times as long as it should."""
    scenario = small(handoff_timeout_s=2.0, **serving)
    engine = Engine(scenario, FixedSource([(0.0, req(0, 1000))]))
    first = 0

    def duration_s(transfer: object) -> float:
        return 10.0 if transfer.transfer_id == first else 1.0  # type: ignore[attr-defined]

    return Driver(engine, duration_s=duration_s).run(to_the_last_event=True)


def test_a_failed_handoff_is_sent_again() -> None:
    done = failing()
    assert sizes(done) == [(1.1, 1000), (3.1, 1000)] and done.cancelled == [(pytest.approx(3.1), 0)]
    (row,) = done.engine.requests
    assert done.instants("kv_transfer") == [1.1] and done.instants("decode_waiting") == [4.1]
    assert (row["status"], row["handoff_attempts"], row["recomputed_tokens"]) == ("ok", 2, 0)
    assert (row["kv_bytes_sent"], row["kv_bytes_wasted"]) == (2000 * TOKEN, 1000 * TOKEN)
    assert [t.attempt for _, t in done.started] == [1, 2]


def test_a_failed_handoff_is_computed_again() -> None:
    done = failing(on_handoff_failure="recompute")
    (row,) = done.engine.requests
    assert sizes(done) == [(1.1, 1000), (4.2, 1000)]  # 3.1 + another 1.1 s of prefill
    assert done.instants("decode_waiting") == [5.2] and row["recomputed_tokens"] == 1000
    assert done.instants("prefill_forward") == [0.0]  # the first one: the cost is in kv_transfer


def test_a_handoff_that_fails_too_often_fails_the_request() -> None:
    for serving in ({"on_handoff_failure": "fail"}, {"handoff_retries": 0}):
        done = failing(**serving)
        assert done.engine.requests[0]["status"] == "failed" and len(done.started) == 1
        assert done.engine.finished


def test_what_had_arrived_of_a_request_that_is_given_up_is_wasted_too() -> None:
    chunked = {"chunked_prefill": True, "transfer_mode": "chunked", "prefill_batch_tokens": 400}
    source = FixedSource([(0.0, req(0, 1000))])
    # Pieces of 400, 400 and 200 tokens leave at 0.5, 1.0 and 1.3 and arrive at 0.9, 1.4 and 1.5.
    for at_s, sent in ((0.95, 400), (1.2, 800), (1.45, 1000)):
        (row,) = drive(small(**chunked, timeout_s=at_s), source).engine.requests
        assert row["status"] == "timeout" and row["t_ended_s"] == pytest.approx(at_s)
        assert row["kv_bytes_sent"] == row["kv_bytes_wasted"] == sent * TOKEN, at_s
        assert row["t_finished_s"] is row["t_first_token_s"] is None  # instants that did not happen
    (row,) = drive(small(**chunked), source).engine.requests
    assert row["kv_bytes_wasted"] == 0 and row["t_ended_s"] == row["t_finished_s"] > 1.5
    # Computed again: two pieces had arrived, the third had not.
    late = {"handoff_timeout_s": 0.15, "on_handoff_failure": "recompute", "handoff_retries": 1}
    done = drive(small(**chunked, **late), source, to_the_last_event=True)
    (row,) = done.engine.requests
    assert row["handoff_attempts"] == 2 and row["recomputed_tokens"] == 1000
    first = sum(tokens for at_s, tokens in sizes(done) if at_s < 1.45)
    assert row["kv_bytes_wasted"] >= first * TOKEN == 1000 * TOKEN


def test_a_remote_prefix_is_wasted_only_where_no_prompt_was_computed_from_it() -> None:
    source = FixedSource([(0.0, req(0, 1000, session=1)), (20.0, req(1, 3000, session=1, cached=1000))])
    # The second reads 1,000 tokens until 1.0 after its arrival, computes 2,000 until 3.1, hands off 3,000 until 6.1.
    for timeout_s, sent, wasted in ((2.0, 1000, 1000), (3.5, 4000, 3000), (60.0, 4000, 0)):
        row = drive(small(gpus=4, prefix_cache="pool", timeout_s=timeout_s), source).engine.requests[1]
        assert (row["kv_bytes_sent"], row["kv_bytes_wasted"]) == (sent * TOKEN, wasted * TOKEN), timeout_s


def test_clients_that_give_up_are_cancelled_by_request() -> None:
    source = FixedSource([(float(n), req(n, 10)) for n in range(300)])
    done = drive(small(client_cancel_share=0.5, client_cancel_mean_s=0.05), source)
    status = Counter(row["status"] for row in done.engine.requests)
    assert status["cancelled"] + status["ok"] == 300 and 90 < status["cancelled"] < 160  # half, of which 91 % in time


def test_a_piece_inside_its_overhead_survives_a_retry() -> None:
    serving = {"transfer_overhead_ms": 300.0, "handoff_timeout_s": 0.2, "handoff_retries": 9}
    done = drive(small(**serving), FixedSource([(0.0, req(0, 100))]), to_the_last_event=True)
    assert done.engine.requests[0]["status"] == "ok" and sizes(done) == [(0.5, 100)]


def test_a_transfer_that_breaks_while_its_prompt_is_computed_is_sent_again() -> None:
    for how in ("retry", "recompute"):
        serving = {"transfer_mode": "layerwise", "layer_groups": 2, "on_handoff_failure": how}
        done = Driver(Engine(small(**serving), FixedSource([(0.0, req(0, 900))])))
        done.carry_out(done.engine.start(), 0.0)
        while not done.started:
            (at_s, _, _), event = heapq.heappop(done.heap)
            done.carry_out(done.engine.on(event, at_s), at_s)
        done.carry_out(done.engine.on(TransferFailed(0), 0.6), 0.6)
        done.heap = [entry for entry in done.heap if entry[1] != TransferDone(0)]
        heapq.heapify(done.heap)
        while done.heap:
            (at_s, _, _), event = heapq.heappop(done.heap)
            done.carry_out(done.engine.on(event, at_s), at_s)
        assert done.engine.requests[0]["status"] == "ok"
        assert sizes(done) == [(0.5, 450), (0.6, 450), (1.0, 450)]


def test_a_driver_is_not_told_to_cancel_what_it_never_started() -> None:
    scenario = small(local_handoff_share=1.0, nvlink_gbps=0.001, timeout_s=2.0)
    done = drive(scenario, FixedSource([(0.0, req(0, 1000))]), to_the_last_event=True)
    assert done.engine.requests[0]["status"] == "timeout" and done.cancelled == []


def test_layerwise_pieces_wait_their_overhead_and_local_ones_their_time() -> None:
    serving = {"transfer_mode": "layerwise", "layer_groups": 2, "transfer_overhead_ms": 100.0}
    assert sizes(drive(small(**serving), FixedSource([(0.0, req(0, 900))]))) == [(0.6, 450), (1.1, 450)]
    slow = small(transfer_mode="layerwise", layer_groups=2, local_handoff_share=1.0, nvlink_gbps=TOKEN * 8 * 300 / 1e9)
    done = drive(slow, FixedSource([(0.0, req(0, 900))]))
    assert done.instants("decode_waiting") == [2.5]  # 450 tokens at 300/s from 1.0 on; the first part ends at 2.0


# Prefix caches


def two_turns() -> FixedSource:
    return FixedSource([(0.0, req(0, 1000))], {0: (1.0, req(1, 1500, session=0, cached=1200))})


def test_a_modelled_cache_knows_what_its_instance_has_served() -> None:
    done = drive(small(prefix_cache="modelled"), two_turns())
    assert [row["cached_tokens"] for row in done.engine.requests] == [0, 1000]
    moved = drive(small(gpus=4, prefix_cache="modelled"), two_turns())  # round robin: another instance
    assert [row["cached_tokens"] for row in moved.engine.requests] == [0, 0]
    stays = drive(small(gpus=4, prefix_cache="modelled", placement="session_affinity"), two_turns())
    assert [row["cached_tokens"] for row in stays.engine.requests] == [0, 1000]
    tiny = drive(small(prefix_cache="modelled", prefix_cache_gb_per_gpu=0.1), two_turns())
    assert [row["cached_tokens"] for row in tiny.engine.requests] == [0, 0]


def test_a_pooled_prefix_is_read_over_the_fabric() -> None:
    scenario = small(gpus=4, prefix_cache="pool")
    done = drive(scenario, two_turns())
    assert [row["cached_tokens"] for row in done.engine.requests] == [0, 1000]
    ((at, read),) = [(at, t) for at, t in done.started if t.kind == "prefix"]
    assert (read.src_gpu, read.dst_gpu, read.bytes) == ("gpu1", "gpu2", 1000 * TOKEN)
    assert (read.src_gpu, read.dst_gpu) in planned_pairs(scenario)
    forward, waiting = done.instants("prefill_forward")[1], done.instants("prefill_waiting")[1]
    assert waiting == pytest.approx(at) and forward == pytest.approx(at + 1.0)  # 1,000 tokens at 1,000/s


# Tenants


def test_tenants_are_drawn_by_session_and_bring_their_objectives() -> None:
    tenants = [{"name": "gold", "share": 3, "slo_ttft_ms": 500}, {"name": "free", "share": 1}]
    source = FixedSource([(0.0, req(n, 10, session=n // 2)) for n in range(400)])
    rows = drive(small(tenants=tenants, timeout_s=1e6), source).engine.requests
    count = Counter(row["tenant"] for row in rows)
    assert set(count) == {"gold", "free"} and 250 < count["gold"] < 350
    assert all(rows[n]["tenant"] == rows[n + 1]["tenant"] for n in range(0, 400, 2))
    assert {(row["tenant"], row["slo_ttft_ms"]) for row in rows} == {("gold", 500.0), ("free", None)}


# Whatever comes


@examples(150)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 30), st.floats(0, 2)), min_size=1, max_size=12),
    shape=st.sampled_from(SHAPES),
    layout=st.sampled_from(["split", "interleaved", "random", "per_rail"]),
    mode=st.sampled_from(["whole", "chunked", "layerwise"]),
    options=st.fixed_dictionaries(
        {
            "transfer_content": st.sampled_from(["whole", "delta"]),
            "prefix_cache": st.sampled_from(["assumed", "modelled", "pool"]),
            "chunked_prefill": st.booleans(),
            "local_handoff_share": st.sampled_from([0.0, 0.5]),
            "client_cancel_share": st.sampled_from([0.0, 0.5]),
            "client_cancel_mean_s": st.just(1.0),
            "handoff_timeout_s": st.sampled_from([None, 0.2]),
            "on_handoff_failure": st.sampled_from(["retry", "recompute", "fail"]),
            "max_inbound": st.sampled_from([None, 1]),
            "transfer_overhead_ms": st.sampled_from([0.0, 30.0]),
            "nic_map": st.sampled_from(["own", "first", "round_robin", "stripe:2", "nic0=nic1,nic0"]),
            "placement": st.sampled_from(
                ["random", "round_robin", "jsq", "power_of_two", "cache_aware", "session_affinity", "topology_aware"]
            ),
            "decode_slots_per_gpu": st.sampled_from([1, 64]),
            "prefill_kv_gb_per_gpu": st.sampled_from([0.2, 100.0]),
        }
    ),
    early_s=st.sampled_from([0.0, 0.1]),
)
def test_nothing_is_lost_whatever_comes(
    lengths: list[tuple[int, int, float]],
    shape: str,
    layout: str,
    mode: str,
    options: dict[str, object],
    early_s: float,
) -> None:
    tp = 4 if layout == "per_rail" else 2
    serving = {"shape": shape, "layout": layout, "transfer_mode": mode, "block_servers": 2, "timeout_s": 4.0, **options}
    scenario = small(gpus=16 if layout == "per_rail" else 8, tp=tp, **serving)
    requests = [
        (at, req(n, tokens, output=out, session=n % 3, cached=tokens // 2))
        for n, (tokens, out, at) in enumerate(lengths)
    ]
    source = FixedSource(requests)
    engine = Engine(scenario, source)
    free = (
        [p.free_bytes for p in engine._prefills.values()],
        [(d.free_bytes, d.free_slots) for d in engine._decodes.values()],
    )
    done = Driver(engine, stamp=lambda t: t - early_s).run(to_the_last_event=True)
    assert engine.finished
    for row in engine.requests:
        known = [float(str(row[f"t_{stage}_s"])) for stage in STAGES if row[f"t_{stage}_s"] is not None]
        assert known == sorted(known)
        assert row["status"] in ("ok", "timeout", "cancelled", "failed")
        if row["status"] == "ok":
            assert len(known) == len(STAGES)
    assert [p.free_bytes for p in engine._prefills.values()] == free[0]
    assert [(d.free_bytes, d.free_slots) for d in engine._decodes.values()] == free[1]
    assert not any(p.queue or p.running for p in engine._prefills.values())
    assert not any(d.queue or d.receiving or d.decoding for d in engine._decodes.values())
    assert not any(n for load in engine._gateway._load.values() for of in load for n in of.values())
    pairs = set(planned_pairs(scenario))
    assert all((t.src_gpu, t.dst_gpu) in pairs for _, t in done.started)
    assert all(
        a.transfer_id != b.transfer_id
        for (_, a), (_, b) in pairwise(sorted(done.started, key=lambda s: s[1].transfer_id))
    )
    copies = {"C": tp, "F": tp, "G": tp}.get(shape, 1) // (2 if layout == "per_rail" and shape in "CFG" else 1)
    for row in engine.requests:
        if row["status"] == "ok" and row["handoff_attempts"] == 1 and options["prefix_cache"] != "pool":
            tokens = int(str(row["input_tokens"])) - int(str(row["held_tokens"]))
            assert row["kv_bytes_sent"] == TOKEN * tokens * copies


# Continuous batching


def test_decode_steps_depend_on_who_is_running(tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    # A step of 10 ms for one request and 20 ms for two, whatever the context; prefill 1 s whatever the tokens.
    table.write_text(
        "prefill_tokens,batch_ms,context_tokens,batch_size,step_ms\n"
        "1,1000,,,\n1000,1000,,,\n,,1,1,10\n,,100000,1,10\n,,1,2,20\n,,100000,2,20\n"
    )
    scenario = small(compute="csv", compute_csv=str(table), prefill_batch_tokens=100)
    # First tokens at 1.1 and, a batch later, 2.1: request 0 has then had 100 of its 200 steps.
    source = FixedSource([(0.0, req(0, 100, output=201)), (0.0, req(1, 100, output=51))])
    done = drive(scenario, source)
    assert done.instants("first_token") == [1.1, 2.1]
    # Together 20 ms a step: request 1 ends after 50 steps, at 3.1; request 0 has 50 left, at 10 ms: 3.6.
    assert done.instants("finished") == [3.6, 3.1]
