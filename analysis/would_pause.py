"""Would-pause time: a model on measured queues. No pause frame was sent, and nothing here slowed a sender down.

A lossless Ethernet switch (IEEE 802.1Q, priority-based flow control) asks its neighbours to stop when a buffer counter
rises to XOFF, and to go on when it has fallen to XON. The model applies these two thresholds to the egress backlog that
was measured: a port would pause from the sample at which its backlog is XOFF frames or more, until the one at which it
is XON frames or less. What it cannot know: a real counter is one of ingress, per priority, and a real pause would have
kept the queue short and moved it upstream. So it compares fabrics, and predicts no pause rate of a real switch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.port_series import Bools, PortSeries, Stretches, stretches


@dataclass(frozen=True)
class PauseThresholds:
    """XOFF and XON in frames; XON is below XOFF."""

    xoff_frames: float
    xon_frames: float

    def __post_init__(self) -> None:
        if not 0 <= self.xon_frames < self.xoff_frames:
            raise ValueError(f"XON ({self.xon_frames}) must be at least 0 and below XOFF ({self.xoff_frames})")


def pausing(series: PortSeries, thresholds: PauseThresholds) -> Bools:
    """Whether the port would hold its neighbours up, a value a sample. A port begins without a pause."""
    if not series.port.size:
        return np.empty(0, dtype=bool)
    up = series.frames >= thresholds.xoff_frames
    decides = up | (series.frames <= thresholds.xon_frames) | series.begins
    last = np.maximum.accumulate(np.where(decides, np.arange(up.size), 0))
    return np.asarray(up[last], dtype=bool)


def would_pauses(series: PortSeries, thresholds: PauseThresholds) -> Stretches:
    """Every would-be pause of every port."""
    return stretches(series, pausing(series, thresholds))
