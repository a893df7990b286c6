"""What to do about an INVALID run: why it is, and which scale this machine would be faithful at.

Computed from what the run measured. A load that is `strain` times too high for a check would pass at a rate_factor that
many times smaller; the dilation grows with it, so that handoffs keep their frames (emulated bytes = a*d * bytes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from emulation.checks import ONE_STEP, Check
from scenario.scale import GOOD_RESOLUTION_FRAMES, Scale, floor_2_digits

#: Less than that is not advised at once: figures of a machine that far beyond its means say little about how far.
MOST = 10.0


def advise(
    checks: Sequence[Check], scale: Scale, resolution_frames: float, budget_used: float
) -> dict[str, object] | None:
    """What fidelity.json says under `advice`: `why`, `rate_factor`, `dilation` (None: no scale helps) and `text`.

    None when every check passed. `budget_used`: share of the packet budget; within it, the run itself did not ask too
    much, and another program may have been in the way.
    """
    failed = [check for check in checks if check.ok is False]
    if not failed:
        return None
    why = [f"{check.name} is {check.value:.3g} {check.unit}, limit {check.limit}" for check in failed]
    busy = "the packet budget was kept, so this machine may have been busy with something else: run it again when quiet"
    coarse = any(check.name == "resolution_frames" for check in failed)
    strains = [check.strain for check in failed if check.strain is not None and math.isfinite(check.strain)]
    if not coarse and not strains:
        text = "No scale mends that: look at the check's own text"
        return {"why": why, "rate_factor": None, "dilation": None, "text": text}
    rate_factor, byte_factor = scale.rate_factor, scale.byte_factor
    if strains:
        rate_factor = floor_2_digits(rate_factor / min(MOST, max(ONE_STEP, *strains, budget_used)))
    if coarse:
        byte_factor *= GOOD_RESOLUTION_FRAMES / resolution_frames
    dilation = math.ceil(byte_factor / rate_factor * 100) / 100
    text = (
        f"A scale that this machine should be faithful at, by what was measured: --rate-factor {rate_factor:g}"
        f" --dilation {dilation:g} (this run: {scale.rate_factor:g} and {scale.dilation:g})"
    )
    if strains and budget_used <= 1:
        text += f"; but {busy}"
    return {"why": why, "rate_factor": rate_factor, "dilation": dilation, "text": text}
