"""Elementwise minimum and maximum of codes: forward and error. SPEC.md 3.2, 3.5. Letters as in spread.py."""

from __future__ import annotations

import numpy as np

from mcugrad.ref import epilogue
from mcugrad.ref.memory import Arrays, Scalars
from mcugrad.ref.spread import spread, whole

_ONE_SHIFT = 12


def minmax_fwd_s8(k: Scalars, a: Arrays) -> None:
    choose = np.maximum if k["max"] else np.minimum
    a["y"][:] = choose(whole(k, a["a"]), spread(k, a["b"])).reshape(-1)


def minmax_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    """Where the operands are equal, a was chosen."""
    first, second = whole(k, a["a"]), spread(k, a["b"])
    chosen = first >= second if k["max"] else first <= second
    if k["second"]:
        chosen = ~chosen
    epilogue.finish(k, a, np.where(chosen, whole(k, a["dy"]) << _ONE_SHIFT, 0).reshape(-1))
