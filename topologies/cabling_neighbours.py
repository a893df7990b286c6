"""What the ports of a running fabric say about their neighbours, collected port by port, as LLDP-style rows.

    {"schema_version": 1,
     "neighbors": [{"local_device": "odd1", "local_port": "odd1-eth9",
                    "remote_device": "even2", "remote_port": "even2-eth9"}, ...]}

A port that heard nobody has a row with null as its remote end. `topologies.cabling_files` reads these files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topologies.cabling_model import Plug, natural

SCHEMA_VERSION = 1

Row = Mapping[str, str | None]


class Neighbours:
    """Ports that listen, and whom each has heard. Ports have the names of their interfaces."""

    def __init__(self, ports: Iterable[Plug]) -> None:
        self._heard: dict[Plug, set[Plug]] = {port: set() for port in ports}

    def hear(self, local: Plug, remote: Plug) -> bool:
        """`local` has heard `remote`; returns whether that is news. A port that is not among ours is added."""
        heard = self._heard.setdefault(local, set())
        news = remote not in heard
        heard.add(remote)
        return news

    @property
    def silent(self) -> tuple[Plug, ...]:
        """Ports that have heard nobody yet."""
        return tuple(port for port, heard in self._heard.items() if not heard)

    def rows(self) -> list[Row]:
        """One row per port and neighbour, by device and port."""
        found: list[Row] = []
        for port in sorted(self._heard, key=natural):
            ends: list[Plug | None] = [*sorted(self._heard[port], key=natural)]
            for far in ends or [None]:
                found.append(
                    {
                        "local_device": port.device,
                        "local_port": port.port,
                        "remote_device": far.device if far else None,
                        "remote_port": far.port if far else None,
                    }
                )
        return found


def document(rows: Iterable[Row]) -> dict[str, object]:
    """The file's content."""
    return {"schema_version": SCHEMA_VERSION, "neighbors": list(rows)}
