"""Serving engine: timelines worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_traffic_driver import BANDWIDTH, Driver, FixedSource, drive, req, small

from scenario.errors import InputError
from traffic.actions import (
    CancelTransfer,
    StartTimer,
    StartTransfer,
    TimerFired,
    TimerKey,
    TimerKind,
    TransferDone,
    TransferFailed,
    event_order,
    queued,
)
from traffic.engine import Engine
from traffic.handoffs import IDS_PER_REQUEST
from traffic.records import STAGES
from traffic.shapes import planned_pairs


def test_stages_and_columns_are_those_of_the_run_folder() -> None:
    schema = pytest.importorskip("results.schema")
    assert schema.STAGES == STAGES
    done = drive(small(), FixedSource([(0.0, req(0, 10))]))
    assert list(done.engine.requests[0]) == schema.REQUESTS.names
    assert list(done.engine.gpu_states[0]) == schema.GPUS.names


def test_one_request_every_stage() -> None:
    scenario = small(gateway_delay_ms=10, transfer_overhead_ms=20, decode_first_step_ms=30)
    done = drive(scenario, FixedSource([(1.0, req(0, 1000, cached=500))]))
    row = done.engine.requests[0]
    wanted = {
        "arrival": 1.0,
        "prefill_waiting": 1.01,
        "prefill_forward": 1.01,
        "decode_alloc": 1.61,  # 100 ms base + 500 uncached tokens at 1,000/s
        "kv_transfer": 1.61,
        "decode_waiting": 2.63,  # 20 ms overhead + 1 s for the whole prompt, cached tokens included
        "decode_first_step": 2.63,
        "first_token": 2.66,
        "finished": 2.76,  # 10 more tokens at 10 ms
    }
    assert {stage: row[f"t_{stage}_s"] for stage in STAGES} == pytest.approx(wanted)
    assert done.started == [(pytest.approx(1.63), StartTransfer(0, 0, "gpu1", "gpu2", 131_072_000))]
    assert done.tokens == [(0, pytest.approx(2.66))]
    assert (row["status"], row["batch"], row["prefill_gpu"], row["decode_gpu"]) == ("ok", 0, "gpu1", "gpu2")
    assert (row["prefill_instance"], row["decode_instance"]) == ("server1", "server2")


def test_queueing_behind_a_batch_and_batches_up_to_the_limit() -> None:
    arrivals = [(0.0, req(0, 1000)), (0.5, req(1, 500)), (0.6, req(2, 400)), (0.7, req(3, 200))]
    done = drive(small(), FixedSource(arrivals))
    assert done.instants("prefill_waiting") == [0.0, 0.5, 0.6, 0.7]
    # Batch 0 is request 0 alone (0 to 1.1); batch 1 takes 1 and 2, 900 tokens (1.1 to 2.1); 3 would make 1,100.
    assert done.instants("prefill_forward") == [0.0, 1.1, 1.1, 2.1]
    assert done.instants("decode_alloc") == [1.1, 2.1, 2.1, 2.4]
    assert done.instants("first_token") == [2.1, 2.6, 2.5, 2.6]
    assert [row["batch"] for row in done.engine.requests] == [0, 1, 1, 2]
    assert done.states("gpu1") == [(0.0, "waiting_work"), (0.0, "busy"), (2.4, "waiting_work")]
    assert done.states("gpu2") == [
        (0.0, "waiting_work"),
        (1.1, "waiting_kv"),
        (2.1, "busy"),
        (2.2, "waiting_kv"),
        (2.5, "busy"),
    ]


def test_a_batch_may_be_exactly_full() -> None:
    source = FixedSource([(0.0, req(0, 10)), *[(0.05, req(i, 500)) for i in (1, 2, 3)]])
    assert drive(small(), source).instants("prefill_forward") == pytest.approx([0.0, 0.11, 0.11, 1.21])


def test_a_request_larger_than_a_batch_goes_alone() -> None:
    done = drive(small(), FixedSource([(0.0, req(0, 3000)), (0.0, req(1, 10))]))
    assert done.instants("prefill_forward") == [0.0, 3.1]


def test_memory_held_by_a_handoff_blocks_the_next_batch() -> None:
    # 0.2 GB hold one prompt of 1,000 tokens (0.131 GB), not two.
    done = drive(small(prefill_kv_gb_per_gpu=0.2), FixedSource([(0.0, req(0, 1000)), (0.2, req(1, 1000))]))
    assert done.instants("decode_alloc") == [1.1, 3.2]
    assert done.instants("decode_waiting") == [2.1, 4.2]
    assert done.instants("prefill_forward") == [0.0, 2.1]  # not 1.1: request 0 leaves at 2.1
    assert done.states("gpu1") == [
        (0.0, "waiting_work"),
        (0.0, "busy"),
        (1.1, "blocked"),
        (2.1, "busy"),
        (3.2, "waiting_work"),
    ]


def test_waiting_for_a_decode_slot_is_first_in_first_out() -> None:
    scenario = small(decode_slots_per_gpu=1)
    source = FixedSource([(0.0, req(0, 400, output=101)), (0.0, req(1, 300)), (0.0, req(2, 200))])
    done = drive(scenario, source)
    # Request 0 starts its own batch (0 to 0.5), 1 and 2 share the next (0.5 to 1.1).
    assert done.instants("decode_alloc") == [0.5, 1.1, 1.1]
    # 0: handoff 0.5 to 0.9, decode until 1.9; 1: 1.9 to 2.2, until 2.3; then 2.
    assert done.instants("kv_transfer") == [0.5, 1.9, 2.3]
    assert done.instants("first_token") == [0.9, 2.2, 2.5]


def test_decode_memory_holds_prompt_and_output() -> None:
    # 1,150 tokens of 131,072 B: room for 500 + 100, then for 539 + 10 but not for 540 + 11 (together 1,151).
    memory_gb = 1150 * 131_072 / 1e9
    for prompt, output, waits in ((539, 11, False), (540, 11, True)):
        scenario = small(decode_kv_gb_per_gpu=memory_gb, prefill_batch_tokens=5000)
        source = FixedSource([(0.0, req(0, 10)), (0.0, req(1, 500, output=100)), (0.0, req(2, prompt, output=output))])
        done = drive(scenario, source)
        assert (done.instants("kv_transfer")[2] != done.instants("decode_alloc")[2]) is waits


def test_timeout_in_the_prefill_queue() -> None:
    done = drive(small(timeout_s=1.0), FixedSource([(0.0, req(0, 500)), (0.1, req(1, 2000)), (0.2, req(2, 300))]))
    # Batch of request 1 runs 0.6 to 2.7; 2 is dropped at 1.2 while it waits, 1 at 1.1 while it runs.
    assert [row["status"] for row in done.engine.requests] == ["timeout"] * 3
    assert done.instants("prefill_forward") == [0.0, 0.6, None]
    assert done.instants("decode_waiting")[0] is None  # 0.6 + 0.5 is after the deadline of 1.0


def test_timeout_during_the_handoff_cancels_and_frees_both_ends() -> None:
    scenario = small(timeout_s=1.5, prefill_kv_gb_per_gpu=0.14, decode_slots_per_gpu=1)
    source = FixedSource([(0.0, req(0, 1000)), (0.3, req(1, 10, cached=9))])
    done = drive(scenario, source, to_the_last_event=True)
    assert done.cancelled == [(1.5, 0)]
    assert [row["status"] for row in done.engine.requests] == ["timeout", "ok"]
    # 0.14 GB hold 1,068 tokens: both fit, and 1 runs from 1.1; the decode slot is free at 1.5 only.
    assert done.instants("decode_alloc")[1] == pytest.approx(1.201)
    assert done.instants("kv_transfer") == [1.1, 1.5]
    assert done.instants("first_token") == [None, 1.51]


def test_a_timeout_lets_a_blocked_prefill_server_go_on() -> None:
    scenario = small(timeout_s=1.5, prefill_kv_gb_per_gpu=0.132)
    done = drive(scenario, FixedSource([(0.0, req(0, 1000)), (1.2, req(1, 100))]), to_the_last_event=True)
    assert done.instants("prefill_forward") == [0.0, 1.5]
    assert done.engine.requests[1]["status"] == "ok"


def test_a_request_that_times_out_in_a_batch_holds_its_memory_until_the_batch_ends() -> None:
    scenario = small(timeout_s=1.0, prefill_kv_gb_per_gpu=0.4)
    source = FixedSource([(0.0, req(0, 3000)), (2.5, req(1, 100))])
    done = drive(scenario, source, to_the_last_event=True)
    assert done.instants("prefill_forward") == [0.0, 3.1]
    assert done.started == [(pytest.approx(3.3), StartTransfer(IDS_PER_REQUEST, 1, "gpu1", "gpu2", 13_107_200))]


def test_the_session_goes_on_after_a_timeout() -> None:
    source = FixedSource([(0.0, req(0, 1000))], {0: (5.0, req(1, 10, session=0))})
    done = drive(small(timeout_s=1.5), source)
    assert done.instants("arrival") == [0.0, 6.5]


def test_shape_a_ends_with_the_last_of_its_flows() -> None:
    scenario = small(gpus=8, tp=4, shape="A", prefill_tokens_per_s_per_gpu=250.0)
    engine = Engine(scenario, FixedSource([(0.0, req(0, 1000))]))
    driver = Driver(engine)
    driver.carry_out(engine.start(), 0.0)
    engine.on(TimerFired(TimerKey(TimerKind.ARRIVAL, 0)), 0.0)
    flows = [a for a in engine.on(TimerFired(TimerKey(TimerKind.PREFILL_DONE, 0)), 1.1) if isinstance(a, StartTransfer)]
    assert [(f.transfer_id, f.src_gpu, f.dst_gpu, f.bytes) for f in flows] == [
        (0, "gpu1", "gpu5", 32_768_000),
        (1, "gpu2", "gpu6", 32_768_000),
        (2, "gpu3", "gpu7", 32_768_000),
        (3, "gpu4", "gpu8", 32_768_000),
    ]
    # Reported out of the order of their stamps: the last byte is at 1.9.
    for transfer_id, stamp_s in ((2, 1.3), (0, 1.9), (3, 1.5)):
        assert engine.on(TransferDone(transfer_id), stamp_s) == []
    engine.on(TransferDone(1), 1.4)
    row = engine.requests[0]
    assert (row["t_kv_transfer_s"], row["t_decode_waiting_s"], row["t_first_token_s"]) == (1.1, 1.9, 1.9)
    assert engine.finished


def test_shape_a_decode_target_has_the_slots_of_its_server() -> None:
    scenario = small(gpus=8, tp=4, shape="A", decode_slots_per_gpu=1, prefill_batch_tokens=10_000)
    source = FixedSource([(0.0, req(0, 10, output=1000)), *[(0.0, req(i, 100, output=1000)) for i in range(1, 6)]])
    done = drive(scenario, source)
    alloc, start = done.instants("decode_alloc"), done.instants("kv_transfer")
    assert start[:4] == alloc[:4]
    assert start[4] == done.instants("finished")[0]


def test_early_stamps_never_turn_time_back() -> None:
    # The receiver's stamp of request 0's last byte is earlier than its submission, and than later events.
    done = drive(
        small(prefill_kv_gb_per_gpu=0.2),
        FixedSource([(0.0, req(0, 1000)), (0.2, req(1, 1000))]),
        stamp=lambda t: t - 1.05,
    )
    assert done.instants("kv_transfer")[0] == done.instants("decode_waiting")[0] == 1.1
    assert done.instants("prefill_forward") == [0.0, 1.1]
    assert done.states("gpu1")[-2:] == [(1.1, "busy"), (2.2, "waiting_work")]


def test_an_early_stamp_starts_no_batch_before_the_server_is_idle() -> None:
    # Request 2 needs the memory of 0, reported at 2.1 with a stamp of 1.15; the server is busy with 1 until 1.6.
    source = FixedSource([(0.0, req(0, 1000)), (0.5, req(1, 400)), (0.6, req(2, 1000))])
    done = drive(small(prefill_kv_gb_per_gpu=0.2), source, stamp=lambda t: t - 0.95)
    assert done.instants("prefill_forward") == [0.0, 1.1, 1.6]


def test_a_batch_takes_nobody_who_came_after_its_start() -> None:
    # Request 1 waits from 0.2 for the memory of 0: reported at 2.1, stamped 1.15. Request 2 came at 1.5, so it is
    # not in the batch that starts at 1.15.
    source = FixedSource([(0.0, req(0, 1000)), (0.2, req(1, 900)), (1.5, req(2, 50))])
    done = drive(small(prefill_kv_gb_per_gpu=0.2), source, stamp=lambda t: t - 0.95)
    assert done.instants("prefill_forward") == [0.0, 1.15, 2.15]


def test_ties_go_by_time_kind_and_id() -> None:
    done_first = event_order(1.0, TransferDone(9))
    finished = event_order(1.0, TimerFired(TimerKey(TimerKind.FINISHED, 9)))
    arrival = event_order(1.0, TimerFired(TimerKey(TimerKind.ARRIVAL, 1)))
    later_id = event_order(1.0, TimerFired(TimerKey(TimerKind.ARRIVAL, 2)))
    deadline = event_order(1.0, TimerFired(TimerKey(TimerKind.TIMEOUT, 0)))
    earlier = event_order(0.9, TimerFired(TimerKey(TimerKind.TIMEOUT, 9)))
    assert sorted([deadline, later_id, arrival, finished, done_first, earlier]) == [
        earlier, done_first, finished, arrival, later_id, deadline,
    ]  # fmt: skip


def test_entries_of_a_heap_have_the_order_of_events() -> None:
    timers = [TimerFired(TimerKey(kind, number)) for kind in TimerKind for number in (1, 2)]
    events = [TransferDone(3), TransferFailed(2), *timers]
    timed = [(t_s, event) for t_s in (1.0, 0.5) for event in reversed(events)]
    by_order = [event for _, event in sorted(timed, key=lambda pair: event_order(*pair))]
    assert [entry[3] for entry in sorted(queued(*pair) for pair in timed)] == by_order


def test_simultaneous_arrivals_are_served_in_order_of_id() -> None:
    arrivals = [(0.0, req(i, 600)) for i in (3, 1, 0, 2)]
    done = drive(small(), FixedSource(arrivals))
    assert done.instants("prefill_forward") == pytest.approx([0.0, 0.7, 1.4, 2.1])


def test_a_first_token_at_the_deadline_counts() -> None:
    # Exact in binary: base 0, 1,000 tokens/s, so prefill ends at 1 and the handoff at 2.
    done = drive(small(prefill_base_ms=0, timeout_s=2.0), FixedSource([(0.0, req(0, 1000))]))
    assert done.engine.requests[0]["status"] == "ok"


def test_events_of_what_is_over_are_ignored_and_unknown_ones_are_refused() -> None:
    done = drive(small(), FixedSource([(0.0, req(0, 1000))]), to_the_last_event=True)
    engine, before = done.engine, done.engine.requests
    for event in (TransferDone(0), *[TimerFired(TimerKey(kind, 0)) for kind in TimerKind]):
        assert engine.on(event, 9.0) == []
    assert engine.requests == before
    for event in (
        TransferDone(7),
        TimerFired(TimerKey(TimerKind.ARRIVAL, 7)),
        TimerFired(TimerKey(TimerKind.PREFILL_DONE, 7)),
    ):
        with pytest.raises(ValueError, match="no such"):
            engine.on(event, 9.0)


@pytest.mark.parametrize(
    ("serving", "tokens", "field"),
    [
        ({"prefill_kv_gb_per_gpu": 0.13}, 1000, "serving.prefill_kv_gb_per_gpu"),
        ({"decode_kv_gb_per_gpu": 0.132}, 1000, "serving.decode_kv_gb_per_gpu"),  # 1,000 fit, 1,011 do not
        ({}, 131_073, "serving.model"),
    ],
)
def test_a_request_that_can_never_fit_is_refused(serving: dict[str, object], tokens: int, field: str) -> None:
    with pytest.raises(InputError) as error:
        Engine(small(**serving), FixedSource([(0.0, req(0, tokens))]))
    assert error.value.field == field
    assert error.value.hint


def test_latent_caches_are_replicated_on_prefill_ranks() -> None:
    # One prompt of 1,000 tokens: GQA ranks share it, so two fit in 4 * 0.08 GB; an MLA rank holds all of each.
    def forwards(model: str, gb: float) -> list[float | None]:
        scenario = small(gpus=8, tp=4, model=model, prefill_kv_gb_per_gpu=gb, prefill_base_ms=0)
        return drive(scenario, FixedSource([(0.0, req(0, 1000)), (0.0, req(1, 1000))])).instants("prefill_forward")

    assert forwards("llama-3.1-8b", 0.08) == [0.0, 0.25]
    # 61.464 MB each: 0.08 GB per rank hold one, 0.13 hold two.
    blocked, free = forwards("glm-5.1-fp8", 0.08), forwards("glm-5.1-fp8", 0.13)
    assert free == [0.0, 0.25]
    assert blocked[1] == pytest.approx(0.25 + 61_464_000 / BANDWIDTH)


def test_equal_runs_are_equal() -> None:
    arrivals = [(0.1 * i, req(i, 100 + 37 * i % 400)) for i in range(30)]
    runs = [drive(small(gpus=8, tp=2), FixedSource(arrivals)) for _ in range(2)]
    assert runs[0].engine.requests == runs[1].engine.requests
    assert runs[0].engine.gpu_states == runs[1].engine.gpu_states
    assert runs[0].started == runs[1].started


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 1500), st.integers(1, 60), st.floats(0, 4)), min_size=1, max_size=25),
    shape=st.sampled_from(["A", "D"]),
    layout=st.sampled_from(["split", "interleaved"]),
    placement=st.sampled_from(["round_robin", "least_loaded"]),
    tight=st.booleans(),
    early_s=st.floats(0, 0.3),
)
def test_nothing_is_lost_whatever_comes(
    lengths: list[tuple[int, int, float]], shape: str, layout: str, placement: str, tight: bool, early_s: float
) -> None:
    serving: dict[str, object] = {
        "shape": shape, "layout": layout, "placement": placement, "block_servers": 2, "timeout_s": 3.0,
        "pairing": "same_block" if layout == "interleaved" else "any",
    }  # fmt: skip
    if tight:
        serving |= {"prefill_kv_gb_per_gpu": 0.2, "decode_kv_gb_per_gpu": 0.25, "decode_slots_per_gpu": 1}
    scenario = small(gpus=8, tp=2, **serving)
    source = FixedSource([(at, req(i, tokens, output=out)) for i, (tokens, out, at) in enumerate(lengths)])
    engine = Engine(scenario, source)
    free_before = [(i.free_bytes,) for i in engine._prefills.values()]
    slots_before = [(i.free_bytes, i.free_slots) for i in engine._decodes.values()]
    done = Driver(engine, stamp=lambda t: t - early_s).run(to_the_last_event=True)
    assert engine.finished
    for row in engine.requests:
        reached = [row[f"t_{stage}_s"] for stage in STAGES]
        known = [float(str(t)) for t in reached if t is not None]
        assert known == sorted(known)
        assert row["status"] in ("ok", "timeout")
        if row["status"] == "ok":
            assert len(known) == len(STAGES)
            assert float(str(row["t_first_token_s"])) <= float(str(row["t_arrival_s"])) + 3.0
    # Whatever was reserved is free again, and nobody waits.
    assert [(i.free_bytes,) for i in engine._prefills.values()] == free_before
    assert [(i.free_bytes, i.free_slots) for i in engine._decodes.values()] == slots_before
    assert not any(i.queue or i.running for i in engine._prefills.values())
    assert not any(i.queue or i.receiving or i.decoding for i in engine._decodes.values())
    assert not any(n for load in engine._gateway._load.values() for of in load for n in of.values())
    pairs = set(planned_pairs(scenario))
    by_request: dict[int, int] = {}
    for _, transfer in done.started:
        assert (transfer.src_gpu, transfer.dst_gpu) in pairs
        by_request[transfer.request_id] = by_request.get(transfer.request_id, 0) + transfer.bytes
    for request_id, total in by_request.items():
        assert total == 131_072 * source.requests[request_id].input_tokens
    for gpu in {str(r["gpu"]) for r in engine.gpu_states}:
        times = [t for t, _ in done.states(gpu)]
        assert times == sorted(times)


def test_actions_are_plain_values() -> None:
    assert CancelTransfer(3) == CancelTransfer(3)
    assert StartTimer(1.0, TimerKey(TimerKind.ARRIVAL, 2)).key.id == 2
