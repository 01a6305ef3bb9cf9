"""Where the exponents of the error tensors start: an estimate of each error's size, so that the first samples already learn well.

Starting at 0, a pooled net needs some hundred samples to come down to -6, and its first gradients round to zero. The estimate costs
nothing on the device: it is the initial content of STATE.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mcugrad.autodiff.differentiate import LOSS_ERROR, MakeError, TrainGraph
from mcugrad.graph import Add, AvgPool, Conv2D, DwConv2D, Graph, Linear, Mean, Mul, Op, ResizeNearest, Sub, Tensor, Unary
from mcugrad.lower import lut
from mcugrad.lower.weights import Layer, read_layer

LOWEST, HIGHEST = -16, 15

TYPICAL = 64
"""Distance of a typical int8 code from its zero point."""

CLAMPED = 0.5
"""A clamp lets about half of the elements through: half the power."""

SUMMED = 0.75
"""Power of n by which a sum over n errors grows: 1/2 where they are independent, 1 where they are equal, as those of a pool are."""

PEAK = 1.0
"""The largest element is at least twice the typical one. Often more, but a start too low is mended sooner: the rule climbs by one at each
saturated sample, and falls by one in 16."""


def initial_exponents(train: TrainGraph) -> dict[int, int]:
    """Number of an error tensor -> its first exponent.

    The loss hands out errors with a maximum of 127 units. A layer scales the size by the root of the sum of its squared weights
    per input, each weight at least one unit of the last place (a fresh head is zero only once); a pool divides by its positions; a function
    scales by its typical slope, a clamp by the root of a half. Without the clamps the estimate is some 10 too high at the bottom of a
    net of 28 layers.
    """
    size = {LOSS_ERROR: 0.0}
    for step in train.backward:
        if isinstance(step, MakeError):
            grown = size[step.dy] + (_growth(train.graph, step.op, step.k) if step.op is not None else 0.0)
            summed = grown if step.skip is None else max(grown, size[step.skip])
            size[step.out] = summed - CLAMPED if step.masked else summed
    first = {number: min(max(math.floor(log2 + PEAK), LOWEST), HIGHEST) for number, log2 in size.items()}
    return first | {LOSS_ERROR: 0}


def _growth(graph: Graph, op: Op, k: int) -> float:
    """log2 of the size of the error at input ``k`` of an op over that at its output."""
    kind = op.kind
    spread = graph.tensors[op.outputs[0]].size / graph.read(op, k).size
    match kind:
        case AvgPool():
            return -math.log2(kind.stride[0] * kind.stride[1])
        case Mean():
            h, w, _ = graph.read(op).shape[-3:]
            return -math.log2(h * w)
        case Add() | Sub():
            return SUMMED * math.log2(max(spread, 1.0))
        case ResizeNearest():
            return 0.5 * math.log2(max(spread, 1.0))
        case Mul():
            return math.log2(_typical(graph.read(op, 1 - k))) + 0.5 * math.log2(max(spread, 1.0))
        case Unary():
            x, y = graph.read(op).quant, graph.tensors[op.outputs[0]].quant
            assert x is not None and y is not None
            slopes, unit = lut.slopes(kind, x, y)
            return math.log2(max(_root_mean_square(slopes * unit), unit))
        case Conv2D() | DwConv2D() | Linear():
            skipped = kind.stride[0] * kind.stride[1] if isinstance(kind, Conv2D | DwConv2D) else 1
            return 0.5 * math.log2(_squares_per_input(read_layer(graph, op)) / skipped)
        case _:
            return 0.0


def _typical(factor: Tensor) -> float:
    """The typical real value of a factor, at least one unit of the last place: that of a constant is known."""
    assert factor.quant is not None
    scale, zero_point = factor.quant.scale[0], factor.quant.zero_point
    if factor.data is None:
        return scale * TYPICAL
    return scale * max(_root_mean_square(np.asarray(factor.data, np.float64) - zero_point), 1.0)


def _root_mean_square(values: npt.NDArray[np.floating]) -> float:
    return float(np.sqrt(np.square(values).mean()))


def _squares_per_input(layer: Layer) -> float:
    """Mean over the input channels of the sum of squared real weights that one input meets."""
    levels = np.maximum(np.abs(layer.w.astype(np.float64)), 1.0)
    squares = (levels * layer.w_scale[:, None, None, None]) ** 2
    inputs = int(squares.shape[0] // layer.multiplier if layer.depthwise else squares.shape[3] * layer.groups)
    return float(squares.sum()) / inputs
