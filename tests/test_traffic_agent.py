"""Two real agents over loopback: queue pairs are cut in mid-handoff, and every byte arrives exactly once.

A complaint of a receiver about content is an error here, unless a test expects it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from traffic.agent import HEADER, greeting, header
from traffic.pattern import content

AGENT = Path(__file__).resolve().parent.parent / "traffic" / "agent.py"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the agents force their socket buffers")


class Peer:
    """An agent and our end of its control socket."""

    def __init__(self, ips: list[str], port: int, kind: str = "tcp", pacing_bytes_per_s: int = 0) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen([sys.executable, "-I", "-S", str(AGENT)], stdin=theirs.fileno())
        theirs.close()
        self.turns: dict[int, int] = {}  # queue pair -> how often it was connected
        self.control.settimeout(20)
        sizes = {"window_bytes": 64_000, "chunk_bytes": 8_000, "frame_bytes": 2_000}
        pacing = {"pacing_bytes_per_s": pacing_bytes_per_s}
        self.order(op="open", kind=kind, listen=ips, port=port, cc="reno", **sizes, **pacing)
        assert self.report()["ev"] == "open"

    def order(self, **message: object) -> None:
        self.control.send(json.dumps(message).encode())

    def report(self) -> dict[str, object]:
        while True:
            found: dict[str, object] = json.loads(self.control.recv(1 << 20))
            assert found["ev"] != "error", found
            if found["ev"] != "lost":  # the receiver's reset may be faster than the order to the sender
                return found


@contextmanager
def two_agents(kind: str, pacing_bytes_per_s: int = 0) -> Iterator[tuple[Peer, Peer, int]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    sender = Peer(["127.0.1.1", "127.0.1.2"], port, kind, pacing_bytes_per_s)
    receiver = Peer(["127.0.2.1", "127.0.2.2"], port, kind)
    yield sender, receiver, port
    for peer in (sender, receiver):
        peer.control.close()
        assert peer.process.wait(5) == 0


@pytest.fixture
def peers() -> Iterator[tuple[Peer, Peer, int]]:
    with two_agents("tcp") as found:
        yield found


@pytest.fixture(params=["tcp", "udp"])
def any_peers(request: pytest.FixtureRequest) -> Iterator[tuple[Peer, Peer, int]]:
    """Either transport."""
    with two_agents(request.param) as found:
        yield found


#: Queue pair -> source, source port, destination.
PAIRS = {
    0: ("127.0.1.1", 21_001, "127.0.2.2"),
    1: ("127.0.1.2", 21_002, "127.0.2.1"),
    2: ("127.0.1.1", 21_003, "127.0.2.1"),
}


def connect(sender: Peer, port: int, *qps: int) -> None:
    for qp in qps:
        sender.turns[qp] = sender.turns.get(qp, 0) + 1
    sender.order(op="connect", port=port, qps=[[qp, *PAIRS[qp], "gpu2", sender.turns[qp]] for qp in qps])
    assert sender.report()["ev"] == "connected"


def cut(sender: Peer, receiver: Peer, qps: list[int], instead: list[int]) -> list[dict[str, object]]:
    """Cut queue pairs as the runner does; returns the reports of the receiver that came in between."""
    receiver.order(op="cut_in", peers=[[*PAIRS[qp][:2], sender.turns[qp]] for qp in qps])
    others = []
    while (found := receiver.report())["ev"] != "offsets":
        others.append(found)
    offsets: list[list[object]] = found["offsets"]  # type: ignore[assignment]
    sender.order(op="cut", qps=[[qp, offset[2], instead] for qp, offset in zip(qps, offsets, strict=True)])
    assert sender.report()["ev"] == "moved"
    return others


def collect(receiver: Peer, reports: list[dict[str, object]], wanted: set[int]) -> dict[int, int]:
    """Transfer -> bytes that its parts add up to, when all have arrived."""
    found: dict[int, int] = {}
    while set(found) != wanted:
        report = reports.pop(0) if reports else receiver.report()
        assert report["ev"] != "corrupt", report
        if report["ev"] == "done":
            number = int(str(report["id"]))
            assert number not in found, "reported twice"
            found[number] = sum(part[2] for part in report["parts"])  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("lanes", [[[0, 1]], [[0], [1]]], ids=["adaptive", "static"])
@pytest.mark.parametrize("seed", range(6))
def test_a_cut_queue_pairs_bytes_go_by_the_other(
    any_peers: tuple[Peer, Peer, int], lanes: list[list[int]], seed: int
) -> None:
    sender, receiver, port = any_peers
    rng = random.Random(seed)
    connect(sender, port, 0, 1)
    sizes = {number: rng.randrange(1, 40_000_000) for number in range(1, 5)}
    for number, size in sizes.items():
        sender.order(op="send", id=number, bytes=size, lanes=lanes)
    time.sleep(rng.random() * 0.03)
    early = cut(sender, receiver, [0], [1])
    sender.order(op="send", id=9, bytes=100_000, lanes=[[1]])
    found = collect(receiver, early, {*sizes, 9})
    assert found == {**{number: max(size, 24 * len(lanes)) for number, size in sizes.items()}, 9: 100_000}


def test_what_has_no_other_way_waits_for_the_connection(any_peers: tuple[Peer, Peer, int]) -> None:
    sender, receiver, port = any_peers
    connect(sender, port, 0, 1)
    sender.order(op="send", id=1, bytes=60_000_000, lanes=[[0, 1]])
    time.sleep(0.01)
    early = cut(sender, receiver, [0, 1], [])
    assert not early and not select.select([receiver.control], [], [], 0.3)[0]  # nothing arrives meanwhile
    connect(sender, port, 0, 1)
    assert collect(receiver, [], {1}) == {1: 60_000_000}


def test_marks_count_what_was_delivered_also_over_connections_that_are_gone(peers: tuple[Peer, Peer, int]) -> None:
    sender, receiver, port = peers

    def delivered() -> dict[int, int]:
        sender.order(op="marks", start=0)
        report = sender.report()
        rows: list[list[int]] = report["qps"]  # type: ignore[assignment]
        assert report["ev"] == "marks" and report["of"] == len(rows)
        assert all(marked == 0 for _, _, marked in rows), "nothing marks on loopback"
        return {number: segments for number, segments, _ in rows}

    connect(sender, port, 0, 1)
    sender.order(op="send", id=1, bytes=3_000_000, lanes=[[0], [1]])
    assert collect(receiver, [], {1}) == {1: 3_000_000}
    before = delivered()
    assert all(before[qp] > 1_500_000 // 65_536 for qp in (0, 1))  # a segment on loopback is 64 kB at most
    cut(sender, receiver, [0], [1])
    assert delivered()[0] >= before[0]
    connect(sender, port, 0)
    sender.order(op="send", id=2, bytes=3_000_000, lanes=[[0]])
    assert collect(receiver, [], {2}) == {2: 3_000_000}
    assert delivered()[0] > before[0] + 3_000_000 // 65_536
    sender.order(op="marks", start=1)
    assert [row[0] for row in sender.report()["qps"]] == [1]  # type: ignore[attr-defined]


@contextmanager
def silent(kind: str) -> Iterator[int]:
    """A port at 127.0.2.2 that never answers: on TCP one whose queue of connections is full."""
    with contextlib.ExitStack() as stack:
        if kind == "udp":
            mute = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            mute.bind(("127.0.2.2", 0))
        else:
            mute = stack.enter_context(socket.socket())
            mute.bind(("127.0.2.2", 0))
            mute.listen(0)
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(mute.getsockname())
            time.sleep(0.05)
        yield mute.getsockname()[1]


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_a_connect_that_is_no_longer_wanted_is_given_up_at_once_and_what_waited_goes_another_way(kind: str) -> None:
    with two_agents(kind) as (sender, receiver, port), silent(kind) as mute:
        connect(sender, port, 1)
        sender.turns[0] = 1
        sender.order(op="connect", port=mute, qps=[[0, *PAIRS[0], "gpu2", 1]])
        sender.order(op="send", id=1, bytes=1_000_000, lanes=[[0], [1]])
        assert not select.select([sender.control], [], [], 0.3)[0]  # nobody answers
        early = cut(sender, receiver, [0], [1])
        given_up = sender.report()
        assert (given_up["ev"], given_up["qps"], given_up["failed"]) == ("connected", [], [])
        assert collect(receiver, early, {1}) == {1: 1_000_000}
        connect(sender, port, 0)


def test_a_connect_that_fails_is_reported_with_its_turn_and_the_others_are_made(peers: tuple[Peer, Peer, int]) -> None:
    sender, _, port = peers
    nobody = ["127.0.1.2", 21_002, "127.0.3.1"]  # no process listens there
    sender.order(op="connect", port=port, qps=[[0, *PAIRS[0], "gpu2", 1], [1, *nobody, "gpu2", 7]])
    found = sender.report()
    assert (found["ev"], found["qps"], found["turns"]) == ("connected", [0], [1])
    ((number, turn, text),) = found["failed"]  # type: ignore[misc,attr-defined]
    assert (number, turn) == (1, 7) and "refused" in text  # type: ignore[has-type]


def test_cut_and_back_again_and_again(any_peers: tuple[Peer, Peer, int]) -> None:
    sender, receiver, port = any_peers
    connect(sender, port, 0, 1)
    sender.order(op="send", id=1, bytes=200_000_000, lanes=[[0, 1]])
    early: list[dict[str, object]] = []
    for turn in range(6):
        time.sleep(0.005)
        gone = turn % 2
        early += cut(sender, receiver, [gone], [1 - gone])
        connect(sender, port, gone)
    assert collect(receiver, early, {1}) == {1: 200_000_000}


def test_a_connection_that_was_not_accepted_yet_is_not_taken_for_the_one_before(
    peers: tuple[Peer, Peer, int],
) -> None:
    sender, receiver, port = peers
    connect(sender, port, 0)
    sender.order(op="send", id=1, bytes=3_000_000, lanes=[[0]])
    assert collect(receiver, [], {1}) == {1: 3_000_000}
    assert cut(sender, receiver, [0], []) == []
    receiver.process.send_signal(signal.SIGSTOP)
    # The order is there before the connection: the agent gets to it first.
    receiver.order(op="cut_in", peers=[[*PAIRS[0][:2], 2]])
    connect(sender, port, 0)
    sender.order(op="send", id=2, bytes=5_000_000, lanes=[[0]])
    time.sleep(0.1)  # the kernel takes what fits, and acknowledges it
    receiver.process.send_signal(signal.SIGCONT)
    (offset,) = receiver.report()["offsets"]  # type: ignore[misc]
    sender.order(op="cut", qps=[[0, offset[2], []]])
    assert sender.report()["ev"] == "moved"
    connect(sender, port, 0)
    assert collect(receiver, [], {2}) == {2: 5_000_000}
    receiver.order(op="stats")
    assert receiver.report()["half_arrived"] == 0


def test_a_connection_that_comes_to_light_after_it_was_given_up_is_dropped_unread(
    peers: tuple[Peer, Peer, int],
) -> None:
    _, receiver, port = peers
    receiver.order(op="cut_in", peers=[[*PAIRS[0][:2], 2]])
    assert receiver.report()["offsets"] == [[*PAIRS[0][:2], 0]]
    chunk = header(7, 100, 0, 100) + content(7, HEADER.size, 100 - HEADER.size)
    for turn in (2, 3):
        with socket.create_connection((PAIRS[0][2], port), 5, source_address=PAIRS[0][:2]) as late:
            late.sendall(greeting(turn) + chunk)
            if turn == 2:
                with pytest.raises(ConnectionResetError):
                    late.recv(1)
    # Only the next one counts.
    assert collect(receiver, [], {7}) == {7: 100}
    receiver.order(op="stats")
    assert receiver.report()["half_arrived"] == 0


@pytest.mark.parametrize("lanes", [[[0, 1]], [[0], [1]]], ids=["adaptive", "static"])
@pytest.mark.parametrize("connected_first", [True, False])
def test_a_queue_pair_that_stands_in_takes_over_what_is_under_way(
    any_peers: tuple[Peer, Peer, int], lanes: list[list[int]], connected_first: bool
) -> None:
    sender, receiver, port = any_peers
    connect(sender, port, 0, 1)
    sender.order(op="send", id=1, bytes=60_000_000, lanes=lanes)
    time.sleep(0.01)
    if connected_first:
        connect(sender, port, 2)
    assert cut(sender, receiver, [0, 1], []) == []
    if not connected_first:
        connect(sender, port, 2)
    assert collect(receiver, [], {1}) == {1: 60_000_000}  # 0 and 1 never come back


def raw(receiver: Peer, port: int, *pieces: bytes) -> dict[str, object]:
    """Send pieces of a stream to the receiver as the sender of queue pair 0; returns its first report."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the agents: other tests run beside this one
        sock.bind(PAIRS[0][:2])
        sock.connect((PAIRS[0][2], port))
        sock.sendall(greeting(1) + b"".join(pieces))
        return receiver.report()


def test_a_byte_that_was_changed_is_found_with_its_place(peers: tuple[Peer, Peer, int]) -> None:
    _, receiver, port = peers
    sent = bytearray(content(7, HEADER.size, 50_000 - HEADER.size))
    sent[40_000 - HEADER.size] ^= 1
    found = raw(receiver, port, header(7, 50_000, 0, 50_000), sent)
    assert (found["ev"], found["id"], found["peer"], found["offset"]) == ("corrupt", 7, [*PAIRS[0][:2]], 40_000)
    assert receiver.report()["ev"] == "done"  # the handoff ends, and the run tells


def test_bytes_that_come_twice_are_found_and_not_counted(peers: tuple[Peer, Peer, int]) -> None:
    _, receiver, port = peers
    chunk = header(7, 200, 0, 100) + content(7, HEADER.size, 100 - HEADER.size)
    found = raw(receiver, port, chunk, chunk)
    assert found["ev"] == "corrupt" and "twice" in str(found["text"])
    receiver.order(op="stats")
    while (found := receiver.report())["ev"] != "stats":
        assert found["ev"] == "corrupt"
    assert found["half_arrived"] == 1  # 100 of 200 bytes


def rate_bytes_per_s(kind: str, pacing_bytes_per_s: int) -> float:
    """Rate of a transfer over one queue pair, by the receiver's clock."""
    with two_agents(kind, pacing_bytes_per_s) as (sender, receiver, port):
        connect(sender, port, 0)
        ends = []
        for number in (1, 2):  # TCP does not pace the first ten segments of a connection
            sender.order(op="send", id=number, bytes=1_000_000, lanes=[[0]])
            report = receiver.report()
            assert (report["ev"], report["id"]) == ("done", number)
            ends.append(int(str(report["t_ns"])))
        return 1_000_000 / (ends[1] - ends[0]) * 1e9


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_pacing_holds_a_queue_pair_to_its_rate(kind: str) -> None:
    paced, free = rate_bytes_per_s(kind, 1_000_000), rate_bytes_per_s(kind, 0)
    assert paced < 1.05e6
    assert free > 2 * paced
