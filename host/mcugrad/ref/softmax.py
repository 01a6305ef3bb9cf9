"""TensorFlow Lite's int8 softmax in gemmlowp fixed point: forward only (the loss works on the logits). SPEC.md 3.2.

A number in Qm.f has f = 31 - m fraction bits; the product of Qa and Qb by srdhm is Q(a+b).
"""

from __future__ import annotations

import numpy as np

from mcugrad.ref.fixed import I32_MAX, Ints, i64, rdivpot, sat8, sat32, srdhm, wrap32
from mcugrad.ref.memory import Arrays, Scalars

_DIFF_BITS = 26
_SUM_INTEGER_BITS = 12
_OUTPUT_BITS = 8
_EXP_MINUS_EIGHTH = 1895147668
_THIRD = 715827883
_EXP_MINUS_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
"""exp(-2^j), j = -2 … 4, in Q0.31."""
_48_OVER_17_Q2 = 1515870810
_MINUS_32_OVER_17_Q2 = -1010580540
_ONE_Q2 = 1 << 29


def _exp_quarter(a: Ints) -> Ints:
    """exp(a) for -1/4 <= a < 0, all Q0.31: the Taylor series of order 4 around -1/8."""
    x = a + (1 << 28)
    x2 = srdhm(x, x)
    x3 = srdhm(x2, x)
    x4_over_4 = rdivpot(srdhm(x2, x2), 2)
    tail = rdivpot(srdhm(x4_over_4 + x3, _THIRD) + x2, 1)
    return wrap32(_EXP_MINUS_EIGHTH + srdhm(_EXP_MINUS_EIGHTH, x + tail))


def _exp(a: Ints) -> Ints:
    """exp(a) in Q0.31 for a <= 0 in Q5.26: the quarter's remainder by the series, each further bit of -a by one factor."""
    quarter = 1 << (_DIFF_BITS - 2)
    rest = (a & (quarter - 1)) - quarter
    result = _exp_quarter(sat32(rest << 5))
    bits = wrap32(rest - a)
    for j, factor in enumerate(_EXP_MINUS_POWERS):
        result = np.where(bits & (quarter << j), srdhm(result, factor), result)
    return np.where(a == 0, I32_MAX, result)


def _reciprocal(a: int) -> int:
    """1 / (1 + a) in Q0.31 for 0 <= a < 1 in Q0.31: three Newton steps on half of the denominator."""
    half = i64((a + I32_MAX + 1) // 2)
    x = wrap32(_48_OVER_17_Q2 + srdhm(half, _MINUS_32_OVER_17_Q2))
    for _ in range(3):
        error = _ONE_Q2 - srdhm(half, x)
        x = wrap32(x + sat32(srdhm(x, error) << 2))
    return int(sat32(x << 1))


def softmax_fwd_s8(k: Scalars, a: Arrays) -> None:
    """Where 512 and more inputs are near the maximum, the last shift is above 31: each probability rounds to 0, so y = -128.

    TensorFlow Lite aborts there. With 4096 and more the sum wraps.
    """
    x = i64(a["x"]).reshape(k["n"], k["c"])
    y = a["y"].reshape(k["n"], k["c"])
    for row in range(k["n"]):
        d = x[row] - x[row].max()
        e = _exp(srdhm(wrap32(d << k["shift"]), k["mult"]))
        total = int(np.where(d >= k["diff_min"], rdivpot(e, _SUM_INTEGER_BITS), 0).sum()) & 0xFFFFFFFF
        room = 32 - total.bit_length()
        recip = _reciprocal(int(wrap32((total << room) - 2**31)))
        p = rdivpot(srdhm(recip, e), 31 + (_SUM_INTEGER_BITS - room) - _OUTPUT_BITS)
        y[row] = np.where(d >= k["diff_min"], sat8(p - 128), -128)
