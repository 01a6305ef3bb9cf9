"""Mean squared error of int32 accumulators or of int8 outputs. SPEC.md 3.3."""

from __future__ import annotations

import numpy as np

from mcugrad.ref.fixed import Array, i64
from mcugrad.ref.loss import finish, total_of
from mcugrad.ref.memory import Arrays, Scalars


def mse_s32(k: Scalars, a: Arrays) -> None:
    _squares(k, a, a["x"].astype(np.float32) * a["scale"])


def mse_s8(k: Scalars, a: Arrays) -> None:
    _squares(k, a, (i64(a["x"]) - k["zx"]).astype(np.float32) * k["sx"])


def _squares(k: Scalars, a: Arrays, v: Array) -> None:
    """v real float32 outputs against the target. The sum of squares may be infinite, the error is finite."""
    n = np.float32(v.size)
    with np.errstate(over="ignore", under="ignore"):
        d = v - (i64(a["target"]) - k["zt"]).astype(np.float32) * k["st"]
        g = (d + d) / n
        loss = total_of(d * d) / n
        finish(a, g, np.float32(loss), 0)
