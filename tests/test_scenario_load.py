"""Scenario files: every fault is one message that names the field, the value and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scenario.arms import PAIR, arms
from scenario.errors import InputError
from scenario.identity import workload_sha256
from scenario.load import check_scenario, load_scenario, with_changes
from scenario.models import Scenario
from topologies.build import build
from traffic.engines import make_engine
from traffic.sources import make_source

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_loads_and_fits_every_fabric(path: Path) -> None:
    for label, scenario in arms(load_scenario(path)).items():
        assert scenario.name.endswith(label.lower().replace(" ", "-"))
        assert build(scenario.fabric).kind == scenario.fabric.kind
        make_engine(scenario, make_source(scenario))


def test_arms_differ_in_nothing_but_fabric_and_name() -> None:
    found = arms(Scenario())
    assert list(found) == list(PAIR)
    rest = [scenario.model_dump(exclude={"fabric", "name"}) for scenario in found.values()]
    assert rest[0] == rest[1] == rest[2]
    assert [scenario.policy for scenario in found.values()] == ["ecmp", "unique", "unique"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"fabrik": {}}, ["fabrik", "unknown key", "did you mean fabric?"]),
        ({"fabric": {"gpu": 32}}, ["fabric.gpu", "unknown key", "did you mean gpus?"]),
        ({"fabric": {"gpus": -4}}, ["fabric.gpus = -4", "greater than or equal to 2"]),
        ({"fabric": {"gpus": 30}}, ["fabric.gpus = 30: is not a multiple"]),
        ({"serving": {"timeout_s": 1e-300}}, ["serving.timeout_s", "greater than"]),
        ({"fabric": {"kind": "torus"}}, ["fabric.kind = 'torus'", "one of zcube, ", ", roft, "]),
        ({"workload": {"kind": "coding_agent", "requests": 0}}, ["workload.requests = 0", "greater than"]),
        ({"workload": {"kind": "coding_agent", "request": 1}}, ["workload.request", "unknown key", "requests"]),
        ({"serving": {"decode_step_ms": float("nan")}}, ["serving.decode_step_ms", "finite"]),
        ({"scale": {"rate_factor": 1e400}}, ["scale.rate_factor"]),
        ({"seed": 2**70}, ["seed", "less than"]),
        ({"name": "../../etc"}, ["name", "pattern"]),
        (
            {"serving": {"tenants": [{"name": "gold"}, {"name": "free"}, {"name": "gold", "share": 2}]}},
            ["serving.tenants", "two tenants are called 'gold'", "a name of its own"],
        ),
    ],
)
def test_faults_are_named(data: dict[str, object], expected: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        check_scenario(data)
    for part in expected:
        assert part in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"fabric: [", "is not YAML (line 1"),
        (b"- 1\n- 2\n", "must be a mapping"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"seed: " + b"9" * 5000, "holds a value that cannot be read"),
        (b"seed: 1\nseed: 2\n", "seed is given twice"),
        (b"#" * 1_000_001, "is larger than"),
        (b"!!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_files_that_are_no_scenario(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match="scenario") as caught:
        load_scenario(path)
    assert expected in str(caught.value)


def test_a_device_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a regular file"):
        load_scenario(Path("/dev/zero"))
    with pytest.raises(InputError, match="not a regular file"):
        load_scenario(tmp_path)


def test_missing_file_and_empty_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_scenario(tmp_path / "none.yaml")
    (tmp_path / "empty.yaml").write_text("")
    assert load_scenario(tmp_path / "empty.yaml") == Scenario()


def test_changes_are_checked_again() -> None:
    assert with_changes(Scenario(), {"fabric": {"gpus": 16}}).fabric.gpus == 16
    with pytest.raises(InputError, match=r"serving\.placement"):
        with_changes(Scenario(), {"serving": {"placement": "best"}})


def test_a_few_lines_of_aliases_are_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    bomb = tmp_path / "bomb.yaml"
    bomb.write_text("\n".join(lines))
    with pytest.raises(InputError, match="aliases"):
        load_scenario(bomb)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"at_s": 1, "zzz": ["odd1"]}, "faults.events[0].zzz = ['odd1']: unknown key\n  known here: at_s, down, up"),
        ({"at_s": 1}, "faults.events[0] = {'at_s': 1}: an event needs names in down, in up, or in both"),
        ({"at_s": 1, "down": 5}, "faults.events[0].down = 5: must be a list of names such as [odd1], or one name"),
    ],
)
def test_what_is_wrong_with_an_event_is_said_of_the_event(event: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text)):
        check_scenario({"faults": {"events": [event]}})


def test_one_name_is_a_list_of_one() -> None:
    (event,) = check_scenario({"faults": {"events": [{"at_s": 1, "down": "odd1", "up": "even2"}]}}).faults.events
    assert (event.down, event.up) == (("odd1",), ("even2",))


@pytest.mark.parametrize(
    "data",
    [
        {"x" * 5000: 1},
        {"name": "a" * 5000},
        {"workload": {"kind": "y" * 5000}},
        {"faults": {"events": [{"at_s": 1, "down": ["odd" * 5000]}]}},
        {"faults": {"miscable": [{"kind": "missing", "cable": "odd" * 5000}]}},
        {"faults": {"miscable": [{"kind": "s" * 5000}]}},
    ],
)
def test_no_message_prints_kilobytes_of_a_value(data: dict[str, object]) -> None:
    with pytest.raises(InputError) as error:
        check_scenario(data)
    assert len(str(error.value)) < 1000


def test_arms_differ_in_the_fabric_alone() -> None:
    """Another kind of fabric keeps every other setting: an arm of another size would serve other requests."""
    base = check_scenario({"name": "small", "fabric": {"gpus": 16, "gpus_per_switch": 4}, "serving": {"shape": "A"}})
    found = arms(base)
    assert [(arm.fabric.kind, arm.fabric.gpus, arm.fabric.gpus_per_switch) for arm in found.values()] == [
        ("roft", 16, 4), ("zcube", 16, 4), ("zcube", 16, 4),
    ]  # fmt: skip
    assert len({workload_sha256(arm) for arm in found.values()}) == 1
    requests = [make_source(arm).requests for arm in found.values()]
    assert requests[0] == requests[1] == requests[2]


def test_another_kind_of_workload_replaces_the_one_that_is_there() -> None:
    changed = with_changes(check_scenario({}), {"workload": {"kind": "synthetic", "requests": 5}})
    assert changed.workload.kind == "synthetic"
    assert with_changes(changed, {"workload": {"requests": 6}}).workload.kind == "synthetic"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"workload": {"kind": "trasfers"}}, r"must be one of coding_agent, .*matrix\n.*transfers\?"),
        ({"serving": {"placement": "robin"}}, "serving.placement = 'robin': must be one of random, .*\n.*round_robin?"),
        ({"transport": {"kind": "rdma"}}, "transport.kind = 'rdma': must be one of tcp, udp, mooncake\n"),
    ],
)
def test_a_wrong_choice_is_answered_with_all_choices_and_the_nearest(data: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_scenario(data)
