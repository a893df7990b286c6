"""Traffic beside the workload: of other jobs, say."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scenario.section import Section

PairName = Annotated[str, Field(pattern=r"^gpu\d+->gpu\d+$")]


class Background(Section):
    """Who sends to whom, and when."""

    pairs: tuple[PairName, ...] = Field((), max_length=100_000, description="such as gpu1->gpu9")
    pattern: Literal["permutation", "cross_rail", "rail_aligned", "g_to_one"] | None = Field(
        None, description="instead of pairs"
    )
    start_s: float = Field(0.0, ge=0, le=1e6, description="model seconds from the start of serving")
    stop_s: float | None = Field(None, gt=0, le=1e6, description="no new message after it; default: the run's end")

    @model_validator(mode="after")
    def _one_choice(self) -> Background:
        if bool(self.pairs) == (self.pattern is not None):
            raise ValueError("give either pairs or pattern")
        if self.stop_s is not None and self.stop_s <= self.start_s:
            raise ValueError(f"stop_s {self.stop_s:g} must be after start_s {self.start_s:g}")
        return self


class IperfBackground(Background):
    """iperf3 in the GPUs' namespaces: TCP paced to a rate. The max-min reference does not know it."""

    kind: Literal["iperf3"] = "iperf3"
    gbps: float = Field(gt=0, le=6400, description="model rate of each pair, over all ports of the GPU together")


class FlowsBackground(Background):
    """Messages through the agents of the workload: they are in transfers.parquet and in the max-min reference."""

    kind: Literal["flows"] = "flows"
    size_mb: float = Field(ge=0.001, le=1e6, description="of a message (10^6 bytes)")
    gbps: float | None = Field(
        None, gt=0, le=6400, description="a message each size / gbps; default: the next when the last has ended"
    )


BackgroundItem = Annotated[IperfBackground | FlowsBackground, Field(discriminator="kind")]
#: Value of a `kind` within `background` -> its model.
BACKGROUND_TAGS: dict[str, type[Section]] = {"iperf3": IperfBackground, "flows": FlowsBackground}
