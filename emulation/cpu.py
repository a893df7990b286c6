"""How busy all cores of the machine are, and how busy this sandbox keeps them, from the kernel's own account."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

#: Fields of the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE, _IOWAIT, _IRQ, _SOFTIRQ = 3, 4, 5, 6


@dataclass
class CpuClock:
    """Shares of all cores since it was made (/proc/stat; /proc/PID/stat of every process of this PID namespace)."""

    began: list[int] = field(default_factory=lambda: _cpu_times())
    own_began: int = field(default_factory=lambda: _own_time())

    def busy_share(self) -> float:
        """By anybody, 0 to 1."""
        spent = self._spent()
        total = sum(spent)
        return 1 - (spent[_IDLE] + spent[_IOWAIT]) / total if total else 0.0

    def own_share(self) -> float:
        """By the processes of this sandbox, and by interrupts, whosever they are: packets are moved in them."""
        spent = self._spent()
        total = sum(spent)
        own = _own_time() - self.own_began + spent[_IRQ] + spent[_SOFTIRQ]
        return min(1.0, own / total) if total else 0.0

    def _spent(self) -> list[int]:
        return [now - then for then, now in zip(self.began, _cpu_times(), strict=True)]


def _cpu_times() -> list[int]:
    with open("/proc/stat", encoding="ascii") as file:
        return [int(value) for value in file.readline().split()[1:9]]


def _own_time() -> int:
    """Clock ticks of all processes that are there, with their children that have ended."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path("/proc", name, "stat").read_text()
            except OSError:
                continue  # it has ended
            total += sum(int(value) for value in text.rpartition(")")[2].split()[11:15])
    return total
