"""Swift: congestion control by delay. Standard library only; no sockets, no clock.

Source: Kumar, Dukkipati, Jang, Wassel, Wu, Montazeri, Wang, Springborn, Alfeld, Ryan, Wetherall, Vahdat: "Swift: Delay
is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020, algorithm 1 and section 3. The window
is in packets, which here are frames. Below one packet it paces: one packet each rtt / cwnd.

Swift's times belong to 100 Gb/s links and to host stacks of microseconds. Here a packet stands for megabytes, and delay
is made of frames that wait. So the base target is `BASE_FRAMES` frame times of the sender's port, and the other times
keep a ratio to it. The paper leaves several constants open; `AI`, `BETA`, `MAX_MDF` and the flow scaling are those of
htsim's Swift (github.com/Broadcom/csg-htsim, sim/swift.cpp), which also has a hop at 1/6.55 of the base target: one
frame here. Not taken over: the separate window for the end host (the paper's ecwnd), since the agents are not what is
studied, and hop counts from the TTL, since the number of switches is known.
"""

from __future__ import annotations

import math

#: Delay that is aimed at on a path without switches, in frame times: three frames may wait in the sender's own NIC
#: (`traffic.agent_udp`), one is on the wire, an acknowledgement answers every second frame, and one is spare.
BASE_FRAMES = 6.0
#: Added for each switch: one frame.
HOP_FRAMES = 1.0
#: Additive increase, packets per round trip (paper: `ai`); multiplicative decrease (`beta`), and its most (`max_mdf`).
AI, BETA, MAX_MDF = 1.0, 0.8, 0.5
#: Flow scaling: the target grows as the window gets smaller, by at most `FS_RANGE` base targets, between these windows.
FS_RANGE, FS_MIN_CWND, FS_MAX_CWND = 5.0, 0.1, 100.0
#: Below this the target grows no further, so a smaller window would only make the pauses longer.
MIN_CWND = FS_MIN_CWND
_ALPHA = FS_RANGE / (1 / math.sqrt(FS_MIN_CWND) - 1 / math.sqrt(FS_MAX_CWND))


class Swift:
    """The window of one queue pair. Times in nanoseconds."""

    def __init__(self, frame_ns: int, hops: int, max_cwnd: float) -> None:
        """`frame_ns`: a full frame on the sender's port; `hops`: switches on the path; `max_cwnd`: in-flight cap."""
        self.base_ns = BASE_FRAMES * frame_ns
        self.hops_ns = HOP_FRAMES * hops * frame_ns
        self.max_cwnd = self.cwnd = max_cwnd  # queue pairs start at line rate, as RDMA does
        self.rtt_ns = self.base_ns + self.hops_ns  # smoothed; until there is a sample
        self._decreased_ns = -(1 << 62)
        self.timeouts = 0  # in a row

    def target_ns(self) -> float:
        """The delay aimed at: base, hops and flow scaling (section 3.1, equation 2 and the lines after it)."""
        scaling = _ALPHA / math.sqrt(self.cwnd) - _ALPHA / math.sqrt(FS_MAX_CWND)
        return self.base_ns * (1 + max(0.0, min(scaling, FS_RANGE))) + self.hops_ns

    def on_ack(self, delay_ns: float, acked: int, now_ns: int) -> None:
        """`acked` packets were acknowledged; `delay_ns` is the round trip of the newest of them."""
        self.rtt_ns += (delay_ns - self.rtt_ns) / 8
        target = self.target_ns()
        if delay_ns < target:
            self.cwnd += AI * acked / self.cwnd if self.cwnd >= 1 else AI * acked
        elif self._may_decrease(now_ns):
            self.cwnd *= max(1 - BETA * (delay_ns - target) / delay_ns, 1 - MAX_MDF)
            self._decreased_ns = now_ns
        self._clamp()

    def on_loss(self, now_ns: int) -> None:
        """Packets were found missing (fast recovery): at most one decrease a round trip."""
        if self._may_decrease(now_ns):
            self.cwnd *= 1 - MAX_MDF
            self._decreased_ns = now_ns
        self._clamp()

    def on_timeout(self, now_ns: int) -> None:
        """Nothing came back. The paper resets the window when it has happened RETX_RESET_THRESHOLD times; a path that
        is gone here is the controller's and the runner's affair, so the window is only halved."""
        self.timeouts += 1
        self.on_loss(now_ns)

    def gap_ns(self) -> float:
        """Time between packets where the window is below one; else 0."""
        return self.rtt_ns / self.cwnd if self.cwnd < 1 else 0.0

    def _may_decrease(self, now_ns: int) -> bool:
        return now_ns - self._decreased_ns >= self.rtt_ns

    def _clamp(self) -> None:
        self.cwnd = min(max(self.cwnd, MIN_CWND), self.max_cwnd)
