"""A function of one value by table: forward and error. SPEC.md 3.2, 3.5. Letters: x, y (N,)."""

from __future__ import annotations

from mcugrad.ref import epilogue
from mcugrad.ref.fixed import i64
from mcugrad.ref.memory import Arrays, Scalars


def lut_fwd_s8(_: Scalars, a: Arrays) -> None:
    a["y"][:] = a["table"][i64(a["x"]) + 128]


def lut_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    epilogue.finish(k, a, i64(a["dy"]) * i64(a["slope"])[i64(a["x"]) + 128])
