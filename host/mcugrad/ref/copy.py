"""Strided copy: pad, slice, concat, split and transpose are made of it. SPEC.md 3.2. A block has D0 × D1 × D2 × D3 elements."""

from __future__ import annotations

import numpy as np

from mcugrad.ref.fixed import Ints
from mcugrad.ref.memory import Arrays, Scalars


def _places(k: Scalars, side: str) -> Ints:
    """The element that every position of the block has in x or y, in the order of the block, flat."""
    steps = [np.arange(k[f"d{axis}"], dtype=np.int64) * k[f"{side}{axis}"] for axis in range(4)]
    i, j, m, n = np.ix_(*steps)
    return np.asarray(k[f"{side}o"] + i + j + m + n).reshape(-1)


def copy_s8(k: Scalars, a: Arrays) -> None:
    """Where a stride of y is 0, the last of the block stays: NumPy assigns repeated places in order."""
    if k["has_fill"]:
        a["y"][:] = k["fill"]
    a["y"][_places(k, "y")] = a["x"][_places(k, "x")]
