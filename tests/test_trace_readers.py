"""Readers of every format: what they yield, what they refuse and how they say it, their memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from tests_root import REPOSITORY

from scenario.errors import InputError
from traffic import bench
from traffic.readers import stream
from traffic.readers.csv_blocks import FastCsv
from traffic.readers.mooncake import GRID_NS
from traffic.readers.rows import TraceRow
from traffic.readers.trace import FORMATS, Trace, detect

HEADERS = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
    "table": "arrival_s,input_tokens,output_tokens,cached_tokens,session_id",
    "transfers": "time_s,src_gpu,dst_gpu,bytes,request",
    "routing": "start_ns,p_rank,d_rank,input_tokens,output_tokens,device_tokens,host_tokens,miss_tokens,ttft_ms,"
    "p_queue_ms",
}
GOOD = {
    "azure": "2024-05-10 00:00:00.5+00:00,48,10",
    "burstgpt": "5.25,ChatGPT,472,18,490,Conversation log",
    "table": "0.25,4808,10,4000,s1",
    "transfers": "0.25,gpu1,gpu20,6146400000,r17",
    "routing": "1758000000000000000,3,5,122000,900,1,2,4100,77.5,1.5",
    "mooncake": '{"timestamp": 27482, "input_length": 1000, "output_length": 52, "hash_ids": [46, 47]}',
    "qwen": '{"chat_id": 3, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 20, "output_length": 5,'
    ' "type": "text", "turn": 1, "hash_ids": [1, 2]}',
}
SESSION = {
    "id": "trace_1",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "s", "in": 200, "out": 10, "hash_ids": [1, 2, 3], "think_time": 0.0},
        {"t": 9.0, "type": "subagent", "requests": [{"t": 9.5, "in": 70, "out": 3, "hash_ids": [9]}]},
        {"t": 20.0, "type": "n", "in": 330, "out": 0, "hash_ids": [1, 2, 3, 4, 5], "think_time": 5.5},
    ],
}


def file_of(folder: Path, name: str, *rows: str, header: str | None = None) -> Path:
    path = folder / f"{name}.txt"
    first = HEADERS.get(name, "") if header is None else header
    path.write_text("\n".join([*([first] if first else []), *rows]) + "\n")
    return path


def mooncake(timestamp_ms: int, tokens: int) -> str:
    return json.dumps({"timestamp": timestamp_ms, "input_length": tokens, "output_length": 5, "hash_ids": [1]})


def read(path: Path, name: str = "auto", **options: bool) -> list[TraceRow]:
    return list(Trace(path, detect(path) if name == "auto" else FORMATS[name], **options))


@pytest.mark.parametrize("name", list(GOOD))
def test_content_tells_the_format(tmp_path: Path, name: str) -> None:
    assert detect(file_of(tmp_path, name, GOOD[name])).name == name


def test_sessions_are_told_as_file_and_folder(tmp_path: Path) -> None:
    for indent in (None, 1):
        (tmp_path / "a.json").write_text(json.dumps(SESSION, indent=indent))
        assert detect(tmp_path / "a.json").name == detect(tmp_path).name == "sessions"


@pytest.mark.parametrize(
    ("content", "what"),
    [("", "empty"), ("a,b\n1,2\n", "no format has these columns"), ('{"a": 1}\n', "no format"), ("[1]\n", "no format")],
)
def test_unknown_content_lists_what_is_known(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "x"
    path.write_text(content)
    with pytest.raises(InputError, match=what) as error:
        detect(path)
    assert str(path) in str(error.value) and "line 1" in str(error.value)


def test_an_empty_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no \*\.json"):
        detect(tmp_path)


def test_burstgpt_columns_are_found_by_name(tmp_path: Path) -> None:
    (row,) = read(file_of(tmp_path, "burstgpt", GOOD["burstgpt"]))
    assert (row.at_ns, row.input_tokens, row.output_tokens, row.session, row.tenant) == (
        5_250_000_000, 472, 18, "", "ChatGPT",
    )  # fmt: skip
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    rows = read(file_of(tmp_path, "burstgpt", "5,77,0.5,GPT-4,1,2,3,x", "6,,0.5,GPT-4,1,2,3,x", header=header))
    assert [(r.session, r.input_tokens) for r in rows] == [("77", 1), ("", 1)]


def test_table_as_csv_and_as_json_lines(tmp_path: Path) -> None:
    csv = read(file_of(tmp_path, "table", GOOD["table"], "1,5,6,,"))
    lines = [
        '{"arrival_s": 0.25, "input_tokens": 4808, "output_tokens": 10, "cached_tokens": 4000, "session_id": "s1"}',
        '{"arrival_s": 1, "input_tokens": 5, "output_tokens": 6.0}',
    ]
    as_json = read(file_of(tmp_path, "table", *lines, header=""))
    assert [row._replace(line=0) for row in csv] == [row._replace(line=0) for row in as_json]
    assert (csv[0].cached_tokens, csv[1].cached_tokens, csv[0].session) == (4000, None, "s1")


def test_quoted_cells(tmp_path: Path) -> None:
    assert read(file_of(tmp_path, "table", '1,5,6,2,"a, b"'))[0].session == "a, b"


def test_logs_carry_gpus_and_are_put_in_order(tmp_path: Path) -> None:
    earlier = GOOD["routing"].replace("1758000000000000000,3", "1757999999000000000,4")
    rows = read(file_of(tmp_path, "routing", GOOD["routing"], earlier))
    assert [(r.line, r.prefill_gpu, r.decode_gpu) for r in rows] == [(3, "4", "5"), (2, "3", "5")]
    assert (rows[1].cached_tokens, rows[1].queue_ms) == (122_000 - 4_100, 1.5)
    (row,) = read(file_of(tmp_path, "transfers", GOOD["transfers"]))
    assert (row.prefill_gpu, row.decode_gpu, row.kv_bytes, row.session) == ("gpu1", "gpu20", 6_146_400_000, "r17")


def test_a_log_too_far_out_of_order_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "REORDER_ROWS", 4)
    rows = [f"{t},a,b,1,r" for t in (5, 6, 7, 8, 9, 10, 4, 11, 12, 13, 14, 1)]
    with pytest.raises(InputError, match=r"line 13.*stands 4 rows earlier|earlier"):
        read(file_of(tmp_path, "transfers", *rows))
    assert [r.at_ns // 10**9 for r in read(file_of(tmp_path, "transfers", *rows[:-1]))] == list(range(4, 15))


def test_blocks_of_json_formats(tmp_path: Path) -> None:
    (row,) = read(file_of(tmp_path, "qwen", GOOD["qwen"]))
    assert (row.blocks, row.block_tokens, row.session, row.turn, row.at_ns) == ((1, 2), 16, "3", 1, 61_114_000_000)
    (row,) = read(file_of(tmp_path, "mooncake", GOOD["mooncake"]))
    assert (row.blocks, row.block_tokens, row.at_ns) == ((46, 47), 512, 27_482_000_000)


def test_sessions_keep_order_think_times_and_their_own_blocks(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.json").write_text(json.dumps(SESSION))
    rows = read(tmp_path)
    assert [(r.session, r.turn, r.think_s) for r in rows[:3]] == [("a", 0, 0.0), ("a", 1, 0.0), ("a", 2, 5.5)]
    assert [r.input_tokens for r in rows] == [200, 70, 330] * 2
    assert rows[2].output_tokens == 1  # broken off
    assert rows[0].blocks is not None and rows[2].blocks is not None and rows[3].blocks is not None
    assert rows[2].blocks[:3] == rows[0].blocks
    assert not set(rows[0].blocks) & set(rows[3].blocks)


def test_stamps_of_a_3_s_grid_are_spread_in_order_and_by_seed(tmp_path: Path) -> None:
    stamps = [t for t in (0, 3000, 5999, 9000, 12000) for _ in range(40)]
    rows = [mooncake(t, i + 1) for i, t in enumerate(stamps)]
    path = file_of(tmp_path, "mooncake", *rows)
    raw = read(path, raw_timestamps=True)
    assert [r.at_ns for r in raw] == [t * 10**6 for t in stamps]
    spread = read(path)
    assert [r.at_ns for r in spread] == sorted(r.at_ns for r in spread)
    assert sorted(r.input_tokens for r in spread) == list(range(1, 201))
    for row in spread:  # 1 ms: the stamp that is early
        assert -(10**6) <= row.at_ns - raw[row.line - 1].at_ns - 0 <= GRID_NS + 10**6
    offsets = [(r.at_ns - raw[r.line - 1].at_ns) / GRID_NS for r in spread]
    assert 0.45 < sum(offsets) / len(offsets) < 0.55 and max(offsets) > 0.95 and min(offsets) < 0.05
    assert read(path) == spread
    assert list(Trace(path, FORMATS["mooncake"], seed=2)) != spread


def test_stamps_on_no_grid_are_left_alone(tmp_path: Path) -> None:
    rows = [mooncake(t, 9) for t in (0, 3000, 6000, 9000, 12000, 12001, 15500)]
    assert [r.at_ns // 10**6 for r in read(file_of(tmp_path, "mooncake", *rows))][-2:] == [12001, 15500]


BAD = [
    ("burstgpt", "x,ChatGPT,472,18,490,l", "Timestamp", "'x' is not a number"),
    ("burstgpt", "nan,ChatGPT,472,18,490,l", "Timestamp", "'nan' is not a number"),
    ("burstgpt", "5,ChatGPT,472,0,490,l", "Response tokens", "0 is outside 1 to"),
    ("burstgpt", "5,ChatGPT,472,18,490", "", "5 fields where 6"),
    ("burstgpt", "-1,ChatGPT,472,18,490,l", "Timestamp", "outside 0 to"),
    ("table", "1,2,3,4,s", "cached_tokens", "cached_tokens 4 is more than input_tokens 2"),
    ("table", "1,0x10,3,0,s", "input_tokens", "'0x10' is not a whole number"),
    ("table", "0.1,2,3,0,s", "arrival_s", "earlier than that of the row before"),
    ("table", "1e12,2,3,0,s", "arrival_s", "outside 0 to"),
    ("transfers", "1,,b,5,r", "src_gpu", "'' is not a name"),
    ("transfers", "1,a,b,0,r", "bytes", "0 is outside 1"),
    ("transfers", "1,a,b,1.5,r", "bytes", "'1.5' is not a whole number"),
    ("routing", "-1,3,5,9,9,1,2,4,7,1", "start_ns", "-1 is outside 0"),
    ("routing", "1,3,5,9,9,1,2,10,7,1", "miss_tokens", "miss_tokens 10 is more than input_tokens 9"),
    ("routing", "1,3,5,9,9,1,2,4,7,later", "p_queue_ms", "'later' is not a number"),
    ("mooncake", "{", "", "not JSON"),
    ("mooncake", "[1]", "", "not a JSON object"),
    ("mooncake", '{"timestamp": 27483, "input_length": 1, "output_length": 5}', "hash_ids", "is missing"),
    ("mooncake", GOOD["mooncake"].replace("[46, 47]", "7"), "hash_ids", "7 is not a list"),
    ("mooncake", GOOD["mooncake"].replace("47]", "-4]"), "hash_ids", "holds -4"),
    ("mooncake", GOOD["mooncake"].replace("1000", '"1000"'), "input_length", "'1000' is not a whole number"),
    ("mooncake", GOOD["mooncake"].replace("1000", "true"), "input_length", "True is not a whole number"),
    ("mooncake", GOOD["mooncake"].replace("27482", "NaN"), "timestamp", "nan is not a number"),
    ("mooncake", GOOD["mooncake"].replace("27482", "5"), "timestamp", "earlier"),
    ("qwen", GOOD["qwen"].replace("61.114", "null"), "timestamp", "is missing"),
    ("qwen", GOOD["qwen"].replace('"turn": 1', '"turn": 1.5'), "turn", "1.5 is not a whole number"),
    ("qwen", "[" * 100_000, "", "not JSON"),
    ("qwen", GOOD["qwen"].replace("61.114", "1" + "0" * 400), "timestamp", "is not a number"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bad", "column", "what"), BAD)
def test_a_bad_row_names_file_line_column_and_value_or_is_counted(
    tmp_path: Path, name: str, bad: str, column: str, what: str
) -> None:
    path = file_of(tmp_path, name, GOOD[name], bad, GOOD[name])
    line = 3 if name in HEADERS else 2
    with pytest.raises(InputError) as error:
        read(path, name)
    said = str(error.value)
    assert f"{path}, line {line}" + (f", column {column}" if column else "") in said
    assert what in said and "Allowed" in said
    trace = Trace(path, FORMATS[name], skip_bad_rows=True)
    assert len(list(trace)) == 2
    assert trace.bad_rows == 1 and f"line {line}" in trace.first_bad


@pytest.mark.parametrize("name", ["azure", "transfers", "table", "mooncake"])
@pytest.mark.parametrize("before", ["\n", "\ufeff\n", " \r\n\n\t\n", "\ufeff"])
def test_blank_lines_before_the_first_are_skipped_and_counted(tmp_path: Path, name: str, before: str) -> None:
    path = file_of(tmp_path, name, GOOD[name], GOOD[name], "rubbish")
    path.write_bytes(before.encode() + path.read_bytes())
    trace = Trace(path, detect(path), skip_bad_rows=True)
    first = before.count("\n") + 1 + (name in HEADERS)
    assert trace.form.name == name
    assert [row.line for row in trace] == [first, first + 1]
    assert f"line {first + 2}" in trace.first_bad


def test_a_header_after_blank_lines_is_named_by_its_line(tmp_path: Path) -> None:
    path = file_of(tmp_path, "x", header="\n\nwho,knows")
    for reader in (detect, lambda file: read(file, "table")):
        with pytest.raises(InputError, match="line 3 "):
            reader(path)
    for blank in ("", "\n \n", "\ufeff\n"):
        path.write_text(blank)
        for reader in (detect, lambda file: read(file, "table")):
            with pytest.raises(InputError, match=r"line 1.*the file is empty"):
                reader(path)


def test_half_a_surrogate_pair_is_a_bad_cell(tmp_path: Path) -> None:
    row = '{"arrival_s": 1, "input_tokens": 5, "output_tokens": 5, "session_id": "%s"}'
    path = file_of(tmp_path, "json", row % "a", row % r"a\ud800", row % r"\ud83d\ude00")
    with pytest.raises(InputError, match=r"line 2, column session_id.*is not text \(UTF-8\)") as error:
        read(path)
    str(error.value).encode()
    trace = Trace(path, FORMATS["table"], skip_bad_rows=True)
    assert [row.session for row in trace] == ["a", "\U0001f600"] and trace.bad_rows == 1


@pytest.mark.parametrize("name", list(HEADERS))
def test_a_header_without_a_column_says_which(tmp_path: Path, name: str) -> None:
    missing = FORMATS[name].required[-1]
    header = ",".join(column for column in HEADERS[name].split(",") if column != missing)
    with pytest.raises(InputError, match=f"lacks {missing}"):
        read(file_of(tmp_path, name, header=header), name)


def test_a_column_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="names bytes twice"):
        read(file_of(tmp_path, "transfers", header="time_s,src_gpu,dst_gpu,bytes,bytes"), "transfers")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"requests": 5}, "no list `requests`"),
        ({"block_size": 0}, "block_size"),
        ({"requests": [7]}, "request 1: is not a JSON object"),
        ({"requests": [{"t": 0, "in": 5}]}, "request 1: out is missing"),
        ({"requests": [{"t": 0, "in": 0, "out": 1}]}, "in 0 is outside 1"),
        ({"requests": [{"t": 0, "in": 5, "out": 1, "think_time": -3}]}, "think_time -3.0 is outside"),
        ({"requests": [{"t": 0, "in": 5, "out": 1, "hash_ids": ["a"]}]}, "holds 'a'"),
    ],
)
def test_bad_sessions_name_file_request_and_key(tmp_path: Path, change: dict[str, object], what: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({**SESSION, **change}))
    with pytest.raises(InputError, match=what) as error:
        read(path, "sessions")
    assert str(path) in str(error.value)


def test_a_session_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"requests": [\n}')
    with pytest.raises(InputError, match=r"line 2.*not JSON"):
        read(tmp_path, "sessions")


def test_a_bad_turn_is_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps({**SESSION, "requests": [*SESSION["requests"], {"t": 1}]}))  # type: ignore[misc]
    trace = Trace(tmp_path, FORMATS["sessions"], skip_bad_rows=True)
    assert (len(list(trace)), trace.bad_rows) == (3, 1)
    assert "request 4" in trace.first_bad


ODD = st.sampled_from(
    ["", " 5", "5 ", "0x5", "0X5", "1e1", "2.5", "nan", "inf", "x", "+3", "-1", "05", "٣", "9" * 20, '"4"', "s\r"]
)


@examples(150)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), ODD, st.integers(0, 4), st.sampled_from(["\n", "\r\n"]))
def test_the_fast_way_finds_what_the_exact_one_does(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], odd: str, column: int, end: str
) -> None:
    """Blocks that Arrow takes yield the same rows as the reader of single lines; one cell of the last row is odd."""
    rows = [[str(i), str(20 + size), "7", str(size), "s"] for i, size in enumerate(sizes)]
    rows[-1][column] = odd
    header = tuple(HEADERS["table"].split(","))
    block = "".join(",".join(row) + end for row in rows).encode()
    fast = FastCsv(FORMATS["table"], header).rows(2, block, 0)
    if fast is not None:
        path = tmp_path_factory.mktemp("t") / "t.csv"
        path.write_bytes(HEADERS["table"].encode() + b"\n" + block)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FastCsv, "rows", lambda *_: None)
            assert read(path, "table") == fast


@pytest.mark.parametrize("name", ["azure", "burstgpt", "routing", "transfers", "table"])
def test_ordinary_files_take_the_fast_way(name: str) -> None:
    text = "".join(bench.lines(name, 50))
    header, body = text.split("\n", 1)
    rows = FastCsv(FORMATS[name], tuple(header.split(","))).rows(2, body.encode(), 0)
    assert rows is not None and len(rows) == 50


def test_rows_over_many_blocks_keep_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traffic.readers.lines.BLOCK_BYTES", 100)
    bench.write(tmp_path / "t.csv", "table", 300)
    rows = read(tmp_path / "t.csv")
    assert [row.line for row in rows] == list(range(2, 302))
    text = (tmp_path / "t.csv").read_text().splitlines()
    text[200] = "rubbish"
    (tmp_path / "t.csv").write_text("\n".join(text))
    with pytest.raises(InputError, match=r"line 201\b"):
        read(tmp_path / "t.csv")


@pytest.mark.parametrize("name", ["azure", "transfers", "table_json"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, name: str) -> None:
    """Ten times the rows, in a process of its own, add no more than a few MiB; kept, they would add 50 and more."""
    added = []
    for rows in (40_000, 400_000):
        path = tmp_path / f"{rows}.txt"
        bench.write(path, name, rows)
        program = (
            "import sys; from pathlib import Path; from traffic import bench; print(*bench.one(Path(sys.argv[1])))"
        )
        found = subprocess.run(
            [sys.executable, "-c", program, str(path)], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout.split()
        assert int(found[1]) == rows
        added.append(int(found[3]) / 1024)
    assert added[1] - added[0] < 25, added
