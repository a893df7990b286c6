"""The compute model: prefill and decode as times. Nothing is computed here, and no fabric is in it.

`formula`, the default: prefill ``base + uncached tokens / (tokens/s per GPU * TP)``. It is linear in the uncached
tokens, so it leaves out attention over a long cached prefix and is too fast for long-context agents. The defaults of
the scenario (30 ms, 5,000 tokens/s per GPU) sit inside published figures: 52.3k input tokens/s per 8 x H100 node
(https://lmsys.org/blog/2025-05-05-large-scale-ep/), 32.2k computed tokens/s per 8 x H800 node in production
(https://github.com/deepseek-ai/open-infra-index, day 6). Decode: a constant step per output token.

`splitwise`, `distserve`, `csv`: measured ones (traffic/compute_sources.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scenario.errors import InputError
from scenario.models import Scenario, ServingSection
from traffic.compute_curves import ConstantStep, DecodeCurve, Linear, PrefillCurve
from traffic.compute_sources import distserve, splitwise, user_csv
from traffic.memory import prefill_gpus
from traffic.requests import Request


@dataclass(frozen=True)
class ComputeModel:
    """How long prefill and decode take. `range_note` says what was measured, and what happens beyond;
    `prefill_tokens` are the smallest and the largest prefill batch that was measured (None: a formula)."""

    name: str
    prefill: PrefillCurve
    decode: DecodeCurve
    range_note: str
    prefill_tokens: tuple[float, float] | None = None

    def prefill_s(self, uncached_tokens: float) -> float:
        """Seconds of one prefill batch with this many uncached tokens."""
        return self.prefill(uncached_tokens)

    def decode_step_s(self, batch_size: int, context_tokens: float) -> float:
        """Seconds of one decode step of `batch_size` requests whose mean context is `context_tokens`."""
        return self.decode(batch_size, context_tokens)


def compute_model(scenario: Scenario) -> ComputeModel:
    """The compute model that the scenario asks for, of one instance (TP = its GPUs); a file is read once in the life of
    the process.

    Raises `InputError` for a file or key that does not fit, and for settings that are missing or have no use.
    """
    return _compute_model(scenario.serving, prefill_gpus(scenario))


@lru_cache(maxsize=64)
def _compute_model(serving: ServingSection, gpus: int) -> ComputeModel:
    kind, path, key = serving.compute, serving.compute_csv, serving.compute_key
    _check_use("compute_csv", path, kind, ("splitwise", "csv"))
    _check_use("compute_key", key, kind, ("splitwise", "distserve"))
    constant = ConstantStep(serving.decode_step_ms / 1e3)
    tensor_parallel = (key.tensor_parallel if key else None) or gpus
    if path is not None:
        measured = splitwise(path, key, tensor_parallel) if key else user_csv(path)
    elif key is not None:
        measured = distserve(key, tensor_parallel)
    else:
        rate = serving.prefill_tokens_per_s_per_gpu * gpus
        note = "a formula: holds as far as its constants do"
        return ComputeModel(kind, Linear(serving.prefill_base_ms / 1e3, rate), constant, note)
    if measured.decode is None:
        note = f"{measured.range_note}; decode: serving.decode_step_ms"
        return ComputeModel(kind, measured.prefill, constant, note, measured.prefill_tokens)
    return ComputeModel(kind, measured.prefill, measured.decode, measured.range_note, measured.prefill_tokens)


def _check_use(name: str, value: object, kind: str, users: tuple[str, ...]) -> None:
    """A setting is there for the compute models that use it, and for no other. Raises InputError."""
    if (value is not None) != (kind in users):
        wrong = "is needed by" if value is None else "has no use with"
        shown = None if value is None else str(value)
        hint = "docs/kv.md has an example of each compute model."
        raise InputError(f"serving.{name}", shown, f"{wrong} serving.compute = {kind}", hint)


def prefill_batch_s(scenario: Scenario, uncached_tokens: float) -> float:
    """Seconds of one prefill batch with this many uncached tokens."""
    return compute_model(scenario).prefill_s(uncached_tokens)


def decode_after_first_s(scenario: Scenario, input_tokens: float, output_tokens: float) -> float:
    """Seconds from the first token to the last one of a request that decodes alone, at its mean context."""
    step_s = compute_model(scenario).decode_step_s(1, input_tokens + output_tokens / 2)
    return (output_tokens - 1) * step_s


def nominal_constant_s(scenario: Scenario) -> float:
    """Seconds of a request's nominal service that do not depend on its token counts, prefill aside."""
    s = scenario.serving
    return (s.gateway_delay_ms + s.transfer_overhead_ms + s.decode_first_step_ms) / 1e3


def nominal_service_s(scenario: Scenario, request: Request) -> float:
    """Seconds from arrival to last token on an idle system with an infinitely fast fabric (no queueing, no
    transfer)."""
    return (
        nominal_constant_s(scenario)
        + prefill_batch_s(scenario, request.uncached_tokens)
        + decode_after_first_s(scenario, request.input_tokens, request.output_tokens)
    )
