"""prelu: forward and error. SPEC.md 3.2, 3.5. Letters: x, y (P,C), alpha (C,)."""

from __future__ import annotations

import numpy as np

from mcugrad.ref import epilogue
from mcugrad.ref.fixed import Array, Ints, i64, requant, sat8
from mcugrad.ref.memory import Arrays, Scalars


def _rows(k: Scalars, x: Array) -> Ints:
    return i64(x).reshape(k["p"], k["c"])


def prelu_fwd_s8(k: Scalars, a: Arrays) -> None:
    v = _rows(k, a["x"]) - k["zx"]
    above = requant(v, k["pm"], k["psh"], k["rounding"])
    below = requant(v * (i64(a["alpha"]) - k["za"]), k["nm"], k["nsh"], k["rounding"])
    a["y"][:] = sat8(k["zy"] + np.where(v >= 0, above, below)).reshape(-1)


def prelu_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    slope = np.where(_rows(k, a["x"]) > k["zx"], k["one"], i64(a["slope"]))
    epilogue.finish(k, a, (_rows(k, a["dy"]) * slope).reshape(-1))
