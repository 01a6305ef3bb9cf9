"""Elementwise addition and subtraction: forward, error, and the error of a spread operand. SPEC.md 3.2, 3.5. Letters as in spread.py."""

from __future__ import annotations

from mcugrad.ref import epilogue
from mcugrad.ref.fixed import clamp, i64, requant, wrap32
from mcugrad.ref.memory import Arrays, Scalars
from mcugrad.ref.spread import gather, spread, whole

_ADD_SHIFT = 20
_ONE_SHIFT = 12


def add_fwd_s8(k: Scalars, a: Arrays) -> None:
    u = requant((whole(k, a["a"]) - k["za"]) << _ADD_SHIFT, k["am"], k["ash"], k["rounding"])
    v = requant((spread(k, a["b"]) - k["zb"]) << _ADD_SHIFT, k["bm"], k["bsh"], k["rounding"])
    total = wrap32(k["asign"] * u + k["bsign"] * v)
    a["y"][:] = clamp(k["zy"] + requant(total, k["ym"], k["ysh"], k["rounding"]), k["lo"], k["hi"]).reshape(-1)


def add_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    epilogue.finish(k, a, k["sign"] * i64(a["dy"]) << _ONE_SHIFT)


def sum_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    epilogue.finish(k, a, k["sign"] * gather(k, whole(k, a["dy"])) << k["up"])
