"""conv2d: forward, error, gradient and update. SPEC.md 3.2, 3.5, 3.6.

Letters: x (H,W,G·I), y (P,Q,O), w (O,R,S,I) of which input channels below IT are trained; output channel o reads the I input channels
of group o // (O/G). Sums are matrix products in float64, exact
because they stay below 2^53: a tensor has at most 2^30 elements, so |forward| <= 128·255·R·S·I < 2^45, |error| <= 128·128·255·R·S·O < 2^52,
|gradient| <= 128·255·P·Q < 2^45.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mcugrad.ref import epilogue, update
from mcugrad.ref.fixed import Array, Ints, bias, clamp, i64, requant, trained, wrap32
from mcugrad.ref.memory import Arrays, Scalars
from mcugrad.ref.window import taps


def weights(k: Scalars, a: Arrays) -> Ints:
    """(O,R,S,I): the trained input channels, then the frozen ones."""
    o, r, s, it = k["o"], k["r"], k["s"], k["it"]
    return np.concatenate((trained(a["wt"], k["ws"]).reshape(o, r, s, it), i64(a["wf"]).reshape(o, r, s, k["i"] - it)), axis=3)


def _groups(k: Scalars) -> Iterator[tuple[slice, slice]]:
    """Input channels and output channels of every group."""
    i, o = k["i"], k["o"] // k["g"]
    for g in range(k["g"]):
        yield slice(g * i, (g + 1) * i), slice(g * o, (g + 1) * o)


def conv2d_fwd_s8(k: Scalars, a: Arrays) -> None:
    x = (i64(a["x"]).reshape(k["h"], k["w"], k["g"] * k["i"]) - k["zx"]).astype(np.float64)
    w = weights(k, a).astype(np.float64)
    acc = np.zeros((k["p"], k["q"], k["o"]))
    for ins, outs in _groups(k):
        for r, s, outputs, inputs in taps(k):
            acc[:, :, outs][outputs] += x[:, :, ins][inputs] @ w[outs, r, s, :].T
    total = wrap32(wrap32(acc.astype(np.int64)) + bias(a["b"], k["bf"]))
    y = clamp(k["zy"] + requant(total, a["rq"]["mult"], a["rq"]["shift"], k["rounding"]), k["lo"], k["hi"])
    a["y"][:] = y.reshape(-1)


def conv2d_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    dy = (i64(a["dy"]).reshape(k["p"], k["q"], k["o"]) * i64(a["fold"])).astype(np.float64)
    w = weights(k, a).astype(np.float64)
    acc = np.zeros((k["h"], k["w"], k["g"] * k["i"]))
    for ins, outs in _groups(k):
        for r, s, outputs, inputs in taps(k):
            acc[:, :, ins][inputs] += dy[:, :, outs][outputs] @ w[outs, r, s, :]
    epilogue.finish(k, a, acc.astype(np.int64).reshape(-1))


def _gradient(k: Scalars, a: Arrays) -> Ints:
    """dW (O, R·S·IT), wrapped to int32."""
    x = (i64(a["x"]).reshape(k["h"], k["w"], k["g"] * k["i"]) - k["zx"]).astype(np.float64)
    dy = i64(a["dy"]).reshape(k["p"], k["q"], k["o"]).astype(np.float64)
    dw = np.zeros((k["o"], k["r"], k["s"], k["it"]))
    for ins, outs in _groups(k):
        for r, s, outputs, inputs in taps(k):
            trained_part = x[:, :, ins][:, :, : k["it"]]
            dw[outs, r, s, :] = np.tensordot(dy[:, :, outs][outputs], trained_part[inputs], axes=((0, 1), (0, 1)))
    return wrap32(dw.astype(np.int64)).reshape(k["o"], k["r"] * k["s"] * k["it"])


def conv2d_upd_q16(k: Scalars, a: Arrays) -> Array:
    return update.q16(k, a, _gradient(k, a))


def conv2d_upd_sr8(k: Scalars, a: Arrays) -> Array:
    return update.sr8(k, a, _gradient(k, a))
