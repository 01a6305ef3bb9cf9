"""Elementwise multiplication: forward and the errors of both operands. SPEC.md 3.2, 3.5. Letters as in spread.py.

Sums over what an operand was spread to are int64: at most 2^30 terms below 2^15.
"""

from __future__ import annotations

from mcugrad.ref import epilogue
from mcugrad.ref.fixed import clamp, requant
from mcugrad.ref.memory import Arrays, Scalars
from mcugrad.ref.spread import gather, spread, whole


def mul_fwd_s8(k: Scalars, a: Arrays) -> None:
    product = (whole(k, a["a"]) - k["za"]) * (spread(k, a["b"]) - k["zb"])
    a["y"][:] = clamp(k["zy"] + requant(product, k["mult"], k["shift"], k["rounding"]), k["lo"], k["hi"]).reshape(-1)


def mul_bwd_a_s8(k: Scalars, a: Arrays) -> None:
    epilogue.finish(k, a, (whole(k, a["dy"]) * (spread(k, a["b"]) - k["zb"])).reshape(-1))


def mul_bwd_b_s8(k: Scalars, a: Arrays) -> None:
    epilogue.finish(k, a, gather(k, whole(k, a["dy"]) * (whole(k, a["a"]) - k["za"])))
