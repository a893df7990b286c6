"""Can the layout and the shape serve what a log records? Asked of every row, before anything runs.

With `serving.placement: recorded` (or `decode_placement: recorded`) a request goes where its row says. A routing log
names a rank: it stands for the instance that has the GPU. A transfer log names the two GPUs of a flow, and that must be
one that the shape sends between their instances: shape D, say, always sends from an instance's first rank, so a row
that names another source would be served from a NIC that it does not name.
"""

from __future__ import annotations

from scenario.errors import InputError
from scenario.models import Scenario
from traffic.layout import Instance, decode_targets, prefill_instances
from traffic.shapes import handoff

#: Names that an error lists.
_LISTED = 4


class RecordedPairs:
    """The pairs of (prefill GPU, decode GPU) that a scenario can serve as recorded; `flows`: rows of a transfer log.

    Raises InputError for a layout that does not fit.
    """

    def __init__(self, scenario: Scenario, *, flows: bool) -> None:
        serving = scenario.serving
        self._shape, self._flows = serving.shape, flows
        self._prefill = serving.placement == "recorded"
        self._decode = (serving.decode_placement or serving.placement) == "recorded"
        self._scenario, self._prefills = scenario, prefill_instances(scenario)
        self._targets = {prefill.name: decode_targets(scenario, prefill) for prefill in self._prefills}
        self._known: set[tuple[str, str]] = set()

    @property
    def asked(self) -> bool:
        """Whether the gateway looks at records at all."""
        return self._prefill or self._decode

    def check(self, where: str, src: str, dst: str) -> None:
        """Raise InputError, which names `where` (file and line), for a pair that cannot be served as it is recorded."""
        if not self.asked or (src, dst) in self._known:
            return
        for prefill in [one for one in self._prefills if src in one.gpus] if self._prefill else self._prefills:
            allowed = self._targets[prefill.name]
            targets = [one for one in allowed if dst in one.gpus] if self._decode else allowed
            if not targets:
                raise InputError(
                    where, f"{src} -> {dst}",
                    f"serving.pairing {self._scenario.serving.pairing} lets {prefill.name} hand off to"
                    f" {_some([one.name for one in allowed])} only",
                    "serving.pairing: any, or a layout and block_servers in which the two are in one block",
                )  # fmt: skip
            if self._flows and self._prefill:
                self._check_flow(where, src, dst, prefill, targets)
        self._known.add((src, dst))

    def _check_flow(self, where: str, src: str, dst: str, prefill: Instance, targets: list[Instance]) -> None:
        sent = [flow for target in targets for flow in handoff(self._shape, prefill.gpus, target.gpus, 0)]
        if any(flow.src == src and (flow.dst == dst or not self._decode) for flow in sent):
            return
        pairs = [f"{flow.src} -> {flow.dst}" for flow in sent]
        raise InputError(
            where, f"{src} -> {dst}",
            f"shape {self._shape} does not send from {src} to {dst}; of these instances it sends {_some(pairs)}",
            "serving.shape: E (each GPU hands off for itself); or direct: true, which plays any pair without serving",
        )  # fmt: skip


def _some(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (" ..." if len(names) > _LISTED else "")


def require_records(scenario: Scenario) -> None:
    """Raise InputError where placement follows records, and the workload's kind has none."""
    serving, kind = scenario.serving, scenario.workload.kind
    if kind in ("routing", "transfers"):
        return
    for name in ("placement", "decode_placement"):
        if getattr(serving, name) == "recorded":
            raise InputError(
                f"serving.{name}", "recorded", f"workload.kind {kind} does not record where requests were served",
                "workload.kind: routing or transfers, or another placement",
            )  # fmt: skip
