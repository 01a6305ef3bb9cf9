"""Rung 1: central finite differences check every row of autodiff/rules.py.

Most rules are linear maps in each argument, so differences are exact up to rounding: the bound is tight. At corners (a maximum of equals,
a ReLU at 0) there is no derivative; who takes the error there is said one by one below.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest

from mcugrad.autodiff.rules import RULES, resize_error, resize_forward, slice_forward, unary, unary_slope
from mcugrad.graph import (
    Activation,
    Add,
    AvgPool,
    Concat,
    Conv2D,
    Dequantize,
    DwConv2D,
    Function,
    Linear,
    MaxPool,
    Mean,
    MinMax,
    Mul,
    OpKind,
    Pad,
    Prelu,
    Quantize,
    Reshape,
    ResizeNearest,
    Slice,
    Softmax,
    Sub,
    Transpose,
    Unary,
)
from mcugrad.lower.quant import resize_rows

Array = npt.NDArray[np.float64]
NONE = Activation.NONE
RTOL = 1e-6


def differences(f: Callable[[Array], Array], at: Array, dy: Array, h: float = 1e-3) -> Array:
    """d(f(at) · dy)/d(at), one element at a time."""
    out = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[index] += h
        down[index] -= h
        out[index] = ((f(up) - f(down)) * dy).sum() / (2 * h)
    return out


def check(kind: OpKind, inputs: tuple[Array, ...], errors: tuple[int, ...] = (0,)) -> None:
    """Errors of the inputs numbered in ``errors``, the weight gradient and the bias gradient of one rule."""
    rule = RULES[type(kind)]
    dy = np.random.default_rng(1).normal(size=rule.forward(kind, inputs).shape)

    def forward_of(k: int) -> Callable[[Array], Array]:
        return lambda v: rule.forward(kind, (*inputs[:k], v, *inputs[k + 1 :]))

    for k in errors:
        np.testing.assert_allclose(rule.error(kind, inputs, dy, k), differences(forward_of(k), inputs[k], dy), rtol=RTOL, atol=1e-8)
    if rule.weight is not None:
        np.testing.assert_allclose(rule.weight(kind, inputs, dy), differences(forward_of(1), inputs[1], dy), rtol=RTOL, atol=1e-8)
        by_positions = dy.reshape(-1, dy.shape[-1]).sum(axis=0)
        np.testing.assert_allclose(by_positions, differences(forward_of(2), inputs[2], dy), rtol=RTOL, atol=1e-8)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape)


WINDOWS = [
    # h, w, (r, s), stride, dilation, pad
    (5, 4, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (5, 4, (3, 2), (2, 1), (1, 1), (0, 0, 0, 0)),
    (6, 7, (3, 3), (2, 2), (1, 1), (0, 0, 1, 1)),
    (6, 7, (2, 3), (1, 2), (2, 1), (1, 2, 0, 1)),
    (7, 6, (3, 2), (1, 1), (2, 3), (2, 0, 2, 3)),
    (5, 5, (1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
    (3, 8, (3, 8), (1, 1), (1, 1), (0, 0, 0, 0)),
    (4, 4, (3, 3), (3, 2), (1, 1), (2, 2, 2, 2)),
    (2, 2, (3, 3), (1, 1), (1, 1), (3, 3, 3, 3)),
]


@pytest.mark.parametrize("h, w, kernel, stride, dilation, pad", WINDOWS)
def test_conv2d(h: int, w: int, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], pad: tuple[int, ...]) -> None:
    kind = Conv2D(stride, dilation, pad, NONE)  # type: ignore[arg-type]
    check(kind, (normal(h, w, 3), normal(4, *kernel, 3), normal(4)))


@pytest.mark.parametrize("groups, i, o", [(2, 2, 3), (3, 1, 2), (4, 2, 1), (1, 3, 2)])
@pytest.mark.parametrize("h, w, kernel, stride, dilation, pad", WINDOWS[:5])
def test_grouped_conv2d(
    h: int,
    w: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pad: tuple[int, ...],
    groups: int,
    i: int,
    o: int,
) -> None:
    kind = Conv2D(stride, dilation, pad, NONE, groups)  # type: ignore[arg-type]
    check(kind, (normal(h, w, groups * i), normal(groups * o, *kernel, i), normal(groups * o)))


def test_groups_are_convolutions_side_by_side() -> None:
    x, w, b = normal(5, 4, 6), normal(9, 3, 2, 2), normal(9)
    alone, together = (Conv2D((2, 1), (1, 2), (1, 1, 0, 2), NONE, groups) for groups in (1, 3))
    groups = zip(np.split(x, 3, axis=2), np.split(w, 3), np.split(b, 3), strict=True)
    parts = [RULES[Conv2D].forward(alone, inputs) for inputs in groups]
    got = RULES[Conv2D].forward(together, (x, w, b))
    np.testing.assert_allclose(got, np.concatenate(parts, axis=2), rtol=1e-12)


@pytest.mark.parametrize("multiplier", [1, 2, 3])
@pytest.mark.parametrize("h, w, kernel, stride, dilation, pad", WINDOWS)
def test_dwconv2d(
    h: int, w: int, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], pad: tuple[int, ...], multiplier: int
) -> None:
    kind = DwConv2D(stride, dilation, pad, multiplier, NONE)  # type: ignore[arg-type]
    check(kind, (normal(h, w, 2), normal(1, *kernel, 2 * multiplier), normal(2 * multiplier)))


@pytest.mark.parametrize("n, i, o", [(1, 5, 3), (4, 3, 6)])
def test_linear(n: int, i: int, o: int) -> None:
    check(Linear(NONE), (normal(n, i), normal(o, i), normal(o)))


@pytest.mark.parametrize("pool", [AvgPool, MaxPool])
@pytest.mark.parametrize(
    "h, w, kernel, stride, pad",
    [
        (4, 6, (2, 3), (2, 3), (0, 0, 0, 0)),
        (5, 5, (3, 3), (1, 1), (1, 1, 1, 1)),
        (5, 4, (3, 2), (2, 2), (1, 0, 1, 1)),
        (4, 7, (4, 7), (1, 1), (0, 0, 0, 0)),
    ],
)
def test_pools(
    h: int, w: int, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int, int, int], *, pool: type[AvgPool | MaxPool]
) -> None:
    apart = np.random.default_rng(h).permutation(h * w * 3) / 50  # so that no step of the differences changes which one is largest
    check(pool(kernel, stride, pad, NONE), (apart.reshape(h, w, 3),))


def test_the_first_largest_tap_takes_the_error() -> None:
    x = np.array([[1.0, 5.0, 5.0], [5.0, 2.0, 5.0]])[..., None]
    kind = MaxPool((2, 2), (1, 1), (0, 0, 0, 0), NONE)
    got = RULES[MaxPool].error(kind, (x,), np.array([[[10.0], [1.0]]]), 0)
    np.testing.assert_array_equal(got[..., 0], [[0, 11, 0], [0, 0, 0]])


def test_mean() -> None:
    check(Mean(False), (normal(3, 5, 4),))


SPREADS = [
    ((3, 5, 4), (3, 5, 4)),
    ((1, 3, 5, 4), (4,)),
    ((3, 5, 4), (1, 1, 4)),
    ((3, 5, 4), (3, 5, 1)),
    ((3, 5, 4), (1, 5, 1)),
    ((2, 3), (1,)),
    ((3, 1, 4), (1, 5, 4)),
]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("shapes", SPREADS)
@pytest.mark.parametrize("kind", [Add(NONE), Sub(NONE), Mul(NONE), MinMax(True), MinMax(False)])
def test_two_operands(kind: OpKind, shapes: tuple[tuple[int, ...], tuple[int, ...]], order: tuple[int, int]) -> None:
    operands = (normal(*shapes[0]), normal(*shapes[1]) + 0.1)
    check(kind, (operands[order[0]], operands[order[1]]), errors=(0, 1))


@pytest.mark.parametrize("largest", [True, False])
def test_of_equals_the_first_takes_the_error_and_the_whole_before_the_spread(largest: bool) -> None:
    """As the kernels have it: their first operand is the one that is not spread."""
    kind, same, dy = MinMax(largest), np.full((2, 3), 0.5), np.ones((2, 3))
    assert RULES[MinMax].error(kind, (same, same), dy, 0).sum() == 6 and RULES[MinMax].error(kind, (same, same), dy, 1).sum() == 0
    row = np.full((3,), 0.5)
    for inputs, whole in (((same, row), 0), ((row, same), 1)):
        assert RULES[MinMax].error(kind, inputs, dy, whole).sum() == 6
        assert RULES[MinMax].error(kind, inputs, dy, 1 - whole).sum() == 0


@pytest.mark.parametrize("alpha", [0.25, -0.5])
@pytest.mark.parametrize("function", Function)
def test_unary(function: Function, alpha: float) -> None:
    check(Unary(function, alpha), (4 * normal(6, 5, 4),))


def test_slopes_at_the_corners() -> None:
    """0 where a clamp begins; LEAKY_RELU is 1 at 0."""
    for function, corners in (
        (Function.RELU, [0.0]),
        (Function.RELU6, [0.0, 6.0]),
        (Function.RELU_N1_1, [-1.0, 1.0]),
        (Function.HARD_SWISH, [-3.0]),
    ):
        assert (unary_slope(Unary(function), np.array(corners)) == 0).all()
    assert unary_slope(Unary(Function.LEAKY_RELU, 0.25), np.zeros(1)) == 1
    assert (unary(Unary(Function.HARD_SWISH), np.array([-4.0, 0.0, 4.0])) == [0.0, 0.0, 4.0]).all()


def test_prelu() -> None:
    check(Prelu(), (normal(3, 5, 4), normal(4)))
    check(Prelu(), (normal(3, 5, 4), normal(1, 1, 4)))
    assert (RULES[Prelu].error(Prelu(), (np.zeros((1, 2)), np.array([0.25, -2.0])), np.ones((1, 2)), 0) == [[0.25, -2.0]]).all()


@pytest.mark.parametrize("beta", [1.0, 2.5])
def test_softmax(beta: float) -> None:
    check(Softmax(beta), (normal(3, 5),))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat(axis: int) -> None:
    shapes = [[2, 3, 4] for _ in range(3)]
    for n, shape in enumerate(shapes):
        shape[axis] = n + 1
    check(Concat(axis), tuple(normal(*shape) for shape in shapes), errors=(0, 1, 2))


@pytest.mark.parametrize("perm", list(itertools.permutations(range(3))))
def test_transpose(perm: tuple[int, int, int]) -> None:
    check(Transpose(perm), (normal(2, 3, 4),))


def test_pad() -> None:
    check(Pad((1, 0, 2), (0, 3, 1), 5), (normal(2, 3, 4),))


def test_reshape() -> None:
    check(Reshape(), (normal(2, 3, 4),))


@pytest.mark.parametrize(
    "begin, step, shape", [((0, 0, 0), (1, 1, 1), (5, 4, 3)), ((1, 0, 2), (2, 3, 1), (2, 2, 1)), ((4, 1, 0), (1, 2, 2), (1, 2, 2))]
)
def test_slice(begin: tuple[int, ...], step: tuple[int, ...], shape: tuple[int, ...]) -> None:
    kind, x = Slice(begin, step), normal(5, 4, 3)
    y = slice_forward(kind, x, shape)
    assert y.shape == shape
    for index in np.ndindex(shape):
        assert y[index] == x[tuple(b + i * s for b, i, s in zip(begin, index, step, strict=True))]
    dy = np.random.default_rng(1).normal(size=shape)
    want = differences(lambda v: slice_forward(kind, v, shape), x, dy)
    np.testing.assert_allclose(RULES[Slice].error(kind, (x,), dy, 0), want, rtol=RTOL, atol=1e-8)


@pytest.mark.parametrize("size", [(6, 8), (2, 3), (7, 2), (1, 1)])
@pytest.mark.parametrize("corners, half", [(False, False), (True, False), (False, True)])
def test_resize(size: tuple[int, int], corners: bool, half: bool) -> None:
    x = normal(3, 4, 2)
    rows, cols = (resize_rows(n, m, align_corners=corners, half_pixel_centers=half) for n, m in zip(x.shape[:2], size, strict=True))
    dy = np.random.default_rng(1).normal(size=(*size, 2))
    want = differences(lambda v: resize_forward(v, rows, cols), x, dy)
    np.testing.assert_allclose(resize_error(x, dy, rows, cols), want, rtol=RTOL, atol=1e-8)


def test_forward_pads_with_zero() -> None:
    """The rules' own windows are checked against an explicit pad, so that a shift of the window cannot cancel out of the differences."""
    x, w = normal(5, 4, 3), normal(2, 3, 3, 3)
    pads = (1, 2, 0, 1)
    padded = np.pad(x, ((1, 0), (2, 1), (0, 0)))
    for stride, dilation in itertools.product([(1, 1), (2, 1)], [(1, 1), (1, 2)]):
        got = RULES[Conv2D].forward(Conv2D(stride, dilation, pads, NONE), (x, w, 0.0))
        for p, q in np.ndindex(got.shape[:2]):
            y0, x0 = p * stride[0], q * stride[1]
            window = padded[y0 : y0 + 2 * dilation[0] + 1 : dilation[0], x0 : x0 + 2 * dilation[1] + 1 : dilation[1]]
            np.testing.assert_allclose(got[p, q], (w * window).sum(axis=(1, 2, 3)))


def test_every_rule_is_checked() -> None:
    """By a test above; and what has no rule is the float border, which normalization takes away."""
    above = {Conv2D, DwConv2D, Linear, AvgPool, MaxPool, Mean, Add, Sub, Mul, MinMax, Unary, Prelu, Softmax}
    above |= {Concat, Slice, Transpose, Pad, Reshape, ResizeNearest}
    assert set(RULES) == above == set(get_args(OpKind)) - {Quantize, Dequantize}
    assert {kind for kind, rule in RULES.items() if rule.weight is not None} == {Conv2D, DwConv2D, Linear}
