"""The scenario's serving system."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from scenario.compute_section import ComputeKey, KvShape
from scenario.section import Section


class ServingSection(Section):
    """The serving system: prefill and decode are timers (a compute model); their handoffs are real traffic."""

    model: str = Field("glm-5.1-fp8", description="KV preset, see `zcube kv --list`, or the path of a config.json")
    shape: Literal["A", "D"] = Field(
        "D", description="A: rank i sends 1/TP to rank i (GQA); D: rank 0 sends all to one decode GPU (MLA)"
    )
    layout: Literal["split", "interleaved"] = Field(
        "split", description="split: first half of the servers prefill; interleaved: each block half and half"
    )
    block_servers: int = Field(4, ge=1, description="servers in a block (for interleaved and same_block)")
    pairing: Literal["any", "same_block"] = Field("any", description="which decode targets a prefill server may use")
    placement: Literal["round_robin", "least_loaded"] = Field(
        "round_robin", description="how the gateway picks the prefill server and the decode target"
    )
    transfer_mode: Literal["whole"] = Field("whole", description="whole: the prompt's KV is sent when prefill ends")
    prefix_cache: Literal["assumed"] = Field(
        "assumed", description="assumed: hits are drawn per request from a global store without fabric traffic"
    )
    prefill_base_ms: float = Field(30.0, ge=0, le=1e6, description="fixed time of a prefill batch")
    prefill_tokens_per_s_per_gpu: float = Field(5000.0, ge=1, le=1e9, description="uncached tokens/s of a prefill GPU")
    prefill_batch_tokens: int = Field(8192, ge=1, description="uncached tokens that one prefill batch may hold")
    prefill_kv_gb_per_gpu: float = Field(100.0, ge=0.001, le=1e6, description="KV memory, held until the handoff ends")
    decode_kv_gb_per_gpu: float = Field(160.0, ge=0.001, le=1e6, description="KV memory of a decode GPU")
    decode_slots_per_gpu: int = Field(64, ge=1, description="requests that a decode GPU serves at once")
    decode_step_ms: float = Field(20.0, gt=0, le=1e6, description="time per output token (compute model only)")
    decode_first_step_ms: float = Field(0.0, ge=0, le=1e6, description="0 where prefill makes the first token")
    kv_dtype: Literal["auto", "bf16", "fp8", "int8"] = Field(
        "auto", description="type of KV elements; auto: the preset's own, bf16 for a config.json"
    )
    kv: KvShape | None = Field(None, description="KV cache in numbers, instead of serving.model")
    compute: Literal["formula", "splitwise", "distserve", "csv"] = Field(
        "formula", description="compute model (docs/kv.md); formula: prefill_base_ms, prefill_tokens_per_s_per_gpu, ..."
    )
    compute_csv: Path | None = Field(None, description="splitwise: its perf_model.csv; csv: your measurements")
    compute_key: ComputeKey | None = Field(None, description="splitwise, distserve: which of their measurements")
    gateway_delay_ms: float = Field(0.0, ge=0, le=1e6, description="from arrival to the prefill queue")
    transfer_overhead_ms: float = Field(0.0, ge=0, le=1e6, description="software constant added before each handoff")
    timeout_s: float = Field(120.0, ge=0.001, le=1e6, description="a request without first token by then has failed")
