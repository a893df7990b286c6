"""Parts of the serving section: a KV cache in numbers, and which measurements a compute model takes."""

from __future__ import annotations

from pydantic import Field

from scenario.section import Section


class KvShape(Section):
    """Grouped-query attention given directly: 2 * layers * kv_heads * head_dim * bytes_per_element a token."""

    layers: int = Field(ge=1, le=10_000, description="layers with a cache")
    kv_heads: int = Field(ge=1, le=10_000, description="key/value heads of a layer, all ranks together")
    head_dim: int = Field(ge=1, le=100_000, description="width of a head")
    bytes_per_element: float = Field(2.0, ge=0.125, le=16, description="2: BF16; 1: FP8, INT8; 0.5: FP4")
    max_context_tokens: int = Field(131_072, ge=1, le=100_000_000, description="longest prompt")


class ComputeKey(Section):
    """Which measurements of a published compute model."""

    model: str = Field(description="as the source writes it: llama2-70b, bloom-176b; opt-13b, opt-66b")
    hardware: str = Field("", description="splitwise: a100-80gb, h100-80gb, h100-80gb-pcap; distserve has A100 only")
    tensor_parallel: int | None = Field(None, ge=1, le=1024, description="default: fabric.gpus_per_server")
