"""Average pool, max pool and mean: forward and error. SPEC.md 3.2, 3.5. Letters: x (H,W,C), y (P,Q,C), window (R,S)."""

from __future__ import annotations

import numpy as np

from mcugrad.ref import epilogue
from mcugrad.ref.fixed import Ints, clamp, i64, requant, wrap32
from mcugrad.ref.memory import Arrays, Scalars
from mcugrad.ref.window import count, taps

_ONE_Q20 = 1 << 20
_ONE_SHIFT = 12


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


def _largest(k: Scalars, x: Ints) -> tuple[Ints, Ints]:
    """The largest tap of every window, and which of the R·S taps it is: the first one, (P,Q,C) each. No tap inside: -128 and -1."""
    shape = (k["p"], k["q"], k["c"])
    top, place = np.full(shape, -128, np.int64), np.full(shape, -1, np.int64)
    for r, s, outputs, inputs in taps(k):
        better = (x[inputs] > top[outputs]) | (place[outputs] < 0)
        top[outputs] = np.where(better, x[inputs], top[outputs])
        place[outputs] = np.where(better, r * k["s"] + s, place[outputs])
    return top, place


def maxpool_fwd_s8(k: Scalars, a: Arrays) -> None:
    top, _ = _largest(k, i64(a["x"]).reshape(k["h"], k["w"], k["c"]))
    a["y"][:] = clamp(top, k["lo"], k["hi"]).reshape(-1)


def maxpool_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    _, place = _largest(k, i64(a["x"]).reshape(k["h"], k["w"], k["c"]))
    dy = i64(a["dy"]).reshape(k["p"], k["q"], k["c"])
    acc = np.zeros((k["h"], k["w"], k["c"]), np.int64)
    for r, s, outputs, inputs in taps(k):
        acc[inputs] += np.where(place[outputs] == r * k["s"] + s, dy[outputs], 0)
    epilogue.finish(k, a, acc.reshape(-1) << _ONE_SHIFT)


def mean_fwd_s8(k: Scalars, a: Arrays) -> None:
    acc = wrap32(k["bias"] + i64(a["x"]).reshape(k["h"] * k["w"], k["c"]).sum(axis=0))
    a["y"][:] = clamp(k["zy"] + requant(acc, k["mult"], k["shift"], k["rounding"]), k["lo"], k["hi"])
