"""Softmax cross-entropy on int32 logits. SPEC.md 3.3. All real numbers are float32, each sum in the order of the classes."""

from __future__ import annotations

import numpy as np

from mcugrad.ref.fixed import Floats, clamp, exp, log
from mcugrad.ref.memory import Arrays, Scalars


def _sum(values: Floats) -> np.float32:
    total = np.float32(0)
    for v in values:
        total = np.float32(total + v)
    return total


def xent_s32(k: Scalars, a: Arrays) -> None:
    """A label that is no class takes nothing from g, and its logit term is left out of the loss."""
    label = int(a["args"]["label"][0])
    logits = a["x"].astype(np.float32) * a["scale"]
    top = int(np.argmax(logits))
    below = logits - logits[top]
    ex = exp(below)
    z = _sum(ex)
    g = ex / z
    loss = log(z)
    if label < k["c"]:
        g[label] = g[label] - np.float32(1)
        loss = loss - below[label]
    peak = np.abs(g).max()
    skipped = bool(peak < a["args"]["skip"][0] or peak == 0)
    unit = np.float32(0) if skipped else peak / np.float32(127)
    a["dy"][:] = 0 if skipped else clamp(np.floor(g / unit + np.float32(0.5)).astype(np.int64), -127, 127)
    a["unit"][0] = unit
    a["ry"][0] = (0, 0, 0, 0)
    a["result"][0] = (loss, peak, top, skipped)
