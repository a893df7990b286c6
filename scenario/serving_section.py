"""The scenario's serving system: prefill and decode are timers (a compute model); their handoffs are real traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from scenario.compute_section import ComputeKey, KvShape
from scenario.section import Section

PlacementName = Literal[
    "random",
    "round_robin",
    "jsq",
    "token_jsq",
    "least_loaded",
    "power_of_two",
    "cache_aware",
    "session_affinity",
    "topology_aware",
    "adversarial",
    "recorded",
]


class Tenant(Section):
    """A customer of the service, and what it was promised."""

    name: str = Field(min_length=1, max_length=64, description="as in a workload that names tenants")
    share: float = Field(1.0, gt=0, le=1e6, description="weight among tenants where the workload names none")
    slo_ttft_ms: float | None = Field(None, gt=0, le=1e9, description="promised time to first token")
    slo_tpot_ms: float | None = Field(None, gt=0, le=1e9, description="promised time per output token")


class ExpertParallel(Section):
    """Expert-parallel dispatch and combine of decode on the same NICs as the handoffs."""

    mb_per_token: float = Field(
        10.0, gt=0, le=1e6, description="dispatched and combined for a token in one step, all MoE layers (DeepSeek-V3)"
    )
    group_gpus: int = Field(8, ge=2, le=1024, description="decode GPUs that exchange tokens, in number order")
    steps_per_round: int = Field(
        50, ge=1, le=10_000, description="decode steps whose traffic is sent together: fewer are more exact, and slower"
    )


class ServingSection(Section):
    """The serving system: prefill and decode are timers (a compute model); their handoffs are real traffic."""

    model: str = Field("glm-5.1-fp8", description="KV preset, see `zcube kv --list`, or the path of a config.json")
    shape: Literal["A", "B", "C", "D", "E", "F", "G"] = Field(
        "D",
        description="who sends what of a handoff (docs/serving.md); A: rank i sends 1/TP to rank i (GQA);"
        " D: rank 0 sends all to one decode GPU (MLA)",
    )
    layout: Literal["split", "interleaved", "per_rail", "random", "worst"] = Field(
        "split",
        description="split: first half of the servers prefill; interleaved: each block half and half; per_rail: first"
        " half of each server's ranks prefill; random: half the servers, drawn; worst: decode in one block of R GPUs",
    )
    block_servers: int = Field(4, ge=1, description="servers in a block (for interleaved and same_block)")
    pairing: Literal["any", "same_block"] = Field("any", description="which decode targets a prefill server may use")
    placement: PlacementName = Field(
        "round_robin", description="how the gateway picks the prefill instance, and the decode target too"
    )
    decode_placement: PlacementName | None = Field(None, description="how it picks the decode target, where otherwise")
    topology_weight: float = Field(
        1.0, ge=0, le=1e6, description="topology_aware: seconds of bytes ahead on the path against a full decode target"
    )
    transfer_mode: Literal["whole", "chunked", "layerwise"] = Field(
        "whole",
        description="whole: sent when prefill ends; chunked: after each prefill chunk; layerwise: as layers are done",
    )
    layer_groups: int = Field(8, ge=1, le=256, description="layerwise: parts in which a batch's layers are sent")
    transfer_content: Literal["whole", "delta"] = Field(
        "whole", description="whole: the prompt's KV, cached or not; delta: only what the decode target lacks"
    )
    local_handoff_share: float = Field(
        0.0, ge=0, le=1, description="share of handoffs that stay inside a server, over NVLink: not on the fabric"
    )
    nvlink_gbps: float = Field(3600.0, gt=0, le=1e6, description="rate of a GPU inside its server")
    nic_map: str = Field(
        "own",
        max_length=2000,
        description="own, first, round_robin, stripe:Q, or local=peer,peer;... as in Mooncake's MC_NIC_PEER_AFFINITY",
    )
    max_inbound: int | None = Field(None, ge=1, description="handoffs that a decode target receives at once")
    prefix_cache: Literal["assumed", "modelled", "pool"] = Field(
        "assumed",
        description="assumed: hits are drawn per request from a global store without fabric traffic; modelled: each"
        " prefill instance has its own; pool: what another instance holds is read over the fabric",
    )
    prefix_cache_gb_per_gpu: float = Field(50.0, ge=0, le=1e6, description="modelled, pool: memory of the cache")
    prefill_base_ms: float = Field(30.0, ge=0, le=1e6, description="fixed time of a prefill batch")
    prefill_tokens_per_s_per_gpu: float = Field(5000.0, ge=1, le=1e9, description="uncached tokens/s of a prefill GPU")
    prefill_batch_tokens: int = Field(8192, ge=1, description="uncached tokens that one prefill batch may hold")
    chunked_prefill: bool = Field(
        False, description="a prompt may be spread over batches, so that none exceeds prefill_batch_tokens"
    )
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
    handoff_timeout_s: float | None = Field(
        None, gt=0, le=1e6, description="a handoff that has not ended so long after prefill has failed"
    )
    on_handoff_failure: Literal["retry", "recompute", "fail"] = Field(
        "retry", description="retry: send again what is missing; recompute: prefill again; fail: give up"
    )
    handoff_retries: int = Field(2, ge=0, le=100, description="how often, before the request has failed")
    client_cancel_share: float = Field(0.0, ge=0, le=1, description="share of requests that clients give up")
    client_cancel_mean_s: float = Field(10.0, gt=0, le=1e6, description="mean time from arrival until they do")
    slo_ttft_ms: float | None = Field(None, gt=0, le=1e9, description="promised time to first token, without tenants")
    slo_tpot_ms: float | None = Field(None, gt=0, le=1e9, description="promised time per output token")
    tenants: tuple[Tenant, ...] = Field((), max_length=1000, description="customers and their objectives")
    ep_background: ExpertParallel | None = Field(None, description="expert-parallel traffic of decode on the same NICs")

    @field_validator("tenants")
    @classmethod
    def _names_differ(cls, tenants: tuple[Tenant, ...]) -> tuple[Tenant, ...]:
        names = [tenant.name for tenant in tenants]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two tenants are called {name!r}: give each a name of its own")
        return tenants
