"""Measured compute models: splitwise-sim's table, DistServe's fits, and a user's CSV."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scenario.compute_section import ComputeKey
from scenario.errors import InputError
from traffic.compute_curves import DecodeCurve, LinearStep, Piecewise, PrefillCurve, Quadratic, StepTable
from traffic.csv_table import read_table

_CSV_HINT = (
    "A header and rows: prefill_tokens,batch_ms for prefill; context_tokens,batch_size,step_ms for decode, which may be"
    " left out. docs/kv.md has an example."
)
_SPLITWISE_HINT = "Give data/perf_model.csv of https://github.com/Mutinifni/splitwise-sim."


@dataclass(frozen=True)
class Measured:
    """Curves and the range that they were measured in; `decode` is None where the source has no steps.

    `prefill_tokens`: smallest and largest prefill batch that was measured.
    """

    prefill: PrefillCurve
    decode: DecodeCurve | None
    range_note: str
    prefill_tokens: tuple[float, float]


def splitwise(path: Path, key: ComputeKey, tensor_parallel: int) -> Measured:
    """The curves of splitwise-sim's perf_model.csv (https://github.com/Mutinifni/splitwise-sim, data/; times in ms).

    Prefill as its `performance_model.py` does it: the median time of each number of batch tokens (prompt_size *
    batch_size), straight lines between. Decode over batch_size, also by the median; splitwise-sim looks decode up by
    prompt tokens instead, which never meets its own measurements (a step of 8 requests is 8 tokens there). The context
    changes its steps by less than the noise and is not used.

    Raises `InputError` for a file that is not this table, and where nothing was measured for the key.
    """
    table = read_table(path, "serving.compute_csv", _SPLITWISE_HINT)
    table.need("model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "prompt_time", "token_time")
    keys: set[tuple[str, str, int]] = set()
    prefill: list[tuple[float, float]] = []
    steps: dict[float, list[tuple[float, float]]] = defaultdict(list)
    wanted = (key.model, key.hardware, tensor_parallel)
    for row in table.rows():
        found = (row.cells["model"], row.cells["hardware"], int(row.number("tensor_parallel", above=0)))
        keys.add(found)
        if found != wanted:
            continue
        batch = row.number("batch_size", above=0)
        tokens = row.number("prompt_size", above=0) * batch
        prefill.append((tokens, row.number("prompt_time", above=0) / 1e3))
        steps[batch].append((0.0, row.number("token_time", above=0) / 1e3))
    if not prefill:
        raise _unknown_key(wanted, sorted(keys))
    note = _note(prefill, steps, with_context=False)
    return Measured(Piecewise.of(prefill), StepTable.of(steps), note, _range(prefill))


#: DistServe's fits on A100-80GB (https://github.com/LLMServe/DistServe, commit 82831f16, simdistserve/estimators/
#: profile_data/profiler-a100-80g.distserve.json), ms: (model, TP) -> prefill (a, b, c), then decode of batches
#: under 95 requests, and from 95.
_DISTSERVE: dict[tuple[str, int], tuple[tuple[float, float, float], ...]] = {
    ("opt-13b", 1): (
        (18.10254647486372, 0.1019122572698738, 7.122264314252114e-06),
        (19.934702624895458, 0.0006269356524350583, 0.03850697740828398),
        (7.1661889468253595, 0.0005798000403396046, 0.15831096191764046),
    ),
    ("opt-13b", 2): (
        (14.742973695171262, 0.06857720739764, 2.4495727400243586e-06),
        (13.294796350285385, 0.00034109219700723494, 0.06296393225243659),
        (10.638741913126715, 0.00031183369638295723, 0.08562913604102729),
    ),
    ("opt-13b", 4): (
        (12.062297033449054, 0.03808140082550695, 5.226249731787869e-07),
        (10.256231678259395, 0.00018786702316166354, 0.03269273629225551),
        (10.483514938375274, 0.00017120888562939117, 0.04566648525887034),
    ),
    ("opt-66b", 2): (
        (43.05881348288936, 0.2742292870458432, 2.2478042467169447e-05),
        (48.288015489286245, 0.0009424343535737985, 0.12755020094383188),
        (28.727693993711597, 0.00047448475459061987, 0.29617792360743994),
    ),
    ("opt-66b", 3): (
        (32.998230028437035, 0.19568256864690514, 1.2205248980953765e-05),
        (35.8015439512012, 0.0005845004786127403, 0.0952669764890301),
        (22.653861586978355, 0.0005358489190129727, 0.208514444037787),
    ),
    ("opt-66b", 4): (
        (29.441636037717455, 0.151352180625198, 8.317450765979451e-06),
        (30.760284619429587, 0.000451947603788462, 0.063284195750671),
        (27.47082137429487, 0.0004046845541646486, 0.12480667738300383),
    ),
    ("opt-66b", 8): (
        (25.490662375045222, 0.10659177664763161, 3.3910502518615973e-06),
        (23.15511135047022, 0.00022691488497826264, 0.04800638397272423),
        (21.71772781576609, 0.0003758089655762475, 0.08978614175851013),
    ),
}
_DISTSERVE_LARGE_BATCH = 95
#: OPT's context; DistServe did not profile beyond it.
_DISTSERVE_CONTEXT = 2048


def distserve(key: ComputeKey, tensor_parallel: int) -> Measured:
    """DistServe's fits for OPT on A100 (`simdistserve/estimators/time_estimator.py`; https://arxiv.org/abs/2401.09670).

    Prefill ``a + b * n + c * (sum of squared prompt lengths)``, taken for a batch of one prompt, which overestimates a
    batch of several; decode ``a + b * (context of the batch) + c * batch_size``. The millisecond that its simulator
    adds to each prefill for pipelining is left out. Raises `InputError` for another model, TP or hardware.
    """
    if key.hardware not in ("", "a100-80gb"):
        raise InputError("serving.compute_key.hardware", key.hardware, "distserve was measured on a100-80gb only")
    wanted = (key.model, tensor_parallel)
    if wanted not in _DISTSERVE:
        raise _unknown_key(wanted, sorted(_DISTSERVE))
    prefill, small, large = (tuple(value / 1e3 for value in ms) for ms in _DISTSERVE[wanted])
    note = (
        f"a fit of batches within OPT's context, {_DISTSERVE_CONTEXT:,} tokens; beyond: the same formula, not measured"
    )
    decode = LinearStep((small[0], small[1], small[2]), (large[0], large[1], large[2]), _DISTSERVE_LARGE_BATCH)
    return Measured(Quadratic(*prefill), decode, note, (0, _DISTSERVE_CONTEXT))


def user_csv(path: Path) -> Measured:
    """A user's measurements: prefill_tokens,batch_ms and, where given, context_tokens,batch_size,step_ms.

    `context_tokens` is the mean context of a request in the step. A row has either group, or both; rows with the same
    place count as their median. Raises `InputError` for a file without prefill rows, and for a bad cell.
    """
    table = read_table(path, "serving.compute_csv", _CSV_HINT)
    table.need("prefill_tokens", "batch_ms")
    decode = ("context_tokens", "batch_size", "step_ms")
    if any(name in table.header for name in decode):
        table.need(*decode)
    prefill: list[tuple[float, float]] = []
    steps: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for row in table.rows():
        has_prefill, has_decode = (any(map(row.has, names)) for names in (("prefill_tokens", "batch_ms"), decode))
        if has_prefill or not has_decode:
            prefill.append((row.number("prefill_tokens", at_least=0), row.number("batch_ms", above=0) / 1e3))
        if has_decode:
            batch = row.number("batch_size", at_least=1)
            steps[batch].append((row.number("context_tokens", at_least=0), row.number("step_ms", above=0) / 1e3))
    if not prefill:
        raise InputError("serving.compute_csv", str(path), "has no prefill row", _CSV_HINT)
    curve = StepTable.of(steps) if steps else None
    return Measured(Piecewise.of(prefill), curve, _note(prefill, steps, with_context=True), _range(prefill))


def _note(
    prefill: Sequence[tuple[float, float]], steps: dict[float, list[tuple[float, float]]], *, with_context: bool
) -> str:
    low, high = _range(prefill)
    text = f"measured for prefill batches of {low:,.0f} to {high:,.0f} tokens"
    if steps:
        text += f" and decode batches of {min(steps):,.0f} to {max(steps):,.0f} requests"
        if with_context:
            contexts = [context for rows in steps.values() for context, _ in rows]
            text += f" with {min(contexts):,.0f} to {max(contexts):,.0f} tokens of context"
    return f"{text}; beyond: linear from the last two points, never falling"


def _range(prefill: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(prefill)[0], max(prefill)[0]


def _unknown_key(wanted: Sequence[object], known: Sequence[Sequence[object]]) -> InputError:
    return InputError(
        "serving.compute_key",
        " ".join(map(str, wanted)),
        "was not measured (model, hardware where it matters, tensor_parallel)",
        f"Choose one of: {'; '.join(' '.join(map(str, one)) for one in known)}.",
    )
