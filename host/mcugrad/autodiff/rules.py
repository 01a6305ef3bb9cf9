"""The gradient rules, one row an op, in real numbers: what the integer kernels approximate, and what finite differences check.

All arrays are float64. Convolutions, pools and resizes see activations as (H, W, C), linear layers as (N, I), all others in their own
shape; weights are in the graph's layout (graph/types.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcugrad.graph import (
    Add,
    AvgPool,
    Concat,
    Conv2D,
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
    Reshape,
    ResizeNearest,
    Slice,
    Softmax,
    Sub,
    Transpose,
    Unary,
)

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rule:
    """``forward(kind, inputs) -> y``; ``error(kind, inputs, dy, k) -> dx`` of input k; ``weight(kind, inputs, dy) -> dw``.

    The bias gradient is the sum of dy over the positions.
    ``step`` is the stem of the step kinds: <step>_fwd_s8, <step>_bwd_x_s8, <step>_upd_q16. "copy": the error is moved, never rounded.
    ``pair``: both inputs take errors.
    """

    step: str
    forward: Callable[..., Array]
    error: Callable[..., Array]
    weight: Callable[..., Array] | None = None
    pair: bool = False


def _taps(kind: Conv2D | DwConv2D, x: Array, r: int, s: int, out: tuple[int, int]) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """For kernel tap (r, s): the slice of the output positions whose input lies inside x, and the slice of those inputs."""
    found = []
    for size, k, stride, dilation, pad, n in (
        (x.shape[0], r, kind.stride[0], kind.dilation[0], kind.pad[0], out[0]),
        (x.shape[1], s, kind.stride[1], kind.dilation[1], kind.pad[1], out[1]),
    ):
        first = k * dilation - pad
        lo = max(0, -(first // stride)) if first < 0 else 0
        hi = min(n, (size - 1 - first) // stride + 1)
        hi = max(hi, lo)
        start = lo * stride + first
        found.append((slice(lo, hi), slice(start, start + (hi - lo) * stride, stride)))
    return (found[0][0], found[1][0]), (found[0][1], found[1][1])


def _out_size(kind: Conv2D | DwConv2D, x: Array, w: Array) -> tuple[int, int]:
    sizes = []
    for axis in (0, 1):
        span = (w.shape[axis + 1] - 1) * kind.dilation[axis] + 1
        sizes.append((x.shape[axis] + kind.pad[axis] + kind.pad[axis + 2] - span) // kind.stride[axis] + 1)
    return sizes[0], sizes[1]


def _groups(kind: Conv2D, w: Array) -> list[tuple[slice, slice]]:
    """Per group: its input channels and its output channels."""
    i, o = w.shape[3], w.shape[0] // kind.groups
    return [(slice(g * i, (g + 1) * i), slice(g * o, (g + 1) * o)) for g in range(kind.groups)]


def _conv_forward(kind: Conv2D, inputs: tuple[Array, ...]) -> Array:
    x, w, b = inputs
    out = _out_size(kind, x, w)
    y = np.zeros((*out, w.shape[0])) + b
    for r in range(w.shape[1]):
        for s in range(w.shape[2]):
            to, at = _taps(kind, x, r, s, out)
            for xs, ys in _groups(kind, w):
                y[to][..., ys] += x[at][..., xs] @ w[ys, r, s, :].T
    return y


def _conv_error(kind: Conv2D, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    x, w = inputs[0], inputs[1]
    dx = np.zeros_like(x)
    for r in range(w.shape[1]):
        for s in range(w.shape[2]):
            to, at = _taps(kind, x, r, s, dy.shape[:2])
            for xs, ys in _groups(kind, w):
                dx[at][..., xs] += dy[to][..., ys] @ w[ys, r, s, :]
    return dx


def _conv_weight(kind: Conv2D, inputs: tuple[Array, ...], dy: Array) -> Array:
    x, w = inputs[0], inputs[1]
    dw = np.zeros_like(w)
    for r in range(w.shape[1]):
        for s in range(w.shape[2]):
            to, at = _taps(kind, x, r, s, dy.shape[:2])
            for xs, ys in _groups(kind, w):
                dw[ys, r, s, :] = np.tensordot(dy[to][..., ys], x[at][..., xs], axes=([0, 1], [0, 1]))
    return dw


def _dw_forward(kind: DwConv2D, inputs: tuple[Array, ...]) -> Array:
    x, w, b = inputs
    out = _out_size(kind, x, w)
    y = np.zeros((*out, w.shape[3])) + b
    for r in range(w.shape[1]):
        for s in range(w.shape[2]):
            to, at = _taps(kind, x, r, s, out)
            y[to] += np.repeat(x[at], kind.multiplier, axis=2) * w[0, r, s]
    return y


def _dw_error(kind: DwConv2D, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    x, w = inputs[0], inputs[1]
    dx = np.zeros_like(x)
    for r in range(w.shape[1]):
        for s in range(w.shape[2]):
            to, at = _taps(kind, x, r, s, dy.shape[:2])
            part = dy[to] * w[0, r, s]
            dx[at] += part.reshape(*part.shape[:2], x.shape[2], kind.multiplier).sum(axis=3)
    return dx


def _dw_weight(kind: DwConv2D, inputs: tuple[Array, ...], dy: Array) -> Array:
    x, w = inputs[0], inputs[1]
    dw = np.zeros_like(w)
    for r in range(w.shape[1]):
        for s in range(w.shape[2]):
            to, at = _taps(kind, x, r, s, dy.shape[:2])
            dw[0, r, s] = (dy[to] * np.repeat(x[at], kind.multiplier, axis=2)).sum(axis=(0, 1))
    return dw


def _linear_forward(kind: Linear, inputs: tuple[Array, ...]) -> Array:
    x, w, b = inputs
    return x @ w.T + b


def _linear_error(kind: Linear, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    return dy @ inputs[1]


def _linear_weight(kind: Linear, inputs: tuple[Array, ...], dy: Array) -> Array:
    return dy.T @ inputs[0]


def _pool_windows(kind: AvgPool | MaxPool, x: Array, p: int, q: int) -> tuple[slice, slice]:
    top, left = p * kind.stride[0] - kind.pad[0], q * kind.stride[1] - kind.pad[1]
    return (
        slice(max(top, 0), max(0, min(top + kind.kernel[0], x.shape[0]))),
        slice(max(left, 0), max(0, min(left + kind.kernel[1], x.shape[1]))),
    )


def _pooled_size(kind: AvgPool | MaxPool, x: Array) -> tuple[int, int]:
    p, q = ((x.shape[a] + kind.pad[a] + kind.pad[a + 2] - kind.kernel[a]) // kind.stride[a] + 1 for a in (0, 1))
    return p, q


def _pool_forward(kind: AvgPool, inputs: tuple[Array, ...]) -> Array:
    x = inputs[0]
    size = _pooled_size(kind, x)
    return np.stack([[x[_pool_windows(kind, x, p, q)].mean(axis=(0, 1)) for q in range(size[1])] for p in range(size[0])])


def _pool_error(kind: AvgPool, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    dx = np.zeros_like(inputs[0])
    for p in range(dy.shape[0]):
        for q in range(dy.shape[1]):
            window = _pool_windows(kind, dx, p, q)
            count = dx[window].shape[0] * dx[window].shape[1]
            dx[window] += dy[p, q] / count
    return dx


def _mean_forward(kind: Mean, inputs: tuple[Array, ...]) -> Array:
    return np.asarray(inputs[0].mean(axis=(0, 1)))


def _mean_error(kind: Mean, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    x = inputs[0]
    return np.broadcast_to(dy.reshape(-1) / (x.shape[0] * x.shape[1]), x.shape).copy()


def _max_forward(kind: MaxPool, inputs: tuple[Array, ...]) -> Array:
    x = inputs[0]
    size = _pooled_size(kind, x)
    return np.stack([[x[_pool_windows(kind, x, p, q)].max(axis=(0, 1)) for q in range(size[1])] for p in range(size[0])])


def _max_error(kind: MaxPool, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    """The first largest tap of each window takes the error."""
    x = inputs[0]
    dx = np.zeros_like(x)
    channels = np.arange(x.shape[2])
    for p in range(dy.shape[0]):
        for q in range(dy.shape[1]):
            rows, cols = _pool_windows(kind, x, p, q)
            window = x[rows, cols]
            first = window.reshape(-1, x.shape[2]).argmax(axis=0)
            dx[rows.start + first // window.shape[1], cols.start + first % window.shape[1], channels] += dy[p, q]
    return dx


def _reduce(error: Array, shape: tuple[int, ...]) -> Array:
    """Sum an error over what an operand of ``shape`` was spread to."""
    error = error.sum(axis=tuple(range(error.ndim - len(shape))))
    spread = tuple(k for k, n in enumerate(shape) if n == 1 and error.shape[k] != 1)
    return np.asarray(error.sum(axis=spread, keepdims=True)).reshape(shape)


def _add_forward(kind: Add, inputs: tuple[Array, ...]) -> Array:
    return inputs[0] + inputs[1]


def _add_error(kind: Add, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    return _reduce(dy, inputs[k].shape)


def _sub_forward(kind: Sub, inputs: tuple[Array, ...]) -> Array:
    return inputs[0] - inputs[1]


def _sub_error(kind: Sub, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    return _reduce(dy if k == 0 else -dy, inputs[k].shape)


def _mul_forward(kind: Mul, inputs: tuple[Array, ...]) -> Array:
    return inputs[0] * inputs[1]


def _mul_error(kind: Mul, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    return _reduce(dy * inputs[1 - k], inputs[k].shape)


def _minmax_forward(kind: MinMax, inputs: tuple[Array, ...]) -> Array:
    return np.asarray(np.maximum(*inputs) if kind.largest else np.minimum(*inputs))


def _minmax_error(kind: MinMax, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    """Where both are equal, the operand that is not spread takes the error; the first where neither is."""
    whole = 0 if inputs[0].size == dy.size else 1
    a, b = inputs[whole], inputs[1 - whole]
    chosen = a >= b if kind.largest else a <= b
    return _reduce(dy * (chosen if k == whole else ~chosen), inputs[k].shape)


def _logistic(x: Array) -> Array:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def unary(kind: Unary, x: Array) -> Array:
    """A function of one value, in real numbers."""
    match kind.function:
        case Function.RELU:
            return np.maximum(x, 0.0)
        case Function.RELU6:
            return np.clip(x, 0.0, 6.0)
        case Function.RELU_N1_1:
            return np.clip(x, -1.0, 1.0)
        case Function.LEAKY_RELU:
            return np.where(x >= 0, x, kind.alpha * x)
        case Function.LOGISTIC:
            return _logistic(x)
        case Function.TANH:
            return np.tanh(x)
        case Function.HARD_SWISH:
            return x * np.clip(x + 3.0, 0.0, 6.0) / 6.0
        case Function.REQUANTIZE:
            return x


def unary_slope(kind: Unary, x: Array) -> Array:
    """The derivative of ``unary`` at x; at a corner the one from the right, but 0 where a clamp begins."""
    match kind.function:
        case Function.RELU:
            return np.asarray(x > 0, np.float64)
        case Function.RELU6:
            return np.asarray((x > 0) & (x < 6.0), np.float64)
        case Function.RELU_N1_1:
            return np.asarray((x > -1.0) & (x < 1.0), np.float64)
        case Function.LEAKY_RELU:
            return np.where(x >= 0, 1.0, kind.alpha)
        case Function.LOGISTIC:
            return _logistic(x) * (1.0 - _logistic(x))
        case Function.TANH:
            return np.asarray(1.0 - np.tanh(x) ** 2)
        case Function.HARD_SWISH:
            return np.where(x <= -3.0, 0.0, np.where(x >= 3.0, 1.0, (2.0 * x + 3.0) / 6.0))
        case Function.REQUANTIZE:
            return np.ones_like(x)


def _unary_forward(kind: Unary, inputs: tuple[Array, ...]) -> Array:
    return unary(kind, inputs[0])


def _unary_error(kind: Unary, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    return dy * unary_slope(kind, inputs[0])


def _prelu_forward(kind: Prelu, inputs: tuple[Array, ...]) -> Array:
    x, alpha = inputs
    return np.where(x >= 0, x, alpha.reshape(-1) * x)


def _prelu_error(kind: Prelu, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    x, alpha = inputs
    return dy * np.where(x > 0, 1.0, alpha.reshape(-1))


def _softmax_forward(kind: Softmax, inputs: tuple[Array, ...]) -> Array:
    e = np.exp(kind.beta * (inputs[0] - inputs[0].max(axis=-1, keepdims=True)))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def _softmax_error(kind: Softmax, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    p = _softmax_forward(kind, inputs)
    return np.asarray(kind.beta * p * (dy - (dy * p).sum(axis=-1, keepdims=True)))


def _concat_forward(kind: Concat, inputs: tuple[Array, ...]) -> Array:
    return np.concatenate(inputs, axis=kind.axis)


def _concat_error(kind: Concat, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    start = sum(x.shape[kind.axis] for x in inputs[:k])
    return np.take(dy, range(start, start + inputs[k].shape[kind.axis]), axis=kind.axis)


def _slice_index(kind: Slice, shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(b, b + (n - 1) * s + 1, s) for b, s, n in zip(kind.begin, kind.step, shape, strict=True))


def _slice_error(kind: Slice, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    dx = np.zeros_like(inputs[0])
    dx[_slice_index(kind, dy.shape)] = dy
    return dx


def slice_forward(kind: Slice, x: Array, shape: tuple[int, ...]) -> Array:
    """The elements of x that a Slice with an output of ``shape`` takes."""
    return x[_slice_index(kind, shape)]


def _transpose_forward(kind: Transpose, inputs: tuple[Array, ...]) -> Array:
    return inputs[0].transpose(kind.perm)


def _transpose_error(kind: Transpose, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    return dy.transpose(tuple(int(i) for i in np.argsort(kind.perm)))


def _pad_forward(kind: Pad, inputs: tuple[Array, ...]) -> Array:
    """Padded with the real number 0; ``kind.value`` is a code that only the integer graph knows."""
    return np.pad(inputs[0], tuple(zip(kind.before, kind.after, strict=True)))


def _pad_error(kind: Pad, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    return dy[tuple(slice(b, b + n) for b, n in zip(kind.before, inputs[0].shape, strict=True))]


def _reshape_error(kind: Reshape, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    return dy.reshape(inputs[0].shape)


def resize_forward(x: Array, rows: npt.NDArray[np.uint16], cols: npt.NDArray[np.uint16]) -> Array:
    """x (H, W, C) -> y (P, Q, C) by index tables."""
    return np.asarray(x[rows][:, cols])


def resize_error(x: Array, dy: Array, rows: npt.NDArray[np.uint16], cols: npt.NDArray[np.uint16]) -> Array:
    """The error of x: each position takes the sum over what it was spread to."""
    dx = np.zeros_like(x)
    np.add.at(dx, (rows[:, None], cols[None, :]), dy)
    return dx


def _needs_shape(kind: OpKind, *_: object) -> Array:
    raise AssertionError(f"{kind} needs the output's shape: use slice_forward, resize_forward or resize_error")


def _reshape_forward(kind: Reshape, inputs: tuple[Array, ...]) -> Array:
    return inputs[0]


RULES: Mapping[type[OpKind], Rule] = {
    Conv2D: Rule("conv2d", _conv_forward, _conv_error, _conv_weight),
    DwConv2D: Rule("dwconv2d", _dw_forward, _dw_error, _dw_weight),
    Linear: Rule("linear", _linear_forward, _linear_error, _linear_weight),
    AvgPool: Rule("avgpool", _pool_forward, _pool_error),
    MaxPool: Rule("maxpool", _max_forward, _max_error),
    Mean: Rule("mean", _mean_forward, _mean_error),
    Add: Rule("add", _add_forward, _add_error, pair=True),
    Sub: Rule("add", _sub_forward, _sub_error, pair=True),
    Mul: Rule("mul", _mul_forward, _mul_error, pair=True),
    MinMax: Rule("minmax", _minmax_forward, _minmax_error, pair=True),
    Unary: Rule("lut", _unary_forward, _unary_error),
    Prelu: Rule("prelu", _prelu_forward, _prelu_error),
    Softmax: Rule("softmax", _softmax_forward, _softmax_error),
    Concat: Rule("copy", _concat_forward, _concat_error, pair=True),
    Slice: Rule("copy", _needs_shape, _slice_error),
    Transpose: Rule("copy", _transpose_forward, _transpose_error),
    Pad: Rule("copy", _pad_forward, _pad_error),
    Reshape: Rule("copy", _reshape_forward, _reshape_error),
    ResizeNearest: Rule("resize", _needs_shape, _needs_shape),
}
