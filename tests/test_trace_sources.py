"""Replays: the window that is taken, what a request carries, the closed loop of sessions, kinds in a scenario."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from cli.options import scenario_with_options
from scenario.errors import InputError
from scenario.load import check_scenario
from scenario.models import Scenario
from scenario.workload_section import REPLAYS
from simulation.run import simulate
from traffic import bench
from traffic.compute import nominal_service_s
from traffic.kv import kv_model
from traffic.layout import roles
from traffic.readers.trace import FORMATS
from traffic.requests import Source
from traffic.sources import make_source


def scenario(kind: str, path: Path, **workload: object) -> Scenario:
    return check_scenario({"fabric": {"gpus": 32}, "workload": {"kind": kind, "path": str(path), **workload}})


def source(kind: str, path: Path, **workload: object) -> Source:
    return make_source(scenario(kind, path, **workload))


def summary(found: Source) -> dict[str, object]:
    return found.summary  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("name", [name for name in bench.MAKERS if name != "table_json"])
def test_a_window_of_each_format(tmp_path: Path, name: str) -> None:
    """Two readings agree; phases, ids and times are as the window asks; speedup divides every gap."""
    path = tmp_path / "trace"
    bench.write(path, name, 60)
    found = source(name, path, skip=5, warmup_requests=4, requests=20)
    assert [r.phase for r in found.requests] == ["warmup"] * 4 + ["measured"] * 20 + ["cooldown"] * 2
    assert [r.request_id for r in found.requests] == list(range(26))
    assert found.measured_ids == set(range(4, 24)) and found.count == 26
    times = [at_s for at_s, _ in found.initial()]
    assert times[0] == 0 and times == sorted(times)
    faster = source(name, path, skip=5, warmup_requests=4, requests=20, speedup=4)
    assert [at_s for at_s, _ in faster.initial()] == pytest.approx([at_s / 4 for at_s in times])
    assert faster.requests == found.requests
    assert found.following(found.requests[0], 1.0) is None
    assert len({(r.session_id, r.turn) for r in found.requests}) == 26
    with pytest.raises(InputError, match=r"has 60 rows; skip 50 .* need 70"):
        source(name, path, skip=50, requests=20)


def test_every_format_has_a_kind_of_workload() -> None:
    assert set(REPLAYS) == set(FORMATS)


def blocks(tmp_path: Path, *prompts: tuple[int, list[int]]) -> Path:
    path = tmp_path / "m.jsonl"
    path.write_text(
        "".join(
            json.dumps({"timestamp": 7 * i, "input_length": n, "output_length": 9, "hash_ids": ids}) + "\n"
            for i, (n, ids) in enumerate(prompts)
        )
    )
    return path


def test_prefix_hits_of_an_infinite_cache(tmp_path: Path) -> None:
    path = blocks(tmp_path, (1500, [1, 2, 3]), (1500, [1, 2, 9]), (1024, [1, 2]), (900, [7, 2]), (600, [8, 2]))
    found = source("mooncake", path, requests=4)
    # The last token of a prompt that is cached as a whole is computed all the same; block 2 after 7 is no prefix.
    assert [r.cached_tokens for r in found.requests] == [0, 1024, 1023, 0, 0]
    assert (found.requests[1].prefix_blocks, found.requests[1].block_tokens) == ((1, 2, 9), 512)
    later = source("mooncake", path, skip=1, requests=2)
    assert [r.cached_tokens for r in later.requests] == [1024, 1023, 0], "rows that are skipped were seen too"


def test_rows_that_go_on_from_each_other_are_turns_of_one_session(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    chats = ((1, -1), (2, -1), (3, 1), (4, 3), (5, 2), (6, 99))  # 99 lies before the window
    path.write_text(
        "".join(
            json.dumps(
                {
                    "chat_id": chat, "parent_chat_id": parent, "timestamp": chat, "input_length": 20,
                    "output_length": 5, "turn": 1, "type": "text", "hash_ids": [chat, 1000 + chat],
                }
            ) + "\n"
            for chat, parent in chats
        )
    )  # fmt: skip
    found = source("qwen", path, requests=5)
    turns = [(r.session_id, r.turn) for r in found.requests]
    assert turns == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (2, 0)]


def test_prompts_beyond_the_context_are_cut_and_counted(tmp_path: Path) -> None:
    limit = kv_model("glm-5.1-fp8").max_context_tokens
    path = blocks(tmp_path, (limit + 5000, list(range(500))), (100, [0]), (100, [900]))
    found = source("mooncake", path, requests=2)
    first = found.requests[0]
    assert first.input_tokens == limit and first.prefix_blocks is not None
    assert len(first.prefix_blocks) == -(-limit // 512)
    assert summary(found)["cut_prompts"] == 1


def test_bad_rows_end_in_the_summary(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,5,5\nx,5,5\n1,5,0\n2,5,5\n3,5,5\n")
    with pytest.raises(InputError, match="line 3, column arrival_s"):
        source("table", path, requests=2)
    found = source("table", path, requests=2, skip_bad_rows=True)
    assert summary(found)["bad_rows_skipped"] == 2 and "line 3" in str(summary(found)["first_bad_row"])
    with pytest.raises(InputError, match=r"has 3 rows.*need 4(.|\n)*2 rows did not parse"):
        source("table", path, requests=4, skip_bad_rows=True)


def test_columns_of_the_own_format(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = ["0,500,5,400,a,x,3", "1,700,6,0,b,y,0", "2,900,7,650,a,x,4"]
    path.write_text("arrival_s,input_tokens,output_tokens,cached_tokens,session_id,tenant,turn\n" + "\n".join(rows))
    found = source("table", path, requests=2)
    assert [(r.session_id, r.turn, r.tenant, r.cached_tokens) for r in found.requests] == [
        (0, 0, "x", 400), (1, 0, "y", 0), (0, 1, "x", 650),
    ]  # fmt: skip


def test_logs_name_gpus_of_the_fabric(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("start_ns,p_rank,d_rank,input_tokens,miss_tokens\n5,0,3,1000,40\n9,15,0,900,900\n")
    asked = scenario("routing", path, requests=2)
    split = roles(asked)
    prefill = [gpu for server in split.prefill for gpu in server.gpus]
    decode = [gpu for server in split.decode for gpu in server.gpus]
    first, second = make_source(asked).requests
    assert (first.prefill_gpu, first.decode_gpu, first.cached_tokens) == (prefill[0], decode[3], 960)
    assert (second.prefill_gpu, second.decode_gpu) == (prefill[15], decode[0])
    path.write_text(path.read_text() + "10,16,0,900,900\n")
    with pytest.raises(InputError, match=r"line 4 = '16': is no prefill GPU"):
        source("routing", path, requests=3)


def test_a_transfer_is_a_prompt_that_weighs_as_much(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("time_s,src_gpu,dst_gpu,bytes\n1,gpu2,gpu30,6146400000\n1.5,1,17,61464\n")
    first, second = source("transfers", path, requests=2).requests
    assert (first.input_tokens, first.uncached_tokens) == (100_000, 1)
    assert (first.prefill_gpu, first.decode_gpu) == ("gpu2", "gpu30")
    assert (second.input_tokens, second.prefill_gpu, second.decode_gpu) == (1, "gpu1", "gpu17")
    path.write_text("time_s,src_gpu,dst_gpu,bytes\n1,gpu30,gpu2,5\n")
    with pytest.raises(InputError, match="'gpu30': is no prefill GPU"):
        source("transfers", path, requests=1)


def recorded(path: Path, kind: str, rows: str, **serving: object) -> Source:
    head = "time_s,src_gpu,dst_gpu,bytes" if kind == "transfers" else "start_ns,p_rank,d_rank,input_tokens,miss_tokens"
    path.write_text(f"{head}\n{rows}\n")
    workload = {"kind": kind, "path": str(path), "requests": len(rows.splitlines())}
    served = {"placement": "recorded", **serving}
    return make_source(check_scenario({"fabric": {"gpus": 32}, "serving": served, "workload": workload}))


def test_a_recorded_transfer_must_be_one_that_the_shape_sends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    rows = "1,gpu5,gpu30,61464\n2,gpu2,gpu30,61464"  # servers of 4: gpu1 and gpu5 are first ranks
    with pytest.raises(InputError) as caught:
        recorded(path, "transfers", rows)
    assert f"{path}, line 3 = 'gpu2 -> gpu30': shape D does not send" in str(caught.value)
    assert "it sends gpu1 -> gpu30" in str(caught.value) and "serving.shape: E" in str(caught.value)
    for shape, fits in {"A": "1,gpu2,gpu30,9", "E": rows, "F": "1,gpu1,gpu30,9", "G": rows}.items():
        recorded(path, "transfers", fits, shape=shape)
    with pytest.raises(InputError, match="'gpu2 -> gpu31': shape A does not send"):
        recorded(path, "transfers", "1,gpu2,gpu31,9", shape="A")
    recorded(path, "transfers", rows, placement="jsq")  # nobody looks at the record
    recorded(path, "transfers", rows, placement="jsq", decode_placement="recorded")
    with pytest.raises(InputError, match="'gpu2 -> gpu30': shape D does not send"):
        recorded(path, "transfers", rows, decode_placement="jsq")


def test_a_recorded_pair_must_be_allowed_by_the_pairing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    block = {"layout": "interleaved", "block_servers": 2, "pairing": "same_block"}
    recorded(path, "routing", "5,1,2,1000,40", **block)  # servers 1 and 2: a rank stands for its instance
    says = r"line 3 = 'gpu2 -> .*pairing same_block lets server1 hand off to gpu"
    with pytest.raises(InputError, match=says) as caught:
        recorded(path, "routing", "5,1,2,1000,40\n6,1,7,1000,40", **block)
    assert "serving.pairing: any" in str(caught.value)
    with pytest.raises(InputError, match=r"line 2 = .*same_block"):  # another block's prefill could not reach it
        recorded(path, "routing", "5,1,2,1000,40", placement="jsq", decode_placement="recorded", **block)


def test_placement_by_records_needs_records() -> None:
    with pytest.raises(InputError, match=r"decode_placement = 'recorded': workload.kind coding_agent does not record"):
        make_source(check_scenario({"serving": {"decode_placement": "recorded"}}))


def sessions(folder: Path, *thinks: list[float]) -> Path:
    for number, times in enumerate(thinks):
        turns = [
            {"t": 0, "in": 640 * (i + 1), "out": 5, "hash_ids": list(range(10 * (i + 1))), "think_time": think_s}
            for i, think_s in enumerate(times)
        ]
        (folder / f"s{number}.json").write_text(json.dumps({"id": str(number), "requests": turns}))
    return folder


def test_sessions_wait_for_their_answers(tmp_path: Path) -> None:
    path = sessions(tmp_path, [0, 4, 6], [0, 1], [0, 2], [0])
    found = source("sessions", path, requests=7, users=2, speedup=2)
    assert found.count == 8
    begin = found.initial()
    assert len(begin) == 2 and all(0 <= at_s <= 10 for at_s, _ in begin)
    served = set()
    shapes = []
    for at_s, request in begin:
        chain = [(at_s, request)]
        while (after := found.following(chain[-1][1], chain[-1][0] + 100)) is not None:
            chain.append(after)
        shapes.append([round(b[0] - a[0] - 100, 6) for a, b in pairwise(chain)])
        served |= {(r.session_id, r.turn) for _, r in chain}
    # Sessions 0 and 2 are one user's, 1 and 3 the other's; think times are halved.
    assert sorted(shapes) == [[0.5, 0], [2, 3, 0, 1]]
    assert served == {(r.session_id, r.turn) for r in found.requests}
    # Only a session's own prefix is cached: 10 blocks of 64 tokens more a turn.
    assert sorted(r.uncached_tokens for r in found.requests) == [640] * 8


def test_the_set_of_sessions_is_the_nominal_order_and_is_fixed(tmp_path: Path) -> None:
    path = sessions(tmp_path, [0, 0, 0, 0], [0, 500, 0])
    asked = scenario("sessions", path, requests=4, users=2, ramp_s=0)
    found = make_source(asked)
    # The user who thinks for 500 s is not waited for: the other one's turns are first.
    assert found.count == 5
    assert len([r for r in found.requests if r.session_id == found.requests[0].session_id]) in (1, 4)
    assert make_source(asked).requests == found.requests
    assert nominal_service_s(asked, found.requests[0]) < 500
    with pytest.raises(InputError, match="have 7 requests"):
        make_source(scenario("sessions", path, requests=8))
    with pytest.raises(InputError, match=r"1 sessions .* after skip 1 have 3 requests"):
        make_source(scenario("sessions", path, requests=4, skip=1))


@pytest.mark.parametrize("kind", ["sessions", "mooncake"])
def test_a_replay_is_served_to_its_end(tmp_path: Path, kind: str) -> None:
    if kind == "sessions":
        asked = scenario(kind, sessions(tmp_path, [0, 1, 2], [0, 1], [0, 3]), requests=6, users=2)
    else:
        bench.write(tmp_path / "m", kind, 12)
        asked = scenario(kind, tmp_path / "m", requests=10)
    assert simulate(asked, infinite_core=True).end_s > 0


def test_the_command_line_tells_the_format_by_content(tmp_path: Path) -> None:
    bench.write(tmp_path / "x.log", "routing", 3)
    found = scenario_with_options(None, trace=tmp_path / "x.log", requests=2, speedup=3)
    assert (found.workload.kind, found.name) == ("routing", "x")
    named = scenario_with_options(None, trace=sessions(tmp_path, [0]), trace_format="sessions")
    assert named.workload.kind == "sessions"
    with pytest.raises(InputError, match="allowed: auto, azure, mooncake, sessions"):
        scenario_with_options(None, trace=tmp_path, trace_format="csv")


def test_the_command_line_can_leave_bad_rows_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,5,5\nx,5,5\n2,5,5\n3,5,5\n")
    with pytest.raises(InputError, match="line 3"):
        make_source(scenario_with_options(None, trace=path, requests=2))
    found = make_source(scenario_with_options(None, trace=path, requests=2, skip_bad_rows=True))
    assert summary(found)["bad_rows_skipped"] == 1
    with pytest.raises(InputError, match="--skip-bad-rows = True: needs --trace"):
        scenario_with_options(None, skip_bad_rows=True)


@pytest.mark.parametrize(
    ("workload", "what"),
    [
        ({"kind": "mooncake"}, "workload.path"),
        ({"kind": "mooncake", "path": "x", "raw": True}, "workload.raw = True: unknown key"),
        ({"kind": "routing", "path": "x", "users": 3}, "workload.users = 3: unknown key"),
        ({"kind": "sessions", "path": "x", "users": 0}, "workload.users = 0"),
        ({"kind": "nonsense"}, "workload"),
    ],
)
def test_bad_settings_name_the_field(workload: dict[str, object], what: str) -> None:
    with pytest.raises(InputError, match=what):
        check_scenario({"workload": workload})
