"""What `transport.kind: mooncake` does not go with is refused, by name and with what to use instead."""

from __future__ import annotations

import shutil
import sys

import pytest

from emulation import mooncake_extra
from scenario.errors import InputError, MachineError
from scenario.load import with_changes
from scenario.models import Scenario

STATIC = {"routing": {"striping": "static"}}
MOONCAKE = {"transport": {"kind": "mooncake"}, **STATIC}


def changed(*changes: dict[str, object]) -> Scenario:
    """The default scenario with mooncake, and changes of sections on top; all at once."""
    merged: dict[str, object] = {name: dict(values) for name, values in MOONCAKE.items()}
    for change in changes:
        for name, values in change.items():
            merged[name] = {**merged.get(name, {}), **values} if isinstance(values, dict) else values  # type: ignore[dict-item]
    return with_changes(Scenario(), merged)


@pytest.mark.parametrize(
    ("kind", "policy"),
    [("zcube", "unique"), ("roft", "ecmp_ovs"), ("clos", "ecmp_ovs"), ("rail_only", "ecmp_ovs"), ("hpn", "ecmp_ovs")],
)
def test_auto_is_what_nobody_has_to_plan_ports_for(kind: str, policy: str) -> None:
    scenario = changed({"fabric": {"kind": kind}})
    assert scenario.policy == policy
    other = with_changes(scenario, {"transport": {"kind": "tcp"}})
    assert other.policy == ("unique" if kind == "zcube" else "ecmp")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"fabric": {"kind": "roft"}, "routing": {"policy": "ecmp"}},
            ("routing.policy = 'ecmp", "use auto", "ecmp_ovs"),
        ),
        ({"routing": {"policy": "spray"}}, ("routing.policy = 'spray", "use auto")),
        ({"routing": {"policy": "shortest"}}, ("routing.policy = 'shortest", "use auto")),
        ({"fabric": {"bundle": "hashed"}}, ("fabric.bundle = 'hashed", "destination or trunk")),
        ({"routing": {"striping": "adaptive"}}, ("routing.striping = 'adaptive", "use static")),
        ({"routing": {"queue_pairs": 2}}, ("routing.queue_pairs = 2", "use 1")),
        ({"transport": {"pacing_gbps": 100.0}}, ("transport.pacing_gbps = '100", "null")),
        ({"transport": {"chunk_frames": 8}}, ("transport.chunk_frames = 8", "use 4")),
        ({"faults": {"events": [{"at_s": 1, "down": ["odd1"]}]}}, ("faults.events (1)", "tcp or udp")),
    ],
)
def test_what_does_not_go_with_it_is_refused(change: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        changed(change)
    for word in ("mooncake", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"routing": {"policy": "ecmp_ovs"}},
        {"fabric": {"bundle": "hashed"}, "routing": {"policy": "ecmp_ovs"}},
        {"fabric": {"bundle": "trunk"}},
        {"transport": {"congestion_control": "cubic", "inflight_cap_frames": 32}},
    ],
)
def test_what_goes_with_it_is_not(change: dict[str, object]) -> None:
    assert changed(change).transport.kind == "mooncake"


def test_an_interpreter_without_the_extra_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    assert bare
    monkeypatch.setattr(sys, "executable", bare)
    assert "mooncake" in str(mooncake_extra.problem())
    mooncake_extra.require_transport(Scenario())  # tcp needs nothing
    with pytest.raises(MachineError) as caught:
        mooncake_extra.require_transport(changed())
    for word in ("mooncake-transfer-engine-non-cuda", "libibverbs1", "bash vagrant/setup.sh --mooncake", "tcp"):
        assert word in str(caught.value)
