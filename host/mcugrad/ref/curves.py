"""exp, logistic and tanh in gemmlowp fixed point, as TensorFlow Lite's int8 kernels compute them. SPEC.md 3.2.

A number in Qm.f has f = 31 - m fraction bits; the product of Qa and Qb by srdhm is Q(a+b). All functions work elementwise on int64 arrays
that hold int32 values.
"""

from __future__ import annotations

import numpy as np

from mcugrad.ref.fixed import I32_MAX, Ints, i64, rdivpot, sat32, srdhm, wrap32

_EXP_MINUS_EIGHTH = 1895147668
_THIRD = 715827883
_EXP_MINUS_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
"""exp(-2^j), j = -2 … 4, in Q0.31."""
_48_OVER_17_Q2 = 1515870810
_MINUS_32_OVER_17_Q2 = -1010580540
_ONE_Q2 = 1 << 29
_HALF_Q0 = 1 << 30


def _exp_quarter(a: Ints) -> Ints:
    """exp(a) for -1/4 <= a < 0, all Q0.31: the Taylor series of order 4 around -1/8."""
    x = a + (1 << 28)
    x2 = srdhm(x, x)
    x3 = srdhm(x2, x)
    x4_over_4 = rdivpot(srdhm(x2, x2), 2)
    tail = rdivpot(srdhm(x4_over_4 + x3, _THIRD) + x2, 1)
    return wrap32(_EXP_MINUS_EIGHTH + srdhm(_EXP_MINUS_EIGHTH, x + tail))


def exp_negative(a: Ints, integer_bits: int) -> Ints:
    """exp(a) in Q0.31 for a <= 0 in Q(integer_bits): a quarter's remainder by the series, each further bit of -a by one factor."""
    quarter = 1 << (31 - integer_bits - 2)
    rest = (a & (quarter - 1)) - quarter
    result = _exp_quarter(sat32(rest << integer_bits))
    bits = wrap32(rest - a)
    for j, factor in enumerate(_EXP_MINUS_POWERS[: integer_bits + 2]):
        result = np.where(bits & (quarter << j), srdhm(result, factor), result)
    return np.where(a == 0, I32_MAX, result)


def _half_reciprocal(a: Ints) -> Ints:
    """1 / (1 + a) · 2 in Q2.29 for 0 <= a <= 1 in Q0.31: three Newton steps on half of the denominator."""
    half = (a + I32_MAX + 1) // 2
    x = wrap32(_48_OVER_17_Q2 + srdhm(half, _MINUS_32_OVER_17_Q2))
    for _ in range(3):
        error = _ONE_Q2 - srdhm(half, x)
        x = wrap32(x + sat32(srdhm(x, error) << 2))
    return x


def reciprocal(a: Ints) -> Ints:
    """1 / (1 + a) in Q0.31 for 0 <= a <= 1 in Q0.31."""
    return sat32(_half_reciprocal(a) << 1)


def logistic(a: Ints) -> Ints:
    """1 / (1 + exp(-a)) in Q0.31, a in Q4.27."""
    positive = reciprocal(exp_negative(-np.abs(i64(a)), 4))
    return np.where(a == 0, _HALF_Q0, np.where(a > 0, positive, I32_MAX - positive))


def tanh(a: Ints) -> Ints:
    """tanh(a) in Q0.31, a in Q4.27; 2a is the same number in Q5.26."""
    below = exp_negative(-np.abs(i64(a)), 5)
    magnitude = sat32((_half_reciprocal(below) - _ONE_Q2) << 2)
    return np.where(a == 0, 0, np.where(a < 0, -magnitude, magnitude))
