"""Traffic matrices of NIXL kvbench and connection matrices of htsim: read, replayed, refused with line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenario.errors import InputError
from scenario.load import check_scenario
from scenario.models import Scenario
from simulation.run import simulate
from topologies.build import build
from topologies.export_htsim import HtsimSettings, connection_matrix, gpu_flows
from traffic.flow_sources import flow_source
from traffic.matrix_files import Cell, Connections, read_matrix_file, size_bytes

FABRIC = {"kind": "zcube", "gpus": 8, "gpus_per_server": 2, "asic_ports": 4}
KVBENCH = "0 0 1.5G 0\n0 0 0 512K\n0 0 0 0\n0 0 0 0\n"


def written(folder: Path, text: str, name: str = "matrix.txt") -> Path:
    (folder / name).write_text(text)
    return folder / name


def played(path: Path, **more: object) -> Scenario:
    return check_scenario({"fabric": FABRIC, "workload": {"kind": "matrix", "path": str(path), **more}})


@pytest.mark.parametrize(
    "text",
    [KVBENCH, KVBENCH.replace(" ", ", "), "# four ranks\n\n" + KVBENCH, "[rdma]\n" + KVBENCH + "\n[read]\n1G 0 0 0\n"],
    ids=["spaces", "commas", "comment", "tp"],
)
def test_kvbench_matrices(tmp_path: Path, text: str) -> None:
    (matrix,) = read_matrix_file(written(tmp_path, text))  # type: ignore[misc]
    assert matrix.ranks == 4
    assert matrix.cells == (Cell(0, 2, 1536 * 1024**2), Cell(1, 3, 512 * 1024))


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("7", 7), ("7B", 7), ("1k", 1024), ("2.5M", 2_621_440), ("1e3", 1000), ("1T", 2**40)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1G\n1X 0\n", r"matrix.txt, line 2, column 1 = '1X': must be a size such as"),
        ("0 1G\n-5 0\n", r"line 2, column 1 = '-5'"),
        ("# one\n0 1G 0\n0 0\n0 0 0\n", r"line 3, column 2 = '0 0': 2 cells in a file of 3 rows"),
        ("4K 0\n0 0\n", r"line 1, column 1 = '4K': must be 0: a rank does not send to itself"),
        ("0\n", "must have a row and a column for each of two ranks"),
        ("0 9e99\n0 0\n", r"line 1, column 2 = '9e99'"),
    ],
)
def test_what_is_wrong_in_a_matrix_has_a_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_matrix_file(written(tmp_path, text))


def test_a_matrix_is_one_message_a_repeat(tmp_path: Path) -> None:
    result = simulate(played(written(tmp_path, KVBENCH), repeats=3, warmup_repeats=1))
    assert [row["phase"] for row in result.requests] == ["warmup", "measured", "measured", "measured"]
    assert {row["message_bytes"] for row in result.requests} == {1536 * 1024**2 + 512 * 1024}
    starts = [row["t_arrival_s"] for row in result.requests]
    ends = [row["t_finished_s"] for row in result.requests]
    assert starts == [0.0, *ends[:-1]]
    # The larger cell alone decides: 1.5 GiB at 400 Gb/s.
    assert ends[0] == pytest.approx(1536 * 1024**2 * 8 / 400e9)


def test_kvbench_s_series_sleeps_before_each(tmp_path: Path) -> None:
    written(tmp_path, KVBENCH, "a.txt")
    written(tmp_path, "[rdma]\n" + KVBENCH, "b.tp")
    series = written(
        tmp_path,
        "traffic_patterns:\n- {matrix_file: a.txt, sleep_before_launch_sec: 0.5, metadata: {isl: 1000}}\n"
        "- {tp_file: b.tp, sleep_before_launch_sec: 2.0}\niters: 10\n",
        "metadata.yaml",
    )
    first, second = simulate(played(series)).requests
    assert first["t_arrival_s"] == 0.5
    assert second["t_arrival_s"] == pytest.approx(float(first["t_finished_s"]) + 2.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"metadata.yaml.*traffic_patterns"):
        read_matrix_file(written(tmp_path, "patterns: []\n", "metadata.yaml"))


def test_ranks_beyond_the_fabric_and_a_matrix_of_zeros(tmp_path: Path) -> None:
    nine = "\n".join(" ".join("1K" if (a, b) == (0, 8) else "0" for b in range(9)) for a in range(9))
    with pytest.raises(InputError, match="9: ranks, and the fabric has 8 GPUs"):
        flow_source(played(written(tmp_path, nine)))
    with pytest.raises(InputError, match="holds zeros only"):
        flow_source(played(written(tmp_path, "0 0\n0 0\n")))


CM = """# made by hand
Nodes 8
Connections 4
Triggers 2
0->2 id 1 start 1000000000 size 50000000 recv_done_trigger 1
4->2 id 2 start 0 size 50000000 send_done_trigger 2
2->6 id 3 trigger 1 size 100000000 recv_done_trigger 2
6->0 id 4 trigger 2 size 100000000
trigger id 1 oneshot
trigger id 2 barrier count 2
"""


def test_a_connection_matrix_with_triggers(tmp_path: Path) -> None:
    content = read_matrix_file(written(tmp_path, CM, "x.cm"))
    assert isinstance(content, Connections)
    assert content.connections[0].start_s == 1e-3
    result = simulate(played(tmp_path / "x.cm", repeats=2))
    assert len(result.requests) == 8
    rows = result.requests[:4]
    times = [(row["t_arrival_s"], row["t_finished_s"]) for row in rows]
    lone_s = 50e6 * 8 / 400e9  # 1 ms
    assert times[0] == pytest.approx((1e-3, 1e-3 + lone_s))
    assert times[1] == pytest.approx((0.0, lone_s))
    # One shot: as soon as connection 1 has ended; the barrier: when 2 and 3 have.
    assert times[2] == pytest.approx((2e-3, 2e-3 + 2 * lone_s))
    assert times[3] == pytest.approx((4e-3, 6e-3))
    assert {(row["src_gpu"], row["dst_gpu"]) for row in result.transfers} == {
        ("gpu1", "gpu3"), ("gpu5", "gpu3"), ("gpu3", "gpu7"), ("gpu7", "gpu1")
    }  # fmt: skip
    # The second repeat begins when all of the first has ended.
    assert result.requests[5]["t_arrival_s"] == pytest.approx(6e-3)


def test_a_barrier_that_any_one_may_open(tmp_path: Path) -> None:
    text = CM.replace("barrier count 2", "barrier count 1")
    rows = simulate(played(written(tmp_path, text, "x.cm"))).requests
    assert rows[3]["t_arrival_s"] == pytest.approx(1e-3)  # after connection 2, not after 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0->2 id", "0=>2 id", r"x.cm, line 5, column 1 = '0=>2': must be Nodes"),
        ("0->2 id", "0->8 id", r"line 5, column 1 = '0->8': nodes are 0 to 7"),
        ("0->2 id", "2->2 id", r"line 5, column 1 = '2->2': must be SRC->DST"),
        ("start 0 size", "start soon size", r"line 6, column 5 = 'soon': must be a number"),
        ("size 50000000 send", "size 5.5 send", r"line 6, column 7 = '5.5': must be a whole number"),
        ("trigger 1 size", "size", r"line 7, column 8 = '\(nothing\)': the connection needs either start or trigger"),
        ("trigger 1 size", "trigger 3 size", r"line 7 = 'trigger 3': is not described"),
        ("barrier count 2", "multishot", r"line 10, column 4 = 'multishot': must be id N, oneshot"),
        ("barrier count 2", "barrier count 3", r"line 10 = 'trigger 2': never fires: it needs 3 and 2"),
        ("Connections 4", "Connections 5", r"line 1 = '5': the head says so many Connections; the file has 4"),
        ("id 4 trigger", "id 4 addon trigger", r"line 8, column 4 = 'addon'"),
        ("Triggers 2", "Failures 1", r"line 4, column 2 = '1': failures are set in the scenario"),
    ],
)
def test_what_is_wrong_in_a_connection_matrix_has_a_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert CM.count(old) == 1
    with pytest.raises(InputError, match=message):
        read_matrix_file(written(tmp_path, CM.replace(old, new), "x.cm"))


@pytest.mark.parametrize(
    ("text", "line", "trigger"),
    [
        (CM.replace("start 0 size", "trigger 2 size").replace("barrier count 2", "barrier count 1"), None, None),
        (CM.replace("start 0 size", "trigger 2 size"), 6, 2),
        ("Nodes 8\nConnections 1\nTriggers 1\n0->2 trigger 1 size 9 send_done_trigger 1\ntrigger id 1 oneshot\n", 4, 1),
        (
            "Nodes 8\nConnections 3\nTriggers 2\n0->1 start 0 size 9\n0->2 trigger 1 size 9 send_done_trigger 2\n"
            "2->4 trigger 2 size 9 send_done_trigger 1\ntrigger id 1 oneshot\ntrigger id 2 oneshot\n",
            5,
            1,
        ),
    ],
    ids=["entered elsewhere", "barrier", "itself", "two"],
)
def test_a_cycle_of_triggers_that_nothing_enters(
    tmp_path: Path, text: str, line: int | None, trigger: int | None
) -> None:
    path = written(tmp_path, text, "x.cm")
    if line is None:
        assert isinstance(read_matrix_file(path), Connections)
        return
    with pytest.raises(InputError, match=rf"x.cm, line {line} = 'trigger {trigger}': never fires: what fires it waits"):
        read_matrix_file(path)


def test_our_own_export_is_replayed_between_the_same_gpus(tmp_path: Path) -> None:
    scenario = check_scenario({"fabric": FABRIC})
    fabric = build(scenario.fabric)
    settings = HtsimSettings(pattern="permutation", flow_bytes=4_000_000, seed=3)
    path = written(tmp_path, connection_matrix(fabric, settings), "x.cm")
    plan = flow_source(played(path, numbering="export")).plan
    bytes_of: dict[tuple[str, str], int] = {}
    for flow in plan.flows:
        bytes_of[flow.src, flow.dst] = bytes_of.get((flow.src, flow.dst), 0) + flow.size_bytes
    assert bytes_of == dict.fromkeys(gpu_flows(fabric, "permutation", 3), 4_000_000)
    with pytest.raises(InputError, match=r"Nodes = 16: the fabric has 8 GPUs\n.*numbering: export"):
        flow_source(played(path))


LOG = """time_s,src_gpu,dst_gpu,bytes,request
5.0,gpu1,gpu3,50000000,a
5.5,2,gpu5,100000000,b
5.5,gpu8,gpu5,100000000,c
"""


def test_a_transfer_log_is_played_directly(tmp_path: Path) -> None:
    workload = {"kind": "transfers", "path": str(written(tmp_path, LOG, "x.csv")), "direct": True, "requests": 3}
    result = simulate(check_scenario({"fabric": FABRIC, "workload": {**workload, "speedup": 2}}))
    assert [row["tenant"] for row in result.requests] == ["a", "b", "c"]
    assert [row["t_arrival_s"] for row in result.requests] == [0.0, 0.25, 0.25]
    # Two to one receiver: 200 MB at its 400 Gb/s.
    assert result.requests[2]["t_finished_s"] == pytest.approx(0.25 + 4e-3)
    assert {row["operation"] for row in result.requests} == {"transfer"}
    assert result.gpus == []
    with pytest.raises(InputError, match=r"x.csv, line 2, column dst_gpu = 'gpu9': must be gpu1 to gpu8"):
        written(tmp_path, LOG.replace("gpu3", "gpu9"), "x.csv")
        flow_source(check_scenario({"fabric": FABRIC, "workload": workload}))
    with pytest.raises(InputError, match=r"x.csv has 3 rows; skip 1 .* need 4"):
        written(tmp_path, LOG, "x.csv")
        flow_source(check_scenario({"fabric": FABRIC, "workload": {**workload, "skip": 1}}))
