"""Nearest-neighbour resize: forward and error. SPEC.md 3.2, 3.5. Letters: x (H,W,C), y (P,Q,C), rows (P,), cols (Q,)."""

from __future__ import annotations

import numpy as np

from mcugrad.ref import epilogue
from mcugrad.ref.fixed import Ints, i64
from mcugrad.ref.memory import Arrays, Scalars

_ONE_SHIFT = 12


def _sources(k: Scalars, a: Arrays) -> tuple[Ints, Ints]:
    """The row and the column of x that every output reads, (P,1) and (1,Q)."""
    rows, columns = np.ix_(np.minimum(i64(a["rows"]), k["h"] - 1), np.minimum(i64(a["cols"]), k["w"] - 1))
    return rows, columns


def resize_fwd_s8(k: Scalars, a: Arrays) -> None:
    a["y"][:] = a["x"].reshape(k["h"], k["w"], k["c"])[_sources(k, a)].reshape(-1)


def resize_bwd_x_s8(k: Scalars, a: Arrays) -> None:
    acc = np.zeros((k["h"], k["w"], k["c"]), np.int64)
    np.add.at(acc, _sources(k, a), i64(a["dy"]).reshape(k["p"], k["q"], k["c"]))
    epilogue.finish(k, a, acc.reshape(-1) << _ONE_SHIFT)
