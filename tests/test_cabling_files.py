"""Files as spreadsheets and discovery tools write them, and as they break them."""

from __future__ import annotations

import json
import random

import pytest
from cabling_faults import csv_of, seen_from_both_sides, wired
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from topologies.cabling_files import observed_from_text, plan_from_text, port_text
from topologies.cabling_model import Plug, Sighting, planned_cables
from topologies.cabling_plan import plan_cabling
from topologies.cabling_verify import verify
from topologies.fabric import FabricError
from topologies.zcube import zcube

CUBE = zcube(16, 4)
PLAN_CSV = plan_cabling(CUBE).to_csv()
ROWS = seen_from_both_sides(wired(planned_cables(CUBE)), random.Random(2))
HEAD = "local device,local port,remote device,remote port\n"


def clean(plan: bytes, observed: bytes) -> bool:
    return verify(plan_from_text(plan, "plan"), observed_from_text(observed, "observed")).clean


def test_a_plan_comes_back_from_csv_and_json() -> None:
    cables = plan_from_text(PLAN_CSV.encode(), "plan.csv")
    assert [(c.a, c.b) for c in cables] == [(c.a, c.b) for c in planned_cables(CUBE)]
    assert plan_from_text(json.dumps(plan_cabling(CUBE).to_json()).encode(), "plan.json") == cables


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_spreadsheet_dialects(delimiter: str, newline: str, encoding: str) -> None:
    text = csv_of(ROWS, delimiter).replace("\n", newline)
    plan = PLAN_CSV.replace(",", delimiter).replace("\n", newline)
    assert clean(plan.encode(encoding), text.encode(encoding))


def test_headers_ports_quotes_comments_and_blank_lines() -> None:
    lines = ["# collected at night", "sep=;", "", 'Time;"Local Interface";local-device;Neighbor;Neighbor Port;TTL']
    lines += [f'12:00;"{r.local.device}-eth{r.local.port}"; {r.local.device} ;{r.remote.device};port {r.remote.port};9'
              for r in ROWS if r.remote]  # fmt: skip
    lines += ["", "12:00;odd1-eth55;odd1;;;9"]
    assert clean(PLAN_CSV.encode(), "\n".join(lines).encode())


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"neighbors": rows}])
def test_json_observations(wrap: object) -> None:
    rows = [
        {"localDevice": r.local.device, "local_port": int(r.local.port), "remote device": r.remote.device,
         "remote-port": r.remote.port, "age": 3}
        for r in ROWS if r.remote
    ]  # fmt: skip
    assert clean(PLAN_CSV.encode(), json.dumps(wrap(rows)).encode())  # type: ignore[operator]


def test_unicode_names_in_either_normal_form() -> None:
    plan = "id,a_device,a_port,b_device,b_port\n1,Zürich-1,1,東京,Ethernet1/2\n"
    seen = HEAD + "Zu\u0308rich-1,1,東京,Ethernet1/2\n"
    assert clean(plan.encode(), seen.encode())


@pytest.mark.parametrize(
    ("text", "port"),
    [("odd1-eth3", "3"), ("eth3", "3"), ("3", "3"), ("03", "3"), ("port 3", "3"), ("3.0", "3"), ("0", "0"),
     ("Ethernet1/3", "Ethernet1/3"), ("odd2-eth3", "odd2-eth3"), ("swp3s0", "swp3s0"), ("-3", "-3")],
)  # fmt: skip
def test_port_names(text: str, port: str) -> None:
    assert port_text("odd1", text) == port


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (b"", ["empty"]),
        (b"\xef\xbb\xbf \r\n", ["empty"]),
        (b"# nothing\n", ["empty"]),
        (HEAD.encode(), ["was LLDP on"]),
        (b"[]", ["was LLDP on"]),
        (b"{}", ["neighbors"]),
        (b"[1]", ["entry 1", "object"]),
        (b'[{"local device": "a"}]', ["entry 1", "lacks"]),
        (b'[{"local device": ["a"], "local port": 1, "remote device": "b", "remote port": 1}]', ["name or a number"]),
        (b'[{"local device": true, "local port": 1, "remote device": "b", "remote port": 1}]', ["name or a number"]),
        (b"[" * 100000, ["JSON"]),
        (b"{not json", ["JSON"]),
        (b"\x89PNG\x00\xff", ["UTF-8"]),
        (b"a\x00b", ["text file"]),
        (b"device,speed\nodd1,3\n", ["lacks local_port, remote_device, remote_port"]),
        ((HEAD + "odd1,1\n").encode(), ["line 2", "has 2 columns"]),
        ((HEAD + "odd1,1,even2,\n").encode(), ["line 2", "remote_port is empty"]),
        ((HEAD + "\n,1,even2,2\n").encode(), ["line 3", "local_device is empty"]),
        ((HEAD + ",,even2,2\n").encode(), ["line 2", "local device and a local port"]),
        ((HEAD + 'odd1,1,"even2,2\n').encode(), ["line", "CSV"]),
        ((HEAD + f"{'x' * 300},1,even2,2\n").encode(), ["line 2", "200 characters"]),
        ((HEAD + '"a\nb",1,even2,2\n').encode(), ["control characters"]),
        (PLAN_CSV.encode(), ["a cabling plan", "cannot be OBSERVED", "PLAN OBSERVED"]),
        (json.dumps(plan_cabling(CUBE).to_json()).encode(), ["cannot be OBSERVED"]),
    ],
)
def test_bad_observations_name_the_place(data: bytes, parts: list[str]) -> None:
    with pytest.raises(FabricError) as caught:
        observed_from_text(data, "seen.csv")
    for part in ["seen.csv", *parts]:
        assert part in str(caught.value)


PLAN_HEAD = "id,a_device,a_port,b_device,b_port\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["empty"]),
        (PLAN_HEAD, ["without cables"]),
        (PLAN_HEAD + "1,a,1,b,1\n1,a,2,b,2\n", ["line 3", "line 2"]),
        (PLAN_HEAD + "1,a,1,b,1\n1,a,1,b,1\n", ["line 3", "id is at"]),
        (PLAN_HEAD + "1,a,1,b,1\n2,c,1,b,01\n", ["line 3", "b port 1", "line 2"]),
        (PLAN_HEAD + "1,a,1,a,1\n", ["line 2", "to itself"]),
        (PLAN_HEAD + ",a,1,b,1\n", ["line 2", "empty field"]),
        (PLAN_HEAD + "1,a,1,,\n", ["line 2", "empty field"]),
        (csv_of(ROWS), ["an observation", "cannot be PLAN"]),
        ('{"cables": 3}', ["cables"]),
    ],
)
def test_bad_plans_name_the_place(text: str, parts: list[str]) -> None:
    with pytest.raises(FabricError) as caught:
        plan_from_text(text.encode(), "plan.csv")
    for part in ["plan.csv", *parts]:
        assert part in str(caught.value)


@examples(300)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda t: (HEAD + t).encode("utf-8", "replace"))))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for reader in (observed_from_text, plan_from_text):
        try:
            found = reader(data, "file")
        except FabricError:
            continue
        assert found


@examples(100)
@given(
    st.lists(
        st.tuples(*[st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=12)
                    .filter(lambda t: t.strip() and not t.startswith("#")) for _ in range(4)]),
        min_size=1,
    )
)  # fmt: skip
def test_json_keeps_any_names(rows: list[tuple[str, str, str, str]]) -> None:
    keys = ("local_device", "local_port", "remote_device", "remote_port")
    found = observed_from_text(json.dumps([dict(zip(keys, row, strict=True)) for row in rows]).encode(), "x")
    assert len(found) == len(rows) and all(isinstance(s, Sighting) and isinstance(s.remote, Plug) for s in found)
