"""Which server does what: servers of the scenario, their split into prefill and decode, and the decode
targets.

An instance is one server, tensor parallel over its GPUs (TP = GPUs per server). GPUs are numbered from 1 and
servers hold contiguous ranges of them, so rank r of server s is GPU ``(s - 1) * TP + r + 1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scenario.errors import InputError
from scenario.models import Scenario


@dataclass(frozen=True)
class Server:
    """One server and its GPUs in rank order; `block` is the zero-based block it stands in."""

    name: str
    gpus: tuple[str, ...]
    block: int


@dataclass(frozen=True)
class DecodeTarget:
    """What a handoff is addressed to: one GPU (shape D) or all ranks of a server (shape A)."""

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
    tp = scenario.fabric.gpus_per_server
    block = scenario.serving.block_servers
    return [
        Server(
            name=f"server{s + 1}",
            gpus=tuple(f"gpu{s * tp + rank + 1}" for rank in range(tp)),
            block=s // block,
        )
        for s in range(scenario.fabric.gpus // tp)
    ]


def roles(scenario: Scenario) -> Roles:
    """Split the servers into prefill and decode servers by `serving.layout`.

    Raises `InputError` where the layout does not divide: an odd number of servers (split), an odd block or a
    number of servers that blocks do not fill (interleaved).
    """
    everyone = servers(scenario)
    count, tp = len(everyone), scenario.fabric.gpus_per_server
    if scenario.serving.layout == "split":
        if count % 2:
            raise InputError(
                "fabric.gpus",
                scenario.fabric.gpus,
                f"{count} servers of {tp} GPUs cannot be split in two halves (prefill, decode)",
                f"Use a multiple of {2 * tp} GPUs, for example {(count + 1) * tp}.",
            )
        return Roles(tuple(everyone[: count // 2]), tuple(everyone[count // 2 :]))
    block = scenario.serving.block_servers
    if block % 2 or count % block:
        fitting = [b for b in range(2, count + 1, 2) if count % b == 0]
        raise InputError(
            "serving.block_servers",
            block,
            f"layout interleaved needs an even block size that divides the {count} servers",
            f"Use one of {fitting}." if fitting else f"Use a multiple of {2 * tp} GPUs (an even number of servers).",
        )
    first_half = [s for i, s in enumerate(everyone) if i % block < block // 2]
    second_half = [s for i, s in enumerate(everyone) if i % block >= block // 2]
    return Roles(tuple(first_half), tuple(second_half))


def decode_targets(scenario: Scenario, prefill: Server | None = None) -> list[DecodeTarget]:
    """Decode targets in number order; with `prefill`, those that `serving.pairing` allows for that server.

    Shape D: every GPU of every decode server (data-parallel attention). Shape A: every decode server. Raises
    `InputError` where same_block leaves a prefill server without a target.
    """
    decode = roles(scenario).decode
    if prefill is not None:
        decode = tuple(_paired(scenario, prefill, decode))
    if scenario.serving.shape == "A":
        return [DecodeTarget(s.name, s.name, s.gpus, s.block) for s in decode]
    return [DecodeTarget(gpu, s.name, (gpu,), s.block) for s in decode for gpu in s.gpus]


def _paired(scenario: Scenario, prefill: Server, decode: Sequence[Server]) -> list[Server]:
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
