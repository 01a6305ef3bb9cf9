"""Weights, biases and the constants per channel, in the layouts that the kernels read (SPEC.md section 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mcugrad.graph import Conv2D, DwConv2D, Graph, Op
from mcugrad.lower.quant import Requants
from mcugrad.ref import fixed

FROZEN_SCALE = 1e-5
"""Channels whose weight scale is below this are not trained: their rate, s_x / s_W², would explode (dead channels of pruned models)."""

MAX_FOLD_BITS = 7
ACC_LIMIT = 2**30
"""Bound of an error accumulator: with the aligned skip error, at most 2^29, it stays inside int32."""

MAX_BIAS_BITS = 8

WEIGHT_SUM_BITS = 5
"""Fraction bits of a weight's sum over a micro-batch, which is one byte: it spans ±4 steps of int8."""

BIAS_SUM_SPAN_BITS = 8
"""A bias's sum over a micro-batch spans ±2^8 of its steps, which are smaller: its scale is s_x · s_W. With ±2^7, 2 % saturated."""

MIN_BIAS_SUM_BITS = 4
BIAS_GROWTH = 2**17
"""A trained bias may at least double, and grow by this much, before it saturates."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer as the kernels see it.

    w int8 (O, R, S, I), depthwise (O, R, S, 1), linear (O, 1, 1, I); b int64 (O,); w_scale float64 (O,). ``multiplier``: output channels
    for each input channel of a depthwise layer, else 1. ``groups``: of a convolution.
    """

    w: npt.NDArray[np.int8]
    b: npt.NDArray[np.int64]
    w_scale: npt.NDArray[np.float64]
    x_scale: float
    depthwise: bool
    multiplier: int = 1
    groups: int = 1

    @property
    def dead(self) -> npt.NDArray[np.bool_]:
        return self.w_scale < FROZEN_SCALE


def read_layer(graph: Graph, op: Op) -> Layer:
    """Take a layer's parameters out of the graph."""
    weights, x = graph.tensors[op.inputs[1]], graph.tensors[op.inputs[0]]
    assert weights.data is not None and weights.quant is not None and x.quant is not None
    w = np.asarray(weights.data, np.int8)
    if isinstance(op.kind, DwConv2D):
        w = w.reshape(w.shape[1:]).transpose(2, 0, 1)[..., None]
    elif not isinstance(op.kind, Conv2D):
        w = w[:, None, None, :]
    outputs = w.shape[0]
    b = np.zeros(outputs, np.int64)
    if len(op.inputs) == 3:
        data = graph.tensors[op.inputs[2]].data
        assert data is not None
        b = np.asarray(data, np.int64)
    scale = np.broadcast_to(np.asarray(weights.quant.scale, np.float64), (outputs,)).copy()
    multiplier = op.kind.multiplier if isinstance(op.kind, DwConv2D) else 1
    groups = op.kind.groups if isinstance(op.kind, Conv2D) else 1
    return Layer(np.ascontiguousarray(w), b, scale, float(x.quant.scale[0]), isinstance(op.kind, DwConv2D), multiplier, groups)


def fold_constant_channels(
    layer: Layer, requants: Requants, rounding: int, zeros: tuple[int, int], clamp: tuple[int, int]
) -> tuple[Layer, Requants]:
    """Dead channels whose output is one constant c, whatever the input: weights 0, bias c - zero point, multiplier 1.

    Pruned models have channels with a weight scale of about 4e-9 and biases of ±2^31; folded, nothing overflows and the other biases
    of the layer keep their fraction bits. A channel whose output does depend on the input stays as it is.
    ``zeros``: zero points of x and y.
    """
    ends = np.stack([layer.w.astype(np.int64) * (q - zeros[0]) for q in (-128, 0, 127)])
    low = layer.b + np.minimum(ends.min(axis=0), 0).sum(axis=(1, 2, 3))
    high = layer.b + np.maximum(ends.max(axis=0), 0).sum(axis=(1, 2, 3))
    w, b, records = layer.w.copy(), layer.b.copy(), requants.copy()
    for o in np.flatnonzero(layer.dead):
        if low[o] < -(2**31) or high[o] >= 2**31:
            continue
        bottom, top = (_output(int(acc), records[o], rounding, zeros[1], clamp) for acc in (low[o], high[o]))
        if bottom == top:
            w[o], b[o], records[o] = 0, bottom - zeros[1], (2**30, 1)
    return replace(layer, w=w, b=b), records


def _output(acc: int, requant: np.void, rounding: int, y_zero: int, clamp: tuple[int, int]) -> int:
    """The int8 output of an accumulator, as conv2d_fwd_s8 computes it; monotone in ``acc``."""
    v = y_zero + int(fixed.requant(np.array([acc]), int(requant["mult"]), int(requant["shift"]), rounding)[0])
    return max(min(v, clamp[1]), clamp[0])


def split_weights(layer: Layer, channels: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """(trained, frozen): the first ``channels`` input channels (depthwise: output channels) and the rest."""
    if layer.depthwise:
        return layer.w[:channels], layer.w[channels:]
    return layer.w[..., :channels], layer.w[..., channels:]


def trained_bytes(w: npt.NDArray[np.int8], ws: int) -> bytes:
    """Initial STATE of trained weights: int8, or Q8.8 with the half added."""
    return w.tobytes() if ws == 1 else (w.astype("<i2") * 256 + 128).astype("<i2").tobytes()


def trained_values(raw: bytes, ws: int) -> npt.NDArray[np.int8]:
    """The int8 weights in STATE bytes of a trained slice; the way back from ``trained_bytes``."""
    return np.frombuffer(raw, np.int8) if ws == 1 else (np.frombuffer(raw, "<i2") >> 8).astype(np.int8)


def bias_bits(b: npt.NDArray[np.int64]) -> int:
    """Fraction bits of a trained bias: up to 8, fewer where the values would leave int32."""
    largest = int(np.abs(b).max(initial=0)) + 1
    return max((f for f in range(MAX_BIAS_BITS + 1) if largest << f < 2**31), default=0)


def bias_sum_bits(b: npt.NDArray[np.int64]) -> tuple[int, int]:
    """(bf, af) of a trained bias whose low ``bf`` bits are the sum of a micro-batch with ``af`` fraction bits.

    The sum spans ±2^(bf - 1 - af): ±256 where bf ≥ 10, and less where the values are so large that they leave fewer bits; af = 0, so no
    sum, where fewer than 4 are left.
    """
    largest = 2 * int(np.abs(b).max(initial=0)) + BIAS_GROWTH
    bf = max((f for f in range(14) if largest << f < 2**31), default=0)
    if bf < MIN_BIAS_SUM_BITS:
        return bias_bits(b), 0
    return bf, max(1, bf - 1 - BIAS_SUM_SPAN_BITS)


def bias_bytes(b: npt.NDArray[np.int64], bf: int) -> bytes:
    """A bias in STATE: int32 with ``bf`` fraction bits and the half added; bf = 0 is the plain int32 of CONST."""
    return ((b << bf) + (1 << bf >> 1)).astype("<i4").tobytes()


def bias_values(raw: bytes, bf: int) -> npt.NDArray[np.int32]:
    """The int32 biases in STATE bytes."""
    return np.frombuffer(raw, "<i4") >> bf


def weight_rate(layer: Layer) -> npt.NDArray[np.float32]:
    """s_x / s_W per output channel: one LSB of weight per unit of real gradient (quantization-aware scaling); 0 freezes."""
    return _rate(layer, layer.x_scale / np.where(layer.dead, 1.0, layer.w_scale))


def bias_rate(layer: Layer) -> npt.NDArray[np.float32]:
    """1 / (s_x · s_W) per output channel."""
    return _rate(layer, 1.0 / (layer.x_scale * np.where(layer.dead, 1.0, layer.w_scale)))


def _rate(layer: Layer, rate: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    return np.where(layer.dead, 0.0, rate).astype(np.float32)


def _per_group(per_output: npt.NDArray[np.float64], groups: int) -> npt.NDArray[np.float64]:
    """(O, I) -> sums over the outputs of each group, (groups, I)."""
    return np.asarray(per_output.reshape(groups, -1, per_output.shape[1]).sum(axis=1))


def fold(layer: Layer, channels: int) -> tuple[npt.NDArray[np.uint8], float]:
    """Fold the weight scales into the error: (m, unit) with m[o] = round(2^f · s_W[o] / max s_W) and unit = max s_W / 2^f.

    f is 7, or fewer bits where sum |w| · 127 · m could pass the accumulator's bound; trained weights count as 127.
    """
    largest = float(layer.w_scale.max())
    magnitude = np.abs(layer.w.astype(np.float64))
    if layer.depthwise:
        magnitude[:channels] = 127
    else:
        magnitude[..., :channels] = 127
    for bits in range(MAX_FOLD_BITS, -1, -1):
        m = np.floor(2.0**bits * layer.w_scale / largest + 0.5)
        weighted = magnitude * m[:, None, None, None]
        per_output = weighted.sum(axis=(1, 2))
        per_input = per_output.reshape(-1, layer.multiplier).sum(axis=1) if layer.depthwise else _per_group(per_output, layer.groups)
        if per_input.max() * 127 < ACC_LIMIT:
            break
    return m.astype(np.uint8), largest / 2.0**bits
