"""Rung 1: central finite differences check every row of autodiff/rules.py.

A rule is a linear map in each argument, so differences are exact up to rounding: the bound is tight.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from mcugrad.autodiff.rules import RULES
from mcugrad.graph import Activation, Add, AvgPool, Conv2D, DwConv2D, Linear, Mean, OpKind

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


@pytest.mark.parametrize(
    "h, w, kernel, stride, pad",
    [
        (4, 6, (2, 3), (2, 3), (0, 0, 0, 0)),
        (5, 5, (3, 3), (1, 1), (1, 1, 1, 1)),
        (5, 4, (3, 2), (2, 2), (1, 0, 1, 1)),
        (4, 7, (4, 7), (1, 1), (0, 0, 0, 0)),
    ],
)
def test_avgpool(h: int, w: int, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int, int, int]) -> None:
    check(AvgPool(kernel, stride, pad, NONE), (normal(h, w, 3),))


def test_mean() -> None:
    check(Mean(False), (normal(3, 5, 4),))


def test_add() -> None:
    check(Add(NONE), (normal(3, 5, 4), normal(3, 5, 4)), errors=(0, 1))


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
    assert set(RULES) == {Conv2D, DwConv2D, Linear, AvgPool, Mean, Add}
