"""Offered load against capacity, by stage and NIC, before anything runs: what cannot be served is said, not found out.

All are shares of capacity over the stretch in which the workload's own arrivals come (a closed loop's later turns are
taken at their nominal times):

* prefill: uncached tokens a second / (tokens a second of a full batch x instances), `traffic.compute`;
* decode slots: requests a second x the seconds that each holds a slot on an idle fabric / slots (Little's law);
* decode memory: the same with bytes;
* NIC out, NIC in: KV bytes a second over the senders' or receivers' NICs, each taking an even share, and the busiest of
  them where a shape or a NIC map concentrates the bytes on some.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scenario.models import Scenario
from traffic.compute import compute_model, nominal_service_s
from traffic.kv import model_of
from traffic.layout import Instance, decode_targets, prefill_instances
from traffic.memory import decode_gpus, decode_memory_bytes
from traffic.nic_map import nic_map
from traffic.requests import Request, Source
from traffic.shapes import Flow, carried, handoff

#: From here on a stage counts as one that cannot keep up.
FULL = 1.0
_SOME_BYTES = 1_000_000


@dataclass(frozen=True)
class Offered:
    """Shares of capacity (1: full), and the stretch of model time that they are means over.

    `closed`: arrivals wait for answers, so that no queue grows without end whatever is offered.
    """

    shares: dict[str, float]
    seconds: float
    closed: bool
    cold: str = ""  # what the shares do not know of the prefix cache

    @property
    def too_much(self) -> dict[str, float]:
        """What cannot keep up."""
        return {name: share for name, share in self.shares.items() if share > FULL}

    def sentence(self) -> str:
        """For a person; empty where everything keeps up."""
        if not self.too_much:
            return self.cold
        parts = ", ".join(f"{name} {share:.2f}" for name, share in self.too_much.items())
        then = (
            "It is a closed loop: clients wait for their answers, so that all of it takes longer than planned."
            if self.closed
            else "Queues grow until the run ends; fewer requests a second, or more GPUs, would change that."
        )
        return (
            f"offered load is more than can be served (times capacity, mean over {self.seconds:.0f} model s): {parts}."
            f" {then}{' ' if self.cold else ''}{self.cold}"
        )


#: From this part of the tokens on it matters whether the hits that a workload has are there.
NOTEWORTHY_HITS = 0.2


def offered(scenario: Scenario, source: Source) -> Offered:
    """Work it out from the whole fixed set of requests. Raises `InputError` for a layout that does not fit."""
    requests = source.requests
    if not requests:  # messages without serving: no layout, and no rate of arrivals
        return Offered({}, 0.0, closed=True)
    span_s = _span_s(scenario, source)
    model, serving = model_of(scenario.serving), scenario.serving
    prefills, decodes = prefill_instances(scenario), decode_targets(scenario)
    uncached = sum(request.uncached_tokens for request in requests)
    full_batch_s = compute_model(scenario).prefill_s(serving.prefill_batch_tokens)
    held_s = {r.request_id: nominal_service_s(scenario, r) for r in requests}
    slots = serving.decode_slots_per_gpu * decode_gpus(scenario) * len(decodes)
    memory = decode_memory_bytes(scenario) * len(decodes)
    sent = {
        r.request_id: model.kv_bytes(r.uncached_tokens if serving.transfer_content == "delta" else r.input_tokens)
        for r in requests
    }
    out, into, copies = _nics(scenario)
    bytes_per_s = sum(sent.values()) * copies * (1 - serving.local_handoff_share) / span_s
    nic_bytes_per_s = scenario.fabric.gpu_gbps * 1e9 / 8
    shares = {
        "prefill": uncached / span_s / (serving.prefill_batch_tokens / full_batch_s * len(prefills)),
        "decode slots": sum(held_s.values()) / span_s / slots,
        "decode memory": sum(held_s[r.request_id] * model.kv_bytes(r.total_tokens) for r in requests) / span_s / memory,
        "busiest NIC out": bytes_per_s * max(out.values()) / nic_bytes_per_s,
        "busiest NIC in": bytes_per_s * max(into.values()) / nic_bytes_per_s,
    }
    closed = len(source.initial()) < source.count
    return Offered(shares, span_s, closed, _cold(scenario, uncached, sum(request.input_tokens for request in requests)))


def _cold(scenario: Scenario, uncached: int, tokens: int) -> str:
    """Where caches are modelled they are empty at first, and no hit is sure."""
    kind = scenario.serving.prefix_cache
    if kind == "assumed" or uncached > (1 - NOTEWORTHY_HITS) * tokens:
        return ""
    return (
        f"prefix_cache: {kind} starts with empty caches, so that more is computed than this workload's rate was chosen"
        f" for: up to {tokens / max(1, uncached):.1f} times its uncached tokens."
    )


def _nics(scenario: Scenario) -> tuple[dict[str, float], dict[str, float], float]:
    """Share of all handoff bytes that each NIC sends and receives when placement is even; copies of a prompt's KV."""
    nics, ranks = nic_map(scenario.serving.nic_map, scenario.fabric.gpus_per_server), scenario.fabric.gpus_per_server
    prefills, targets = prefill_instances(scenario), decode_targets(scenario)

    def parts(prefill: Instance, target: Instance) -> Iterator[Flow]:
        for flow in handoff(scenario.serving.shape, prefill.gpus, target.gpus, _SOME_BYTES):
            for nth in range(ranks):
                yield from carried(scenario, nics, flow, nth)

    out: defaultdict[str, float] = defaultdict(float)
    into: defaultdict[str, float] = defaultdict(float)
    for prefill in prefills:
        for part in parts(prefill, _elsewhere(prefill, targets)):
            out[part.src] += part.bytes / len(prefills)
    for target in targets:
        for part in parts(_elsewhere(target, prefills), target):
            into[part.dst] += part.bytes / len(targets)
    one = handoff(scenario.serving.shape, prefills[0].gpus, targets[0].gpus, _SOME_BYTES)
    copies = sum(flow.bytes for flow in one) / _SOME_BYTES
    return _normalised(out), _normalised(into), copies


def _normalised(found: dict[str, float]) -> dict[str, float]:
    total = sum(found.values())
    return {name: value / total for name, value in found.items()}


def _elsewhere(one: Instance, others: Sequence[Instance]) -> Instance:
    """An instance in another server: inside one nothing is on the fabric."""
    return next((other for other in others if other.server != one.server), others[0])


def _span_s(scenario: Scenario, source: Source) -> float:
    """Seconds from the first arrival to the last. A closed loop's later turns come after the nominal service of the
    ones before."""
    first, last = float("inf"), 0.0
    for at_s, request in source.initial():
        first = min(first, at_s)
        turn: tuple[float, Request] | None = at_s, request
        while turn is not None:
            last = max(last, turn[0])
            turn = source.following(turn[1], turn[0] + nominal_service_s(scenario, turn[1]))
    return max(last - first, 1.0)
