"""The gateway: picks a prefill instance and a decode target for each request, and keeps what it must know for that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from scenario.models import Scenario
from traffic.decode import Decode
from traffic.nic_map import nic_map
from traffic.path_load import PathLoad
from traffic.placement import Asked, Choice, Load, Placer
from traffic.prefill import Prefill
from traffic.records import Live, Objective
from traffic.requests import Request
from traffic.rng import uniform
from traffic.shapes import carried, handoff

#: Policies that look at the load of paths.
PATH_AWARE = ("topology_aware", "adversarial")


class Gateway:
    """Prefill and decode are chosen together, as SGLang's router does (one bootstrap room for both sides;
    docs/advanced_features/router.md and pd_disaggregation.md of https://github.com/sgl-project/sglang)."""

    def __init__(self, scenario: Scenario, prefills: Mapping[str, Prefill], decodes: Mapping[str, Decode]) -> None:
        serving = scenario.serving
        self._shape, self._prefills, self._decodes = serving.shape, prefills, decodes
        self._names = tuple(prefills)
        policies = serving.placement, serving.decode_placement or serving.placement
        slots = next(iter(decodes.values())).free_slots
        # Its adversary is of the fabric: all of it on one prefill instance would bound that queue, not the paths.
        first = "round_robin" if policies[0] == "adversarial" else policies[0]
        self._prefill_placer = Placer(first, "prefill", scenario.seed)
        self._scenario, self._nics = scenario, nic_map(serving.nic_map, scenario.fabric.gpus_per_server)
        self._decode_placer = Placer(
            policies[1], "decode", scenario.seed, drift=True, topology_weight=serving.topology_weight, capacity=slots
        )
        self.path_load = PathLoad(scenario) if set(policies) & set(PATH_AWARE) else None
        self._load = {role: (defaultdict[str, int](int), defaultdict[str, int](int)) for role in ("prefill", "decode")}
        self._prefill_load, self._decode_load = self._load["prefill"], self._load["decode"]
        self._loads = {role: Load(*found) for role, found in self._load.items()}
        self._last: dict[int, tuple[str, str]] = {}

    def place(self, live: Live) -> None:
        """Choose; the request counts as outstanding at both from now on."""
        request = live.request
        last = self._last.get(request.session_id, (None, None))
        if self._prefill_placer.by_turns:
            live.prefill = self._prefill_placer.turn(self._names)
        else:
            live.prefill = self._prefill(request, last[0])
        prefill = live.at_prefill = self._prefills[live.prefill.name]
        if self._decode_placer.by_turns:
            live.decode = self._decode_placer.turn(prefill.target_names)
        else:
            live.decode = self._decode(request, last[1], prefill)
        name = live.decode.name
        live.at_decode = self._decodes[name]
        live.source, live.target = prefill.instance, prefill.targets[name]
        self._last[request.session_id] = live.prefill.name, name

    def _prefill(self, request: Request, last: str | None) -> Choice:
        def uncached(name: str) -> float:
            return float(request.input_tokens - self._prefills[name].cache.match(request))

        recorded = _instance(self._prefills, request.prefill_gpu)
        asked = Asked(request.request_id, last, recorded, uncached)
        return self._prefill_placer.choose(self._names, self._loads["prefill"], asked)

    def _decode(self, request: Request, last: str | None, prefill: Prefill) -> Choice:
        def path_s(name: str) -> float:
            if self.path_load is None:
                return 0.0
            flows = handoff(self._shape, prefill.instance.gpus, self._decodes[name].target.gpus, 0)
            number = request.request_id
            carrying = (part for flow in flows for part in carried(self._scenario, self._nics, flow, number))
            return max(self.path_load.seconds_ahead(part.src, part.dst) for part in carrying)

        def lacking(name: str) -> float:
            return float(request.input_tokens - self._decodes[name].cache.match(request))

        recorded = _instance(self._decodes, request.decode_gpu)
        asked = Asked(request.request_id, last, recorded, lacking, path_s)
        return self._decode_placer.choose(prefill.target_names, self._loads["decode"], asked)

    def count_prefill(self, name: str, requests: int, tokens: int) -> None:
        """Count work in (or, negative, out) at a prefill instance."""
        counts, sums = self._prefill_load
        counts[name] += requests
        sums[name] += tokens

    def count_decode(self, name: str, requests: int, tokens: int) -> None:
        """The same at a decode target."""
        counts, sums = self._decode_load
        counts[name] += requests
        sums[name] += tokens


def _instance(found: Mapping[str, Prefill] | Mapping[str, Decode], gpu: str | None) -> str | None:
    """The instance that has a GPU: the GPU's name itself where instances are single GPUs."""
    if gpu is None or gpu in found:
        return gpu
    for name, one in found.items():
        instance = one.instance if isinstance(one, Prefill) else one.target
        if gpu in instance.gpus:
            return name
    return gpu


def objective(scenario: Scenario, request: Request) -> Objective:
    """The tenant that the workload names, or else one drawn by share for the whole session; and its objectives."""
    tenants = scenario.serving.tenants
    if not tenants:
        return Objective(request.tenant, scenario.serving.slo_ttft_ms, scenario.serving.slo_tpot_ms)
    found = next((tenant for tenant in tenants if tenant.name == request.tenant), None)
    if found is None:
        at = uniform(scenario.seed, request.session_id, purpose="tenant") * sum(t.share for t in tenants)
        for tenant in tenants:
            found = tenant
            at -= tenant.share
            if at < 0:
                break
    assert found is not None
    return Objective(found.name, found.slo_ttft_ms, found.slo_tpot_ms)
