"""What a result does not show, with the run's own numbers in it. Printed with every comparison."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.arms import ArmResult
from analysis.fabric_metrics import ASIC_BUFFER_BYTES
from analysis.flows import is_flows
from analysis.formats import data_size, short
from analysis.stats import P99_MIN_COUNT

_TRANSPORTS = {"tcp": "TCP", "udp": "UDP with Swift", "mooncake": "The Mooncake Transfer Engine over TCP"}


def must_know(runs: Sequence[ArmResult]) -> tuple[str, ...]:
    """The four things that a reader must know before any figure."""
    first = runs[0]
    scale, gbps = first.data.scale, first.scenario.fabric.gpu_gbps
    if all(arm.simulated for arm in runs):
        scaled = (
            "The runs are simulated: flows share links by max-min fairness. Queues do not exist in this model, nor do"
            " packets, losses and windows."
        )
        transport = "No transport runs: neither TCP nor RDMA, no loss, no congestion control."
    else:
        kinds = sorted({_TRANSPORTS[arm.scenario.transport.kind] for arm in runs if not arm.simulated})
        verb = "stands" if len(kinds) == 1 else "stand"
        marking = any(arm.scenario.flow_control.ecn != "off" for arm in runs if not arm.simulated)
        marks = "ECN marks for TCP in place of CNPs" if marking else "no ECN marks"
        transport = f"{' and '.join(kinds)} {verb} for RDMA: no PFC, {marks}, no RDMA NIC."
        emulated = short(gbps * scale.rate_factor * 1e3)
        scaled = (
            f"Ports run scaled down: {emulated} Mb/s stands for {gbps:g} Gb/s, and one model second took "
            f"{short(scale.dilation)} s. Times and bytes here are in model units, those of the real system."
        )
    if is_flows(first.data.requests):
        return (
            scaled,
            "There is no service: messages are played as flows. Neither kernels nor software overhead are modelled.",
            "Between the GPUs of one server messages go over NVLink, a timer, unless workload.in_server is fabric.",
            transport,
        )
    return (
        scaled,
        "Prefill and decode are timers: their durations come from a formula, not from a GPU.",
        "There is no model and no client leg: no text is made, and TTFT ends where the decode side would "
        "emit the first token.",
        transport,
    )


def limits(runs: Sequence[ArmResult], few: bool) -> tuple[str, ...]:
    """What the result of these runs does not show. `few`: too few requests for a P99."""
    first = runs[0]
    scale, serving = first.data.scale, first.scenario.serving
    threshold = first.scenario.telemetry.backlog_threshold_frames
    found = [*must_know(runs)]
    if any(not arm.simulated for arm in runs):
        found.append(
            "Rates, times and bytes scale; frames, buffers and TCP's timers do not. Each connection's frames "
            "in flight are capped, since deep queues would let windows decide where backlog sits."
        )
    flows = is_flows(first.data.requests)
    if not flows:
        found.append(
            "TPOT and ITL are the compute model only: nothing here lets the fabric change them."
            if serving.ep_background is None
            else "TPOT and ITL come from the compute model and from rounds of expert traffic, which the fabric can hold"
            " up: all tokens of a round (steps_per_round) come out at its end."
        )
    if all(arm.simulated for arm in runs):
        found.append("Queues do not exist in this model: no backlog, no pauses; a transfer waits only by being slower.")
    else:
        if simulated := [arm.label for arm in runs if arm.simulated]:
            found.append(
                f"Simulated, in a model without queues, packets and losses: {', '.join(simulated)}. Backlog, drops and"
                " fidelity are of the other arms."
            )
        found.append(
            "Backlog is excess backlog (deep buffer), never switch buffer occupancy: one frame stands for "
            f"{data_size(scale.model_bytes_per_frame)} of model bytes, and the threshold of {threshold} frames for "
            f"{threshold * scale.model_bytes_per_frame / ASIC_BUFFER_BYTES:.1f} times the buffer of a 51.2T ASIC "
            f"(about {data_size(ASIC_BUFFER_BYTES)})."
        )
    decides = f"Striping {first.scenario.routing.striping}"
    if not flows:
        decides = f"Shape {serving.shape}, layout {serving.layout} and striping {first.scenario.routing.striping}"
    found.append(f"{decides} can decide the sign of the result: another setting of any of them can turn it round.")
    policies = {arm.scenario.policy for arm in runs}
    if "ecmp_ovs" in policies:
        found.append(
            "Under ecmp_ovs the switches' own hash picks paths: they are observed (first packet of each connection),"
            " and another run of the same seed may have others."
        )
    emulated = [arm for arm in runs if not arm.simulated]
    asked = [(arm.scenario.transport.congestion_control, arm.scenario.flow_control.ecn) for arm in emulated]
    if ("dctcp", "off") in asked:
        found.append("An arm runs dctcp without marks (flow_control.ecn: off): it is much as reno then.")
    if any(arm.scenario.flow_control.ecn != "off" for arm in runs if arm.simulated):
        found.append("A simulated arm asks for ECN marks: the simulation has no queues to mark by, and none were set.")
    sprayed = {arm.scenario.transport.kind for arm in runs if arm.scenario.policy == "spray"}
    if "udp" in sprayed:
        found.append(
            "spray over UDP: each packet takes the next of the planned source ports, in turn and blind to load; the"
            " receiver puts them in order at no cost."
        )
    if "tcp" in sprayed:
        found.append(
            "spray is a model: a connection for each equal path, frames over whichever drains. It balances as adaptive"
            " per-packet routing does, without the reordering that a NIC would have to repair."
        )
    if policies & {"ecmp", "ecmp_ovs"}:
        found.append(
            "One seed of ECMP with persistent queue pairs is one draw of the mapping from flows to links: "
            "another seed gives another mapping. No significance between fabrics is claimed."
        )
    else:
        found.append("One seed is one draw: no significance between arms is claimed.")
    found.append(
        f"Intervals resample the {'messages' if flows else 'sessions'} of this run."
        " They cover neither another seed nor the emulator's own error."
    )
    if few:
        found.append(f"P99 is indicative: with fewer than {P99_MIN_COUNT:,} requests, fewer than ten lie above it.")
    return tuple(found)
