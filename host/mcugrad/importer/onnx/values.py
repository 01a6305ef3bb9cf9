"""What a name of an ONNX file stands for while the graph is built, and the algebra of layouts.

A node speaks of logical shapes, NCHW; the graph stores NHWC. ``Act`` keeps both: logical element i, counted row by row, is element order[i]
of the stored tensor. So Transpose, Reshape and Flatten cost nothing until an operator wants one certain order; only then does a Transpose
come into the graph, and a fully connected layer does not even want that: it takes the order into its weight columns.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mcugrad.graph.types import OpKind
from mcugrad.importer.onnx.file import Node

Shape = tuple[int, ...]
Order = npt.NDArray[np.int32]
"""A permutation of the elements of a tensor, or None for the identity."""

TO_NHWC = (0, 2, 3, 1)
TO_NCHW = (0, 3, 1, 2)
MAX_STORED_RANK = 4


@dataclass(frozen=True, slots=True, eq=False)
class Act:
    """An activation: tensor ``tensor`` of the graph, read in the logical ``shape``.

    ``real``: the node that reads it sees real numbers, otherwise the codes, of type ``codes`` in the file (the graph has int8 always).
    """

    tensor: int
    shape: Shape
    order: Order | None = None
    real: bool = True
    codes: str = "int8"

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """A constant of the file, in its own type."""

    array: npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class QConst:
    """A constant behind DequantizeLinear: codes (int8, uint8 or int32), scale and zero point of shape () or (channels of ``axis``,)."""

    codes: npt.NDArray[Any]
    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    axis: int = 0

    @property
    def real(self) -> npt.NDArray[np.float32]:
        spread = [-1 if k == self.axis else 1 for k in range(self.codes.ndim)] if self.scale.ndim else []
        centred = self.codes.astype(np.int64) - self.zero_point.reshape(spread if self.zero_point.ndim else [])
        with np.errstate(all="ignore"):
            return (centred.astype(np.float64) * self.scale.astype(np.float64).reshape(spread)).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Weights of a convolution or a fully connected layer on the way into the graph.

    w int8 with ``scale`` (1,) or (O,), or float32 without; output channels along ``axis``. b (O,) in real numbers; ``codes`` (O,) are the
    int32 of the file, where their scale is input scale · weight scale.
    """

    w: npt.NDArray[Any]
    axis: int
    scale: npt.NDArray[np.float64] | None
    b: npt.NDArray[np.float64] | None = None
    codes: npt.NDArray[np.int64] | None = None

    @property
    def channels(self) -> int:
        return int(self.w.shape[self.axis])

    def scaled(self, factor: npt.NDArray[np.float64]) -> Layer:
        """The layer whose result is multiplied by ``factor`` (O,). In int8 only scales and signs change."""
        spread = factor.reshape([-1 if k == self.axis else 1 for k in range(self.w.ndim)])
        b = None if self.b is None else self.b * factor
        if self.scale is None:
            return replace(self, w=(self.w * spread).astype(np.float32), b=b, codes=None)
        flipped = np.clip(self.w.astype(np.int16) * np.where(spread < 0, -1, 1), -128, 127).astype(np.int8)
        return replace(self, w=flipped, scale=np.broadcast_to(self.scale, factor.shape) * np.abs(factor), b=b, codes=None)

    def shifted(self, bias: npt.NDArray[np.float64]) -> Layer:
        """The layer with ``bias`` (O,) added to its result."""
        return replace(self, b=bias if self.b is None else self.b + bias, codes=None)


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A result whose quantization is not known yet; what follows may still be taken in: a bias, a factor, bounds.

    ``kind`` None: the input itself (Clip and Relu of an activation). ``stored`` is the shape of the graph's tensor, ``shape`` and ``order``
    are those of an Act. ``lo``, ``hi``: real bounds of the result.
    """

    node: Node
    kind: OpKind | None
    inputs: tuple[int, ...]
    stored: Shape
    shape: Shape
    order: Order | None = field(default=None)
    layer: Layer | None = None
    lo: float = -inf
    hi: float = inf


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """The hard sigmoid of ``x``, of which only its product with x itself is supported: hard swish."""

    node: Node
    x: Act


Value = Act | Const | QConst | Pending | Gate


# ---- orders ----------------------------------------------------------------------------------------------------------


def identity(n: int) -> Order:
    return np.arange(n, dtype=np.int32)


def simplified(order: Order) -> Order | None:
    return None if np.array_equal(order, identity(order.size)) else order


def full(act: Act) -> Order:
    return identity(act.size) if act.order is None else act.order


def turned(shape: Shape, perm: Shape) -> Order:
    """For each element of the array of ``shape`` transposed by ``perm``, its place in the array itself."""
    return identity(prod(shape)).reshape(shape).transpose(perm).ravel()


def transposed(act: Act, perm: Shape) -> Act:
    """The logical transpose."""
    order = full(act)[turned(act.shape, perm)]
    return replace(act, shape=tuple(act.shape[p] for p in perm), order=simplified(order))


def inverse(perm: Shape) -> Shape:
    return tuple(perm.index(k) for k in range(len(perm)))


def permutation(order: Order, shape: Shape, target: Shape | None = None) -> Shape | None:
    """perm with ``turned(shape, perm) == order`` and, where given, a result of shape ``target``; None where there is none."""
    if len(shape) > MAX_STORED_RANK:
        return None
    usual = [p for p in (TO_NCHW, tuple(range(len(shape))), TO_NHWC) if len(p) == len(shape)]
    for perm in [*usual, *itertools.permutations(range(len(shape)))]:
        if (target is None or tuple(shape[p] for p in perm) == target) and np.array_equal(turned(shape, perm), order):
            return perm
    return None


def factored(order: Order) -> tuple[Shape, Shape] | None:
    """(dims, perm) with ``turned(dims, perm) == order`` and as few dims as possible; None where no transposition does it."""
    sizes: list[int] = []
    strides: list[int] = []
    block = 1
    while block < order.size:
        steps = order[::block]
        stride = int(order[block])
        other = np.flatnonzero(steps != np.arange(steps.size) * stride)
        run = int(other[0]) if other.size else steps.size
        if run < 2 or steps.size % run:
            return None
        sizes.insert(0, run)
        strides.insert(0, stride)
        block *= run
    outer = sorted(range(len(sizes)), key=lambda k: -strides[k])
    dims, perm = tuple(sizes[k] for k in outer), tuple(outer.index(k) for k in range(len(sizes)))
    return (dims, perm) if np.array_equal(turned(dims, perm), order) else None
