"""The transfers of handoffs: from bytes that are ready to flows on NICs, and what comes of each."""

from __future__ import annotations

from collections.abc import Iterable

from scenario.models import Scenario
from traffic.actions import CancelTransfer, StartTransfer, TimerKind
from traffic.nic_map import nic_map
from traffic.outbox import Outbox
from traffic.path_load import PathLoad
from traffic.records import Live, Step
from traffic.shapes import Flow, carried, handoff, servers

#: Transfer ids are request_id * this + a number that counts per request: the same on every fabric and executor.
IDS_PER_REQUEST = 1 << 20

#: Shapes in which every flow carries all bytes.
UNDIVIDED = ("C", "D", "E", "F")


class Handoffs:
    """All open transfers. `load` is kept up to date where a placement policy asks for it."""

    def __init__(self, scenario: Scenario, out: Outbox, load: PathLoad | None) -> None:
        self._scenario, self._out, self._load = scenario, out, load
        self._nics = nic_map(scenario.serving.nic_map, scenario.fabric.gpus_per_server)
        self._shape = scenario.serving.shape
        self._own_nics = self._nics.kind == "own"
        self._server = {gpu: server.name for server in servers(scenario) for gpu in server.gpus}
        self._pairs: dict[tuple[str, str], list[tuple[str, str]]] = {}  # names of instances -> GPUs that send
        self._owners: dict[int, Live] = {}
        self._by_nvlink: set[int] = set()  # numbers of transfers that do not cross the fabric

    def flows(self, live: Live, size: int) -> list[Flow]:
        """The flows of `size` bytes of one copy of a request's KV, as NICs carry them."""
        assert live.source is not None and live.target is not None
        if self._own_nics and self._shape in UNDIVIDED:
            key = live.source.name, live.target.name
            pairs = self._pairs.get(key)
            if pairs is None:
                found = handoff(self._shape, live.source.gpus, live.target.gpus, size)
                pairs = self._pairs[key] = [(flow.src, flow.dst) for flow in found]
            return [Flow(src, dst, size) for src, dst in pairs]
        return self.by_nic(live, handoff(self._shape, live.source.gpus, live.target.gpus, size))

    def by_nic(self, live: Live, flows: Iterable[Flow]) -> list[Flow]:
        """Flows between GPUs as NICs carry them."""
        if self._own_nics:
            return list(flows)
        number = live.request.request_id
        return [part for flow in flows for part in carried(self._scenario, self._nics, flow, number)]

    def send(self, live: Live, flows: list[Flow], t_s: float, kind: str = "kv") -> None:
        """Start them at once."""
        request_id = live.request.request_id
        for flow in flows:
            number = request_id * IDS_PER_REQUEST + live.transfers
            live.transfers += 1
            live.open_transfers[number] = flow
            self._owners[number] = live
            live.bytes_sent += flow.bytes
            if self._server[flow.src] == self._server[flow.dst] or (live.local and kind == "kv"):
                self._by_nvlink.add(number)
                seconds = flow.bytes * 8 / (self._scenario.serving.nvlink_gbps * 1e9)
                self._out.timer(t_s + seconds, TimerKind.LOCAL_DONE, number)
                continue
            self._out.add(StartTransfer(number, request_id, *flow, live.attempt, kind, live.pieces))
            if self._load is not None:
                self._load.add(flow.src, flow.dst, flow.bytes)
        live.pieces += 1

    def owner(self, transfer_id: int) -> Live:
        """Whose it is, open or not. Raises ValueError for one that was never started."""
        if transfer_id not in self._owners:
            raise ValueError(f"no such transfer: {transfer_id}")
        return self._owners[transfer_id]

    def arrived(self, transfer_id: int, t_s: float) -> Live | None:
        """A last byte is there. The request, or None when the transfer was cancelled. Raises ValueError."""
        live = self.owner(transfer_id)
        flow = live.open_transfers.pop(transfer_id, None)
        if flow is None:
            return None
        self._unload(transfer_id, flow)
        if live.step is Step.FETCH:
            live.read_bytes += flow.bytes
        else:
            live.kept_bytes += flow.bytes
        if t_s > live.last_byte_s:
            live.last_byte_s = t_s
        return live

    def cancel(self, live: Live) -> list[Flow]:
        """Stop what is on its way. All of it counts as wasted, since nobody knows how far it got; returned as flows."""
        flows = []
        for number, flow in sorted(live.open_transfers.items()):
            if number not in self._by_nvlink:  # of these a driver knows nothing
                self._out.add(CancelTransfer(number))
            self._unload(number, flow)
            live.bytes_wasted += flow.bytes
            flows.append(flow)
        live.open_transfers.clear()
        return flows

    def _unload(self, number: int, flow: Flow) -> None:
        if self._load is not None and number not in self._by_nvlink:
            self._load.add(flow.src, flow.dst, -flow.bytes)
