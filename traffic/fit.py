"""Does every request fit at all? Asked once, before anything runs."""

from __future__ import annotations

from scenario.errors import InputError
from scenario.models import Scenario
from traffic.kv import KvModel
from traffic.memory import decode_memory_bytes, prefill_memory_bytes
from traffic.requests import Source


def check_requests_fit(scenario: Scenario, model: KvModel, source: Source) -> None:
    """Raise `InputError` where a request exceeds the model's context, or alone exceeds a KV memory."""
    longest = max(source.requests, key=lambda r: r.input_tokens)
    if longest.input_tokens > model.max_context_tokens:
        raise InputError(
            "serving.model",
            model.name,
            f"request {longest.request_id} has {longest.input_tokens:,} input tokens; the context of this"
            f" model is {model.max_context_tokens:,}",
            "Choose a model with a longer context, or a workload with shorter prompts.",
        )
    serving = scenario.serving
    need = model.kv_bytes(longest.input_tokens)
    have = prefill_memory_bytes(scenario, model)
    if need > have:
        raise InputError(
            "serving.prefill_kv_gb_per_gpu",
            serving.prefill_kv_gb_per_gpu,
            f"a prefill server then holds {have / 1e9:.2f} GB, and the prompt of request {longest.request_id}"
            f" ({longest.input_tokens:,} tokens of {model.name}) needs {need / 1e9:.2f} GB",
            "Raise it, or lower workload.max_input_tokens.",
        )
    largest = max(source.requests, key=lambda r: r.total_tokens)
    need, have = model.kv_bytes(largest.total_tokens), decode_memory_bytes(scenario)
    if need > have:
        raise InputError(
            "serving.decode_kv_gb_per_gpu",
            serving.decode_kv_gb_per_gpu,
            f"a decode target then holds {have / 1e9:.2f} GB, and request {largest.request_id}"
            f" ({largest.total_tokens:,} tokens of {model.name}, output included) needs {need / 1e9:.2f} GB",
            "Raise it, or lower workload.max_input_tokens.",
        )
