"""Which rows (or columns) a sliding window's tap reads: the one place that knows stride, dilation and padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mcugrad.ref.fixed import Array
from mcugrad.ref.memory import Scalars

Indices = npt.NDArray[np.intp]
Grid = tuple[Array, ...]


def tap(size: int, out: int, stride: int, offset: int) -> tuple[Indices, Indices]:
    """Output positions whose tap lies inside the input, and the input position each of them reads.

    ``size`` and ``out`` are the lengths of input and output along this axis, ``offset`` is tap · dilation - pad. With stride >= 1 no input
    position comes twice.
    """
    position = np.arange(out) * stride + offset
    inside = (position >= 0) & (position < size)
    return np.nonzero(inside)[0], position[inside]


def count(size: int, out: int, taps: int, stride: int, pad: int) -> npt.NDArray[np.int64]:
    """How many of the ``taps`` of each output position lie inside the input, (out,). Dilation 1."""
    first = np.arange(out, dtype=np.int64) * stride - pad
    inside: npt.NDArray[np.int64] = np.maximum(np.minimum(first + taps, size) - np.maximum(first, 0), 0)
    return inside


def taps(k: Scalars) -> Iterator[tuple[int, int, Grid, Grid]]:
    """For every kernel tap (r, s): the outputs it serves and the inputs these read, as indices of (P,Q) and (H,W)."""
    for r in range(k["r"]):
        p, h = tap(k["h"], k["p"], k["sh"], r * k.get("dh", 1) - k["pt"])
        for s in range(k["s"]):
            q, w = tap(k["w"], k["q"], k["sw"], s * k.get("dw", 1) - k["pl"])
            yield r, s, np.ix_(p, q), np.ix_(h, w)
