"""Readers of the operators with weights, the windows, and softmax."""

from __future__ import annotations

import math

from mcugrad.graph.types import AvgPool, Conv2D, DwConv2D, Linear, MaxPool, Mean, Reshape, Softmax, Transpose
from mcugrad.importer.tflite_file import RawOp
from mcugrad.importer.tflite_operands import (
    Found,
    State,
    activation,
    axis_of,
    bias,
    fail,
    fused,
    image,
    integers,
    options,
    output,
    require_output_quant,
    require_same_quant,
    value,
    weights,
    window,
)

SOFTMAX_SCALE = 1 / 256
SOFTMAX_ZERO_POINT = -128


def conv(state: State, op: RawOp) -> list[Found]:
    x, o, y = image(state, op), options(op), output(state, op)
    w = weights(state, op, axis=0)
    channels = x.shape[3]
    if len(w.shape) != 4 or channels % w.shape[3] != 0 or w.shape[0] % (channels // w.shape[3]) != 0:
        fail(
            op,
            f"has weights of shape {w.shape} for an input of {channels} channels: the weights' last size must divide it, and the number "
            "of groups that this gives must divide the weights' first size",
        )
    pad, (p, q) = window(op, x, (w.shape[1], w.shape[2]))
    kind = Conv2D(o.stride, o.dilation, pad, fused(op), channels // w.shape[3])
    return [Found(kind, op.inputs[:2] + bias(state, op, x, w, w.shape[0]), y.index, (1, p, q, w.shape[0]))]


def dwconv(state: State, op: RawOp) -> list[Found]:
    x, o, y = image(state, op), options(op), output(state, op)
    w = weights(state, op, axis=3)
    if len(w.shape) != 4 or w.shape[0] != 1 or w.shape[3] % x.shape[3] != 0:
        fail(op, f"has weights of shape {w.shape} for an input of {x.shape[3]} channels, (1, R, S, multiple of it) is expected")
    multiplier = w.shape[3] // x.shape[3]
    if o.multiplier not in (0, multiplier):
        fail(op, f"has depth_multiplier {o.multiplier}, the shape of the weights says {multiplier}")
    pad, (p, q) = window(op, x, (w.shape[1], w.shape[2]))
    kind = DwConv2D(o.stride, o.dilation, pad, multiplier, fused(op))
    return [Found(kind, op.inputs[:2] + bias(state, op, x, w, w.shape[3]), y.index, (1, p, q, w.shape[3]))]


def linear(state: State, op: RawOp) -> list[Found]:
    x, o, y = value(state, op, 0), options(op), output(state, op)
    if not o.plain_weights:
        fail(op, "has shuffled weights, which are not supported", "export for the generic CPU")
    w = weights(state, op, axis=0)
    if len(w.shape) != 2 or x.size % w.shape[1] != 0:
        fail(op, f"has weights of shape {w.shape} for an input of shape {x.shape}")
    outputs, inputs = w.shape
    if o.keep_dims and x.shape[-1] != inputs:
        fail(op, f"keeps the shape {x.shape} of its input, the last size must be {inputs}")
    shape = (*x.shape[:-1], outputs) if o.keep_dims else (x.size // inputs, outputs)
    return [Found(Linear(fused(op)), op.inputs[:2] + bias(state, op, x, w, outputs), y.index, shape)]


def avgpool(state: State, op: RawOp) -> list[Found]:
    x, o, y = image(state, op), options(op), output(state, op)
    require_same_quant(state, op, x, y)
    pad, (p, q) = window(op, x, o.kernel)
    return [Found(AvgPool(o.kernel, o.stride, pad, fused(op)), op.inputs[:1], y.index, (1, p, q, x.shape[3]))]


def maxpool(state: State, op: RawOp) -> list[Found]:
    x, o, y = image(state, op), options(op), output(state, op)
    require_same_quant(state, op, x, y)
    pad, (p, q) = window(op, x, o.kernel)
    return [Found(MaxPool(o.kernel, o.stride, pad, fused(op)), op.inputs[:1], y.index, (1, p, q, x.shape[3]))]


def mean(state: State, op: RawOp) -> list[Found]:
    """A mean over height and width is one Mean; every other is brought to that form."""
    x, y, keep = value(state, op, 0), output(state, op), options(op).keep_dims
    rank = len(x.shape)
    axes = sorted({axis_of(op, int(a), rank) for a in integers(state, op, 1).reshape(-1)})
    shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape) if keep or d not in axes)
    if rank == 4 and x.shape[0] == 1 and axes == [1, 2]:
        return [Found(Mean(keep), op.inputs[:1], y.index, shape)]
    return _any_mean(state, op, axes, shape)


def _any_mean(state: State, op: RawOp, axes: list[int], shape: tuple[int, ...]) -> list[Found]:
    """The averaged axes first, then all of them as the height of one image of width 1, then Mean, then the shape that is wanted."""
    x, y = value(state, op, 0), output(state, op)
    kept = [d for d in range(len(x.shape)) if d not in axes]
    perm = (*axes, *kept)
    found = []
    source = op.inputs[0]
    if [d for d in perm if x.shape[d] > 1] != [d for d in range(len(perm)) if x.shape[d] > 1]:
        turned_shape = tuple(x.shape[d] for d in perm)
        turned = state.scratch(f"{y.name}/turned", x, turned_shape)
        found.append(Found(Transpose(perm), (source,), turned, turned_shape))
        source = turned
    columns = math.prod(x.shape[d] for d in kept)
    as_image = (1, x.size // columns, 1, columns)
    flat = state.scratch(f"{y.name}/image", x, as_image)
    found.append(Found(Reshape(), (source,), flat, as_image))
    if shape == (1, columns):
        return [*found, Found(Mean(keep_dims=False), (flat,), y.index, shape)]
    row = state.scratch(f"{y.name}/row", activation(y, state.dtype), (1, columns))
    return [*found, Found(Mean(keep_dims=False), (flat,), row, (1, columns)), Found(Reshape(), (row,), y.index, shape)]


def softmax(state: State, op: RawOp) -> list[Found]:
    x, beta, y = value(state, op, 0), options(op).beta, output(state, op)
    if not math.isfinite(beta) or beta <= 0:
        fail(op, f"has beta {beta}, it must be finite and above 0")
    require_output_quant(state, op, SOFTMAX_SCALE, SOFTMAX_ZERO_POINT)
    return [Found(Softmax(beta), op.inputs[:1], y.index, x.shape)]
