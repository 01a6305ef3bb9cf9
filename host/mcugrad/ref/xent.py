"""Softmax cross-entropy on int32 logits. SPEC.md 3.3."""

from __future__ import annotations

import numpy as np

from mcugrad.ref.fixed import exp, log
from mcugrad.ref.loss import ONE, finish, total_of
from mcugrad.ref.memory import Arrays, Scalars


def xent_s32(k: Scalars, a: Arrays) -> None:
    """A label that is no class takes nothing from g, and its logit term is left out of the loss."""
    label = int(a["args"]["label"][0])
    logits = a["x"].astype(np.float32) * a["scale"]
    top = int(np.argmax(logits))
    below = logits - logits[top]
    ex = exp(below)
    z = total_of(ex)
    g = ex / z
    loss = np.float32(log(z))
    if label < k["c"]:
        g[label] = g[label] - ONE
        loss = loss - below[label]
    finish(a, g, loss, top)
