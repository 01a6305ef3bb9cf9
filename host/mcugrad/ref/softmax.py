"""TensorFlow Lite's int8 softmax: forward and error. SPEC.md 3.2, 3.5. Letters: x, y (N,C)."""

from __future__ import annotations

import numpy as np

from mcugrad.ref import curves, epilogue
from mcugrad.ref.fixed import i64, rdivpot, sat8, srdhm, wrap32
from mcugrad.ref.memory import Arrays, Scalars

_DIFF_INTEGER_BITS = 5
_SUM_INTEGER_BITS = 12
_OUTPUT_BITS = 8


def softmax_fwd_s8(k: Scalars, a: Arrays) -> None:
    """Where 512 and more inputs are near the maximum, the last shift is above 31: each probability rounds to 0, so y = -128.

    TensorFlow Lite aborts there. With 4096 and more the sum wraps.
    """
    x = i64(a["x"]).reshape(k["n"], k["c"])
    y = a["y"].reshape(k["n"], k["c"])
    for row in range(k["n"]):
        d = x[row] - x[row].max()
        e = curves.exp_negative(srdhm(wrap32(d << k["shift"]), k["mult"]), _DIFF_INTEGER_BITS)
        total = int(np.where(d >= k["diff_min"], rdivpot(e, _SUM_INTEGER_BITS), 0).sum()) & 0xFFFFFFFF
        room = 32 - total.bit_length()
        recip = curves.reciprocal(wrap32((total << room) - 2**31))
        p = rdivpot(srdhm(recip, e), 31 + (_SUM_INTEGER_BITS - room) - _OUTPUT_BITS)
        y[row] = np.where(d >= k["diff_min"], sat8(p - 128), -128)


def softmax_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    """|t| <= 128·255·C and |acc| <= 255·(128·256 + |t|) stay in int64; the sum wraps in the epilogue."""
    q = i64(a["y"]).reshape(k["n"], k["c"]) + 128
    dy = i64(a["dy"]).reshape(k["n"], k["c"])
    t = wrap32((dy * q).sum(axis=1, keepdims=True))
    epilogue.finish(k, a, (q * (dy * 256 - t)).reshape(-1))
