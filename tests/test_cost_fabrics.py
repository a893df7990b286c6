"""Bills of materials and their pricing: counted on the graph, by hand for small fabrics."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from cost_books import DEFAULT, all_switches, book, book_data, priced, wired
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.cost_comparison import CostComparison, unique_labels
from topologies.bom import bill_of_materials, whole_server_tiers
from topologies.cost import (
    HOURS_PER_YEAR,
    ITEMS,
    PRESETS,
    Accounting,
    cost_of,
    movers,
    saving,
    saving_range,
    saving_range_by_section,
)
from topologies.fabric import FabricError
from topologies.prices import PriceError, check_prices

ROFT, ZCUBE = "roft:gpus=32,asic_ports=8", "zcube:gpus=32,asic_ports=8"
KINDS = [
    ROFT,
    ZCUBE,
    "clos:gpus=32,asic_ports=8",
    "rail_only:gpus=128,asic_ports=8",
    "hpn:gpus=32,asic_ports=8",
    "fat_tree:gpus=128,asic_ports=8",
    "roft:gpus=128,asic_ports=8,tiers=3",
]


def test_zcube_of_the_blog_figure_by_hand() -> None:
    """N = 32, k = 8, m = 2: 8 switches of 16 x 200G, 64 access and 32 inter cables, half of the access ones copper."""
    bom = bill_of_materials(wired(ZCUBE))
    assert [(g.tier, g.count, g.ports, g.gbps, g.port_gbps) for g in bom.switches] == [
        ("odd", 4, 16, 3200.0, 200.0),
        ("even", 4, 16, 3200.0, 200.0),
    ]
    assert {(g.tier, g.gbps, g.copper, g.count, g.nic_ends) for g in bom.cables} == {
        ("access", 200.0, False, 32, 32),
        ("access", 200.0, True, 32, 32),
        ("inter", 200.0, False, 32, 0),
    }
    assert [(g.count, g.ports, g.port_gbps) for g in bom.nics] == [(32, 2, 200.0)]
    assert (bom.optics(), bom.optics(nic_side=False), bom.modules()) == (128, 96, 64.0)


@pytest.mark.parametrize("text", KINDS)
def test_parts_add_up_on_every_kind(text: str) -> None:
    """Every cable is counted once, both its ends are ports, and every NIC port has a cable."""
    fabric, bom = wired(text), bill_of_materials(wired(text))
    assert bom.cable_count() == len(fabric.links)
    assert bom.switch_count == len(fabric.switches)
    ends = sum(g.switch_ends for g in bom.cables)
    assert ends == sum(len(s.ports) for s in fabric.switches) == sum(g.count * g.ports for g in bom.switches)
    assert sum(g.nic_ends for g in bom.cables) == sum(len(g.ports) for g in fabric.gpus)
    cost = cost_of(fabric, DEFAULT)
    assert cost.capex_usd == pytest.approx(sum(cost.item_usd(item) for item in ITEMS))
    assert cost.capex_usd > 0


def test_full_cost_of_a_small_roft_by_hand() -> None:
    """32 GPUs, 12 switches of 8 x 400G (3.2T: the 8T model), 64 fibres with 128 ends, 32 of them at NICs."""
    cost = priced(ROFT)
    hardware = {"switches": 12 * 14_000, "optics": 128 * 900, "fibre": 32 * 50 + 32 * 80, "nics": 32 * 2188}
    spares = 14_000 + 3 * 900 + 50 + 80 + 2188  # 2 % of 12, of 128, of 32 and of 32; 1 % of 32: each rounded up
    assert {item: cost.item_usd(item) for item in ITEMS} == {**hardware, "dac": 0, "cabling": 1280, "spares": spares}
    assert cost.power_w == pytest.approx(12 * 450 + 128 * 9 + 32 * 25)
    assert cost.kwh_per_year == pytest.approx(cost.power_w / 1000 * 1.3 * HOURS_PER_YEAR)
    assert cost.power_usd_per_year == pytest.approx(cost.kwh_per_year * 0.10)


def test_spares_are_whole_parts_over_all_tiers_and_draw_no_power() -> None:
    full, none = priced(ZCUBE), priced(ZCUBE, replace(PRESETS["full"], items=frozenset(ITEMS) - {"spares"}))
    spare = {line.part: line.quantity for line in full.lines if line.item == "spares"}
    assert spare["switches.N8550-40CD"] == 1  # 2 % of 4 + 4, not of 4 and of 4
    assert spare["optics.optic-200g"] == 3
    assert full.power_w == none.power_w


def test_two_percent_of_fifty_is_one_spare() -> None:
    data = book_data()
    data["spares"]["nics_percent"] = 3.125
    cost = cost_of(wired(ROFT), check_prices(data))
    assert [line.quantity for line in cost.lines if line.item == "spares" and line.part.startswith("nics")] == [1]


def test_toggles_leave_out_what_they_say() -> None:
    full = priced(ZCUBE)
    no_nic = priced(ZCUBE, replace(PRESETS["full"], nic_optics=False))
    assert full.item_usd("optics") - no_nic.item_usd("optics") == pytest.approx(32 * 450)  # port 1; port 2 is copper
    fibre = priced(ZCUBE, replace(PRESETS["full"], dac_tiers=frozenset()))
    assert (fibre.item_usd("dac"), fibre.bom.optics()) == (0, 192)
    inter = priced(ZCUBE, replace(PRESETS["full"], link_tiers=frozenset({"inter"})))
    assert {line.use.split(",")[0] for line in inter.lines if line.item in ("optics", "fibre", "cabling")} == {"inter"}
    assert priced(ZCUBE, replace(PRESETS["full"], items=frozenset({"nics"}))).capex_usd == 32 * 2129


def test_labour_by_cable_or_by_end() -> None:
    data = book_data()
    by_end = cost_of(wired(ROFT), DEFAULT).item_usd("cabling")
    data["cabling"]["per"] = "cable"
    assert cost_of(wired(ROFT), check_prices(data)).item_usd("cabling") == by_end / 2


def test_trunks_are_refused() -> None:
    with pytest.raises(FabricError, match="destination"):
        bill_of_materials(wired("zcube:gpus=32,asic_ports=8,bundle=trunk"))


@pytest.mark.parametrize(
    ("gbps", "ports", "port_gbps", "model"),
    [
        (3200, 16, 200, "N8550-40CD"),
        (8000, 40, 200, "N8550-40CD"),
        (8000.1, 40, 200, "N9550-32D"),
        (12800, 64, 200, "N9550-32D"),
        (25600, 64, 400, "N9550-64D"),
        (8000, 10, 800, "N9600-64OD"),  # capacity would do, port rate does not
        (51200, 256, 200, "N9600-64OD"),
    ],
)
def test_smallest_model_that_holds_the_ports(gbps: float, ports: int, port_gbps: float, model: str) -> None:
    assert DEFAULT.switch_for(gbps, ports, port_gbps) == model


def test_too_large_for_every_model_and_for_the_one_asked_for() -> None:
    with pytest.raises(PriceError, match="no model in the price book holds"):
        DEFAULT.switch_for(51200, 512, 100)
    with pytest.raises(PriceError, match="N8550-40CD: is too small"):
        cost_of(wired("roft:gpus=1024,asic_ports=64"), DEFAULT, switch_model="N8550-40CD")
    with pytest.raises(PriceError, match="is not in the price book; known"):
        cost_of(wired(ROFT), DEFAULT, switch_model="N1")
    assert {line.part for line in cost_of(wired(ROFT), DEFAULT, switch_model="N9600-64OD").lines if line.power_w > 950}


def test_a_part_that_is_missing_matters_only_when_it_is_counted() -> None:
    data = book_data()
    del data["nics"]["connectx7-2x200g"], data["dac"]["dac-200g"], data["optics"]["optic-200g"]
    lacking = check_prices(data)
    for item in ("nics", "dac", "optics"):
        with pytest.raises(PriceError, match="add a part"):
            cost_of(wired(ZCUBE), lacking, Accounting(frozenset({item})))
    assert cost_of(wired(ZCUBE), lacking, PRESETS["blog"]).capex_usd > 0


def test_whole_servers_are_told_from_the_graph() -> None:
    assert whole_server_tiers(wired(ZCUBE)) == {"even"}
    assert whole_server_tiers(wired(ROFT)) == frozenset()
    assert whole_server_tiers(wired("clos:gpus=32,asic_ports=8")) == {"leaf"}


# --- savings over ranges


@settings(max_examples=30, deadline=None)
@given(
    spans=st.lists(st.tuples(st.floats(0.2, 1), st.floats(1, 5)), min_size=8, max_size=8),
    pair=st.sampled_from([(ROFT, ZCUBE), (ZCUBE, ROFT), ("hpn:gpus=32,asic_ports=8", ZCUBE)]),
)
def test_range_of_a_saving_is_that_of_all_corners(spans: list[tuple[float, float]], pair: tuple[str, str]) -> None:
    parts = [
        "switches.N8550-40CD",
        "optics.optic-200g",
        "optics.optic-400g",
        "dac.dac-200g",
        "fibre.fibre-15m",
        "fibre.fibre-30m",
        "fibre.fibre-50m",
        "cabling",
    ]
    prices = {part: DEFAULT.priced[part].price_usd for part in parts}
    ranges = {part: (prices[part] * low, prices[part] * high) for part, (low, high) in zip(parts, spans, strict=True)}
    ranged = book(prices, ranges)
    how = replace(PRESETS["full"], items=frozenset(ITEMS) - {"nics"})
    base, other = (priced(text, how, ranged) for text in pair)
    corners = []
    for corner in product(*(ranges[part] for part in parts)):
        usd = dict(zip(parts, corner, strict=True))
        paid = [sum(n * usd[part] for part, n in cost.quantities.items()) for cost in (base, other)]
        corners.append(1 - paid[1] / paid[0])
    assert saving_range(base, other) == (pytest.approx(min(corners)), pytest.approx(max(corners)))
    saved = saving(base, other) or 0
    assert min(corners) - 1e-9 <= saved <= max(corners) + 1e-9
    for mover in movers(base, other):
        assert min(corners) - 1e-9 <= min(mover.saving_at_low, mover.saving_at_high)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=6, max_size=6), st.sampled_from([PRESETS["full"], PRESETS["paper"]]))
def test_sections_moving_together_stay_in_their_range(places: list[float], how: Accounting) -> None:
    base, other = priced(ROFT, how), priced(ZCUBE, how)
    place = dict(zip(("switches", "optics", "dac", "fibre", "nics", "cabling"), places, strict=True))

    def usd(part: str) -> float:
        entry = DEFAULT.priced[part]
        return entry.low_usd + place[part.split(".")[0]] * (entry.high_usd - entry.low_usd)

    paid = [sum(n * usd(part) for part, n in cost.quantities.items()) for cost in (base, other)]
    low, high = saving_range_by_section(base, other) or (0.0, 0.0)
    assert low - 1e-9 <= 1 - paid[1] / paid[0] <= high + 1e-9
    free = saving_range(base, other) or (0.0, 0.0)
    assert free[0] < low < high < free[1]


def test_movers_are_sorted_and_name_only_what_moves() -> None:
    found = movers(priced(ROFT, PRESETS["paper"]), priced(ZCUBE, PRESETS["paper"]))
    assert [m.swing for m in found] == sorted((m.swing for m in found), reverse=True)
    assert all(DEFAULT.priced[m.part].assumption == m.assumed for m in found)
    first = found[0]
    assert first.part == "optics.optic-400g"  # the price ratio of 400G to 200G transceivers decides it
    for usd, saved in ((first.low_usd, first.saving_at_low), (first.high_usd, first.saving_at_high)):
        at = book({first.part: usd})
        assert saving(priced(ROFT, PRESETS["paper"], at), priced(ZCUBE, PRESETS["paper"], at)) == pytest.approx(saved)
    assert movers(priced(ROFT, PRESETS["blog"]), priced(ZCUBE, PRESETS["blog"])) == ()


def test_a_base_that_costs_nothing_has_no_saving() -> None:
    free = book({**all_switches(0), "optics.optic-400g": 0})
    base, other = (priced(text, PRESETS["blog"], free) for text in (ROFT, ZCUBE))
    assert (saving(base, other), saving_range(base, other), movers(base, other)) == (None, None, ())
    comparison = CostComparison((ROFT, ZCUBE), (base, other), (wired(ROFT), wired(ZCUBE)))
    assert "no saving can be stated" in comparison.headline()[0]


# --- comparisons


def comparison(*texts: str, accounting: Accounting = PRESETS["full"]) -> CostComparison:
    costs = tuple(priced(text, accounting) for text in texts)
    return CostComparison(unique_labels(texts), costs, tuple(wired(text) for text in texts))


def test_rows_hold_every_dollar_of_every_fabric() -> None:
    for found in (comparison(ROFT), comparison(*KINDS[:5])):
        for index, cost in enumerate(found.costs):
            assert sum(row.usd(index) for row in found.rows) == pytest.approx(cost.capex_usd)


def test_unlike_fabrics_are_called_so() -> None:
    def said(*texts: str) -> str:
        return " ".join(comparison(*texts).warnings())

    assert said(ROFT, ZCUBE) == ""
    assert "numbers of GPUs differ (32, 128)" in said(ROFT, "fat_tree:gpus=128,asic_ports=8")
    assert "NIC bandwidth" in said(ROFT, "zcube:gpus=32,asic_ports=8,gpu_gbps=200")
    assert "oversubscription differs" in said(ROFT, "roft:gpus=32,asic_ports=8,uplinks_per_leaf=2")
    assert "Switch models differ" in said("roft:gpus=1024,asic_ports=64", "zcube:gpus=1024,asic_ports=128")


def test_an_oversubscribed_roft_needs_no_special_code() -> None:
    half = "roft:gpus=32,asic_ports=8,uplinks_per_leaf=2"
    assert bill_of_materials(wired(half)).cable_count() == 32 + 16
    saved = saving(priced(half, PRESETS["blog"]), priced(ZCUBE, PRESETS["blog"])) or 0
    assert saved < 1 / 3  # less to save against a fabric that carries less


def test_what_is_left_out_is_said() -> None:
    left = " ".join(comparison(ROFT, ZCUBE, accounting=PRESETS["blog"]).not_counted())
    for part in ("transceivers in NICs", "NICs", "labour", "spare parts", "floor plan", "software", "even switches"):
        assert part in left
    full = " ".join(comparison(ROFT, ZCUBE).not_counted())
    assert "by choice" not in full
    assert "2 servers of each even switch" in full
    assert "--dac leaf counts it" in " ".join(comparison("clos:gpus=32,asic_ports=8").not_counted())


def test_json_holds_what_the_table_holds() -> None:
    found = comparison(ROFT, ZCUBE).to_json()
    first, second = found["fabrics"]
    assert first["saving"] is None
    assert second["saving"] == pytest.approx(1 - second["capex_usd_per_gpu"] / first["capex_usd_per_gpu"])
    assert sum(line["usd"] for line in second["lines"]) == pytest.approx(second["capex_usd"])
    assert second["saving_range"][0] <= second["saving"] <= second["saving_range"][1]


def test_labels_are_made_unique() -> None:
    assert unique_labels(["a", "b", "a", "a"]) == ("a", "b", "a #2", "a #3")
