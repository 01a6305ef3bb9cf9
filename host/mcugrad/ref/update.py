"""SPEC.md section 3.6: from an exact gradient to the new weight. The three update rules, shared by all ops, and a micro-batch's commit."""

from __future__ import annotations

import numpy as np

from mcugrad.ref.epilogue import exponent
from mcugrad.ref.fixed import Array, Ints, clamp, draw, i64, sat32, scale, split
from mcugrad.ref.memory import Arrays, Scalars


def _step_size(a: Arrays, channels: int) -> tuple[Ints, Ints]:
    """(lr · unit) · rate as (mult, n) of the first ``channels`` output channels, (channels, 1)."""
    lr, unit = a["args"]["lr"][0], a["unit"][0]
    with np.errstate(over="ignore", under="ignore"):
        f = (lr * unit) * a["rate"][:channels]
    mult, n = split(f)
    return mult[:, None], n[:, None]


def q16(k: Scalars, a: Arrays, dw: Ints) -> Array:
    """dw (O, weights of a channel) int32 -> a["wt"], rounded; returns dw as int32.

    af = 0: Q8.8. af > 0: the weight stays, and the low byte sums up the steps in units of 2^-af.
    """
    mult, e = _step_size(a, len(dw))
    wt = a["wt"].reshape(dw.shape)
    old = i64(wt)
    d = scale(dw, mult, e - exponent(a["ry"]) - (k["af"] or 8))
    floor = old >> 8 << 8
    wt[:] = clamp(old - d, floor, floor + 255) if k["af"] else clamp(old - d, -127 * 256, 127 * 256 + 255)
    return dw.astype(np.int32)


def sr8(k: Scalars, a: Arrays, dw: Ints) -> Array:
    """dw (O, weights of a channel) int32 -> a["wt"] in int8, stochastically rounded; returns dw as int32.

    |dw · mult| < 2^62 and the draw adds less than 2^n <= 2^62: the sum stays in int64.
    """
    mult, e = _step_size(a, len(dw))
    n = np.broadcast_to(e - exponent(a["ry"]), dw.shape)
    u = draw(int(a["rng"]["seed"][0]), int(a["rng"]["tick"][0]), k["stream"], dw.size).reshape(dw.shape)
    p = (dw * mult) >> np.clip(n - 62, 0, 63)
    power = np.clip(n, 1, 62)
    dither = np.where(power >= 32, u << np.maximum(power - 32, 0), u >> np.maximum(32 - power, 0))
    d = np.where(n >= 1, sat32((p + dither) >> power), scale(dw, mult, np.minimum(n, 0)))
    wt = a["wt"].reshape(dw.shape)
    wt[:] = clamp(i64(wt) - d, -127, 127)
    return dw.astype(np.int32)


def s32(k: Scalars, a: Arrays, db: Ints) -> Array:
    """db (O,) int32 -> a["b"], rounded; returns db as int32.

    af = 0: b has bf fraction bits. af > 0: b >> bf stays, and the bits below sum up the steps in units of 2^-af.
    """
    mult, e = _step_size(a, len(db))
    d = scale(db, mult[:, 0], e[:, 0] - exponent(a["ry"]) - (k["af"] or k["bf"]))
    old = i64(a["b"])
    floor = old >> k["bf"] << k["bf"]
    a["b"][:] = clamp(old - d, floor, floor + 2 ** k["bf"] - 1) if k["af"] else clamp(old - d, -(2**31 - 1), 2**31 - 1)
    return db.astype(np.int32)


def commit(stored: Ints, bits: int, af: int, lo: int, hi: int) -> Ints:
    """Move the sum of a micro-batch, the low ``bits`` of ``stored`` less their half, into the value above, which saturates at lo and hi.

    int64 -> int64; the rest of less than a step stays in the sum.
    """
    half = 1 << bits - 1
    value, total = stored >> bits, (stored & (1 << bits) - 1) - half
    d = (total + (1 << af - 1)) >> af
    return i64((clamp(value + d, lo, hi) << bits) + half + total - (d << af))


def commit_s16(k: Scalars, a: Arrays) -> None:
    a["wt"][:] = commit(i64(a["wt"]), 8, k["af"], -127, 127)


def commit_s32(k: Scalars, a: Arrays) -> None:
    a["b"][:] = commit(i64(a["b"]), k["bf"], k["af"], -(2**31) >> k["bf"], (2**31 - 1) >> k["bf"])
