"""What the losses share. SPEC.md 3.3. All real numbers are float32, each sum in the order of the classes."""

from __future__ import annotations

import numpy as np

from mcugrad.ref.fixed import Floats, clamp
from mcugrad.ref.memory import Arrays

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
_STEPS = np.float32(127)


def total_of(values: Floats) -> np.float32:
    total = ZERO
    for v in values:
        total = np.float32(total + v)
    return total


def finish(a: Arrays, g: Floats, loss: np.float32, argmax: int) -> None:
    """g = dL/d(each logit or output) -> error, its unit, and the result. A peak too small to be divided by 127 counts as none."""
    peak = np.abs(g).max()
    unit = peak / _STEPS
    skipped = bool(peak < a["args"]["skip"][0] or unit == 0)
    a["dy"][:] = 0 if skipped else clamp(np.floor(g / unit + HALF).astype(np.int64), -127, 127)
    a["unit"][0] = ZERO if skipped else unit
    a["ry"][0] = (0, 0, 0, 0)
    a["result"][0] = (loss, peak, argmax, skipped)
