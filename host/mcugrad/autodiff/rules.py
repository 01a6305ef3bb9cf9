"""The gradient rules, one row an op, in real numbers: what the integer kernels approximate, and what finite differences check.

All arrays are float64. A rule sees activations as (H, W, C) or (N, C) and weights in the graph's layout (graph/types.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcugrad.graph import Add, AvgPool, Conv2D, DwConv2D, Linear, Mean, OpKind

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rule:
    """``forward(kind, inputs) -> y``; ``error(kind, inputs, dy, k) -> dx`` of input k; ``weight(kind, inputs, dy) -> dw``.

    The bias gradient is the sum of dy over the positions.
    ``step`` is the stem of the step kinds: <step>_fwd_s8, <step>_bwd_x_s8, <step>_upd_q16.
    """

    step: str
    forward: Callable[..., Array]
    error: Callable[..., Array]
    weight: Callable[..., Array] | None = None


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


def _conv_forward(kind: Conv2D, inputs: tuple[Array, ...]) -> Array:
    x, w, b = inputs
    out = _out_size(kind, x, w)
    y = np.zeros((*out, w.shape[0])) + b
    for r in range(w.shape[1]):
        for s in range(w.shape[2]):
            to, at = _taps(kind, x, r, s, out)
            y[to] += x[at] @ w[:, r, s, :].T
    return y


def _conv_error(kind: Conv2D, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    x, w = inputs[0], inputs[1]
    dx = np.zeros_like(x)
    for r in range(w.shape[1]):
        for s in range(w.shape[2]):
            to, at = _taps(kind, x, r, s, dy.shape[:2])
            dx[at] += dy[to] @ w[:, r, s, :]
    return dx


def _conv_weight(kind: Conv2D, inputs: tuple[Array, ...], dy: Array) -> Array:
    x, w = inputs[0], inputs[1]
    dw = np.zeros_like(w)
    for r in range(w.shape[1]):
        for s in range(w.shape[2]):
            to, at = _taps(kind, x, r, s, dy.shape[:2])
            dw[:, r, s, :] = np.tensordot(dy[to], x[at], axes=([0, 1], [0, 1]))
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


def _pool_windows(kind: AvgPool, x: Array, p: int, q: int) -> tuple[slice, slice]:
    top, left = p * kind.stride[0] - kind.pad[0], q * kind.stride[1] - kind.pad[1]
    return (
        slice(max(top, 0), max(0, min(top + kind.kernel[0], x.shape[0]))),
        slice(max(left, 0), max(0, min(left + kind.kernel[1], x.shape[1]))),
    )


def _pool_forward(kind: AvgPool, inputs: tuple[Array, ...]) -> Array:
    x = inputs[0]
    size = [(x.shape[a] + kind.pad[a] + kind.pad[a + 2] - kind.kernel[a]) // kind.stride[a] + 1 for a in (0, 1)]
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


def _add_forward(kind: Add, inputs: tuple[Array, ...]) -> Array:
    return inputs[0] + inputs[1]


def _add_error(kind: Add, inputs: tuple[Array, ...], dy: Array, k: int) -> Array:
    return dy


RULES: Mapping[type[OpKind], Rule] = {
    Conv2D: Rule("conv2d", _conv_forward, _conv_error, _conv_weight),
    DwConv2D: Rule("dwconv2d", _dw_forward, _dw_error, _dw_weight),
    Linear: Rule("linear", _linear_forward, _linear_error, _linear_weight),
    AvgPool: Rule("avgpool", _pool_forward, _pool_error),
    Mean: Rule("mean", _mean_forward, _mean_error),
    Add: Rule("add", _add_forward, _add_error),
}
