"""Two operands of which one may be spread over the other. SPEC.md 3.2. Letters: a (P,C), b (P or 1, C or 1): a size of 1 is spread."""

from __future__ import annotations

from mcugrad.ref.fixed import Array, Ints, i64
from mcugrad.ref.memory import Scalars


def whole(k: Scalars, x: Array) -> Ints:
    """An operand like a, (P,C)."""
    return i64(x).reshape(k["p"], k["c"])


def spread(k: Scalars, b: Array) -> Ints:
    """b as stored, (P or 1, C or 1), which NumPy broadcasts."""
    return i64(b).reshape(k["p"] if k["bp"] else 1, k["c"] if k["bc"] else 1)


def gather(k: Scalars, v: Ints) -> Ints:
    """The sum of v (P,C) over the elements that read each element of b, flat."""
    axes = tuple(axis for axis, kept in enumerate((k["bp"], k["bc"])) if not kept)
    return i64(v.sum(axis=axes)).reshape(-1)
