"""dwconv2d: forward, error, gradient and update. SPEC.md 3.2, 3.5, 3.6.

Letters: x (H,W,I), y (P,Q,O) with O = I·M, w (O,R,S) of which output channels below OT are trained; output channel o reads input
channel o // M. Sums are int64 and cannot overflow: a tensor has at most 2^30 elements, 128·128·255·2^30 < 2^52.
"""

from __future__ import annotations

import numpy as np

from mcugrad.ref import epilogue, update
from mcugrad.ref.fixed import Array, Ints, bias, clamp, i64, requant, trained, wrap32
from mcugrad.ref.memory import Arrays, Scalars
from mcugrad.ref.window import taps


def weights(k: Scalars, a: Arrays) -> Ints:
    """(O,R,S): the trained output channels, then the frozen ones."""
    r, s, ot = k["r"], k["s"], k["ot"]
    return np.concatenate((trained(a["wt"], k["ws"]).reshape(ot, r, s), i64(a["wf"]).reshape(k["o"] - ot, r, s)), axis=0)


def _spread(k: Scalars, a: Arrays) -> Ints:
    """x - zx with every input channel repeated for its M output channels, (H,W,O)."""
    return np.repeat(i64(a["x"]).reshape(k["h"], k["w"], k["i"]) - k["zx"], k["m"], axis=2)


def dwconv2d_fwd_s8(k: Scalars, a: Arrays) -> None:
    x, w = _spread(k, a), weights(k, a)
    acc = np.zeros((k["p"], k["q"], k["o"]), np.int64)
    for r, s, outputs, inputs in taps(k):
        acc[outputs] += x[inputs] * w[:, r, s]
    total = wrap32(wrap32(acc) + bias(a["b"], k["bf"]))
    y = clamp(k["zy"] + requant(total, a["rq"]["mult"], a["rq"]["shift"], k["rounding"]), k["lo"], k["hi"])
    a["y"][:] = y.reshape(-1)


def dwconv2d_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    dy = i64(a["dy"]).reshape(k["p"], k["q"], k["o"]) * i64(a["fold"])
    w = weights(k, a)
    acc = np.zeros((k["h"], k["w"], k["o"]), np.int64)
    for r, s, outputs, inputs in taps(k):
        acc[inputs] += dy[outputs] * w[:, r, s]
    epilogue.finish(k, a, acc.reshape(k["h"], k["w"], k["i"], k["m"]).sum(axis=3).reshape(-1))


def _gradient(k: Scalars, a: Arrays) -> Ints:
    """dW (OT, R·S), wrapped to int32."""
    ot = k["ot"]
    x, dy = _spread(k, a)[:, :, :ot], i64(a["dy"]).reshape(k["p"], k["q"], k["o"])[:, :, :ot]
    dw = np.zeros((ot, k["r"], k["s"]), np.int64)
    for r, s, outputs, inputs in taps(k):
        dw[:, r, s] = (dy[outputs] * x[inputs]).sum(axis=(0, 1))
    return wrap32(dw).reshape(ot, k["r"] * k["s"])


def dwconv2d_upd_q16(k: Scalars, a: Arrays) -> Array:
    return update.q16(k, a, _gradient(k, a))


def dwconv2d_upd_sr8(k: Scalars, a: Arrays) -> Array:
    return update.sr8(k, a, _gradient(k, a))
