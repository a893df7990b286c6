"""One real agent over loopback, and a test that plays the other end of a UDP queue pair packet by packet."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from test_traffic_agent import AGENT, PAIRS, Peer

from traffic.datagrams import DATA, HELLO, Incoming, Piece, pack, unpack
from traffic.pattern import content

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the agents force their socket buffers")

FRAME = 2_000
QP = 0
SRC, SRC_PORT, DST = PAIRS[QP]


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((DST, 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def agent(port: int) -> Iterator[Peer]:
    found = Peer([SRC], port, "udp")
    yield found
    found.control.close()
    assert found.process.wait(5) == 0


class OtherEnd:
    """Receives the agent's datagrams, as told, and answers."""

    def __init__(self, port: int) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((DST, port))
        self.sock.settimeout(5)
        self.incoming = Incoming(1)
        self.came: Counter[int] = Counter()
        self.ports: Counter[int] = Counter()
        self.counted = bytearray()

    def next(self) -> tuple[Piece, bytes, tuple[str, int]]:
        data, source = self.sock.recvfrom(65_536)
        piece = unpack(memoryview(data), len(data))
        assert piece is not None
        return piece, data[DATA.size :], source

    def open(self, sockets: int = 1) -> None:
        for _ in range(sockets):
            piece, _, source = self.next()
            assert piece.psn == HELLO and piece.turn == 1
            self.sock.sendto(self.incoming.answer(SRC_PORT, HELLO), source)

    def serve(self, total: int, lose: set[int]) -> None:
        """Take packets until `total` bytes count; the first of each in `lose` is lost."""
        left = total
        while left:
            piece, body, source = self.next()
            if piece.psn == HELLO:
                continue
            self.came[piece.psn] += 1
            self.ports[source[1]] += 1
            assert body == content(piece.transfer, piece.offset, piece.size) and len(body) <= FRAME
            if piece.psn in lose and self.came[piece.psn] == 1:
                continue
            if not self.incoming.has(piece.psn):
                left -= sum(ready.size for ready, _ in self.incoming.take(piece, source[1]))
            self.sock.sendto(self.incoming.answer(SRC_PORT, piece.psn), source)


def connect(agent: Peer, port: int, **more: object) -> None:
    agent.order(op="connect", port=port, qps=[[QP, SRC, SRC_PORT, DST, "gpu2", 1, {"frame_ns": 100_000, **more}]])


@pytest.mark.parametrize("lose", [{3}, {0, 1, 2}, {10, 11, 40, 99}], ids=str)
def test_what_was_lost_is_sent_again_and_nothing_else(agent: Peer, port: int, lose: set[int]) -> None:
    other = OtherEnd(port)
    connect(agent, port)
    other.open()
    assert agent.report()["ev"] == "connected"
    agent.order(op="send", id=5, bytes=100 * FRAME, lanes=[[QP]])
    other.serve(100 * FRAME, lose)
    assert {psn for psn, times in other.came.items() if times > 1} >= lose
    assert set(other.came) == set(range(100))
    agent.order(op="stats")
    resent = int(str(agent.report()["retransmits"]))
    assert resent == sum(other.came.values()) - 100
    # On loopback one socket keeps order: what was sent again was lost, or so taken when an answer was late.
    assert len(lose) <= resent < 2 * len(lose) + 20


def test_the_last_packet_of_all_is_sent_again_when_nothing_comes_back(agent: Peer, port: int) -> None:
    other = OtherEnd(port)
    connect(agent, port)
    other.open()
    agent.report()
    agent.order(op="send", id=5, bytes=3 * FRAME, lanes=[[QP]])
    other.serve(3 * FRAME, {2})
    assert other.came == {0: 1, 1: 1, 2: 2}


def test_each_packet_takes_the_next_source_port(agent: Peer, port: int) -> None:
    other = OtherEnd(port)
    ports = [SRC_PORT + 10 * n for n in range(5)]
    connect(agent, port, ports=ports)
    other.open(len(ports))
    assert agent.report()["ev"] == "connected"
    agent.order(op="send", id=5, bytes=100 * FRAME, lanes=[[QP]])
    other.serve(100 * FRAME, set())
    assert set(other.ports) == set(ports)
    assert max(other.ports.values()) - min(other.ports.values()) <= 2 + sum(other.came.values()) - 100


def datagrams(transfer: int, frames: int) -> list[bytes]:
    total = frames * 100
    return [
        pack(SRC_PORT, 1, psn, transfer, total, psn * 100, answer_now=False) + content(transfer, psn * 100, 100)
        for psn in range(frames)
    ]


@pytest.fixture
def towards(port: int) -> Iterator[tuple[Peer, socket.socket]]:
    """An agent that receives, and a socket with an open queue pair to it."""
    receiver = Peer([DST], port, "udp")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the agents: other tests run beside this one
        sock.bind((SRC, SRC_PORT))
        sock.connect((DST, port))
        sock.settimeout(5)
        sock.send(pack(SRC_PORT, 1, HELLO, 0, 0, 0, answer_now=True))
        sock.recv(2048)
        yield receiver, sock
    receiver.control.close()
    assert receiver.process.wait(5) == 0


def test_messages_count_in_order_whatever_the_order_of_packets(towards: tuple[Peer, socket.socket]) -> None:
    receiver, sock = towards
    first, second = datagrams(1, 4), datagrams(2, 6)
    later = [
        pack(SRC_PORT, 1, 4 + n, 2, 600, n * 100, answer_now=False) + one[DATA.size :] for n, one in enumerate(second)
    ]
    for one in (*reversed(later), *later, *reversed(first), *first):  # the second message comes first, all twice
        sock.send(one)
    reports = [receiver.report(), receiver.report()]
    assert [(one["ev"], one["id"]) for one in reports] == [("done", 1), ("done", 2)]
    assert [sum(part[2] for part in one["parts"]) for one in reports] == [400, 600]  # type: ignore[attr-defined]


def test_a_changed_byte_of_a_datagram_is_found(towards: tuple[Peer, socket.socket]) -> None:
    receiver, sock = towards
    packets = [bytearray(one) for one in datagrams(9, 3)]
    packets[1][DATA.size + 42] ^= 0x80
    for one in packets:
        sock.send(one)
    found = receiver.report()
    assert (found["ev"], found["id"], found["peer"], found["offset"]) == ("corrupt", 9, [SRC, SRC_PORT], 142)
    assert receiver.report()["ev"] == "done"


def test_bytes_under_another_packet_number_are_found_twice(towards: tuple[Peer, socket.socket]) -> None:
    receiver, sock = towards
    packets = datagrams(9, 3)
    sock.send(packets[0])
    sock.send(pack(SRC_PORT, 1, 1, 9, 300, 0, answer_now=False) + packets[0][DATA.size :])
    found = receiver.report()
    assert found["ev"] == "corrupt" and "twice" in str(found["text"])


def test_a_packet_of_a_turn_that_was_cut_does_not_count(towards: tuple[Peer, socket.socket]) -> None:
    receiver, sock = towards
    packets = datagrams(9, 3)
    sock.send(packets[0])
    receiver.order(op="cut_in", peers=[[SRC, SRC_PORT, 1]])
    assert receiver.report()["offsets"] == [[SRC, SRC_PORT, 1]]
    for one in packets[1:]:
        sock.send(one)
    sock.send(pack(SRC_PORT, 1, HELLO, 0, 0, 0, answer_now=True))  # a hello that was under way
    receiver.order(op="stats")
    found = receiver.report()
    assert found["ev"] == "stats" and found["half_arrived"] == 1


def test_packets_that_come_twice_are_counted_as_such(towards: tuple[Peer, socket.socket]) -> None:
    receiver, sock = towards
    first, second, third = datagrams(9, 3)
    for one in (first, first, third, third, second):  # in order, and ahead of one that is missing
        sock.send(one)
    assert receiver.report()["ev"] == "done"
    receiver.order(op="stats")
    assert receiver.report()["duplicates"] == 2


@pytest.mark.parametrize("ports", [1, 5])
def test_a_full_nic_is_waited_for_and_an_idle_agent_sleeps(ports: int) -> None:
    """An agent sends to itself over a loopback interface that is shaped, in a network namespace of its own."""
    shaped = (
        "ip link set lo mtu 9000 up && tc qdisc add dev lo root tbf rate 25mbit burst 4500 limit 1000000 && "
        f"exec {sys.executable} -I -S {AGENT}"
    )
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with subprocess.Popen(["unshare", "--net", "sh", "-c", shaped], stdin=theirs.fileno()) as process, control:
        theirs.close()
        control.settimeout(20)

        def ask(**order: object) -> dict[str, Any]:
            control.send(json.dumps(order).encode())
            found: dict[str, Any] = json.loads(control.recv(1 << 20))
            return found

        sizes = {"window_bytes": 16 * FRAME, "chunk_bytes": FRAME, "frame_bytes": FRAME}
        assert ask(op="open", kind="udp", listen=[SRC, DST], port=5_000, cc="", **sizes)["ev"] == "open"
        more = {"frame_ns": 660_000, "ports": [SRC_PORT + 10 * n for n in range(ports)]}
        assert ask(op="connect", port=5_000, qps=[[QP, SRC, SRC_PORT, DST, "gpu2", 1, more]])["ev"] == "connected"
        began = time.monotonic()
        done = ask(op="send", id=5, bytes=400 * FRAME, lanes=[[QP]])
        took_s = time.monotonic() - began
        assert done["ev"] == "done" and sum(part[2] for part in done["parts"]) == 400 * FRAME
        assert took_s > 390 * FRAME * 8 / 25e6, "the shaper was what limited it"
        before = ask(op="stats")["cpu_s"]
        time.sleep(0.6)
        idle_s = ask(op="stats")["cpu_s"] - before
        assert idle_s < 0.1, "it sleeps when there is nothing to do"
        control.close()
        assert process.wait(5) == 0
