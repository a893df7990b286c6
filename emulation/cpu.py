"""How busy all cores of the machine are, from the kernel's own account."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class CpuClock:
    """Busy share of all cores since it was made (/proc/stat)."""

    began: list[int] = field(default_factory=lambda: _cpu_times())

    def busy_share(self) -> float:
        """0 to 1."""
        spent = [now - then for then, now in zip(self.began, _cpu_times(), strict=True)]
        total = sum(spent)
        return 1 - (spent[3] + spent[4]) / total if total else 0.0


def _cpu_times() -> list[int]:
    with open("/proc/stat", encoding="ascii") as file:
        return [int(value) for value in file.readline().split()[1:9]]
