"""Scenarios with known causes of late first tokens, drawn from a seed: what a diagnosis is examined with. Pure.

The healthy service: 16 GPUs in servers of two, half prefill, half decode; prompts of some 8,000 tokens with 2.6 GB of
KV over NICs of 100 Gb/s, which are 15 to 20 % loaded; prefill at 40 %. ZCube with trunks, or ROFT that sprays: neither
maps flows onto each other. Zero, one or two causes of random strength are put into it; causes that would hide each
other (see `_APART`) are not drawn together.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scenario.load import check_scenario
from scenario.models import Scenario
from topologies.build import build
from topologies.fabric import End, Fabric, port_name

#: Names of causes, in the order in which a diagnosis tells them.
CAUSES = (
    "gateway delay", "slow prefill", "slow decode", "slow link", "bandwidth short", "one-NIC skew",
    "placement hot spot", "incast", "mapping",
)  # fmt: skip
#: Of each group at most one: they load the same ports, and the stronger would be all there is to see.
_APART = (
    {"bandwidth short", "one-NIC skew", "placement hot spot", "incast", "mapping", "slow link"},
    {"slow decode", "placement hot spot"},  # a target that is full has nothing on its way to it
    {"slow decode", "slow prefill"},  # what waits for prefill does not come to decode
)
_RATE_PER_S = 7.0


@dataclass(frozen=True)
class Case:
    """A scenario and what is wrong in it; `strength` of each cause from 0 (weakest) to 1."""

    number: int
    scenario: Scenario
    causes: tuple[str, ...]
    strength: tuple[float, ...]


def draw(seed: int, count: int, requests: int = 60) -> list[Case]:
    """`count` cases; equal seeds give equal cases."""
    cases = []
    for number in range(count):
        dice = random.Random(f"{seed} case {number}")
        wanted = dice.choices((0, 1, 2), (2, 5, 3))[0]
        causes: list[str] = []
        while len(causes) < wanted:
            causes = sorted(dice.sample(CAUSES, wanted), key=CAUSES.index)
            if any(len(group.intersection(causes)) > 1 for group in _APART):
                causes = []
        strength = tuple(round(dice.random(), 3) for _ in causes)
        data = _healthy(dice, number, seed, requests)
        for cause, how in zip(causes, strength, strict=True):
            _PUT[cause](data, how, dice)
        cases.append(Case(number, check_scenario(data), tuple(causes), strength))
    return cases


def _healthy(dice: random.Random, number: int, seed: int, requests: int) -> dict[str, Any]:
    zcube = dice.random() < 0.5
    fabric = {"gpus": 16, "gpus_per_server": 2, "gpu_gbps": 100.0, "asic_ports": 8}
    return {
        "name": f"case-{number}",
        "seed": seed * 1000 + number,
        "fabric": {**fabric, **({"kind": "zcube", "bundle": "trunk"} if zcube else {"kind": "roft"})},
        "routing": {} if zcube else {"policy": "spray"},
        "serving": {
            "model": "llama-3.1-70b",
            "shape": "A",
            "placement": "jsq",
            "decode_placement": "round_robin",
            "prefill_tokens_per_s_per_gpu": 20_000.0,
            "prefill_base_ms": 10.0,
            "decode_kv_gb_per_gpu": 400.0,
            "decode_slots_per_gpu": 256,
        },
        "workload": {
            "kind": "synthetic",
            "requests": requests,
            "warmup_requests": requests // 10,
            "arrivals": {"kind": "poisson", "rate_per_s": _RATE_PER_S},
            "lengths": {
                "kind": "lognormal", "input_median": 8000, "input_sigma": 0.2, "output_median": 100,
                "output_sigma": 0.3,
            },
        },
    }  # fmt: skip


def _fabric_of(scenario: Scenario) -> Fabric:
    return build(scenario.fabric)


def _between(low: float, high: float, how: float) -> float:
    return low + (high - low) * how


def _gateway(data: dict[str, Any], how: float, dice: random.Random) -> None:
    data["serving"]["gateway_delay_ms"] = _between(150, 1500, how)


def _prefill(data: dict[str, Any], how: float, dice: random.Random) -> None:
    # Of what four instances would need to keep up: from nearly enough to two thirds.
    needed = _RATE_PER_S * 8300 / 8
    data["serving"]["prefill_tokens_per_s_per_gpu"] = needed / _between(0.92, 1.5, how)


def _decode(data: dict[str, Any], how: float, dice: random.Random) -> None:
    # 100 tokens of 20 ms are 2 s in a slot: 3.5 requests a second and GPU pair need 3.5 slots on each of four targets.
    data["serving"]["decode_slots_per_gpu"] = 1
    data["serving"]["decode_step_ms"] = _between(5.5, 10.0, how)


def _slow_link(data: dict[str, Any], how: float, dice: random.Random) -> None:
    fabric = _fabric_of(check_scenario(data))
    half = len(fabric.gpus) // 2
    gpu = fabric.gpus[dice.randrange(half)]
    data["faults"] = {
        "slow": [{"cable": port_name(End(gpu.name, dice.choice(gpu.ports).number)), "share": _between(0.4, 0.1, how)}]
    }


def _bandwidth(data: dict[str, Any], how: float, dice: random.Random) -> None:
    data["fabric"]["gpu_gbps"] = _between(30.0, 18.0, how)


def _one_nic(data: dict[str, Any], how: float, dice: random.Random) -> None:
    data["serving"]["nic_map"] = "first"
    data["fabric"]["gpu_gbps"] = _between(75.0, 45.0, how)


def _hot_spot(data: dict[str, Any], how: float, dice: random.Random) -> None:
    data["serving"]["decode_placement"] = "adversarial"
    data["fabric"]["gpu_gbps"] = _between(75.0, 45.0, how)


def _incast(data: dict[str, Any], how: float, dice: random.Random) -> None:
    senders = round(_between(2, 5, how))
    prefill = [f"gpu{n}" for n in dice.sample(range(1, 9), senders)]
    target = dice.randrange(9, 17)
    data["background"] = [
        {"kind": "flows", "pairs": [f"{name}->gpu{target}" for name in prefill], "size_mb": 1500.0}
    ]


def _mapping(data: dict[str, Any], how: float, dice: random.Random) -> None:
    data["fabric"] = {**data["fabric"], "kind": "roft"}
    data["fabric"].pop("bundle", None)
    data["fabric"]["gpu_gbps"] = 75.0
    data["routing"] = {"policy": "ecmp"}
    # ECMP is a draw: of some seeds that which puts most flows onto one uplink. Weaker ones have fewer to choose from.
    seeds = [dice.randrange(2**31) for _ in range(round(_between(40, 400, how)))]
    data["seed"] = max(seeds, key=lambda seed: _most_on_one_uplink({**data, "seed": seed}))


def _most_on_one_uplink(data: dict[str, Any]) -> float:
    """Sum over leaves of the pairs (of each rank, to the same rank) on the uplink that most of them share."""
    scenario = check_scenario(data)
    fabric = _fabric_of(scenario)
    half, ranks = len(fabric.gpus) // 2, fabric.gpus_per_server
    count: Counter[str] = Counter()
    for src in fabric.gpus[:half]:
        for dst in fabric.gpus[half:]:
            if (src.number - dst.number) % ranks == 0:
                for qp in scenario.paths.queue_pairs(fabric, src.name, dst.name):
                    way = scenario.paths.path(fabric, qp)
                    count.update(port_name(end) for end in way.egress[1:-1])
    return sum(number**2 for number in count.values())


_PUT: dict[str, Callable[[dict[str, Any], float, random.Random], None]] = {
    "gateway delay": _gateway,
    "slow prefill": _prefill,
    "slow decode": _decode,
    "slow link": _slow_link,
    "bandwidth short": _bandwidth,
    "one-NIC skew": _one_nic,
    "placement hot spot": _hot_spot,
    "incast": _incast,
    "mapping": _mapping,
}
