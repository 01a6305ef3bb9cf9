"""linear and requant: forward, error, gradient and update. SPEC.md 3.2, 3.5, 3.6.

Letters: x (N,I), y (N,O), w (O,I) of which inputs below IT are trained. Sums are matrix products in float64, exact below 2^53: 128·255·I,
128·128·255·O and 128·255·N are all below 2^38.
"""

from __future__ import annotations

import numpy as np

from mcugrad.ref import epilogue, update
from mcugrad.ref.fixed import Array, Ints, bias, clamp, i64, requant, trained, wrap32
from mcugrad.ref.memory import Arrays, Scalars


def weights(k: Scalars, a: Arrays) -> Ints:
    """(O,I): the trained inputs, then the frozen ones."""
    o, it = k["o"], k["it"]
    return np.concatenate((trained(a["wt"], k["ws"]).reshape(o, it), i64(a["wf"]).reshape(o, k["i"] - it)), axis=1)


def _matmul(a: Ints, b: Ints) -> Ints:
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)


def _accumulate(k: Scalars, a: Arrays) -> Ints:
    """(N,O): sum and bias, wrapped to int32."""
    x = i64(a["x"]).reshape(k["n"], k["i"]) - k["zx"]
    return wrap32(wrap32(_matmul(x, weights(k, a).T)) + bias(a["b"], k["bf"]))


def linear_fwd_s8(k: Scalars, a: Arrays) -> None:
    y = clamp(k["zy"] + requant(_accumulate(k, a), a["rq"]["mult"], a["rq"]["shift"], k["rounding"]), k["lo"], k["hi"])
    a["y"][:] = y.reshape(-1)


def linear_fwd_s32(k: Scalars, a: Arrays) -> None:
    a["y"][:] = _accumulate(k, a).reshape(-1)


def requant_fwd_s8(k: Scalars, a: Arrays) -> None:
    x = i64(a["x"]).reshape(k["n"], k["o"])
    y = clamp(k["zy"] + requant(x, a["rq"]["mult"], a["rq"]["shift"], k["rounding"]), k["lo"], k["hi"])
    a["y"][:] = y.reshape(-1)


def linear_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    dy = i64(a["dy"]).reshape(k["n"], k["o"]) * i64(a["fold"])
    epilogue.finish(k, a, _matmul(dy, weights(k, a)).reshape(-1))


def _gradient(k: Scalars, a: Arrays) -> Ints:
    """dW (O, IT), wrapped to int32."""
    x = i64(a["x"]).reshape(k["n"], k["i"])[:, : k["it"]] - k["zx"]
    return wrap32(_matmul(i64(a["dy"]).reshape(k["n"], k["o"]).T, x))


def linear_upd_q16(k: Scalars, a: Arrays) -> Array:
    return update.q16(k, a, _gradient(k, a))


def linear_upd_sr8(k: Scalars, a: Arrays) -> Array:
    return update.sr8(k, a, _gradient(k, a))
