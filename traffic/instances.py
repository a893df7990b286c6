"""The instances of a scenario, empty: prefill servers and decode targets with their memory, slots and caches."""

from __future__ import annotations

from scenario.models import Scenario
from traffic.compute import compute_model
from traffic.decode import Decode
from traffic.kv import KvModel
from traffic.layout import Instance, decode_targets, prefill_instances
from traffic.memory import decode_gpus, decode_memory_bytes, prefill_memory_bytes, prefix_cache_tokens
from traffic.prefill import Prefill
from traffic.prefix_cache import PrefixCache


def build_prefills(scenario: Scenario, model: KvModel) -> dict[str, Prefill]:
    """Name -> prefill instance, in number order. Raises `InputError` where the layout does not fit."""
    found = {}
    # At thousands of instances a list of targets for each would be most of the memory: a block has one, or all have.
    by_block: dict[object, tuple[dict[str, Instance], tuple[str, ...]]] = {}
    for instance in prefill_instances(scenario):
        block = None if scenario.serving.pairing == "any" else instance.block
        if block not in by_block:
            some = {target.name: target for target in decode_targets(scenario, instance)}
            by_block[block] = some, tuple(some)
        targets, names = by_block[block]
        found[instance.name] = Prefill(
            instance,
            targets,
            names,
            prefill_memory_bytes(scenario, model),
            scenario.serving.prefill_batch_tokens,
            PrefixCache(prefix_cache_tokens(scenario, model)),
            scenario.serving.chunked_prefill,
        )
    return found


def build_decodes(scenario: Scenario, model: KvModel) -> dict[str, Decode]:
    """Name -> decode target, in number order. Raises `InputError` where the layout does not fit."""
    serving, memory = scenario.serving, decode_memory_bytes(scenario)
    step_s = compute_model(scenario).decode_step_s
    return {
        target.name: Decode(
            target,
            serving.decode_slots_per_gpu * decode_gpus(scenario),
            memory,
            step_s,
            PrefixCache(memory // model.bytes_per_token),
            serving.max_inbound,
        )
        for target in decode_targets(scenario)
    }
