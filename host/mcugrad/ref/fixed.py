"""SPEC.md sections 3.1 and 3.4: the fixed-point primitives, the draws, and exp and log in float32.

Integers are int64 arrays that hold int32 values (or the exact product of two); wrap32 and sat32 say where they are narrowed. Floats are
float32 arrays and every constant is a float32, so no operation is carried out in double.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
IntLike = Ints | int

I32_MIN, I32_MAX = -(2**31), 2**31 - 1
_U32 = np.uint64(0xFFFFFFFF)


def i64(x: npt.ArrayLike) -> Ints:
    """Any integers as int64."""
    return np.asarray(x, dtype=np.int64)


def wrap32(v: npt.ArrayLike) -> Ints:
    """Two's-complement wrap to int32."""
    return i64(v).astype(np.int32).astype(np.int64)


def sat32(v: npt.ArrayLike) -> Ints:
    return np.clip(i64(v), I32_MIN, I32_MAX)


def clamp(v: npt.ArrayLike, lo: npt.ArrayLike, hi: npt.ArrayLike) -> Ints:
    """min(max(v, lo), hi): hi wins where lo > hi."""
    return np.minimum(np.maximum(i64(v), lo), hi)


def sat8(v: npt.ArrayLike) -> Ints:
    return clamp(v, -128, 127)


def srdhm(a: npt.ArrayLike, b: npt.ArrayLike) -> Ints:
    """The high 32 bits of 2·a·b, rounded: |a·b| <= 2^62, so the sum with the nudge stays in int64."""
    product = i64(a) * i64(b)
    nudged = product + np.where(product >= 0, 2**30, 1 - 2**30)
    truncated = np.where(nudged >= 0, nudged >> 31, -(-nudged >> 31))
    return np.minimum(truncated, I32_MAX)


def rdivpot(x: npt.ArrayLike, n: npt.ArrayLike) -> Ints:
    """x / 2^n, rounded to nearest, halves away from zero. 0 <= n <= 62."""
    value, power = i64(x), i64(n)
    mask = (np.int64(1) << power) - 1
    threshold = (mask >> 1) + (value < 0)
    return (value >> power) + ((value & mask) > threshold)


def requant(acc: npt.ArrayLike, mult: npt.ArrayLike, shift: npt.ArrayLike, rounding: int = 0) -> Ints:
    """acc · mult · 2^(shift-31), ``mult`` and ``shift`` broadcast over ``acc``. Rounding 0: TensorFlow Lite's two; 1: one, half up."""
    power = i64(shift)
    if rounding == 1:
        return scale(acc, mult, 31 - power)
    return rdivpot(srdhm(wrap32(i64(acc) << np.maximum(power, 0)), mult), np.maximum(-power, 0))


def scale(v: npt.ArrayLike, mult: npt.ArrayLike, n: npt.ArrayLike) -> Ints:
    """floor(v · mult / 2^n + 1/2), saturated to int32. |v · mult| < 2^62, and 2^(n-1) <= 2^61 is added: no overflow."""
    product = i64(v) * i64(mult)
    power = i64(n)
    right = np.clip(power, 1, 62)
    down = sat32((product + (np.int64(1) << (right - 1))) >> right)
    up = sat32(sat32(product) << np.clip(-power, 0, 31))
    return np.where(power > 62, 0, np.where(power >= 1, down, up))


def split(f: npt.ArrayLike) -> tuple[Ints, Ints]:
    """float32 f > 0 -> (mult, n), f = mult · 2^-n, 2^30 <= mult < 2^31. (0, 0) where f is not a positive normal number."""
    bits = np.asarray(f, dtype=np.float32).view(np.uint32).astype(np.int64)
    exponent = (bits >> 23) & 0xFF
    normal = (bits >> 31 == 0) & (exponent > 0) & (exponent < 255)
    mult = ((1 << 23) | (bits & 0x7FFFFF)) << 7
    return np.where(normal, mult, 0), np.where(normal, 157 - exponent, 0)


def mix(x: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """A bijection of 32-bit words. Worked in uint64 and cut to 32 bits: the low half of a product does not see the high half."""
    v = np.asarray(x, dtype=np.uint64) & _U32
    v = v ^ (v >> np.uint64(16))
    v = (v * np.uint64(0x7FEB352D)) & _U32
    v = v ^ (v >> np.uint64(15))
    v = (v * np.uint64(0x846CA68B)) & _U32
    return np.asarray(v ^ (v >> np.uint64(16)), dtype=np.uint64)


def draw(seed: int, tick: int, stream: int, count: int) -> Ints:
    """The ``count`` draws of one tensor at one tick: int64 in [0, 2^32)."""
    key = mix(mix(mix(seed ^ 0x9E3779B9) ^ np.uint64(tick)) ^ np.uint64((stream << 16) ^ 0x85EBCA6B))
    return mix(key + np.arange(count, dtype=np.uint64)).astype(np.int64)


def trained(t: Array, ws: int) -> Ints:
    """int8 bytes of a trained plane -> its int8 weights, flat. ws 2: int16 values of which the high byte counts; ws 1: as they are."""
    return i64(t.view("<i2")) >> 8 if ws == 2 else i64(t)


def bias(t: Array, bf: int) -> Ints:
    """int32 bias with bf fraction bits -> integer bias."""
    return i64(t) >> bf


_EXP_LOWEST = np.float32(-87)
_LOG2_E = np.float32(1.44269504)
_HALF = np.float32(0.5)
_ONE = np.float32(1)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_SQRT_HALF = np.float32(0.70710678)
_EXP_POLY = np.array(
    [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1],
    dtype=np.float32,
)
_LOG_POLY = np.array(
    [
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    ],
    dtype=np.float32,
)


def _horner(coefficients: Floats, x: Floats) -> Floats:
    p = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        p = p * x + c
    return p


def exp(x: npt.ArrayLike) -> Floats:
    """exp(x) of float32 x <= 0; 0 below -87. Within 2 units in the last place."""
    v = np.asarray(x, dtype=np.float32)
    inside = np.maximum(v, _EXP_LOWEST)
    k = np.floor(inside * _LOG2_E + _HALF)
    r = (inside - k * _LN2_HIGH) - k * _LN2_LOW
    p = _horner(_EXP_POLY, r) * (r * r) + r + _ONE
    bits = np.asarray(p, dtype=np.float32).view(np.int32) + (k.astype(np.int32) << 23)
    return np.where(v < _EXP_LOWEST, np.float32(0), bits.astype(np.int32).view(np.float32))


def log(x: npt.ArrayLike) -> Floats:
    """log(x) of float32 1 <= x < 2^24. Within 2 units in the last place."""
    bits = np.asarray(x, dtype=np.float32).view(np.int32)
    exponent = (bits >> 23) - 126
    f = ((bits & 0x7FFFFF) | (126 << 23)).astype(np.int32).view(np.float32)
    low = f < _SQRT_HALF
    f = np.where(low, f + f, f)
    k = np.where(low, exponent - 1, exponent).astype(np.float32)
    u = f - _ONE
    z = u * u
    p = _horner(_LOG_POLY, u) * u * z
    p = p + k * _LN2_LOW
    p = p - _HALF * z
    return np.asarray((u + p) + k * _LN2_HIGH, dtype=np.float32)
