"""What the command adds to fluid flows, worked by hand: latency, header share, cables that fail and come back; and what
it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.reader import RunFolder
from scenario.errors import InputError
from scenario.load import check_scenario
from scenario.models import Scenario
from simulation.refusals import check_simulated
from simulation.rerouting import played as became_of
from simulation.run import Model, SimulationResult, simulate, simulate_into

#: Four GPUs, each with a port on odd1 and one on even2, which a bundle of four cables joins.
FABRIC = {"kind": "zcube", "gpus": 4, "asic_ports": 4, "gpus_per_server": 1, "gpu_gbps": 400.0}
SIZE = 10_000_000_000  # 0.2 s at 400 Gb/s


def moved(tmp_path: Path, rows: list[str], **more: object) -> Scenario:
    """Transfers at given times: "time_s,src,dst,bytes"."""
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["time_s,src_gpu,dst_gpu,bytes,request", *rows]) + "\n")
    workload = {"kind": "transfers", "path": str(log), "direct": True, "requests": len(rows)}
    return check_scenario({"fabric": FABRIC, "workload": workload, "simulation": {"headers": False}, **more})


def ends(result: SimulationResult) -> dict[int, float]:
    """Transfer -> when its last byte arrived."""
    found: dict[int, float] = {}
    for row in result.transfers:
        number, done_s = int(str(row["transfer_id"])), float(str(row["t_done_s"]))
        found[number] = max(found.get(number, 0.0), done_s)
    return found


def played(scenario: Scenario) -> SimulationResult:
    return simulate(scenario, model=Model.of(scenario))


def test_latency_is_added_to_the_time_and_takes_no_rate(tmp_path: Path) -> None:
    rows = [f"0,gpu1,gpu2,{SIZE},r1", f"0,gpu1,gpu2,{SIZE},r2"]
    some = {"nic_latency_us": 3000.0, "hop_latency_us": 500.0, "headers": False}
    plain, late = (ends(simulate(moved(tmp_path, rows), model=model)) for model in (Model(), Model(constants=True)))
    assert sorted(plain.values()) == pytest.approx([0.2, 0.4])
    assert sorted(late.values()) == pytest.approx([0.2 + 4e-6, 0.4 + 4e-6])  # 2 us, and two switches
    late = ends(played(moved(tmp_path, rows, simulation=some)))
    assert sorted(late.values()) == pytest.approx([0.204, 0.404])


def test_headers_take_their_share(tmp_path: Path) -> None:
    (done,) = ends(played(moved(tmp_path, [f"0,gpu1,gpu2,{SIZE},r1"], simulation={"headers": True}))).values()
    assert done == pytest.approx(0.2 * 9000 / 8934 + 4e-6)


def test_a_paced_queue_pair_paces_its_headers_too(tmp_path: Path) -> None:
    """40 Gb/s on each of two ports, headers included: 8934 of 9000 bytes are payload."""
    paced = {"transport": {"pacing_gbps": 40.0}, "simulation": {"headers": True}}
    (done,) = ends(played(moved(tmp_path, [f"0,gpu1,gpu2,{SIZE},r1"], **paced))).values()
    assert done == pytest.approx(SIZE * 8 / 80e9 * 9000 / 8934 + 4e-6)


def links(result: SimulationResult) -> set[str]:
    return {link for row in result.transfers for link in row["path"]}  # type: ignore[attr-defined]


def faults(*events: dict[str, object]) -> dict[str, object]:
    constants = {"headers": False, "nic_latency_us": 0.0, "hop_latency_us": 0.0, "repair_ms": 50.0}
    return {"faults": {"events": list(events)}, "simulation": constants}


def test_a_cable_that_fails_leaves_the_other_port_and_what_it_carried_counts(tmp_path: Path) -> None:
    scenario = moved(tmp_path, [f"0,gpu1,gpu2,{SIZE},r1"], **faults({"at_s": 0.1, "down": "gpu1-eth1--odd1-eth1"}))
    result = played(scenario)
    # Half is over after 0.1 s; the rest goes by one port at half the rate.
    assert ends(result) == pytest.approx({0: 0.3})
    (first,) = (row for row in result.transfers if row["src_port"] == 1)
    assert (first["bytes"], first["t_done_s"]) == (SIZE // 4, pytest.approx(0.1))
    assert sum(int(str(row["bytes"])) for row in result.transfers) == SIZE


def test_a_repair_moves_what_stood_still_and_recovery_is_symmetric(tmp_path: Path) -> None:
    both = ["gpu1-eth1--odd1-eth1", "gpu1-eth2--even2-eth1"]
    down, up = {"at_s": 0.1, "down": both}, {"at_s": 0.6, "up": both}
    # Nothing moves from 0.1 to 0.6 s. Routes follow 0.05 s later: until then nobody sends by what is back.
    result = played(moved(tmp_path, [f"0,gpu1,gpu2,{SIZE},r1"], **faults(down, up)))
    assert ends(result) == pytest.approx({0: 0.75})
    assert sum(int(str(row["bytes"])) for row in result.transfers) == SIZE


def test_a_failed_cable_between_switches_is_repaired_by_the_path_function(tmp_path: Path) -> None:
    healthy = played(moved(tmp_path, [f"0,gpu1,gpu4,{SIZE},r1"]))
    (between,) = (link for link in links(healthy) if "odd1" in link and "gpu" not in link)
    result = played(moved(tmp_path, [f"0,gpu1,gpu4,{SIZE},r1"], **faults({"at_s": 0.1, "down": between})))
    assert between in links(result)
    stood_still = [row for row in result.transfers if between in row["path"]]  # type: ignore[operator]
    assert stood_still[0]["t_done_s"] == pytest.approx(0.1)
    assert sum(int(str(row["bytes"])) for row in result.transfers) == SIZE
    assert ends(healthy) == pytest.approx({0: 0.2}, abs=1e-5)
    assert ends(result) == pytest.approx({0: 0.25})  # the repair takes 0.05 s


def test_what_starts_between_failure_and_repair_goes_by_what_is_left(tmp_path: Path) -> None:
    rows = ["0,gpu3,gpu4,9,r0", f"0.12,gpu1,gpu2,{SIZE},r1"]
    scenario = moved(tmp_path, rows, **faults({"at_s": 0.1, "down": "gpu1-eth1--odd1-eth1"}))
    assert ends(played(scenario))[1] == pytest.approx(0.12 + 0.4)


def test_a_transfer_without_a_path_waits_until_it_is_given_up(tmp_path: Path) -> None:
    """gpu1 is cut off for good before its transfer starts; that of others goes on; a message fails after 600 s."""
    rows = [f"0,gpu3,gpu4,{SIZE},r0", f"0.2,gpu1,gpu2,{SIZE},r1"]
    down = {"at_s": 0.1, "down": ["gpu1-eth1--odd1-eth1", "gpu1-eth2--even2-eth1"]}
    result = played(moved(tmp_path, rows, **faults(down)))
    assert {row["transfer_id"]: row["status"] for row in result.transfers} == {0: "ok", 1: "unfinished"}
    assert result.end_s == pytest.approx(600.2)


def test_what_became_of_fault_events() -> None:
    events = check_scenario(
        {"faults": {"events": [{"at_s": 2, "up": "odd1"}, {"at_s": 1, "down": "odd1"}, {"at_s": 5, "down": "odd3"}]}}
    ).faults.events
    assert became_of(events, 0.5, 2.2) == [
        {"event": "fault down", "what": ["odd1"], "t_s": 1},
        {"event": "flows moved", "what": ["odd1"], "t_s": 1.5},
        {"event": "fault up", "what": ["odd1"], "t_s": 2},
        {"event": "fault not reached", "at_s": 5, "down": ["odd3"], "up": [], "served_s": 2.2},
    ]


def test_a_failure_elsewhere_disturbs_nobody(tmp_path: Path) -> None:
    rows = [f"0,gpu1,gpu2,{SIZE},r1", f"0.05,gpu2,gpu1,{SIZE},r2"]
    cable = "gpu4-eth1--odd1-eth4"
    both = {"at_s": 0.1, "down": cable}, {"at_s": 0.12, "up": cable}
    calm, elsewhere = (ends(played(moved(tmp_path, rows, **faults(*events)))) for events in ((), both))
    assert elsewhere == pytest.approx(calm, rel=1e-12)


@pytest.mark.parametrize("striping", ["adaptive", "static"])
def test_faults_are_the_same_on_the_compiled_network(monkeypatch: pytest.MonkeyPatch, striping: str) -> None:
    events = [{"at_s": 1, "down": "odd1"}, {"at_s": 2, "up": "odd1"}, {"at_s": 3, "down": "gpu5-eth1--odd1-eth2"}]
    scenario = check_scenario(
        {
            "workload": {"kind": "coding_agent", "requests": 40, "warmup_requests": 5},
            "routing": {"striping": striping},
            "faults": {"events": events},
        }
    )
    reference = played(scenario)
    monkeypatch.setattr("simulation.run.LARGE_GPUS", 1)
    compiled = played(scenario)
    assert reference.work is None and compiled.work is not None
    assert compiled.ttft_s() == pytest.approx(reference.ttft_s(), rel=1e-9)
    assert [row["bytes"] for row in compiled.transfers] == [row["bytes"] for row in reference.transfers]


def test_fixed_shares_wait_for_the_repair_and_then_go_by_what_is_left(tmp_path: Path) -> None:
    event = {"at_s": 0.1, "down": "gpu1-eth1--odd1-eth1"}
    scenario = moved(tmp_path, [f"0,gpu1,gpu2,{SIZE},r1"], **faults(event), routing={"striping": "static"})
    # A quarter is left of each share at 0.1 s. The other port's is over at 0.2; from 0.15 on this one's goes there too,
    # behind it: 0.2 + 0.1.
    assert ends(played(scenario)) == pytest.approx({0: 0.3})


def test_long_runs_write_as_they_go_and_twice_the_same(tmp_path: Path) -> None:
    pairs = [(n % 4 + 1, (n + 1 + n // 7 % 3) % 4 + 1) for n in range(60)]
    scenario = moved(tmp_path, [f"{n / 50},gpu{a},gpu{b},{SIZE},r{n}" for n, (a, b) in enumerate(pairs)])
    for name in ("a", "b"):
        simulate_into(tmp_path / name, scenario, Model.of(scenario))
    a, b = ((tmp_path / name / "transfers.parquet").read_bytes() for name in ("a", "b"))
    assert a == b
    table = RunFolder(tmp_path / "a").table("transfers").to_pandas()
    kept = {(row["transfer_id"], row["src_port"]): row["t_done_s"] for row in played(scenario).transfers}
    assert dict(zip(zip(table.transfer_id, table.src_port, strict=True), table.t_done_s, strict=True)) == kept


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"flow_control": {"ecn": "red"}}, "flow_control.ecn = 'red'"),
    ({"transport": {"congestion_control": "cubic"}}, "transport.congestion_control = 'cubic'"),
    ({"transport": {"asic_buffer_frames": 500}}, "transport.asic_buffer_frames = 500"),
    ({"transport": {"inflight_cap_frames": 4}}, "transport.inflight_cap_frames = 4"),
    ({"transport": {"chunk_frames": 8}}, "transport.chunk_frames = 8"),
    ({"telemetry": {"xoff_frames": 32}}, "telemetry.xoff_frames = 32"),
    ({"telemetry": {"xon_frames": 4}}, "telemetry.xon_frames = 4"),
    ({"telemetry": {"backlog_threshold_frames": 4}}, "telemetry.backlog_threshold_frames = 4"),
    ({"transport": {"kind": "mooncake"}, "routing": {"striping": "static"}}, "transport.kind = 'mooncake'"),
    ({"fabric": {"kind": "roft"}, "routing": {"policy": "ecmp_ovs"}}, "routing.policy = 'ecmp_ovs'"),
    ({"faults": {"miscable": [{"kind": "missing", "cable": "odd1-eth9"}]}}, "faults.miscable = 1"),
]


@pytest.mark.parametrize(("changes", "named"), REFUSED)
def test_what_the_model_lacks_is_refused(changes: dict[str, object], named: str) -> None:
    check_simulated(Scenario())
    with pytest.raises(InputError) as error:
        check_simulated(check_scenario(changes))
    assert named in str(error.value) and "allowed: " in str(error.value) and "run it emulated" in str(error.value)
