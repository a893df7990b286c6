"""In which order a fabric is re-cabled, and how many GPUs are cut off meanwhile.

Old and new fabric stand side by side until the end: a server is drained, its GPUs are taken off their old switches
and plugged into the new ones that are in service, and it is returned; a switch is converted once no GPU hangs on it.
The rule, step by step (greedy; nobody waits for a step that costs nothing):

1. An old switch that no GPU needs any more and that has GPU ports is converted, and joined to what is there.
2. A server all of whose GPUs would have a port on a new switch in service is moved, one server a step.
3. Otherwise switches must be converted to make some servers ready: those servers whose switches cost least: fewest
   GPUs left without a port, then fewest GPUs left with a part of their ports, then the first servers. So transit
   switches (spines, cores) are turned before leaves that GPUs hang on; titles say how many of them are left.

A GPU of the old fabric has its old ports whose switches are in old service; a moved one its new ports whose switches
are in new service. GPUs of the two fabrics cannot reach each other before the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from topologies.fabric import Fabric, Link, port_name


@dataclass(frozen=True)
class Step:
    """One piece of work. GPU counts are those while it is done, the worst of it; `_after` when it is done."""

    kind: str
    title: str
    servers: tuple[str, ...]
    old_switch: str | None
    new_switch: str | None
    ports_down: tuple[str, ...]
    cables_out: int
    cables_in: int
    gpus_none: int
    gpus_part: int
    gpus_none_after: int
    gpus_part_after: int
    moved_gpus: int

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {**asdict(self), "servers": list(self.servers), "ports_down": list(self.ports_down)}


def order_of_work(
    old: Fabric, new: Fabric, becomes: Mapping[str, str | None], kept: Mapping[str, str]
) -> tuple[Step, ...]:
    """Steps from `old` to `new`; `becomes`: new switch -> old one or None; `kept`: new link -> old link not touched."""
    return tuple(_Work(old, new, becomes, kept).done())


class _Work:
    """The state of the change: which switches serve, which GPUs have moved, how many ports each GPU has."""

    def __init__(self, old: Fabric, new: Fabric, becomes: Mapping[str, str | None], kept: Mapping[str, str]) -> None:
        self.old, self.new, self.becomes = old, new, becomes
        old_kept, new_kept = set(kept.values()), set(kept)
        self.old_links = {link.id: link for link in old.links if link.id not in old_kept}
        self.new_links = {link.id: link for link in new.links if link.id not in new_kept}
        self.old_at = _by_node(self.old_links.values())
        self.new_at = _by_node(self.new_links.values())
        self.old_ports = _gpu_switches(old)
        self.new_ports = _gpu_switches(new)
        self.alive = {link.id: link for link in old.links}
        self.alive_at = _by_node(old.links)
        # A GPU none of whose cables changes never leaves the service; its switches may, as far as it goes, stay.
        self.still = {gpu.name for gpu in new.gpus if not self.old_at.get(gpu.name) and not self.new_at.get(gpu.name)}
        # Not disturbed: what keeps its two ports under their names, and the cables of those GPUs.
        self.calm = {before for after, before in kept.items() if before == after}
        self.calm |= {link.id for link in old.links if link.id in old_kept and link.a.node in self.still}
        self.moved: set[str] = set()
        unchanged = {
            name
            for name, before in becomes.items()
            if before is not None and not self.new_at.get(name) and not self.old_at.get(before)
        }
        self.serving_new = {name for name, before in becomes.items() if before is None} | unchanged
        self.serving_old = {switch.name for switch in old.switches}
        self.pending = [switch.name for switch in new.switches if switch.name not in self.serving_new]
        self.tier = {switch.name: switch.tier for switch in old.switches}
        self.tier_size = Counter(self.tier.values())
        self.transit = set(self.tier) - {end.node for end in old.attachment.values()}
        self.hanging = Counter(s for gpu, ports in self.old_ports.items() if gpu not in self.still for s, _ in ports)
        self.under: dict[str, list[str]] = {}
        for gpu, ports in self.old_ports.items():
            for switch, _ in ports:
                self.under.setdefault(switch, []).append(gpu)
        self.over: dict[str, list[str]] = {}
        for gpu, ports in self.new_ports.items():
            for switch, _ in ports:
                self.over.setdefault(switch, []).append(gpu)
        self.servers: dict[str, list[str]] = {}
        for item in new.gpus:
            if item.name not in self.still:
                self.servers.setdefault(item.server, []).append(item.name)
        self.down: set[str] = set()
        self.share = {gpu.name: 1.0 for gpu in new.gpus}
        self.standing = Counter({2: len(new.gpus)})
        self.need = {server: self._lacking(gpus) for server, gpus in self.servers.items()}
        self.ready = [server for server, need in self.need.items() if not need]
        self.steps: list[Step] = []

    def done(self) -> list[Step]:
        if self.new_links or self.old_links:
            self._install()
        while self.servers:
            if (drained := next((t for t in self.pending if self._drained(t)), None)) is not None:
                self._convert(drained)
            elif self.ready:
                self._move(self.ready.pop(0))
            else:
                self._convert(self._cheapest())
        while self.pending:
            self._convert(self.pending[0])
        self._clear()
        return self.steps

    def _install(self) -> None:
        bought = sorted(name for name, before in self.becomes.items() if before is None)
        plugged = self._plug(self.serving_new)
        if bought or plugged:
            self._step("install", f"install {len(bought)} new switches and join them", (), None, None, (), 0, plugged)

    def _clear(self) -> None:
        left = [name for name in self.serving_old if self.old_at.get(name)]
        out = self._unplug(left)
        if out[1]:
            title = "take out the cables of the switches that are free"
            self._step("clear", title, (), None, None, tuple(sorted(out[1])), out[0], 0)

    def _drained(self, new_switch: str) -> bool:
        before = self.becomes[new_switch]
        return before is not None and before not in self.transit and not self.hanging[before]

    def _lacking(self, gpus: Iterable[str]) -> frozenset[str]:
        """New switches to put in service so that each of the GPUs has a port: for each GPU the one it shares most."""
        gpus = list(gpus)
        cut_off = [gpu for gpu in gpus if not any(s in self.serving_new for s, _ in self.new_ports[gpu])]
        shared = Counter(switch for gpu in cut_off for switch, _ in self.new_ports[gpu])
        return frozenset(min((s for s, _ in self.new_ports[gpu]), key=lambda s: (-shared[s], s)) for gpu in cut_off)

    def _cheapest(self) -> str:
        need = min(dict.fromkeys(self.need[server] for server in self.servers), key=self._cost)
        return min(need, key=lambda t: (*self._cost({t}), self.pending.index(t)))

    def _cost(self, need: Iterable[str]) -> tuple[int, int]:
        """(GPUs left without a port, GPUs left with a part of their ports) by converting these switches."""
        gone = {before for t in need if (before := self.becomes[t]) is not None}
        serving = self.serving_old - gone
        none = part = 0
        for gpu in {gpu for switch in gone for gpu in self.under.get(switch, ())}:
            if gpu in self.moved or gpu in self.still:
                continue
            left = self._old_share(gpu, serving)
            none += left == 0 and self.share[gpu] > 0
            part += 0 < left < self.share[gpu]
        return none, part

    def _old_share(self, gpu: str, serving: Iterable[str]) -> float:
        ports = self.old_ports[gpu]
        return sum(g for s, g in ports if s in serving) / sum(g for _, g in ports)

    def _refresh(self, gpus: Iterable[str]) -> None:
        for gpu in gpus:
            if gpu in self.still:
                continue
            if gpu in self.down:
                share = 0.0
            elif gpu in self.moved:
                ports = self.new_ports[gpu]
                share = sum(g for s, g in ports if s in self.serving_new) / sum(g for _, g in ports)
            else:
                share = self._old_share(gpu, self.serving_old)
            self.standing[_standing(self.share[gpu])] -= 1
            self.standing[_standing(share)] += 1
            self.share[gpu] = share

    def _counts(self) -> tuple[int, int]:
        return self.standing[0], self.standing[1]

    def _unplug(self, nodes: Iterable[str]) -> tuple[int, set[str]]:
        """Take these nodes off the old fabric: cables taken out, and the ports that go down at both ends.

        A kept cable stays plugged, but its ports go down too: the module is split, or the switch changes its part.
        """
        ports: set[str] = set()
        out = 0
        for node in nodes:
            for link in self.alive_at.get(node, ()):
                if link in self.alive and link not in self.calm:
                    gone = self.alive.pop(link)
                    ports |= {port_name(gone.a), port_name(gone.b)}
                    out += self.old_links.pop(link, None) is not None
        return out, ports

    def _plug(self, nodes: Iterable[str]) -> int:
        """Plug the new cables of these nodes whose other end is there too."""
        present = self.serving_new | self.moved | self.still
        links = {
            link
            for node in nodes
            for link in self.new_at.get(node, ())
            if link in self.new_links and {self.new_links[link].a.node, self.new_links[link].b.node} <= present
        }
        for link in links:
            del self.new_links[link]
        return len(links)

    def _move(self, server: str) -> None:
        gpus = self.servers.pop(server)
        out, ports = self._unplug(gpus)
        self.down = set(gpus)
        self._refresh(gpus)
        during = self._counts()
        self.down = set()
        self.moved.update(gpus)
        for gpu in gpus:
            for switch, _ in self.old_ports[gpu]:
                self.hanging[switch] -= 1
        self._refresh(gpus)
        title = f"drain {server}, move its {len(gpus)} GPUs to the new switches, return it"
        self._step("server", title, (server,), None, None, tuple(sorted(ports)), out, self._plug(gpus), during)

    def _convert(self, new_switch: str) -> None:
        before = self.becomes[new_switch]
        if before is None:  # bought ones serve from the start
            raise RuntimeError(f"{new_switch} is not made of an old switch")
        out, ports = self._unplug([before])
        self.serving_old.discard(before)
        self.pending.remove(new_switch)
        self._refresh(self.under.get(before, ()))
        during = self._counts()
        self.serving_new.add(new_switch)
        self._refresh(self.over.get(new_switch, ()))
        for server in dict.fromkeys(self.new.gpu_by_name[gpu].server for gpu in self.over.get(new_switch, ())):
            if self.need.get(server) and server in self.servers:
                self.need[server] = self._lacking(self.servers[server])
                if not self.need[server]:
                    self.ready.append(server)
        title = f"turn {before} into {new_switch}"
        if before in self.transit and self.servers:
            tier = self.tier[before]
            left = sum(1 for switch in self.serving_old if self.tier[switch] == tier)
            title += f" ({left} of {self.tier_size[tier]} {tier} switches left for the GPUs not yet moved)"
        self._step("switch", title, (), before, new_switch, tuple(sorted(ports)), out, self._plug([new_switch]), during)

    def _step(
        self,
        kind: str,
        title: str,
        servers: tuple[str, ...],
        old_switch: str | None,
        new_switch: str | None,
        ports: tuple[str, ...],
        cables_out: int,
        cables_in: int,
        during: tuple[int, int] | None = None,
    ) -> None:
        after = self._counts()
        none, part = during or after
        self.steps.append(
            Step(
                kind, title, servers, old_switch, new_switch, ports, cables_out, cables_in,
                max(none, after[0]), max(part, after[1]), *after, len(self.moved),
            )
        )  # fmt: skip


def _gpu_switches(fabric: Fabric) -> dict[str, list[tuple[str, float]]]:
    """GPU -> (switch, rate) of each of its ports."""
    found: dict[str, list[tuple[str, float]]] = {}
    for (gpu, number), end in fabric.attachment.items():
        found.setdefault(gpu, []).append((end.node, fabric.port(gpu, number).gbps))
    return found


def _by_node(links: Iterable[Link]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for link in links:
        for node in (link.a.node, link.b.node):
            found.setdefault(node, []).append(link.id)
    return found


def _standing(share: float) -> int:
    """0 without a port, 1 with a part of them, 2 with all."""
    return 0 if share == 0 else 2 if share > 1 - 1e-9 else 1
