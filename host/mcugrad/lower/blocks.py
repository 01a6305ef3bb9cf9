"""Ops that only move elements, as strided copies; and how a smaller operand spreads over a larger one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcugrad.errors import ModelError
from mcugrad.graph import Concat, Graph, Op, Pad, Slice, Transpose

MAX_RANK = 4
MAX_DIM = 65535

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """y[y_offset + Σ i·y_strides] = x[x_offset + Σ i·x_strides] for i < dims. ``fill`` goes everywhere else in y; None: the rest stays."""

    dims: Shape
    x_offset: int
    x_strides: Shape
    y_offset: int
    y_strides: Shape
    fill: int | None = None

    def backward(self, size: int) -> Block:
        """The copy back into an x of ``size`` elements, as the error goes: zero where nothing came from."""
        fill = None if _product(self.dims) == size else 0
        return Block(self.dims, self.y_offset, self.y_strides, self.x_offset, self.x_strides, fill)


def row_major(shape: Sequence[int]) -> Shape:
    """Strides in elements."""
    strides = [1] * len(shape)
    for k in range(len(shape) - 2, -1, -1):
        strides[k] = strides[k + 1] * shape[k + 1]
    return tuple(strides)


def dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def move_block(graph: Graph, op: Op, k: int) -> Block:
    """How input ``k`` of a Concat, Slice, Transpose or Pad goes into the output."""
    x, y = graph.read(op, k).shape, graph.tensors[op.outputs[0]].shape
    xs, ys = row_major(x), row_major(y)
    match op.kind:
        case Slice(begin=begin, step=step):
            block = Block(y, dot(begin, xs), tuple(a * b for a, b in zip(step, xs, strict=True)), 0, ys)
        case Transpose(perm=perm):
            block = Block(y, 0, tuple(xs[i] for i in perm), 0, ys)
        case Pad(before=before, value=value):
            block = Block(x, 0, xs, dot(before, ys), ys, value)
        case Concat(axis=axis):
            start = sum(graph.read(op, i).shape[axis] for i in range(k))
            block = Block(x, 0, xs, start * ys[axis], ys)
        case _:
            raise AssertionError(op.kind)
    return merged(block, op.name)


def spread_block(small: Shape, large: Shape, name: str) -> Block:
    """The copy that spreads an operand of shape ``small`` over ``large``."""
    padded = (1,) * (len(large) - len(small)) + small
    strides = tuple(0 if n == 1 else s for n, s in zip(padded, row_major(padded), strict=True))
    return merged(Block(large, 0, strides, 0, row_major(large)), name)


def merged(block: Block, name: str) -> Block:
    """The same copy in four dimensions: without those of size 1, and with neighbours joined that lie behind each other in both."""
    axes = [part for a in zip(block.dims, block.x_strides, block.y_strides, strict=True) if a[0] != 1 for part in _short(*a, name)]
    joined: list[tuple[int, int, int]] = []
    for n, x, y in reversed(axes):
        if joined:
            m, mx, my = joined[-1]
            if x == m * mx and y == m * my and n * m <= MAX_DIM:
                joined[-1] = (n * m, mx, my)
                continue
        joined.append((n, x, y))
    if len(joined) > MAX_RANK:
        raise ModelError(f"op {name} moves elements along {len(joined)} axes, {MAX_RANK} is the limit", "split the transpose into several")
    joined += [(1, 0, 0)] * (MAX_RANK - len(joined))
    dims, xs, ys = zip(*reversed(joined), strict=True)
    return replace(block, dims=dims, x_strides=xs, y_strides=ys)


def _short(n: int, x: int, y: int, name: str) -> list[tuple[int, int, int]]:
    """One axis, or two where it is longer than a record can say."""
    if n <= MAX_DIM:
        return [(n, x, y)]
    inner = next((d for d in range(MAX_DIM, 1, -1) if n % d == 0), 1)
    if n // inner > MAX_DIM:
        raise ModelError(f"op {name} moves {n} elements along one axis, {MAX_DIM} is the limit", "give it another shape")
    return [(n // inner, inner * x, inner * y), (inner, x, y)]


@dataclass(frozen=True, slots=True)
class Spread:
    """A large operand as (P, C), and whether the small one has those rows and columns (bp, bc) or one for all."""

    p: int
    c: int
    bp: int
    bc: int


def spread(small: Shape, large: Shape) -> Spread | None:
    """How ``small`` spreads over ``large`` as rows and columns; None where it takes more than that."""
    padded = (1,) * (len(large) - len(small)) + small
    for k in range(len(large) + 1):
        rows, cols = _same(padded[:k], large[:k]), _same(padded[k:], large[k:])
        if rows is not None and cols is not None:
            return Spread(_product(large[:k]), _product(large[k:]), rows, cols)
    return None


def _same(small: Shape, large: Shape) -> int | None:
    """1 where the dimensions are equal, 0 where the small ones are all 1, None where mixed."""
    if small == large:
        return 1
    return 0 if all(n == 1 for n in small) else None


def _product(shape: Shape) -> int:
    n = 1
    for d in shape:
        n *= d
    return n
