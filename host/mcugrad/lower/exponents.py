"""Where the exponents of the error tensors start: an estimate of each error's size, so that the first samples already learn well.

Starting at 0, a pooled net needs some hundred samples to come down to -6, and its first gradients round to zero. The estimate costs
nothing on the device: it is the initial content of STATE.
"""

from __future__ import annotations

import math

import numpy as np

from mcugrad.autodiff.differentiate import LOSS_ERROR, MakeError, TrainGraph
from mcugrad.graph import AvgPool, Conv2D, DwConv2D, Mean, Op
from mcugrad.lower.weights import Layer, read_layer

LOWEST, HIGHEST = -16, 15

HEADROOM = 2
"""Start this much below the estimate: the rule climbs by one at each saturated sample, and falls by one in 16."""


def initial_exponents(train: TrainGraph) -> dict[int, int]:
    """Number of an error tensor -> its first exponent.

    The loss hands out errors with a maximum of 127 units. A layer scales the size by the root of the sum of its squared weights
    per input, each weight at least one unit of the last place (a fresh head is zero only once); a pool divides by its positions.
    """
    size = {LOSS_ERROR: 0.0}
    for step in train.backward:
        if isinstance(step, MakeError):
            grown = size[step.dy] + (_growth(train, step.op) if step.op is not None else 0.0)
            size[step.out] = grown if step.skip is None else max(grown, size[step.skip])
    first = {number: min(max(math.floor(log2 - HEADROOM), LOWEST), HIGHEST) for number, log2 in size.items()}
    return first | {LOSS_ERROR: 0}


def _growth(train: TrainGraph, op: Op) -> float:
    """log2 of the size of the error at the op's input over that at its output."""
    kind = op.kind
    if isinstance(kind, AvgPool):
        return -math.log2(kind.stride[0] * kind.stride[1])
    if isinstance(kind, Mean):
        h, w, _ = train.graph.first_input(op).shape[-3:]
        return -math.log2(h * w)
    layer = read_layer(train.graph, op)
    skipped = kind.stride[0] * kind.stride[1] if isinstance(kind, Conv2D | DwConv2D) else 1
    return 0.5 * math.log2(_squares_per_input(layer) / skipped)


def _squares_per_input(layer: Layer) -> float:
    """Mean over the input channels of the sum of squared real weights that one input meets."""
    levels = np.maximum(np.abs(layer.w.astype(np.float64)), 1.0)
    squares = (levels * layer.w_scale[:, None, None, None]) ** 2
    inputs = int(squares.shape[0] // layer.multiplier if layer.depthwise else squares.shape[3])
    return float(squares.sum()) / inputs
