"""KV memory of instances.

A prefill instance of a GQA model splits each prompt's KV over its ranks, so it holds n times a GPU's memory; with MLA
each rank holds a copy of all of it, so it holds no more prompts than one GPU (sgl-project/sglang#5922). A decode target
holds what it receives: the memory of its one GPU, or of all its GPUs where each rank gets a part (shapes A, B, G), or a
copy (C, F).
"""

from __future__ import annotations

from scenario.models import Scenario
from traffic.kv import KvModel
from traffic.layout import DATA_PARALLEL_DECODE, DATA_PARALLEL_PREFILL, ranks_of_instance

BYTES_PER_GB = 1e9
#: Shapes in which every rank of a decode target gets the whole cache.
REPLICATED = ("C", "F")


def prefill_gpus(scenario: Scenario) -> int:
    """GPUs of one prefill instance."""
    return 1 if scenario.serving.shape in DATA_PARALLEL_PREFILL else ranks_of_instance(scenario)


def decode_gpus(scenario: Scenario) -> int:
    """GPUs of one decode target."""
    return 1 if scenario.serving.shape in DATA_PARALLEL_DECODE else ranks_of_instance(scenario)


def prefill_memory_bytes(scenario: Scenario, model: KvModel) -> int:
    """KV memory of one prefill instance, counted in whole-model prompts' bytes."""
    ranks = 1 if model.mla else prefill_gpus(scenario)
    return round(scenario.serving.prefill_kv_gb_per_gpu * BYTES_PER_GB * ranks)


def prefix_cache_tokens(scenario: Scenario, model: KvModel) -> int:
    """Tokens that the prefix cache of one prefill instance holds."""
    ranks = 1 if model.mla else prefill_gpus(scenario)
    return int(scenario.serving.prefix_cache_gb_per_gpu * BYTES_PER_GB * ranks // model.bytes_per_token)


def decode_memory_bytes(scenario: Scenario) -> int:
    """KV memory of one decode target, counted in whole-model prompts' bytes."""
    ranks = 1 if scenario.serving.shape in REPLICATED else decode_gpus(scenario)
    return round(scenario.serving.decode_kv_gb_per_gpu * BYTES_PER_GB * ranks)
