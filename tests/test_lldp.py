"""LLDP frames of the GPU side, of the controller's library and of scapy are the same thing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from scapy.contrib.lldp import LLDPDUChassisID, LLDPDUPortID, LLDPDUTimeToLive
from scapy.layers.l2 import Ether
from tests_root import REPOSITORY

from emulation import lldp
from topologies.cabling_model import Plug

PORT, MAC = Plug("gpu16384", "gpu16384-eth2"), "02:00:00:00:00:07"


def test_a_frame_is_what_scapy_reads() -> None:
    data = lldp.frame(PORT, MAC)
    assert len(data) == lldp.MIN_FRAME_BYTES
    read = Ether(data)
    assert (read.dst, read.src, read.type) == ("01:80:c2:00:00:0e", MAC, 0x88CC)
    assert (read[LLDPDUChassisID].subtype, read[LLDPDUChassisID].id) == (7, b"gpu16384")
    assert (read[LLDPDUPortID].subtype, read[LLDPDUPortID].id) == (5, b"gpu16384-eth2")
    assert read[LLDPDUTimeToLive].ttl == 120
    assert lldp.sender(data) == PORT


def test_other_frames_say_nothing() -> None:
    data = lldp.frame(PORT, MAC)
    assert lldp.sender(data[:12] + b"\x08\x00" + data[14:]) is None
    assert lldp.sender(data[:14] + b"\x02\x07\x04" + data[17:]) is None  # a chassis ID that is a MAC address
    assert lldp.sender(data[:17] + b"\xff" + data[18:]) is None  # not text
    for length in range(len(data)):  # cut anywhere: nothing, or all of it
        assert lldp.sender(data[:length]) in (None, PORT)
    assert lldp.sender(data[:20]) is None


LIBRARY_SIDE = """
import sys
from controller import discovery
from topologies.cabling_model import Plug
frame = bytes.fromhex(sys.argv[1])
print(discovery.announcement(Plug("odd1", "odd1-eth9"), "02:00:00:00:00:09").hex())
print(*discovery.sender(frame), discovery.sender(frame[:12] + bytes(48)), discovery.sender(frame[:20]))
foreign = frame[:14] + bytes.fromhex("0207040200000000070403050102060200780000")
print(discovery.sender(foreign))
"""


@pytest.mark.parametrize("sdn", ["ryu", "os-ken"])
def test_the_controller_reads_the_gpus_and_they_read_it(sdn: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY_SIDE, lldp.frame(PORT, MAC).hex()],
        capture_output=True, text=True, cwd=REPOSITORY, env={**os.environ, "ZCUBE_SDN": sdn},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    theirs, read, foreign = done.stdout.splitlines()
    assert lldp.sender(bytes.fromhex(theirs)) == Plug("odd1", "odd1-eth9")
    assert Ether(bytes.fromhex(theirs)).src == "02:00:00:00:00:09"
    assert read == "gpu16384 gpu16384-eth2 None None"
    assert foreign == "None"
