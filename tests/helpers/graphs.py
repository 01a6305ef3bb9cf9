"""Small int8 graphs with random weights, and the int8 specification evaluated on a graph, op by op, without a plan.

    b = GraphBuilder((1, 8, 8, 3), seed=1)
    y = b.conv(b.input, 8, activation=Activation.RELU)
    g = b.finish(b.linear(y, 4))

The builder carries a few random samples along in real numbers and takes every output scale from them, so activations fill the int8 range
and few of them saturate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mcugrad.autodiff.rules import RULES, slice_forward
from mcugrad.graph import (
    Activation,
    Add,
    AvgPool,
    Concat,
    Conv2D,
    DwConv2D,
    Function,
    Graph,
    Linear,
    MaxPool,
    Mean,
    MinMax,
    Mul,
    Op,
    OpKind,
    Pad,
    Prelu,
    Quant,
    Reshape,
    ResizeNearest,
    Slice,
    Softmax,
    Sub,
    Tensor,
    Transpose,
    Unary,
)
from mcugrad.importer.names import prefix
from mcugrad.lower import lut, quant
from mcugrad.ref.fixed import clamp, requant, wrap32
from mcugrad.ref.softmax import softmax_fwd_s8

Int8 = npt.NDArray[np.int8]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

INT8 = np.dtype(np.int8)
INT32 = np.dtype(np.int32)

PROBABILITY = Quant((1 / 256,), -128)
FIXED_OUTPUTS = {Function.LOGISTIC: PROBABILITY, Function.TANH: Quant((1 / 128,), 0)}
KEEPS_QUANT = (Function.RELU6, Function.RELU_N1_1)
"""TensorFlow Lite Micro's kernels of these do not rescale."""

Pair = Add | Sub | Mul | MinMax


class GraphBuilder:
    """Tensors and ops in order. Op methods take and return tensor indices; ``input`` is the model's first."""

    def __init__(self, shape: tuple[int, ...], seed: int = 0, *, scale: float = 1 / 64, zero_point: int = 3, samples: int = 8) -> None:
        self.rng = np.random.default_rng(seed)
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []
        self.real: dict[int, list[Floats]] = {}
        self.samples = samples
        self.inputs: list[int] = []
        self.input = self.new_input(shape, scale=scale, zero_point=zero_point)

    def new_input(self, shape: tuple[int, ...], *, scale: float = 1 / 64, zero_point: int = 3) -> int:
        """One more input of the model."""
        q = [self.rng.integers(-128, 128, shape) for _ in range(self.samples)]
        index = self._tensor(f"input{len(self.inputs) or ''}", shape, Quant((float(np.float32(scale)),), zero_point))
        self.real[index] = [float(np.float32(scale)) * (v - zero_point) for v in q]
        self.inputs.append(index)
        return index

    def constant(
        self, shape: tuple[int, ...], *, like: int | None = None, scale: float = 1 / 90, zero_point: int = -7, lowest: int = -128
    ) -> int:
        """A random int8 constant; with the quantization of tensor ``like`` where given, and then in the middle of its values."""
        q = Quant((float(np.float32(scale)),), zero_point) if like is None else self.quant_of(like)
        if like is None:
            data = self.rng.integers(lowest, 128, shape).astype(np.int8)
        else:
            data = np.clip(q.zero_point + self.rng.integers(-50, 51, shape), -128, 127).astype(np.int8)
        index = self._tensor(f"constant{len(self.tensors)}", shape, q, data)
        self.real[index] = [q.scale[0] * (data.astype(np.float64) - q.zero_point)] * self.samples
        return index

    def quant_of(self, x: int) -> Quant:
        return _quant(self.tensors[x])

    def _tensor(self, name: str, shape: tuple[int, ...], q: Quant | None, data: npt.NDArray[np.generic] | None = None) -> int:
        dtype = INT8 if data is None else data.dtype
        self.tensors.append(Tensor(name, shape, dtype, q, data))
        return len(self.tensors) - 1

    def _shape(self, x: int) -> tuple[int, ...]:
        return self.tensors[x].shape

    def _op(self, kind: OpKind, inputs: tuple[int, ...], real: list[Floats], q: Quant | None = None) -> int:
        """Add an op and its output, whose scale comes from ``real`` where ``q`` does not give it."""
        name = f"{prefix(kind)}_{sum(prefix(op.kind) == prefix(kind) for op in self.ops)}"
        y = self._tensor(f"{name}.y", real[0].shape, q if q is not None else self._range(kind, real))
        self.ops.append(Op(name, kind, inputs, (y,)))
        self.real[y] = real
        return y

    def _range(self, kind: OpKind, real: list[Floats]) -> Quant:
        values = np.concatenate([v.ravel() for v in real])
        lo, hi = min(float(values.min()), 0.0), max(float(values.max()), 1e-3)
        if getattr(kind, "activation", Activation.NONE) in (Activation.RELU, Activation.RELU6):
            lo = 0.0
        scale = float(np.float32((hi - lo) / 255))
        return Quant((scale,), int(np.clip(round(-128 - lo / scale), -128, 127)))

    def _layer(self, kind: Conv2D | DwConv2D | Linear, x: int, w: Floats, axis: int, bias: bool, per_channel: bool) -> int:
        """``w`` in the graph's layout, ``axis`` its output channels."""
        others = tuple(a for a in range(w.ndim) if a != axis)
        peak = np.abs(w).max(axis=others) if per_channel else np.abs(w).max(keepdims=True).reshape(1)
        scale = np.maximum(peak / 127, 1e-12).astype(np.float32)
        spread = scale.astype(np.float64).reshape([-1 if a == axis else 1 for a in range(w.ndim)])
        q = np.clip(np.round(w / spread), -127, 127).astype(np.int8)
        name = f"w{len(self.tensors)}"
        inputs = [x, self._tensor(name, w.shape, Quant(tuple(map(float, scale)), 0, axis), q)]
        outputs = w.shape[axis]
        b_scale = self.quant_of(x).scale[0] * np.broadcast_to(scale.astype(np.float64), (outputs,))
        b = np.round(self.rng.normal(0, 0.1, outputs) / b_scale).astype(np.int32) if bias else np.zeros(outputs, np.int32)
        if bias:
            inputs.append(self._tensor(f"{name}.b", (outputs,), Quant(tuple(map(float, b_scale))), b))
        rule = RULES[type(kind)]
        real = []
        for v in self.real[x]:
            y = rule.forward(kind, (_as_rule_input(kind, v, w.shape), q * spread, b * b_scale))
            real.append(_activate(kind.activation, y[None] if y.ndim == 3 else y))
        return self._op(kind, tuple(inputs), real)

    def conv(
        self,
        x: int,
        outputs: int,
        kernel: tuple[int, int] = (3, 3),
        *,
        stride: tuple[int, int] = (1, 1),
        pad: tuple[int, int, int, int] = (1, 1, 1, 1),
        dilation: tuple[int, int] = (1, 1),
        activation: Activation = Activation.NONE,
        bias: bool = True,
        per_channel: bool = True,
        groups: int = 1,
    ) -> int:
        channels = self._shape(x)[-1] // groups
        w = self.rng.normal(0, np.sqrt(2 / (kernel[0] * kernel[1] * channels)), (outputs, *kernel, channels))
        w *= self.rng.uniform(0.5, 1.5, (outputs, 1, 1, 1))
        return self._layer(Conv2D(stride, dilation, pad, activation, groups), x, w, 0, bias, per_channel)

    def point(self, x: int, outputs: int, *, activation: Activation = Activation.NONE) -> int:
        """A 1x1 convolution."""
        return self.conv(x, outputs, (1, 1), pad=(0, 0, 0, 0), activation=activation)

    def dwconv(
        self,
        x: int,
        multiplier: int = 1,
        kernel: tuple[int, int] = (3, 3),
        *,
        stride: tuple[int, int] = (1, 1),
        pad: tuple[int, int, int, int] = (1, 1, 1, 1),
        dilation: tuple[int, int] = (1, 1),
        activation: Activation = Activation.NONE,
    ) -> int:
        w = self.rng.normal(0, np.sqrt(2 / (kernel[0] * kernel[1])), (1, *kernel, self._shape(x)[-1] * multiplier))
        return self._layer(DwConv2D(stride, dilation, pad, multiplier, activation), x, w, 3, True, True)

    def linear(self, x: int, outputs: int, *, activation: Activation = Activation.NONE, bias: bool = True, per_channel: bool = True) -> int:
        shape = self._shape(x)
        inputs = shape[-1] if len(shape) == 2 else int(np.prod(shape))
        w = self.rng.normal(0, np.sqrt(2 / inputs), (outputs, inputs))
        return self._layer(Linear(activation), x, w, 0, bias, per_channel)

    # ---- two operands ------------------------------------------------------------------------------------------------

    def _pair(self, kind: Pair, a: int, b: int, q: Quant | None = None) -> int:
        activation = Activation.NONE if isinstance(kind, MinMax) else kind.activation
        rule = RULES[type(kind)]
        real = [_activate(activation, rule.forward(kind, (u, v))) for u, v in zip(self.real[a], self.real[b], strict=True)]
        return self._op(kind, (a, b), real, q)

    def add(self, a: int, b: int, activation: Activation = Activation.NONE) -> int:
        return self._pair(Add(activation), a, b)

    def sub(self, a: int, b: int, activation: Activation = Activation.NONE) -> int:
        return self._pair(Sub(activation), a, b)

    def mul(self, a: int, b: int, activation: Activation = Activation.NONE) -> int:
        return self._pair(Mul(activation), a, b)

    def minmax(self, a: int, b: int, *, largest: bool) -> int:
        """Both operands are brought to one quantization first."""
        a, b = self.aligned((a, b))
        return self._pair(MinMax(largest), a, b, self.quant_of(a))

    def aligned(self, tensors: Sequence[int]) -> tuple[int, ...]:
        """The tensors with the quantization of the widest, through REQUANTIZE where they have another."""
        q = max((self.quant_of(x) for x in tensors), key=lambda q: q.scale[0])
        return tuple(x if self.quant_of(x) == q else self.unary(x, Function.REQUANTIZE, q=q) for x in tensors)

    # ---- one operand --------------------------------------------------------------------------------------------------

    def unary(self, x: int, function: Function, alpha: float = 0.0, *, q: Quant | None = None) -> int:
        kind = Unary(function, alpha)
        fixed = self.quant_of(x) if function in KEEPS_QUANT else FIXED_OUTPUTS.get(function, q)
        return self._op(kind, (x,), [RULES[Unary].forward(kind, (v,)) for v in self.real[x]], fixed)

    def prelu(self, x: int, *, scale: float = 1 / 200, zero_point: int = -20) -> int:
        alpha = self.constant((self._shape(x)[-1],), scale=scale, zero_point=zero_point)
        real = [RULES[Prelu].forward(Prelu(), (v, a)) for v, a in zip(self.real[x], self.real[alpha], strict=True)]
        return self._op(Prelu(), (x, alpha), real)

    def pool(self, x: int, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int, int, int] = (0, 0, 0, 0)) -> int:
        return self._pool(AvgPool(kernel, stride, pad, Activation.NONE), x)

    def maxpool(
        self,
        x: int,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        pad: tuple[int, int, int, int] = (0, 0, 0, 0),
        activation: Activation = Activation.NONE,
    ) -> int:
        return self._pool(MaxPool(kernel, stride, pad, activation), x)

    def _pool(self, kind: AvgPool | MaxPool, x: int) -> int:
        real = [_activate(kind.activation, RULES[type(kind)].forward(kind, (v[0],))[None]) for v in self.real[x]]
        return self._op(kind, (x,), real, self.quant_of(x))

    def mean(self, x: int, *, keep_dims: bool = False) -> int:
        real = [v.mean(axis=(1, 2), keepdims=keep_dims) for v in self.real[x]]
        return self._op(Mean(keep_dims), (x,), real)

    def softmax(self, x: int, beta: float = 1.0) -> int:
        kind = Softmax(beta)
        return self._op(kind, (x,), [RULES[Softmax].forward(kind, (v,)) for v in self.real[x]], PROBABILITY)

    def resize(self, x: int, size: tuple[int, int], *, align_corners: bool = False, half_pixel_centers: bool = False) -> int:
        kind = ResizeNearest(align_corners, half_pixel_centers)
        return self._op(kind, (x,), [_resized(kind, v, size) for v in self.real[x]], self.quant_of(x))

    # ---- moves --------------------------------------------------------------------------------------------------------

    def concat(self, tensors: Sequence[int], axis: int) -> int:
        """The tensors are brought to one quantization first."""
        parts = self.aligned(tensors)
        real = [np.concatenate(vs, axis) for vs in zip(*(self.real[x] for x in parts), strict=True)]
        return self._op(Concat(axis), parts, real, self.quant_of(parts[0]))

    def slice(self, x: int, begin: tuple[int, ...], size: tuple[int, ...], step: tuple[int, ...] | None = None) -> int:
        kind = Slice(begin, step or (1,) * len(begin))
        return self._op(kind, (x,), [slice_forward(kind, v, size) for v in self.real[x]], self.quant_of(x))

    def transpose(self, x: int, perm: tuple[int, ...]) -> int:
        return self._op(Transpose(perm), (x,), [v.transpose(perm) for v in self.real[x]], self.quant_of(x))

    def reshape(self, x: int, shape: tuple[int, ...]) -> int:
        return self._op(Reshape(), (x,), [v.reshape(shape) for v in self.real[x]], self.quant_of(x))

    def pad(self, x: int, pad: tuple[int, int, int, int]) -> int:
        """(top, left, bottom, right) of a map, filled with real 0."""
        return self.pad_all(x, (0, *pad[:2], 0), (0, *pad[2:], 0))

    def pad_all(self, x: int, before: tuple[int, ...], after: tuple[int, ...], value: int | None = None) -> int:
        q = self.quant_of(x)
        code = q.zero_point if value is None else value
        widths = tuple(zip(before, after, strict=True))
        real = [np.pad(v, widths, constant_values=q.scale[0] * (code - q.zero_point)) for v in self.real[x]]
        return self._op(Pad(before, after, code), (x,), real, q)

    def finish(self, *outputs: int) -> Graph:
        return Graph("small", tuple(self.tensors), tuple(self.ops), tuple(self.inputs), outputs, model_hash=0x1234ABCD)


def _as_rule_input(kind: OpKind, v: npt.NDArray[np.float64], w_shape: tuple[int, ...]) -> Floats:
    return v.reshape(-1, w_shape[1]) if isinstance(kind, Linear) else v[0]


def _resized(kind: ResizeNearest, v: npt.NDArray[np.generic], size: tuple[int, int]) -> npt.NDArray[np.generic]:
    """v (1, H, W, C) -> (1, *size, C)."""
    flags = {"align_corners": kind.align_corners, "half_pixel_centers": kind.half_pixel_centers}
    rows, cols = (quant.resize_rows(v.shape[1 + k], size[k], **flags) for k in (0, 1))
    return v[:, rows][:, :, cols]


def _activate(activation: Activation, y: Floats) -> Floats:
    bounds = {
        Activation.NONE: (-np.inf, np.inf),
        Activation.RELU: (0.0, np.inf),
        Activation.RELU6: (0.0, 6.0),
        Activation.RELU_N1_1: (-1.0, 1.0),
    }
    return np.asarray(np.clip(y, *bounds[activation]), np.float64)


# ---- graphs that several tests use --------------------------------------------------------------------------------------


def chain(seed: int = 0, classes: int = 4) -> Graph:
    """Five layers: conv, depthwise, pointwise, depthwise with stride, head behind a mean. ReLU behind all but the third and the head."""
    b = GraphBuilder((1, 8, 6, 3), seed)
    y = b.conv(b.input, 8, stride=(2, 1), activation=Activation.RELU)
    y = b.dwconv(y, activation=Activation.RELU)
    y = b.conv(y, 6, (1, 1), pad=(0, 0, 0, 0))
    y = b.dwconv(y, 2, stride=(2, 2), activation=Activation.RELU)
    return b.finish(b.linear(b.mean(y), classes))


def residual(seed: int = 0, classes: int = 5, activation: Activation = Activation.NONE) -> Graph:
    """conv -> [expand, depthwise, project] + skip -> pool -> conv -> head -> softmax."""
    b = GraphBuilder((1, 8, 8, 4), seed)
    stem = b.conv(b.input, 8, stride=(2, 2), activation=Activation.RELU)
    y = b.conv(stem, 16, (1, 1), pad=(0, 0, 0, 0), activation=Activation.RELU)
    y = b.dwconv(y, activation=Activation.RELU)
    y = b.conv(y, 8, (1, 1), pad=(0, 0, 0, 0))
    y = b.add(stem, y, activation)
    y = b.pool(y, (2, 2), (2, 2))
    y = b.conv(y, 6, activation=Activation.RELU)
    y = b.linear(b.reshape(y, (1, 24)), classes)
    return b.finish(b.softmax(y))


def double_residual(seed: int = 0, classes: int = 4) -> Graph:
    """An addition behind an addition, a tensor with three consumers, and a tensor added to itself; fused ReLU on the additions."""
    b = GraphBuilder((1, 6, 6, 3), seed)
    stem = b.conv(b.input, 8, activation=Activation.RELU)
    left = b.conv(stem, 8, (1, 1), pad=(0, 0, 0, 0))
    first = b.add(stem, left, Activation.RELU)
    second = b.add(b.dwconv(first), first, Activation.RELU)
    third = b.add(stem, second)
    twice = b.add(third, third, Activation.RELU)
    return b.finish(b.linear(b.mean(b.conv(twice, 8, activation=Activation.RELU)), classes))


def views(seed: int = 0, classes: int = 3) -> Graph:
    """Reshapes between maps of other shapes, an explicit Pad, ReLU6, a 1x1 convolution as the head."""
    b = GraphBuilder((1, 48), seed)
    x = b.reshape(b.input, (1, 6, 4, 2))
    y = b.conv(b.pad(x, (1, 0, 1, 1)), 4, pad=(0, 0, 0, 0), activation=Activation.RELU6)
    y = b.reshape(y, (1, 4, 6, 3))
    y = b.reshape(b.dwconv(y, 2, (3, 2), pad=(0, 0, 0, 0)), (1, 2, 5, 6))
    y = b.conv(y, 6, activation=Activation.RELU)
    y = b.conv(b.mean(y, keep_dims=True), classes, (1, 1), pad=(0, 0, 0, 0))
    return b.finish(b.softmax(b.reshape(y, (1, classes))))


def windows(seed: int = 0, classes: int = 3) -> Graph:
    """Dilation, three outputs for each input channel, uneven kernels, strides and pads, an average pool that reaches over the edge."""
    b = GraphBuilder((1, 11, 9, 2), seed, zero_point=-41)
    y = b.conv(b.input, 6, (3, 2), dilation=(2, 3), pad=(2, 0, 1, 2), activation=Activation.RELU)
    y = b.dwconv(y, 3, (2, 3), stride=(2, 1), pad=(0, 1, 0, 1), dilation=(1, 2))
    y = b.pool(y, (3, 3), (2, 2), (1, 0, 1, 1))
    y = b.conv(y, 5, (2, 2), stride=(1, 2), pad=(1, 0, 0, 1), activation=Activation.RELU)
    return b.finish(b.linear(y, classes))


def rows(seed: int = 0, classes: int = 3) -> Graph:
    """A linear layer on several rows, whose output the head reads as one vector; no bias in the first layer."""
    b = GraphBuilder((4, 6), seed)
    y = b.linear(b.input, 5, activation=Activation.RELU, bias=False, per_channel=False)
    return b.finish(b.linear(b.reshape(y, (1, 20)), classes, per_channel=False))


def relu_by_zero_point(seed: int = 0) -> Graph:
    """A chain whose ReLU is no fused activation: only the zero point -128 says that the outputs are clamped."""
    g = chain(seed)
    ops = tuple(replace(op, kind=_plain(op.kind)) for op in g.ops)
    return replace(g, ops=ops)


def _plain(kind: OpKind) -> OpKind:
    return replace(kind, activation=Activation.NONE) if isinstance(kind, Conv2D | DwConv2D) else kind


def mixed(seed: int = 0, classes: int = 4) -> Graph:
    """Five layers on one trunk, with a max pool, x · logistic(x), a concat, a product with a constant and a tanh between them.

    Where the trunk splits, no layer stands in a branch: whatever is trained, each error is rounded at the same places.
    """
    b = GraphBuilder((1, 8, 8, 3), seed)
    y = b.maxpool(b.conv(b.input, 6, activation=Activation.RELU), (2, 2), (2, 2))
    y = b.dwconv(y)
    y = b.mul(y, b.unary(y, Function.LOGISTIC))
    y = b.conv(y, 6)
    y = b.concat((y, b.maxpool(y, (2, 2), (1, 1), (0, 0, 1, 1))), 3)
    y = b.conv(b.mul(b.constant((12,), lowest=30), y), 8, groups=2)
    return b.finish(b.linear(b.mean(b.unary(y, Function.TANH)), classes))


def gate(seed: int = 0, classes: int = 4) -> Graph:
    """Squeeze and excite: a map times a vector that two layers make of its mean; then a difference and a maximum of branches."""
    b = GraphBuilder((1, 6, 6, 3), seed)
    stem = b.unary(b.conv(b.input, 8), Function.HARD_SWISH)
    squeezed = b.point(b.mean(stem, keep_dims=True), 8, activation=Activation.RELU)
    y = b.mul(stem, b.unary(b.point(squeezed, 8), Function.LOGISTIC))
    y = b.sub(b.dwconv(y), stem, Activation.RELU)
    y = b.minmax(b.point(y, 6), b.point(y, 6), largest=True)
    return b.finish(b.softmax(b.linear(b.mean(b.prelu(y)), classes)))


def shuffle(seed: int = 0, classes: int = 3) -> Graph:
    """Channels split in halves, one convolved in groups, joined and shuffled by a transpose; a pad, a resize and a leaky ReLU behind."""
    b = GraphBuilder((1, 6, 4, 4), seed, zero_point=-20)
    x = b.conv(b.input, 8, activation=Activation.RELU)
    left, right = (b.slice(x, (0, 0, 0, at), (1, 6, 4, 4)) for at in (0, 4))
    y = b.concat((left, b.conv(right, 4, groups=2)), 3)
    y = b.reshape(b.transpose(b.reshape(y, (1, 24, 2, 4)), (0, 1, 3, 2)), (1, 6, 4, 8))
    y = b.pad_all(b.slice(y, (0, 0, 1, 0), (1, 3, 3, 8), (1, 2, 1, 1)), (0, 1, 0, 0), (0, 0, 1, 2), -9)
    y = b.conv(b.unary(b.resize(y, (6, 6)), Function.LEAKY_RELU, 0.25), 5, stride=(2, 2), dilation=(1, 2), pad=(1, 2, 1, 2))
    return b.finish(b.linear(y, classes))


GRAPHS = {f.__name__: f for f in (chain, residual, double_residual, views, windows, rows, relu_by_zero_point, mixed, gate, shuffle)}
"""Name -> graph of a seed. All train with labels."""


def random_samples(graph: Graph, count: int, seed: int = 0) -> list[Int8]:
    """Values of the only input."""
    assert len(graph.inputs) == 1
    return [inputs[0] for inputs in random_inputs(graph, count, seed)]


def random_inputs(graph: Graph, count: int, seed: int = 0) -> list[tuple[Int8, ...]]:
    """Values of all inputs."""
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(-128, 128, graph.tensors[i].shape).astype(np.int8) for i in graph.inputs) for _ in range(count)]


def with_data(graph: Graph, changed: Mapping[int, npt.NDArray[np.generic]]) -> Graph:
    """The graph with other values in some constant tensors."""
    tensors = tuple(replace(t, data=changed[k]) if k in changed else t for k, t in enumerate(graph.tensors))
    return replace(graph, tensors=tensors)


# ---- the int8 specification on a graph ----------------------------------------------------------------------------------


def run_int8(graph: Graph, *inputs: Int8) -> dict[int, Int8]:
    """int8 value of every activation, by the op's definition: real Pads, real Reshapes, whole weights, spread operands, no plan."""
    values: dict[int, Int8] = {k: np.asarray(t.data) for k, t in enumerate(graph.tensors) if t.data is not None and t.dtype == INT8}
    for index, value in zip(graph.inputs, inputs, strict=True):
        values[index] = value.reshape(graph.tensors[index].shape)
    for op in graph.ops:
        y = graph.tensors[op.outputs[0]]
        values[op.outputs[0]] = _evaluate(graph, op, values).reshape(y.shape).astype(np.int8)
    return values


def output_int8(graph: Graph, *inputs: Int8) -> Int8:
    """The first output, flat."""
    return run_int8(graph, *inputs)[graph.output].ravel()


def head_accumulators(graph: Graph, op: Op, x: Int8) -> Ints:
    """A layer's int32 accumulators with bias, in the shape of its output's matrix."""
    w = graph.tensors[op.inputs[1]].data
    assert w is not None
    centred = x.astype(np.float64) - _quant(graph.read(op)).zero_point
    b = graph.tensors[op.inputs[2]].data if len(op.inputs) == 3 else 0
    acc = RULES[type(op.kind)].forward(op.kind, (_as_rule_input(op.kind, centred, w.shape), w.astype(np.float64), 0.0))
    return wrap32(wrap32(acc.astype(np.int64)) + b)


def _evaluate(graph: Graph, op: Op, values: Mapping[int, Int8]) -> npt.NDArray[np.generic]:
    x, y = values[op.inputs[0]].reshape(graph.read(op).shape), graph.tensors[op.outputs[0]]
    xq, yq = _quant(graph.read(op)), _quant(y)
    match op.kind:
        case Conv2D() | DwConv2D() | Linear() as kind:
            derive = quant.linear_requant if isinstance(kind, Linear) else quant.conv_requant
            rq = derive(xq.scale[0], _quant(graph.tensors[op.inputs[1]]).scale, yq.scale[0])
            acc = requant(head_accumulators(graph, op, x), rq["mult"], rq["shift"], graph.rounding)
            return clamp(yq.zero_point + acc, *quant.activation_range(kind.activation, yq.scale[0], yq.zero_point))
        case AvgPool() as kind:
            mean = RULES[AvgPool].forward(kind, (x[0].astype(np.float64),))
            rounded = (np.sign(mean) * np.floor(np.abs(mean) + 0.5 + 1e-9)).astype(np.int64)
            return clamp(rounded, *quant.activation_range(kind.activation, yq.scale[0], yq.zero_point))
        case MaxPool() as kind:
            top = RULES[MaxPool].forward(kind, (x[0].astype(np.float64),)).astype(np.int64)
            return clamp(top, *quant.activation_range(kind.activation, yq.scale[0], yq.zero_point))
        case Mean():
            p = quant.mean_params(xq.scale[0], xq.zero_point, yq.scale[0], x.shape[1] * x.shape[2])
            total = x.astype(np.int64).sum(axis=(1, 2)) + p.bias
            return clamp(yq.zero_point + requant(total, p.mult, p.shift, graph.rounding), -128, 127)
        case Add() | Sub() | Mul() | MinMax():
            return _evaluate_pair(graph, op, values)
        case Unary() as kind:
            return lut.table(kind, xq, yq)[x.astype(np.int64) + 128]
        case Prelu():
            return _evaluate_prelu(graph, op, values)
        case Softmax() as kind:
            s = quant.softmax_params(kind.beta, xq.scale[0])
            out = np.zeros(x.size, np.int8)
            scalars = {"n": x.size // x.shape[-1], "c": x.shape[-1], "mult": s.mult, "shift": s.shift, "diff_min": s.diff_min}
            softmax_fwd_s8(scalars, {"x": x.ravel(), "y": out})
            return out
        case Concat(axis=axis):
            return np.concatenate([values[i].reshape(graph.read(op, k).shape) for k, i in enumerate(op.inputs)], axis)
        case Slice() as kind:
            places = (range(b, b + n * s, s) for b, s, n in zip(kind.begin, kind.step, y.shape, strict=True))
            return x[np.ix_(*places)]
        case Transpose(perm=perm):
            return x.transpose(perm)
        case ResizeNearest() as kind:
            return _resized(kind, x, (y.shape[1], y.shape[2]))
        case Pad() as kind:
            return np.pad(x, tuple(zip(kind.before, kind.after, strict=True)), constant_values=kind.value)
        case Reshape():
            return x.reshape(y.shape)
        case _:
            raise AssertionError(f"no evaluation for {op.name}")


def _evaluate_pair(graph: Graph, op: Op, values: Mapping[int, Int8]) -> npt.NDArray[np.generic]:
    """Both operands spread by NumPy."""
    ends = [graph.read(op, k) for k in (0, 1)]
    a, b = (values[i].reshape(t.shape).astype(np.int64) for i, t in zip(op.inputs, ends, strict=True))
    (aq, bq), yq = map(_quant, ends), _quant(graph.tensors[op.outputs[0]])
    kind, rounding = op.kind, graph.rounding
    if isinstance(kind, MinMax):
        return np.asarray(np.maximum(a, b) if kind.largest else np.minimum(a, b))
    assert isinstance(kind, Add | Sub | Mul)
    a, b = a - aq.zero_point, b - bq.zero_point
    if isinstance(kind, Mul):
        total = requant(a * b, *quant.mul_params(aq.scale[0], bq.scale[0], yq.scale[0]), rounding)
    else:
        p = quant.add_params(aq.scale[0], bq.scale[0], yq.scale[0])
        u, v = requant(a << 20, p.am, p.ash, rounding), requant(b << 20, p.bm, p.bsh, rounding)
        total = requant(wrap32(u - v if isinstance(kind, Sub) else u + v), p.ym, p.ysh, rounding)
    return clamp(yq.zero_point + total, *quant.activation_range(kind.activation, yq.scale[0], yq.zero_point))


def _evaluate_prelu(graph: Graph, op: Op, values: Mapping[int, Int8]) -> Ints:
    xq, aq, yq = _quant(graph.read(op)), _quant(graph.read(op, 1)), _quant(graph.tensors[op.outputs[0]])
    p = quant.prelu_params(xq.scale[0], aq.scale[0], yq.scale[0])
    v = values[op.inputs[0]].astype(np.int64).reshape(graph.read(op).shape) - xq.zero_point
    alpha = values[op.inputs[1]].astype(np.int64).reshape(-1) - aq.zero_point
    above, below = requant(v, p.pm, p.psh, graph.rounding), requant(v * alpha, p.nm, p.nsh, graph.rounding)
    return clamp(yq.zero_point + np.where(v >= 0, above, below), -128, 127)


def _quant(t: Tensor) -> Quant:
    assert t.quant is not None
    return t.quant
