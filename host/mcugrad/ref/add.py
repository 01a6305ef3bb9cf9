"""Elementwise addition: forward and error. SPEC.md 3.2, 3.5. All tensors (N,), flat."""

from __future__ import annotations

from mcugrad.ref import epilogue
from mcugrad.ref.fixed import clamp, i64, requant, wrap32
from mcugrad.ref.memory import Arrays, Scalars

_SHIFT = 20


def add_fwd_s8(k: Scalars, a: Arrays) -> None:
    u = requant((i64(a["a"]) - k["za"]) << _SHIFT, k["am"], k["ash"])
    v = requant((i64(a["b"]) - k["zb"]) << _SHIFT, k["bm"], k["bsh"])
    a["y"][:] = clamp(k["zy"] + requant(wrap32(u + v), k["ym"], k["ysh"]), k["lo"], k["hi"])


def add_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    epilogue.finish(k, a, i64(a["dy"]) << _SHIFT)
