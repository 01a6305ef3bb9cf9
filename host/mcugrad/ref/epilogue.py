"""SPEC.md section 3.5: how every backward step turns int32 accumulators into int8 errors and moves the exponent of their tensor."""

from __future__ import annotations

import numpy as np

from mcugrad.ref.fixed import Array, Ints, clamp, i64, scale, wrap32
from mcugrad.ref.memory import Arrays, Scalars

R_MIN, R_MAX = -16, 15
_SKIP_LIMIT = 2**29
_PATIENCE = 16


def exponent(record: Array) -> int:
    """r of a one-element mg_exponent array, clamped to its legal range."""
    return min(max(int(record["r"][0]), R_MIN), R_MAX)


def finish(k: Scalars, a: Arrays, acc: Ints) -> None:
    """acc (elements of dx) int64, not yet wrapped -> a["dx"] and a["rx"]: skip error, clamp mask, rounding, exponent rule.

    Everything is read before anything is written, so dx may be the bytes of any input.
    """
    r, r_in = min(max(int(a["rx"]["next"][0]), R_MIN), R_MAX), exponent(a["ry"])
    acc = wrap32(acc)
    if k["has_skip"]:
        skip = scale(a["skip"], k["skip_mult"], k["skip_shift"] - exponent(a["rskip"]) + r_in)
        acc = wrap32(acc + clamp(skip, -_SKIP_LIMIT, _SKIP_LIMIT))
    e = scale(acc, k["mult"], k["shift"] - r_in + r)
    if k["has_mask"]:
        x = i64(a["x"])
        e = np.where((k["lo"] < x) & (x < k["hi"]), e, 0)
    if k.get("has_bits"):
        e = np.where(np.unpackbits(a["bits"], count=e.size, bitorder="little"), e, 0)
    a["dx"][:] = clamp(e, -127, 127)
    a["rx"][0] = _next(r, int(a["rx"]["count"][0]), int(np.abs(e).max(initial=0)))


def _next(r: int, count: int, peak: int) -> tuple[int, int, int, int]:
    """The mg_exponent after a sample whose largest |error| before the clamp was ``peak``."""
    if peak > 127:
        return r, min(r + 1, R_MAX), 0, 0
    if peak >= 64:
        return r, r, 0, 0
    if count + 1 == _PATIENCE:
        return r, max(r - 1, R_MIN), 0, 0
    return r, r, (count + 1) % 256, 0
