"""`zcube kv`: what the KV cache of a prompt weighs, who sends it, and how long that takes at line rate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from cli import options
from cli.app import out, print_json
from scenario.errors import InputError
from traffic.kv import ALIASES, KV_DTYPES, KV_MODELS, KvModel, direct_kv_model, kv_model, kv_model_of_config
from traffic.kv_wire import conventions, wire_s

#: More than any context; a slip of the finger, not a prompt.
MAX_TOKENS = 1_000_000_000

Model = Annotated[str | None, typer.Option("--model", help="preset, or the path of a config.json", show_default=False)]
List = Annotated[bool, typer.Option("--list", help="list the presets")]
Config = Annotated[Path | None, typer.Option("--config", help="a Hugging Face config.json", show_default=False)]
Dtype = Annotated[str, typer.Option(help=f"type of KV elements: {', '.join(KV_DTYPES)}")]
Tokens = Annotated[str, typer.Option(help="prompt lengths, with commas")]
Tp = Annotated[int, typer.Option("--tp", min=1, max=1024, help="tensor parallel: ranks that hold the cache")]
NicGbps = Annotated[str, typer.Option("--nic-gbps", help="NIC rates, with commas")]
Layers = Annotated[int | None, typer.Option(min=1, max=10_000, help="a cache in numbers, with the next two")]
KvHeads = Annotated[int | None, typer.Option(min=1, max=10_000, help="KV heads of a layer")]
HeadDim = Annotated[int | None, typer.Option(min=1, max=100_000, help="width of a head")]
Element = Annotated[float, typer.Option("--bytes-per-element", min=0.125, max=16, help="2: BF16; 1: FP8, INT8")]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "kv",
        help="What the KV cache of a prompt weighs, what each rank sends of it, and for how long at line rate.\n\n"
        "Example: .venv/bin/zcube kv --model glm-5.1-fp8 --tokens 8192,131072",
    )(kv)


def kv(
    model: Model = None,
    list_presets: List = False,
    config: Config = None,
    dtype: Dtype = "auto",
    tokens: Tokens = "131072",
    tp: Tp = 8,
    nic_gbps: NicGbps = "100,200,400",
    layers: Layers = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    bytes_per_element: Element = 2.0,
    json: options.Json = False,
) -> None:
    """Size, split, print."""
    if dtype not in KV_DTYPES:
        raise InputError("--dtype", dtype, f"must be one of {', '.join(KV_DTYPES)}")
    if list_presets:
        _list(json)
        return
    found = _model(model, config, dtype, (layers, kv_heads, head_dim), bytes_per_element)
    lengths = [int(value) for value in _numbers("--tokens", tokens, MAX_TOKENS, whole=True)]
    rates = _numbers("--nic-gbps", nic_gbps, 1e6)
    if json:
        print_json(_as_json(found, lengths, tp, rates))
    else:
        _print(found, lengths, tp, rates)


def _model(
    name: str | None,
    config: Path | None,
    dtype: str,
    numbers: tuple[int | None, int | None, int | None],
    bytes_per_element: float,
) -> KvModel:
    """The one that was asked for: exactly one of a name, a file and numbers (without any, the default preset)."""
    direct = any(each is not None for each in numbers)
    if (name is not None) + (config is not None) + direct > 1:
        raise InputError("--model", name or str(config or numbers), "give one of --model, --config and --layers")
    if direct:
        layers, kv_heads, head_dim = numbers
        if layers is None or kv_heads is None or head_dim is None:
            raise InputError("--layers", numbers, "needs all of --layers, --kv-heads and --head-dim")
        if dtype != "auto":
            raise InputError("--dtype", dtype, "has no use with --layers", "--bytes-per-element says the size.")
        # The context is not known, and not asked about.
        return direct_kv_model(layers, kv_heads, head_dim, bytes_per_element, MAX_TOKENS)
    if config is not None:
        return kv_model_of_config(config, dtype, "--config")
    name = name or "glm-5.1-fp8"
    if name.lower().endswith(".json"):
        return kv_model_of_config(Path(name), dtype, "--model")
    return kv_model(name, dtype, "--model")


def _numbers(option: str, text: str, most: float, *, whole: bool = False) -> list[float]:
    """The numbers of a list with commas. Raises InputError."""
    kind = "whole numbers" if whole else "numbers"
    found = []
    for part in text.split(","):
        try:
            value = float(int(part)) if whole else float(part)
        except ValueError:
            value = math.nan
        if not (1 if whole else 0.001) <= value <= most:
            raise InputError(option, text, f"must be {kind} from {1 if whole else 0.001:g} to {most:,.0f}, with commas")
        found.append(value)
    return found


def _as_json(model: KvModel, lengths: list[int], tp: int, rates: list[float]) -> dict[str, object]:
    return {
        "model": model.name,
        "dtype": model.dtype,
        "attention": "MLA" if model.mla else "GQA",
        "formula": model.formula,
        "bytes_per_token": model.bytes_per_token,
        "tensor_parallel": tp,
        "prompts": [
            {
                "tokens": tokens,
                "bytes": model.kv_bytes(tokens),
                "one_nic_s": {f"{rate:g}": wire_s(model.kv_bytes(tokens), rate) for rate in rates},
                "conventions": [
                    {
                        "convention": each.convention,
                        "ranks": each.ranks,
                        "bytes_per_rank": each.bytes_per_rank,
                        "bytes_total": each.bytes_total,
                        "wire_s": {f"{rate:g}": wire_s(each.bytes_per_rank, rate) for rate in rates},
                    }
                    for each in conventions(model, tokens, tp)
                ],
            }
            for tokens in lengths
        ],
    }


def _print(model: KvModel, lengths: list[int], tp: int, rates: list[float]) -> None:
    out.print(Text.assemble((model.name, "bold"), f": {model.bytes_per_token:,} B a token, {model.dtype}"))
    out.print(f"= {model.formula}", highlight=False, markup=False)
    for tokens in lengths:
        size = model.kv_bytes(tokens)
        table = Table(
            f"{tokens:,} tokens, TP {tp}",
            "ranks",
            "GB a rank",
            *(f"ms at {rate:g}G" for rate in rates),
            title_justify="left",
        )
        table.add_row("one copy over one NIC", "", _gb(size), *(_ms(wire_s(size, rate)) for rate in rates))
        for each in conventions(model, tokens, tp):
            times = (_ms(wire_s(each.bytes_per_rank, rate)) for rate in rates)
            table.add_row(each.convention, f"{each.ranks}", _gb(each.bytes_per_rank), *times)
        out.print(table)
        if tokens > model.max_context_tokens:
            out.print(f"{tokens:,} tokens are more than the context of this model, {model.max_context_tokens:,}.")
    out.print("GB = 10^9 B. ms = bytes * 8 / NIC rate: line rate, without headers, software or other traffic.")


def _list(json: bool) -> None:
    if json:
        print_json(
            [
                {
                    "model": name,
                    "dtype": model.dtype,
                    "bytes_per_token": model.bytes_per_token,
                    "max_context_tokens": model.max_context_tokens,
                    "formula": model.formula,
                }
                for name, model in KV_MODELS.items()
            ]
        )
        return
    table = Table("preset", "B a token", "8K, GB", "context", "formula")
    for name, model in KV_MODELS.items():
        context = f"{model.max_context_tokens:,}"
        table.add_row(name, f"{model.bytes_per_token:,}", _gb(model.kv_bytes(8192)), context, model.formula)
    out.print(table)
    out.print(
        "Also " + ", ".join(f"{short} for {long}" for short, long in ALIASES.items()) + "; --dtype for other types."
    )


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.3f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}"
