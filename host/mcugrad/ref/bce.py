"""Binary cross-entropy on one int32 logit. SPEC.md 3.3."""

from __future__ import annotations

import numpy as np

from mcugrad.ref.fixed import exp, log
from mcugrad.ref.loss import ONE, ZERO, finish
from mcugrad.ref.memory import Arrays, Scalars


def bce_s32(_: Scalars, a: Arrays) -> None:
    logit = a["x"].astype(np.float32) * a["scale"]
    truth = ZERO if a["args"]["label"][0] == 0 else ONE
    small = exp(-np.abs(logit))
    p = np.where(logit >= 0, ONE / (ONE + small), small / (ONE + small))
    loss = (np.maximum(logit, ZERO) - logit * truth) + log(ONE + small)
    finish(a, p - truth, loss[0], int(logit[0] > 0))
