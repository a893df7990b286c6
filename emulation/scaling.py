"""One scale for all arms of a comparison, chosen for the most demanding of them from the machine's packet budget."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scenario.errors import InputError
from scenario.load import with_changes
from scenario.models import Scenario
from scenario.scale import Scale, choose_scale
from topologies.build import build
from traffic.budget import demand
from traffic.sources import make_source

#: Emulated rate of a full NIC that is not exceeded even where the budget would allow it: at 32 Mb/s a frame of
#: 9,000 B lasts 2.25 ms, which a scheduler and a sampler on two cores still resolve.
MAX_NIC_MBPS = 32.0
#: Kinds that have no emulation yet, and why.
NOT_EMULATED = {
    "rail_only": "a handoff to another rank crosses NVLink inside a server, which is not emulated",
    "zcube_recursive": "a GPU host chooses its port by the destination's range, which holds two ports",
}
#: Largest d that a scenario may have.
MAX_DILATION = 1000.0
#: A budget of the usual size, to find out what does not fit before the machine is looked at.
TYPICAL_BUDGET_HOPS_PER_S = 12_000.0


def require_emulated(scenario: Scenario) -> None:
    """Raise InputError for a kind of fabric that has no emulation."""
    kind = scenario.fabric.kind
    if kind in NOT_EMULATED:
        raise InputError(
            "fabric.kind", kind, f"is not emulated: {NOT_EMULATED[kind]}",
            "`zcube fabric`, `zcube cost` and `zcube cabling` cover it",
        )  # fmt: skip


def resolve(arms: Mapping[str, Scenario], budget_hops_per_s: float) -> dict[str, Scenario]:
    """The same scenarios with `scale` filled in; what a scenario sets itself stays. Raises InputError."""
    for arm in arms.values():
        require_emulated(arm)
    asks = {label: demand(arm, build(arm.fabric), make_source(arm)) for label, arm in arms.items()}
    one = next(iter(arms.values()))
    chosen = choose_scale(
        budget_hops_per_s=budget_hops_per_s,
        senders_gbps=max(ask.senders_gbps for ask in asks.values()),
        hops=max(ask.hops for ask in asks.values()),
        frame_bytes=one.scale.frame_bytes,
        median_handoff_bytes=min(ask.median_transfer_bytes for ask in asks.values()),
        queue_pairs=max(ask.queue_pairs_per_transfer for ask in asks.values()),
        resolution_frames=one.scale.resolution_frames,
        max_port_mbps=MAX_NIC_MBPS,
        max_gpu_gbps=one.fabric.gpu_gbps,
    )
    rate_factor = one.scale.rate_factor or chosen.rate_factor
    dilation = one.scale.dilation or math.ceil(chosen.byte_factor / rate_factor * 100) / 100
    if dilation > MAX_DILATION:
        raise InputError(
            "scale.dilation", dilation, f"one model second would take more than {MAX_DILATION:g} s",
            "handoffs are too small for this machine: a larger model or longer prompts, or a smaller resolution_frames",
        )  # fmt: skip
    scale = Scale(rate_factor, dilation, one.scale.frame_bytes)
    for label, ask in asks.items():
        if (frames := ask.resolution_frames(scale)) < (least := one.fidelity.resolution_frames_min):
            raise InputError(
                "scale", f"a = {rate_factor:g}, d = {dilation:g}",
                f"{label} would have {frames:.1f} frames per connection of the median handoff, and"
                f" {least} are the least (fidelity.resolution_frames_min)",
                "raise scale.dilation, or leave rate_factor and dilation out",
            )  # fmt: skip
    settings = {"rate_factor": scale.rate_factor, "dilation": scale.dilation}
    return {label: with_changes(arm, {"scale": settings}) for label, arm in arms.items()}
