"""The price book: every figure has an origin, and whatever is wrong with a file is one message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cost_books import DEFAULT, book_data
from hypothesis import given, settings
from hypothesis import strategies as st

from scenario.errors import InputError
from scenario.price_file import default_price_book, load_price_book
from scenario.yaml_file import MAX_BYTES
from topologies.prices import PriceError, check_prices, default_prices_text

Data = dict[str, Any]


def test_default_book_names_the_paper_models_and_every_origin() -> None:
    book = default_price_book()
    assert {name: part.capacity_gbps / 1000 for name, part in book.switches.items()} == {
        "N8550-40CD": 8.0,
        "N9550-32D": 12.8,
        "N9550-64D": 25.6,
        "N9600-64OD": 51.2,
    }
    for path, part in book.priced.items():
        assert part.assumption is bool(part.reason), path
        assert part.assumption or (part.source and part.date), path
        assert part.low_usd < part.high_usd, path
    assert all(part.assumption for part in (*book.switches.values(), *book.optics.values()))


def test_paper_lengths() -> None:
    tier = DEFAULT.fibre_of_tier
    assert [DEFAULT.fibre[name].length_m for name in (tier.access, tier.uplink, tier.inter)] == [15, 30, 50]
    assert {part.max_length_m for part in DEFAULT.dac.values()} == {3}


def test_printed_book_reads_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(default_prices_text())
    assert load_price_book(path) == default_price_book()


def change(path: str, value: object) -> Callable[[Data], None]:
    """A change of one place in the data; None takes it away."""

    def apply(data: Data) -> None:
        *sections, last = path.split("/")
        for section in sections:
            data = data[section]
        if value is None:
            del data[last]
        else:
            data[last] = value

    return apply


@pytest.mark.parametrize(
    ("path", "value", "parts"),
    [
        ("optics/optic-400g/price_usd", -1, ["optics.optic-400g.price_usd = -1", "greater"]),
        ("optics/optic-400g/price_usd", float("nan"), ["price_usd = nan", "finite"]),
        ("optics/optic-400g/price_usd", float("inf"), ["price_usd = inf", "finite"]),
        ("optics/optic-400g/price_usd", 10**400, ["price_usd"]),
        ("optics/optic-400g/price_usd", 2e9, ["price_usd", "less than"]),
        ("optics/optic-400g/price_usd", True, ["price_usd = True", "number"]),
        ("optics/optic-400g/price_usd", "900", ["price_usd = 900", "number"]),
        ("optics/optic-400g/price_usd", None, ["optics.optic-400g.price_usd", "required"]),
        ("optics/optic-400g/price", 3, ["optics.optic-400g.price = 3", "unknown key"]),
        ("optics/optic-400g/range_usd", [1, 2], ["does not hold price_usd = 900"]),
        ("optics/optic-400g/range_usd", [2000, 500], ["does not hold"]),
        ("optics/optic-400g/range_usd", [500], ["range_usd", "at least 2"]),
        ("optics/optic-400g/reason", None, ["an assumption needs a reason"]),
        ("optics/optic-400g/assumption", False, ["needs source and date, or assumption"]),
        ("optics/optic-400g/date", "2026", ["an assumption has no date"]),
        ("nics/connectx7-1x400g/date", None, ["needs source and date"]),
        ("nics/connectx7-1x400g/date", "last week", ["date"]),
        ("optics/again", {"gbps": 400, "price_usd": 1, "assumption": True, "reason": "r"}, ["same part as"]),
        ("optics/optic-400g/gbps", 0, ["gbps = 0"]),
        ("optics", {}, ["optics", "at least 1"]),
        ("optics", [], ["optics", "dictionary"]),
        ("switches/bad [name]", {}, ["switches.bad [name]"]),
        ("switches/N9550-64D/capacity_gbps", -5, ["capacity_gbps = -5"]),
        ("switches/N9550-64D/power_w", -5, ["power_w = -5"]),
        ("fibre_of_tier/uplink", "string", ["fibre_of_tier.uplink", "must be one of"]),
        ("power/pue", 0.5, ["power.pue = 0.5"]),
        ("operation/amortisation_years", 0, ["amortisation_years = 0"]),
        ("spares/optics_percent", 101, ["optics_percent = 101"]),
        ("cabling/per", "metre", ["cabling.per = metre"]),
        ("schema_version", 2, ["schema_version = 2"]),
        ("euro", 1, ["euro = 1", "unknown key"]),
        ("power", None, ["power", "required"]),
    ],
)
def test_bad_figures_name_their_place(path: str, value: object, parts: list[str]) -> None:
    data = book_data()
    change(path, value)(data)
    with pytest.raises(PriceError) as caught:
        check_prices(data)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["prices: switches", "required"]),
        (b"- 1\n- 2\n", ["must be a mapping"]),
        (b"{}", ["prices: switches", "required"]),
        (b"switches: [", ["is not YAML", "line 1"]),
        (b"power: 1\npower: 2\n", ["power is given twice", "line 2"]),
        (b"\xff\xfe\x00", ["is not UTF-8"]),
        (b"a: " + b"[" * 50_000, ["nested too deeply"]),
        (b"a: " + b"9" * 5000, ["cannot be read"]),
        (b"switches: !!python/object/apply:os.system ['true']", ["is not YAML"]),
        (b"x" * (MAX_BYTES + 1), ["is larger than"]),
        (b"2026-13-45: 1\n", ["prices"]),
        (b"1: 2\n", ["prices: 1", "string"]),
    ],
    ids=["empty", "list", "mapping", "cut", "twice", "binary", "deep", "long", "python", "huge", "date", "number"],
)
def test_bad_files_are_one_message(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    path = tmp_path / "prices.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_price_book(path)
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("place", ["folder", "nowhere.yaml"])
def test_bad_places_are_one_message(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=place):
        load_price_book(tmp_path / place)


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="aliases"):
        load_price_book(path)
    path.write_text("a: &a\n  b: *a\n")  # contains itself
    with pytest.raises(InputError, match="aliases"):
        load_price_book(path)


def test_a_date_may_be_written_as_yaml_reads_it(tmp_path: Path) -> None:
    for written, read in (("2026-09-15", "2026-09-15"), ("2026", "2026"), ("2026-09", "2026-09")):
        text = default_prices_text().replace("date: 2026-09\n", f"date: {written}\n")
        path = tmp_path / "prices.yaml"
        path.write_text(text)
        assert {part.date for part in load_price_book(path).nics.values() if part.date} == {read}


LEAVES = st.none() | st.booleans() | st.floats() | st.text(max_size=5)
NONSENSE = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(NONSENSE, st.sampled_from(sorted(book_data())))
def test_nonsense_in_a_section_is_a_price_error(nonsense: object, section: str) -> None:
    data = book_data()
    if nonsense == data[section]:
        return
    data[section] = nonsense
    try:
        check_prices(data)
    except PriceError as error:
        assert section in str(error)
    else:  # the only sections that may be empty or other
        assert section in ("dac", "nics", "schema_version")


def test_a_huge_book_is_refused_by_count() -> None:
    data = yaml.safe_load(default_prices_text())
    part = {"price_usd": 1, "assumption": True, "reason": "r"}
    data["optics"] = {f"o{i}": {**part, "gbps": i + 1} for i in range(501)}
    with pytest.raises(PriceError, match="optics"):
        check_prices(data)
