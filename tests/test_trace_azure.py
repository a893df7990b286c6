"""Azure traces: parsing, its errors, and the replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenario.errors import InputError
from scenario.models import Scenario
from traffic.readers.azure import AZURE
from traffic.readers.cells import parse_stamp_ns
from traffic.readers.lines import MAX_LINE_BYTES
from traffic.readers.rows import TraceRow
from traffic.readers.trace import Trace
from traffic.trace_source import TraceSource

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
ROWS = (
    b"2023-11-16 18:17:03.9799600,4808,10\r\n"
    b"2023-11-16 18:17:04.0319600,3180,8\r\n"
    b"2023-11-16 18:17:04.0781490,110,27\r\n"
    b"2023-11-16 18:17:05.9799601,7433,14"  # the real files have no line end here
)
TRACES = Path(__file__).resolve().parents[1] / ".." / "shared" / "traces" / "azure-2023"


def write(folder: Path, content: bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(content)
    return path


def read_rows(path: Path) -> list[TraceRow]:
    return list(Trace(path, AZURE))


def source(path: Path, **workload: object) -> TraceSource:
    return TraceSource(Scenario.model_validate({"workload": {"kind": "azure", "path": path, **workload}}))


def test_rows_of_2023(tmp_path: Path) -> None:
    rows = list(read_rows(write(tmp_path, HEADER + ROWS)))
    assert [(r.line, r.input_tokens, r.output_tokens) for r in rows] == [
        (2, 4808, 10), (3, 3180, 8), (4, 110, 27), (5, 7433, 14),
    ]  # fmt: skip
    assert rows[1].at_ns - rows[0].at_ns == 52_000_000
    assert rows[3].at_ns - rows[0].at_ns == 2_000_000_100  # the seventh digit counts


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.0099300"),
        ("2024-05-10 00:00:00+00:00", "2024-05-10 00:00:00"),
        ("2024-05-10 02:00:00.5+02:00", "2024-05-10 00:00:00.5"),
        ("2024-05-09T17:30:00-0630", "2024-05-10 00:00:00"),
        ("2024-05-10T00:00:00Z", "2024-05-10 00:00:00.000000000"),
        ("2024-05-10 00:00:00 UTC", "2024-05-10 00:00:00"),
    ],
)
def test_time_zones(text: str, same_as: str) -> None:
    assert parse_stamp_ns(text) == parse_stamp_ns(same_as) is not None


def test_known_instant() -> None:
    assert parse_stamp_ns("2024-05-10 00:00:00.25") == 1_715_299_200_250_000_000


@pytest.mark.parametrize(
    "text",
    ["", "2023-02-30 00:00:00", "2023-01-01 24:00:00", "2023-01-01 00:60:00", "2023-01-01", "1700000000",
     "2023-01-01 00:00:00.", "2023-01-01 00:00:00+25:00", "2023-01-01 00:00:00.0000000001", "٢٠٢٣-01-01 00:00:00"],
)  # fmt: skip
def test_no_time_stamp(text: str) -> None:
    assert parse_stamp_ns(text) is None


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=40))
def test_stamps_never_crash(text: str) -> None:
    assert parse_stamp_ns(text) is None or text[:1].isdigit()


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (b"", 1, "empty"),
        (b"\r\n", 1, "empty"),
        (b"time,in,out\r\n" + ROWS, 1, "header must name TIMESTAMP,ContextTokens,GeneratedTokens"),
        (ROWS, 1, "header must name"),
        (HEADER + ROWS + b"\r\n2023-11-16 18:17:06.0,5\r\n", 6, "2 fields where 3"),
        (HEADER + b"2023-11-16 18:17:06.0,5,6,7\r\n", 2, "4 fields where 3"),
        (HEADER + b"yesterday,5,6\r\n", 2, "'yesterday' is not a time stamp"),
        (HEADER + b"2023-11-16 18:17:06.0,5.5,6\r\n", 2, "ContextTokens '5.5' is not a whole number"),
        (HEADER + b"2023-11-16 18:17:06.0,5,\r\n", 2, "GeneratedTokens '' is not a whole number"),
        (HEADER + b"2023-11-16 18:17:06.0,-5,6\r\n", 2, "ContextTokens -5 is outside 1 to 10,000,000"),
        (HEADER + b"2023-11-16 18:17:06.0,5,0\r\n", 2, "GeneratedTokens 0 is outside"),
        (HEADER + b"2023-11-16 18:17:06.0,10000001,6\r\n", 2, "ContextTokens 10000001 is outside"),
        (HEADER + b"2023-11-16 18:17:06.0,99999999999999999999,6\r\n", 2, "is not a whole number"),
        (HEADER + ROWS + b"\r\n2023-11-16 18:17:05.0,5,6\r\n", 6, "earlier than that of the row before"),
        (HEADER + b"\xff\xfe\x00,1,1\r\n", 2, "not text"),
        (b"\x00\xff\x80" * 9, 1, "not text"),
        (HEADER + b"x" * (MAX_LINE_BYTES + 5), 2, "longer than"),
        (HEADER + b"\r\n" + ROWS, 2, "empty line between rows"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, content: bytes, line: int, what: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError) as error:
        list(read_rows(path))
    assert str(path) in str(error.value)
    assert f"line {line}" in str(error.value)
    assert what in str(error.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.csv", tmp_path):
        with pytest.raises(InputError, match="cannot be read") as error:
            list(read_rows(path))
        assert error.value.field == "workload.path"
        assert str(path) in str(error.value)


def test_byte_order_mark_blank_end_and_unix_line_ends(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + (HEADER + ROWS).replace(b"\r\n", b"\n") + b"\n\n\n"
    assert len(list(read_rows(write(tmp_path, content)))) == 4


def test_only_the_needed_rows_are_read(tmp_path: Path) -> None:
    # A damaged row after the window does no harm: the reader stops before it.
    path = write(tmp_path, HEADER + ROWS + b"\r\nrubbish\r\n")
    assert source(path, skip=1, requests=2).count == 3


def test_replay(tmp_path: Path) -> None:
    replay = source(write(tmp_path, HEADER + ROWS), skip=1, warmup_requests=1, requests=1, speedup=2.0)
    assert [r.phase for r in replay.requests] == ["warmup", "measured", "cooldown"]
    assert replay.measured_ids == {1}
    assert [t for t, _ in replay.initial()] == pytest.approx([0.0, 0.046189 / 2, 1.9480001 / 2])
    first = replay.requests[0]
    assert (first.input_tokens, first.cached_tokens, first.output_tokens) == (3180, 0, 8)
    assert replay.following(first, 1.0) is None


def test_too_few_rows_says_how_many_there_are(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + ROWS)
    with pytest.raises(InputError, match=r"has 4 rows; skip 2 \+ warmup_requests 1 \+ requests 2 need 5"):
        source(path, skip=2, warmup_requests=1, requests=2)
    assert source(path, skip=1, warmup_requests=1, requests=2).count == 3  # and no row is left for cooldown


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real Azure traces are not beside the repository")
@pytest.mark.parametrize(
    ("name", "rows", "prompt", "output", "rate"),
    [("code", 8819, 2048, 27.9, 2.57), ("conv", 19366, 1155, 211, 5.53)],
)
def test_real_files(name: str, rows: int, prompt: float, output: float, rate: float) -> None:
    everyone = list(read_rows(TRACES / f"AzureLLMInferenceTrace_{name}.csv"))
    assert len(everyone) == rows
    assert sum(r.input_tokens for r in everyone) / rows == pytest.approx(prompt, rel=0.001)
    assert sum(r.output_tokens for r in everyone) / rows == pytest.approx(output, rel=0.005)
    assert (rows - 1) / ((everyone[-1].at_ns - everyone[0].at_ns) / 1e9) == pytest.approx(rate, rel=0.005)
