"""Which server does what: servers of the scenario, their split into prefill and decode, and the instances on them.

GPUs are numbered from 1 and servers hold contiguous ranges of them, so rank r of server s is GPU
``(s - 1) * n + r + 1`` with n GPUs a server. An instance is what one model replica runs on: the GPUs of a server that
have its role (TP = their number), or, in the data-parallel shapes, each of them alone.

| layout | prefill | decode |
|---|---|---|
| `split` | first half of the servers | second half |
| `interleaved` | first half of each block of servers | second half of each block |
| `per_rail` | first half of the ranks of every server | second half of the ranks |
| `random` | half of the servers, drawn with the seed | the rest |
| `worst` | all other servers | those of one block of R GPUs (R = `fabric.asic_ports`): below one even switch |

`worst` is ZCube's G:1 case: with the first ranks sending (shape D) all senders are below one odd switch, all receivers
below one even switch, and the cables between these two carry everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scenario.errors import InputError
from scenario.models import Scenario
from traffic.rng import uniform

#: Shapes in which each prefill GPU, and each decode GPU, is an instance of its own (data parallel).
DATA_PARALLEL_PREFILL = ("B", "E")
DATA_PARALLEL_DECODE = ("D", "E")


@dataclass(frozen=True)
class Server:
    """GPUs of one server in rank order; `block` is the zero-based block it stands in."""

    name: str
    gpus: tuple[str, ...]
    block: int


@dataclass(frozen=True)
class Instance:
    """What a request is placed on: the GPUs of one role in a server, or one GPU."""

    name: str
    server: str
    gpus: tuple[str, ...]
    block: int


@dataclass(frozen=True)
class Roles:
    """Prefill servers and decode servers, each in number order."""

    prefill: tuple[Server, ...]
    decode: tuple[Server, ...]


def servers(scenario: Scenario) -> list[Server]:
    """All servers, `server1`.., with GPUs `gpu1`.. in contiguous ranges; a last block may be shorter."""
    ranks = scenario.fabric.gpus_per_server
    block = scenario.serving.block_servers
    return [
        Server(
            name=f"server{s + 1}",
            gpus=tuple(f"gpu{s * ranks + rank + 1}" for rank in range(ranks)),
            block=s // block,
        )
        for s in range(scenario.fabric.gpus // ranks)
    ]


def roles(scenario: Scenario) -> Roles:
    """Split the servers into prefill and decode servers by `serving.layout`.

    Raises `InputError` where the layout does not divide.
    """
    everyone = servers(scenario)
    layout = scenario.serving.layout
    if layout == "interleaved":
        return _interleaved(scenario, everyone)
    if layout == "per_rail":
        return _per_rail(scenario, everyone)
    if layout == "worst":
        return _worst(scenario, everyone)
    count, ranks = len(everyone), scenario.fabric.gpus_per_server
    if count % 2:
        raise InputError(
            "fabric.gpus",
            scenario.fabric.gpus,
            f"{count} servers of {ranks} GPUs cannot be split in two halves (prefill, decode)",
            f"Use a multiple of {2 * ranks} GPUs, for example {(count + 1) * ranks}.",
        )
    if layout == "random":
        drawn = sorted(everyone, key=lambda s: uniform(scenario.seed, s.name, purpose="layout"))
        prefill = {server.name for server in drawn[: count // 2]}
        return Roles(
            tuple(server for server in everyone if server.name in prefill),
            tuple(server for server in everyone if server.name not in prefill),
        )
    return Roles(tuple(everyone[: count // 2]), tuple(everyone[count // 2 :]))


def _interleaved(scenario: Scenario, everyone: Sequence[Server]) -> Roles:
    count, ranks, block = len(everyone), scenario.fabric.gpus_per_server, scenario.serving.block_servers
    if block % 2 or count % block:
        fitting = [b for b in range(2, count + 1, 2) if count % b == 0]
        raise InputError(
            "serving.block_servers",
            block,
            f"layout interleaved needs an even block size that divides the {count} servers",
            f"Use one of {fitting}." if fitting else f"Use a multiple of {2 * ranks} GPUs (an even number of servers).",
        )
    first_half = [s for i, s in enumerate(everyone) if i % block < block // 2]
    second_half = [s for i, s in enumerate(everyone) if i % block >= block // 2]
    return Roles(tuple(first_half), tuple(second_half))


def _half_of_ranks(scenario: Scenario) -> int:
    ranks = scenario.fabric.gpus_per_server
    if ranks % 2:
        raise InputError(
            "serving.layout", "per_rail", f"a server of {ranks} GPU has no two halves", "gpus_per_server: 2 or more"
        )
    return ranks // 2


def _per_rail(scenario: Scenario, everyone: Sequence[Server]) -> Roles:
    half = _half_of_ranks(scenario)
    return Roles(
        tuple(Server(f"{s.name}p", s.gpus[:half], s.block) for s in everyone),
        tuple(Server(f"{s.name}d", s.gpus[half:], s.block) for s in everyone),
    )


def _worst(scenario: Scenario, everyone: Sequence[Server]) -> Roles:
    ranks, ports = scenario.fabric.gpus_per_server, scenario.fabric.asic_ports
    decode = -(-min(ports, scenario.fabric.gpus) // ranks)
    if decode >= len(everyone):
        raise InputError(
            "serving.layout", "worst",
            f"the {decode} servers of one block of {ports} GPUs leave none of the {len(everyone)} for prefill",
            "more fabric.gpus, or fewer fabric.asic_ports",
        )  # fmt: skip
    return Roles(tuple(everyone[decode:]), tuple(everyone[:decode]))


def ranks_of_instance(scenario: Scenario) -> int:
    """TP: GPUs of one role in a server. Raises InputError where a server has no two halves (`per_rail`)."""
    return _half_of_ranks(scenario) if scenario.serving.layout == "per_rail" else scenario.fabric.gpus_per_server


def prefill_instances(scenario: Scenario) -> list[Instance]:
    """Prefill instances in number order: servers, or GPUs in the shapes with data-parallel prefill."""
    return _instances(roles(scenario).prefill, scenario.serving.shape in DATA_PARALLEL_PREFILL)


def decode_targets(scenario: Scenario, prefill: Instance | None = None) -> list[Instance]:
    """Decode targets in number order; with `prefill`, those that `serving.pairing` allows for that instance.

    Shapes D and E: every GPU of every decode server (data-parallel attention); else every decode server. Raises
    `InputError` where same_block leaves a prefill instance without a target.
    """
    decode = roles(scenario).decode
    if prefill is not None:
        decode = tuple(_paired(scenario, prefill, decode))
    return _instances(decode, scenario.serving.shape in DATA_PARALLEL_DECODE)


def _instances(found: Sequence[Server], single: bool) -> list[Instance]:
    if single:
        return [Instance(gpu, s.name, (gpu,), s.block) for s in found for gpu in s.gpus]
    return [Instance(s.name, s.name, s.gpus, s.block) for s in found]


def _paired(scenario: Scenario, prefill: Instance, decode: Sequence[Server]) -> list[Server]:
    if scenario.serving.pairing == "any":
        return list(decode)
    same = [s for s in decode if s.block == prefill.block]
    if not same:
        raise InputError(
            "serving.pairing",
            scenario.serving.pairing,
            f"{prefill.name} has no decode server in its block of {scenario.serving.block_servers} servers",
            "Use serving.layout: interleaved (each block holds both roles), or serving.pairing: any.",
        )
    return same
