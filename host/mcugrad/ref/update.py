"""SPEC.md section 3.6: from an exact gradient to the new weight. The three update rules, shared by all ops."""

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


def q16(a: Arrays, dw: Ints) -> Array:
    """dw (O, weights of a channel) int32 -> a["wt"] in Q8.8, rounded; returns dw as int32."""
    mult, e = _step_size(a, len(dw))
    wt = a["wt"].reshape(dw.shape)
    wt[:] = clamp(i64(wt) - scale(dw, mult, e - exponent(a["ry"]) - 8), -127 * 256, 127 * 256 + 255)
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
    """db (O,) int32 -> a["b"] with bf fraction bits, rounded; returns db as int32."""
    mult, e = _step_size(a, len(db))
    d = scale(db, mult[:, 0], e[:, 0] - exponent(a["ry"]) - k["bf"])
    a["b"][:] = clamp(i64(a["b"]) - d, -(2**31 - 1), 2**31 - 1)
    return db.astype(np.int32)
