"""What the ops of a small graph mean, in real numbers: written from the descriptions in graph/types.py, with loops, for tests only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mcugrad.graph import (
    Activation,
    Add,
    Concat,
    Conv2D,
    DwConv2D,
    Function,
    Graph,
    MaxPool,
    Mean,
    MinMax,
    Mul,
    Op,
    Pad,
    Prelu,
    Quant,
    Reshape,
    ResizeNearest,
    Slice,
    Sub,
    Tensor,
    Transpose,
    Unary,
)

Real = npt.NDArray[np.float64]

_CLAMPS = {
    Activation.NONE: (-np.inf, np.inf),
    Activation.RELU: (0.0, np.inf),
    Activation.RELU6: (0.0, 6.0),
    Activation.RELU_N1_1: (-1.0, 1.0),
}

_FUNCTIONS: dict[Function, Callable[[Real, float], Real]] = {
    Function.RELU: lambda x, _: np.maximum(x, 0),
    Function.RELU6: lambda x, _: np.clip(x, 0, 6),
    Function.RELU_N1_1: lambda x, _: np.clip(x, -1, 1),
    Function.LEAKY_RELU: lambda x, alpha: np.where(x >= 0, x, alpha * x),
    Function.LOGISTIC: lambda x, _: 1 / (1 + np.exp(-x)),
    Function.TANH: lambda x, _: np.tanh(x),
    Function.HARD_SWISH: lambda x, _: x * np.clip(x + 3, 0, 6) / 6,
    Function.REQUANTIZE: lambda x, _: x,
}


def evaluate(graph: Graph, sample: tuple[npt.NDArray[Any], ...]) -> list[Real]:
    """The outputs of an int8 graph as codes: every op in float64 on the real values of its inputs, rounded to its output's codes."""
    values: dict[int, Real] = {i: x.astype(np.float64) for i, x in zip(graph.inputs, sample, strict=True)}
    values |= {i: t.data.astype(np.float64) for i, t in enumerate(graph.tensors) if t.data is not None}
    for op in graph.ops:
        inputs = [_real(values[i], graph.tensors[i]) for i in op.inputs]
        values[op.outputs[0]] = _codes(_compute(graph, op, inputs), graph.tensors[op.outputs[0]])
    return [values[i] for i in graph.outputs]


def _quant(t: Tensor) -> Quant:
    assert t.quant is not None
    return t.quant


def _real(codes: Real, t: Tensor) -> Real:
    q = _quant(t)
    scale = np.array(q.scale).reshape([-1 if q.per_channel and d == q.axis else 1 for d in range(codes.ndim)])
    return (codes - q.zero_point) * scale


def _codes(real: Real, t: Tensor) -> Real:
    assert real.shape == t.shape
    q = _quant(t)
    return np.clip(np.round(real / q.scale[0] + q.zero_point), -128, 127)


def _compute(graph: Graph, op: Op, v: list[Real]) -> Real:
    match op.kind:
        case Conv2D() | DwConv2D() | MaxPool():
            return _window(graph.tensors[op.outputs[0]].shape, op.kind, v)
        case Add(a):
            return np.clip(v[0] + v[1], *_CLAMPS[a])
        case Sub(a):
            return np.clip(v[0] - v[1], *_CLAMPS[a])
        case Mul(a):
            return np.clip(v[0] * v[1], *_CLAMPS[a])
        case MinMax(largest):
            return np.maximum(v[0], v[1]) if largest else np.minimum(v[0], v[1])
        case Unary(function, alpha):
            return _FUNCTIONS[function](v[0], alpha)
        case Prelu():
            return np.where(v[0] >= 0, v[0], v[0] * v[1].reshape(-1))
        case Mean(keep):
            return v[0].mean(axis=(1, 2), keepdims=keep)
        case Concat(axis):
            return np.concatenate(v, axis)
        case Slice(begin, step):
            counts = graph.tensors[op.outputs[0]].shape
            return v[0][np.ix_(*(b + s * np.arange(n) for b, s, n in zip(begin, step, counts, strict=True)))]
        case Transpose(perm):
            return v[0].transpose(perm)
        case ResizeNearest():
            return _resize(v[0], graph.tensors[op.outputs[0]].shape, op.kind)
        case Pad(before, after, value):
            q = _quant(graph.tensors[op.inputs[0]])
            return np.pad(v[0], list(zip(before, after, strict=True)), constant_values=(value - q.zero_point) * q.scale[0])
        case Reshape():
            return v[0].reshape(graph.tensors[op.outputs[0]].shape)
    raise AssertionError(op.kind)


def _window(shape: tuple[int, ...], k: Conv2D | DwConv2D | MaxPool, v: list[Real]) -> Real:
    """Every output by itself, from the taps inside the input."""
    x = v[0]
    out = np.zeros(shape)
    rows, cols = k.kernel if isinstance(k, MaxPool) else v[1].shape[1:3]
    dilation = (1, 1) if isinstance(k, MaxPool) else k.dilation
    for p, q, o in np.ndindex(*shape[1:]):
        taps = []
        for r, s in np.ndindex(rows, cols):
            h, w = p * k.stride[0] + r * dilation[0] - k.pad[0], q * k.stride[1] + s * dilation[1] - k.pad[1]
            if 0 <= h < x.shape[1] and 0 <= w < x.shape[2]:
                taps.append(_tap(k, v, x[0, h, w], (r, s, o), shape[3]))
        out[0, p, q, o] = max(taps) if isinstance(k, MaxPool) else sum(taps) + (v[2][o] if len(v) > 2 else 0)
    return np.clip(out, *_CLAMPS[k.activation])


def _tap(k: Conv2D | DwConv2D | MaxPool, v: list[Real], pixel: Real, at: tuple[int, int, int], outputs: int) -> float:
    r, s, o = at
    if isinstance(k, MaxPool):
        return float(pixel[o])
    if isinstance(k, DwConv2D):
        return float(pixel[o // k.multiplier] * v[1][0, r, s, o])
    group = o // (outputs // k.groups)
    i = v[1].shape[3]
    return float(pixel[group * i : (group + 1) * i] @ v[1][o, r, s])


def _resize(x: Real, shape: tuple[int, ...], k: ResizeNearest) -> Real:
    """TensorFlow: floor of the scaled position; rounded with align_corners; at the pixel's centre with half_pixel_centers."""

    def sources(n: int, m: int) -> list[int]:
        scale = (n - 1) / (m - 1) if k.align_corners and m > 1 else n / m
        at = (np.arange(m) + (0.5 if k.half_pixel_centers else 0)) * scale
        return np.minimum(np.floor(at + 0.5) if k.align_corners else np.floor(at), n - 1).astype(int).tolist()

    return x[:, sources(x.shape[1], shape[1])][:, :, sources(x.shape[2], shape[2])]
