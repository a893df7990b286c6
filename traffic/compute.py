"""The compute model: prefill and decode as times. Nothing is computed here, and no fabric is in it.

Prefill: ``base + uncached tokens / (tokens/s per GPU * TP)``. It is linear in the uncached tokens, so it
leaves out attention over a long cached prefix and is too fast for long-context agents. The defaults of the
scenario (30 ms, 5,000 tokens/s per GPU) sit inside published figures: 52.3k input tokens/s per 8 x H100 node
(https://lmsys.org/blog/2025-05-05-large-scale-ep/), 32.2k computed tokens/s per 8 x H800 node in production
(https://github.com/deepseek-ai/open-infra-index, day 6). Decode: a constant step per output token.
"""

from __future__ import annotations

from scenario.models import Scenario, ServingSection
from traffic.requests import Request


def prefill_tokens_per_s(scenario: Scenario) -> float:
    """Uncached tokens per second of one prefill server (TP = its GPUs)."""
    return scenario.serving.prefill_tokens_per_s_per_gpu * scenario.fabric.gpus_per_server


def prefill_batch_s(scenario: Scenario, uncached_tokens: float, gpus: int | None = None) -> float:
    """Seconds of one prefill batch with this many uncached tokens on an instance of `gpus` GPUs (default: a server)."""
    rate = scenario.serving.prefill_tokens_per_s_per_gpu * (gpus or scenario.fabric.gpus_per_server)
    return scenario.serving.prefill_base_ms / 1e3 + uncached_tokens / rate


def decode_after_first_s(serving: ServingSection, output_tokens: float) -> float:
    """Seconds from the first token to the last one."""
    return (output_tokens - 1) * serving.decode_step_ms / 1e3


def nominal_constant_s(scenario: Scenario) -> float:
    """Seconds of a request's nominal service that do not depend on its token counts."""
    s = scenario.serving
    return (s.gateway_delay_ms + s.prefill_base_ms + s.transfer_overhead_ms + s.decode_first_step_ms) / 1e3


def nominal_service_s(scenario: Scenario, request: Request) -> float:
    """Seconds from arrival to last token on an idle system with an infinitely fast fabric (no queueing, no
    transfer)."""
    return (
        nominal_constant_s(scenario)
        + request.uncached_tokens / prefill_tokens_per_s(scenario)
        + decode_after_first_s(scenario.serving, request.output_tokens)
    )
