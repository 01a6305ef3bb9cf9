"""copy_s8 and resize_fwd_s8 against TensorFlow Lite Micro's interpreter, on models of one op that only moves values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from oracle import a_quant, int8, oracle, run

from helpers.tflite_builder import ModelBuilder
from mcugrad.graph.types import Quant
from mcugrad.lower.quant import resize_rows
from mcugrad.ref.fixed import Array

X_SHAPE = (1, 5, 6, 4)
STEPS = (1, 2, 3)


def dense(shape: Sequence[int]) -> list[int]:
    """Row-major strides."""
    return [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]


def offset(at: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * step for i, step in zip(at, strides, strict=True))


def moved(
    x: Array, y: Array, sizes: Sequence[int], source: tuple[int, Sequence[int]], to: tuple[int, Sequence[int]], fill: int | None = None
) -> Array:
    """y after a copy of a block of ``sizes``; ``source`` and ``to`` are (first element, strides), up to four axes."""
    k = {"xn": x.size, "yn": y.size, "xo": source[0], "yo": to[0], "has_fill": int(fill is not None), "fill": fill or 0}
    for axis in range(4):
        inside = axis < len(sizes)
        k[f"d{axis}"] = sizes[axis] if inside else 1
        k[f"x{axis}"], k[f"y{axis}"] = (source[1][axis], to[1][axis]) if inside else (0, 0)
    return run("copy_s8", k, x=x, y=y).reshape(y.shape)


def sliced(x: Array, begin: Sequence[int], step: Sequence[int], shape: Sequence[int]) -> Array:
    """y[i] = x[begin + i · step]."""
    strides = dense(x.shape)
    source = offset(begin, strides), [a * b for a, b in zip(step, strides, strict=True)]
    return moved(x, np.zeros(shape, np.int8), shape, source, (0, dense(shape)))


def model_of(x: Array, quant: Quant) -> tuple[ModelBuilder, int]:
    m = ModelBuilder()
    return m, m.tensor("x", x.shape, quant=quant)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(700)


@pytest.mark.parametrize("perm", [*itertools.permutations(range(4)), (1, 0), (2, 0, 1)])
def test_transpose(perm: tuple[int, ...], rng: np.random.Generator) -> None:
    x = int8(rng, *((3, 5, 6, 4)[: len(perm)]))
    m, xi = model_of(x, a_quant(rng))
    yi = m.transpose(xi, perm)
    y = np.zeros(m.shape(yi), np.int8)
    strides = dense(x.shape)
    got = moved(x, y, y.shape, (0, [strides[axis] for axis in perm]), (0, dense(y.shape)))
    assert np.array_equal(got, oracle(m.finish([xi], [yi]), x))


@pytest.mark.parametrize("amounts", [((0, 0), (1, 2), (3, 0), (0, 0)), ((0, 0), (0, 1), (2, 2), (1, 3)), ((0, 0),) * 4])
@pytest.mark.parametrize("value", [None, -128, 5])
def test_pad(amounts: tuple[tuple[int, int], ...], value: int | None, rng: np.random.Generator) -> None:
    x, quant = int8(rng, *X_SHAPE), a_quant(rng)
    m, xi = model_of(x, quant)
    yi = m.pad_any(xi, amounts, value)
    y = np.zeros(m.shape(yi), np.int8)
    strides = dense(y.shape)
    to = offset([before for before, _ in amounts], strides), strides
    got = moved(x, y, x.shape, (0, dense(x.shape)), to, quant.zero_point if value is None else value)
    assert np.array_equal(got, oracle(m.finish([xi], [yi]), x))


@pytest.mark.parametrize(("begin", "size"), [((0, 1, 2, 3), (1, 3, 4, 1)), ((0, 0, 5, 0), (-1, -1, -1, -1)), ((0, 4, 0, 1), (1, 1, 6, -1))])
def test_slice(begin: tuple[int, ...], size: tuple[int, ...], rng: np.random.Generator) -> None:
    x = int8(rng, *X_SHAPE)
    m, xi = model_of(x, a_quant(rng))
    yi = m.slice(xi, begin, size)
    assert np.array_equal(sliced(x, begin, (1, 1, 1, 1), m.shape(yi)), oracle(m.finish([xi], [yi]), x))


@pytest.mark.parametrize(
    ("begin", "end", "masks"),
    [
        ((0, 1, 1, 0), (1, 5, 6, 4), {}),
        ((0, -4, 2, 0), (1, -1, 99, 4), {}),
        ((0, 3, 4, 2), (0, 1, 5, 1), {"begin_mask": 0b0110, "end_mask": 0b1001}),
    ],
)
@pytest.mark.parametrize("step", STEPS)
def test_strided_slice(begin: tuple[int, ...], end: tuple[int, ...], masks: dict[str, int], step: int, rng: np.random.Generator) -> None:
    x = int8(rng, *X_SHAPE)
    steps = (1, step, 1, 1) if step < 3 else (1, 2, 3, 1)
    m, xi = model_of(x, a_quant(rng))
    yi = m.strided_slice(xi, begin, end, steps, **masks)
    first = [0 if masks.get("begin_mask", 0) >> k & 1 else at % n for k, (at, n) in enumerate(zip(begin, x.shape, strict=True))]
    assert np.array_equal(sliced(x, first, steps, m.shape(yi)), oracle(m.finish([xi], [yi]), x))


def test_strided_slice_that_drops_an_axis(rng: np.random.Generator) -> None:
    x = int8(rng, *X_SHAPE)
    m, xi = model_of(x, a_quant(rng))
    yi = m.strided_slice(xi, (0, 2, 0, 0), (1, 3, 6, 4), (1, 1, 1, 1), shrink_mask=0b0010)
    assert m.shape(yi) == (1, 6, 4)
    got = sliced(x, (0, 2, 0, 0), (1, 1, 1, 1), (1, 1, 6, 4))
    assert np.array_equal(got.reshape(1, 6, 4), oracle(m.finish([xi], [yi]), x))


@pytest.mark.parametrize(("axis", "sizes"), [(3, (2, 2)), (2, (2, 2, 2)), (1, (1, 4)), (3, (1, 2, 1))])
def test_split(axis: int, sizes: tuple[int, ...], rng: np.random.Generator) -> None:
    x = int8(rng, *X_SHAPE)
    m, xi = model_of(x, a_quant(rng))
    equal = len(set(sizes)) == 1
    parts = m.split(xi, axis, len(sizes)) if equal else m.split_v(xi, axis, sizes)
    model, at = m.finish([xi], parts), 0
    for k, part in enumerate(parts):
        begin = [at if a == axis else 0 for a in range(4)]
        assert np.array_equal(sliced(x, begin, (1, 1, 1, 1), m.shape(part)), oracle(model, x, output=k))
        at += sizes[k]


@pytest.mark.parametrize("axis", [1, 2, 3, -1])
@pytest.mark.parametrize("count", [2, 3])
def test_concat(axis: int, count: int, rng: np.random.Generator) -> None:
    quant, m = a_quant(rng), ModelBuilder()
    parts = [int8(rng, *(k + 1 if a == axis % 4 else n for a, n in enumerate(X_SHAPE))) for k in range(count)]
    inputs = [m.tensor(f"x{k}", part.shape, quant=quant) for k, part in enumerate(parts)]
    yi = m.concat(inputs, axis)
    y, at = np.zeros(m.shape(yi), np.int8), 0
    strides = dense(y.shape)
    for part in parts:
        y = moved(part, y, part.shape, (0, dense(part.shape)), (at * strides[axis], strides))
        at += part.shape[axis]
    assert np.array_equal(y, oracle(m.finish(inputs, [yi]), *parts))


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("size", [(10, 12), (7, 9), (3, 2), (1, 1), (5, 6), (1, 20), (23, 1)])
def test_resize_nearest(size: tuple[int, int], corners: bool, half: bool, rng: np.random.Generator) -> None:
    x = int8(rng, *X_SHAPE)
    m, xi = model_of(x, a_quant(rng))
    yi = m.resize_nearest(xi, size, align_corners=corners, half_pixel_centers=half)
    rows, cols = (resize_rows(n, out, align_corners=corners, half_pixel_centers=half) for n, out in zip(X_SHAPE[1:3], size, strict=True))
    got = run("resize_fwd_s8", {"h": 5, "w": 6, "c": 4, "p": size[0], "q": size[1]}, x=x, rows=rows, cols=cols)
    assert np.array_equal(got, oracle(m.finish([xi], [yi]), x).reshape(-1))
