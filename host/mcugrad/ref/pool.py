"""Average pool and mean: forward and error. SPEC.md 3.2, 3.5. Letters: x (H,W,C), y (P,Q,C), window (R,S)."""

from __future__ import annotations

import numpy as np

from mcugrad.ref import epilogue
from mcugrad.ref.fixed import Ints, clamp, i64, requant, wrap32
from mcugrad.ref.memory import Arrays, Scalars
from mcugrad.ref.window import count, taps

_ONE_Q20 = 1 << 20


def _counts(k: Scalars) -> Ints:
    """Taps inside x of every window, (P,Q,1)."""
    rows = count(k["h"], k["p"], k["r"], k["sh"], k["pt"])
    columns = count(k["w"], k["q"], k["s"], k["sw"], k["pl"])
    return (rows[:, None] * columns[None, :])[:, :, None]


def avgpool_fwd_s8(k: Scalars, a: Arrays) -> None:
    x = i64(a["x"]).reshape(k["h"], k["w"], k["c"])
    total = np.zeros((k["p"], k["q"], k["c"]), np.int64)
    for _, _, outputs, inputs in taps(k):
        total[outputs] += x[inputs]
    n = _counts(k)
    divisor = np.maximum(n, 1)
    rounded = np.where(total > 0, (total + n // 2) // divisor, -((n // 2 - total) // divisor))
    a["y"][:] = clamp(np.where(n == 0, 0, rounded), k["lo"], k["hi"]).reshape(-1)


def avgpool_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    n = _counts(k)
    share = (_ONE_Q20 + n // 2) // np.maximum(n, 1)
    dy = i64(a["dy"]).reshape(k["p"], k["q"], k["c"]) * share
    acc = np.zeros((k["h"], k["w"], k["c"]), np.int64)
    for _, _, outputs, inputs in taps(k):
        acc[inputs] += dy[outputs]
    epilogue.finish(k, a, acc.reshape(-1))


def mean_fwd_s8(k: Scalars, a: Arrays) -> None:
    acc = wrap32(k["bias"] + i64(a["x"]).reshape(k["h"] * k["w"], k["c"]).sum(axis=0))
    a["y"][:] = clamp(k["zy"] + requant(acc, k["mult"], k["shift"]), k["lo"], k["hi"])
