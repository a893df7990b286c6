"""From one fabric to another: counts worked by hand, books that balance, and an order that keeps GPUs in service."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scenario.fabric_spec import fabric_from_text
from topologies.cabling_assign import assignment, best_assignment, cages
from topologies.cabling_migrate import Migration, Modules, migrate
from topologies.cabling_room import Room
from topologies.fabric import End, Fabric, FabricError
from topologies.roft import roft
from topologies.zcube import zcube

PAIRS = {
    "roft-zcube 32": (roft(32, 8), zcube(32, 8)),
    "zcube-roft 32": (zcube(32, 8), roft(32, 8)),
    "zcube 8-16": (zcube(64, 8), zcube(64, 16)),
    "zcube 16-8": (zcube(64, 16), zcube(64, 8)),
    "more links": (zcube(32, 8, 1), zcube(32, 8, 2)),
    "fewer links": (zcube(32, 8, 2), zcube(32, 8, 1)),
    "roft-zcube 128": (roft(128, 16, gpus_per_server=8), zcube(128, 16, gpus_per_server=8)),
    "one spine": (roft(8, 8, gpus_per_server=2), zcube(8, 8, gpus_per_server=2)),
    "hpn-zcube": (fabric_from_text("hpn:gpus=128,asic_ports=16"), zcube(128, 16)),
    "zcube-hpn": (zcube(128, 16), fabric_from_text("hpn:gpus=128,asic_ports=16")),
    "fat tree-zcube": (fabric_from_text("fat_tree:gpus=128,asic_ports=8"), zcube(128, 16, 1)),
    "bigger ASICs": (roft(32, 8), zcube(32, 16, gpus_per_server=4)),
}


@pytest.fixture(scope="module", params=PAIRS)
def change(request: pytest.FixtureRequest) -> tuple[Fabric, Fabric, Migration]:
    old, new = PAIRS[request.param]
    return old, new, migrate(old, new)


@examples(200)
@given(st.integers(1, 5), st.integers(1, 5), st.randoms(use_true_random=False))
def test_assignment_is_the_best_of_all(rows: int, columns: int, draw: object) -> None:
    weight = np.array([[draw.randint(0, 9) for _ in range(columns)] for _ in range(rows)])  # type: ignore[attr-defined]
    found = best_assignment(weight)
    used = [column for column in found if column is not None]
    assert len(set(used)) == len(used) == min(rows, columns)
    total = sum(weight[row, column] for row, column in enumerate(found) if column is not None)
    if rows <= columns:
        ways = itertools.permutations(range(columns), rows)
        best = max(sum(weight[row, column] for row, column in enumerate(way)) for way in ways)
    else:
        ways = itertools.permutations(range(rows), columns)
        best = max(sum(weight[row, column] for column, row in enumerate(way)) for way in ways)
    assert total == best


def test_cages_hold_two_ports_of_half_the_rate() -> None:
    found = cages(zcube(32, 8), 400, 400)
    assert [found[End("gpu3", port)] for port in (1, 2)] == [("gpu3", 1)] * 2
    assert [found[End("odd1", port)][1] for port in (1, 2, 3, 16)] == [1, 1, 2, 8]
    whole = cages(zcube(32, 8), 200, 200)
    assert [whole[End("odd1", port)][1] for port in (1, 2)] == [1, 2]


def test_books_balance(change: tuple[Fabric, Fabric, Migration]) -> None:
    old, new, made = change
    counts = made.cable_counts()
    assert counts["kept"] + counts["moved"] + counts["removed"] == len(old.links)
    assert counts["kept"] + counts["moved"] + counts["new"] == len(new.links)
    assert Counter(c.old for c in made.cables if c.old) == Counter(link.id for link in old.links)
    assert Counter(c.new for c in made.cables if c.new) == Counter(link.id for link in new.links)
    used = [before for before in made.becomes.values() if before is not None]
    freed = [name for names in made.freed.values() for name in names]
    assert sorted([*used, *freed]) == sorted(switch.name for switch in old.switches)
    assert set(made.becomes) == {switch.name for switch in new.switches}
    for modules in made.modules.values():
        stay = modules.reused + modules.split + modules.merged
        assert modules.before == stay + modules.relocated + modules.spare
        assert modules.after == stay + modules.relocated + modules.bought


def test_every_cable_that_changes_is_in_a_step(change: tuple[Fabric, Fabric, Migration]) -> None:
    old, new, made = change
    counts = made.cable_counts()
    assert sum(step.cables_out for step in made.steps) == len(old.links) - counts["kept"]
    assert sum(step.cables_in for step in made.steps) == len(new.links) - counts["kept"]
    if made.steps:
        assert made.steps[-1].gpus_none_after == made.steps[-1].gpus_part_after == 0
    servers = [server for step in made.steps for server in step.servers]
    assert len(servers) == len(set(servers))
    turned = [step.new_switch for step in made.steps if step.new_switch]
    assert len(turned) == len(set(turned))
    for step in made.steps:
        assert step.gpus_none_after <= step.gpus_none <= made.gpus and step.gpus_part_after <= step.gpus_part


def replayed(old: Fabric, new: Fabric, made: Migration) -> list[tuple[int, int, int, int]]:
    """(none, part) during and after each step, counted from the fabrics alone, in another way than the planner."""
    kept = {c.new: c.old for c in made.cables if c.kind == "kept"}
    touched = {link.a.node for link in old.links if link.tier == "access" and link.id not in kept.values()}
    touched |= {link.a.node for link in new.links if link.tier == "access" and link.id not in kept}
    old_up = {switch.name for switch in old.switches}
    new_up = {name for name, before in made.becomes.items() if before is None}
    changed_old = {e.node for link in old.links if link.id not in kept.values() for e in (link.a, link.b)}
    changed_new = {e.node for link in new.links if link.id not in kept for e in (link.a, link.b)}
    new_up |= {n for n, before in made.becomes.items() if before and n not in changed_new and before not in changed_old}
    moved: set[str] = set()

    def count(away: set[str]) -> tuple[int, int]:
        none = part = 0
        for gpu in touched:
            fabric, up = (new, new_up) if gpu in moved else (old, old_up)
            ports = fabric.gpu_by_name[gpu].ports
            live = 0 if gpu in away else sum(fabric.attachment[gpu, p.number].node in up for p in ports)
            none += live == 0
            part += 0 < live < len(ports)
        return none, part

    found = []
    for step in made.steps:
        away = {gpu.name for gpu in new.gpus if gpu.server in step.servers} & touched
        old_up.discard(step.old_switch or "")
        during = count(away)
        moved |= away
        new_up |= {step.new_switch} if step.new_switch else set()
        after = count(set())
        found.append((max(during[0], after[0]), max(during[1], after[1]), *after))
    return found


def test_gpus_in_service_are_counted_right(change: tuple[Fabric, Fabric, Migration]) -> None:
    old, new, made = change
    said = [(s.gpus_none, s.gpus_part, s.gpus_none_after, s.gpus_part_after) for s in made.steps]
    assert said == replayed(old, new, made)


def test_ports_down_are_bounded_by_a_switch_or_a_server(change: tuple[Fabric, Fabric, Migration]) -> None:
    old, _, made = change
    widest = max(len(switch.ports) for switch in old.switches)
    for step in made.steps:
        assert len(step.ports_down) == len(set(step.ports_down)) >= 2 * step.cables_out
        if step.kind == "switch":
            assert len(step.ports_down) <= 2 * widest
        if step.kind == "server":
            ports = sum(len(gpu.ports) for gpu in old.gpus if gpu.server == step.servers[0])
            assert len(step.ports_down) <= 2 * ports
    down = [port for step in made.steps for port in step.ports_down]
    assert len(down) == len(set(down))  # no port goes down twice


def test_the_published_pair() -> None:
    """12 switches become 8. All optical: 32 NIC modules and 64 of 96 switch modules are split, 32 are left over."""
    made = migrate(*PAIRS["roft-zcube 32"], room=Room(dac_reach_m=0))
    assert made.freed == {"leaf": ("leaf5", "leaf6", "leaf7", "leaf8")} and all(made.becomes.values())
    assert made.modules["NIC"] == Modules(32, 32, 0, 32, 0, 0, 0, 0)
    assert made.modules["switch"] == Modules(96, 64, 0, 64, 0, 0, 0, 32)
    assert sum(made.cable_counts().values()) == 96 and made.cable_counts()["removed"] == 0
    assert made.peak_none == 4 and made.peak_part <= 16


def test_copper_has_no_modules_and_is_not_split() -> None:
    """In the default room the small tree is all copper: every module is bought, and no 400G DAC is used at 200G."""
    made = migrate(*PAIRS["roft-zcube 32"])
    assert made.modules["NIC"] == Modules(0, 32, 0, 0, 0, 0, 32, 0)
    assert not any(item.kind in ("kept", "moved") for item in made.cables)


@pytest.mark.parametrize("back", [False, True])
def test_a_big_pair_keeps_all_but_one_server_in_service(back: bool) -> None:
    """1,024 GPUs, R = 64, 48 switches <-> 32: never more than the 8 GPUs of the server in work are without a port."""
    pair = roft(1024, 64, gpus_per_server=8), zcube(1024, 64, gpus_per_server=8)
    made = migrate(*(pair[::-1] if back else pair))
    freed, bought = sum(map(len, made.freed.values())), list(made.becomes.values()).count(None)
    assert (freed, bought) == ((0, 16) if back else (16, 0))
    assert made.peak_none == 8
    assert made.peak_part == (256 if back else 512)


def test_more_links_touch_no_gpu() -> None:
    made = migrate(*PAIRS["more links"])
    # 64 cables of GPUs; of the 16 between switches only odd1 port 9 - even2 port 9 is in both, the others keep an end
    assert made.cable_counts() == {"kept": 65, "moved": 15, "new": 16, "removed": 0}
    assert made.peak_none == made.peak_part == 0
    assert all(not step.servers for step in made.steps)
    assert made.addresses_changed == 0 and made.addresses_kept == 64


@pytest.mark.parametrize("fabric", [zcube(32, 8), roft(32, 8)])
def test_the_same_fabric_is_no_work(fabric: Fabric) -> None:
    made = migrate(fabric, fabric)
    assert made.cable_counts() == {"kept": len(fabric.links), "moved": 0, "new": 0, "removed": 0}
    assert made.steps == () and made.freed == {} and made.becomes == {s.name: s.name for s in fabric.switches}


def test_small_asics_are_not_taken_for_bigger_switches() -> None:
    old, new = PAIRS["bigger ASICs"]
    made = migrate(old, new)
    assert set(made.becomes.values()) == {None} and sum(map(len, made.freed.values())) == len(old.switches)
    assert made.peak_none <= 4


def test_cables_or_service_decides_what_spines_become() -> None:
    old, new = PAIRS["roft-zcube 128"]
    old_cages, new_cages = cages(old, 400, 400), cages(new, 400, 400)
    into = {p: assignment(old, new, old_cages, new_cages, prefer=p) for p in ("service", "cables")}  # type: ignore[arg-type]

    def on_their_switch(becomes: dict[str, str | None]) -> int:
        return sum(
            becomes[new.attachment[gpu.name, port].node] == old.attachment[gpu.name, 1].node
            for gpu in new.gpus
            for port in (1, 2)
        )

    assert on_their_switch(into["cables"]) > on_their_switch(into["service"]) > 0
    evens = [before for name, before in into["service"].items() if name.startswith("even")]
    assert all(before and before.startswith("spine") for before in evens)
    service, moves = migrate(old, new), migrate(old, new, prefer="cables")
    assert service.peak_none <= moves.peak_none


def test_moved_cables_are_long_enough() -> None:
    """A long hall, one rack a row: most of what was laid within a block is too short for the new switches."""
    made = migrate(*PAIRS["roft-zcube 128"], room=Room(racks_per_row=1, dac_reach_m=0))
    assert made.cable_counts()["removed"] > 0
    for item in made.cables:
        assert item.length_m <= item.class_m
        if item.kind == "moved":
            assert item.stays and item.from_ and item.to


def test_fewest_gpus_without_a_port_go_before_fewest_with_a_part() -> None:
    old, new = PAIRS["zcube-hpn"]
    made = migrate(old, new, prefer="cables")  # the other way round: 12 without a port, 111 with a part
    assert (made.peak_none, made.peak_part) == (10, 124)


def test_rules_are_counted_by_box() -> None:
    old, new = PAIRS["roft-zcube 32"]
    table = {id(old): {"leaf1": {"a", "b"}, "spine1": {"c"}}, id(new): {"odd1": {"b", "d"}}}
    made = migrate(old, new, rules_of=lambda fabric: table[id(fabric)])
    assert made.rules is not None and (made.rules.before, made.rules.after) == (3, 2)
    assert made.rules.kept == (1 if made.becomes["odd1"] == "leaf1" else 0)
    assert made.rules.added == 2 - made.rules.kept and made.rules.removed == 3 - made.rules.kept


@pytest.mark.parametrize(
    ("old", "new", "parameter"),
    [
        (zcube(32, 8), zcube(64, 8), "gpus"),
        (zcube(32, 8, gpus_per_server=8), zcube(32, 8), "gpus_per_server"),
        (zcube(32, 8), zcube(32, 8, bundle="trunk"), "bundle"),
    ],
)
def test_fabrics_that_cannot_be_changed_into_each_other(old: Fabric, new: Fabric, parameter: str) -> None:
    with pytest.raises(FabricError) as caught:
        migrate(old, new)
    assert caught.value.parameter == parameter
