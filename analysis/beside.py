"""Who else was there: customers with promises of their own, and traffic beside the workload. Tables as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.arms import ArmResult
from analysis.formats import NONE, data_size, number, percent

#: Streams that are listed one by one; of more each item of `background` is one row.
MOST_STREAMS = 24


@dataclass(frozen=True)
class TextTable:
    """Cells are text; the first `left` columns are names, the others figures."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 2


def tenant_table(arms: Sequence[ArmResult]) -> TextTable | None:
    """What each tenant got, where there is more than one (`tenants` in summary.json)."""
    rows = []
    for arm in arms:
        promised = {tenant.name: tenant for tenant in arm.scenario.serving.tenants}
        for name, found in arm.summary.get("tenants", {}).items():
            tenant = promised.get(name)
            rows.append(
                (
                    arm.label,
                    str(name),
                    f"{found['completed']:,} of {found['requests']:,}",
                    number(tenant.slo_ttft_ms if tenant else None),
                    number(tenant.slo_tpot_ms if tenant else None),
                    percent(found.get("slo_attainment")),
                    number(found.get("request_goodput")),
                    number(found["mean_ttft_ms"]),
                    number(found["p99_ttft_ms"]),
                )
            )
    if not rows:
        return None
    return TextTable(
        "Tenants",
        "Objectives met: share of measured requests with an objective that met it; a failure misses. Goodput: those, a"
        " second of the throughput window.",
        (
            "", "tenant", "completed", "promised TTFT ms", "promised TPOT ms", "objectives met", "goodput 1/s",
            "TTFT mean ms", "TTFT P99 ms",
        ),
        tuple(rows),
    )  # fmt: skip


def tenant_line(arm: ArmResult) -> str:
    """The tenants' attainment for a headline; empty where there is one tenant only, or no objective."""
    tenants = arm.summary.get("tenants", {})
    met = [f"{name} {percent(one['slo_attainment'])}" for name, one in tenants.items() if "slo_attainment" in one]
    return f"{arm.label}: objectives met, by tenant: {', '.join(met)}." if met else ""


def background_table(arms: Sequence[ArmResult]) -> TextTable | None:
    """What traffic beside the workload sent (`background` in meta.json)."""
    rows = []
    for arm in arms:
        streams = arm.meta.get("background") or []
        few = len(streams) <= MOST_STREAMS
        for item in sorted({int(stream["item"]) for stream in streams}):
            mine = [stream for stream in streams if stream["item"] == item]
            for group in [[stream] for stream in mine] if few else [mine]:
                rows.append((arm.label, f"background[{item}], {group[0]['kind']}", *_streams(arm, item, group)))
    if not rows:
        return None
    return TextTable(
        "Background traffic",
        "Beside the workload, in model bytes; asked: of each pair, over all its ports. iperf3 says what it sent, and is"
        " not in the max-min reference.",
        ("", "item", "from → to", "messages", "asked Gb/s", "sent", "arrived"),
        tuple(rows),
        left=3,
    )


def _streams(arm: ArmResult, item: int, group: Sequence[dict[str, object]]) -> tuple[str, ...]:
    """Pair (or how many), messages, rate asked for, bytes sent and arrived, summed over a group of streams."""

    def total(key: str) -> int | None:
        values = [value for stream in group if isinstance(value := stream.get(key), int)]
        return sum(values) if len(values) == len(group) else None

    configured = arm.scenario.background
    gbps = configured[item].gbps if item < len(configured) else None
    pairs = {str(stream["pair"]) for stream in group}
    messages = total("messages")
    return (
        next(iter(pairs)).replace("->", " → ") if len(pairs) == 1 else f"{len(pairs)} pairs",
        NONE if messages is None else f"{messages:,}",
        number(gbps) if gbps else "as fast as it goes",
        data_size(total("bytes_sent")),
        data_size(total("bytes_arrived")),
    )
