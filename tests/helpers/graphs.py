"""Small int8 graphs with random weights, and the int8 specification evaluated on a graph, op by op, without a plan.

    b = GraphBuilder((1, 8, 8, 3), seed=1)
    y = b.conv(b.input, 8, relu=True)
    g = b.finish(b.linear(y, 4))

The builder carries a few random samples along in real numbers and takes every output scale from them, so activations fill the int8 range
and few of them saturate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mcugrad.autodiff.rules import RULES
from mcugrad.graph import (
    Activation,
    Add,
    AvgPool,
    Conv2D,
    DwConv2D,
    Graph,
    Linear,
    Mean,
    Op,
    OpKind,
    Pad,
    Quant,
    Reshape,
    Softmax,
    Tensor,
)
from mcugrad.lower import quant
from mcugrad.ref.add import add_fwd_s8
from mcugrad.ref.fixed import clamp, requant, wrap32
from mcugrad.ref.softmax import softmax_fwd_s8

Int8 = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]

INT8 = np.dtype(np.int8)
INT32 = np.dtype(np.int32)


class GraphBuilder:
    """Tensors and ops in order. Op methods take and return tensor indices; ``input`` is the model's."""

    def __init__(self, shape: tuple[int, ...], seed: int = 0, *, scale: float = 1 / 64, zero_point: int = 3, samples: int = 8) -> None:
        self.rng = np.random.default_rng(seed)
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []
        self.real: dict[int, list[Floats]] = {}
        q = [self.rng.integers(-128, 128, shape) for _ in range(samples)]
        self.input = self._tensor("input", shape, Quant((float(np.float32(scale)),), zero_point))
        self.real[self.input] = [float(np.float32(scale)) * (v - zero_point) for v in q]

    def _tensor(self, name: str, shape: tuple[int, ...], q: Quant | None, data: npt.NDArray[np.generic] | None = None) -> int:
        dtype = INT8 if data is None else data.dtype
        self.tensors.append(Tensor(name, shape, dtype, q, data))
        return len(self.tensors) - 1

    def _shape(self, x: int) -> tuple[int, ...]:
        return self.tensors[x].shape

    def _op(self, stem: str, kind: OpKind, inputs: tuple[int, ...], real: list[Floats], q: Quant | None = None) -> int:
        """Add an op and its output, whose scale comes from ``real`` where ``q`` does not give it."""
        name = f"{stem}_{sum(op.name.rpartition('_')[0] == stem for op in self.ops)}"
        y = self._tensor(f"{name}.y", real[0].shape, q if q is not None else self._range(kind, real))
        self.ops.append(Op(name, kind, inputs, (y,)))
        self.real[y] = real
        return y

    def _range(self, kind: OpKind, real: list[Floats]) -> Quant:
        values = np.concatenate([v.ravel() for v in real])
        lo, hi = min(float(values.min()), 0.0), max(float(values.max()), 1e-3)
        if isinstance(kind, Conv2D | DwConv2D | Linear | Add | AvgPool) and kind.activation is not Activation.NONE:
            lo = 0.0
        scale = float(np.float32((hi - lo) / 255))
        return Quant((scale,), int(np.clip(round(-128 - lo / scale), -128, 127)))

    def _layer(self, stem: str, kind: Conv2D | DwConv2D | Linear, x: int, w: Floats, axis: int, bias: bool, per_channel: bool) -> int:
        """``w`` in the graph's layout, ``axis`` its output channels."""
        others = tuple(a for a in range(w.ndim) if a != axis)
        peak = np.abs(w).max(axis=others) if per_channel else np.abs(w).max(keepdims=True).reshape(1)
        scale = np.maximum(peak / 127, 1e-12).astype(np.float32)
        spread = scale.astype(np.float64).reshape([-1 if a == axis else 1 for a in range(w.ndim)])
        q = np.clip(np.round(w / spread), -127, 127).astype(np.int8)
        name = f"w{len(self.tensors)}"
        inputs = [x, self._tensor(name, w.shape, Quant(tuple(map(float, scale)), 0, axis), q)]
        outputs = w.shape[axis]
        x_quant = self.tensors[x].quant
        assert x_quant is not None
        b_scale = x_quant.scale[0] * np.broadcast_to(scale.astype(np.float64), (outputs,))
        b = np.round(self.rng.normal(0, 0.1, outputs) / b_scale).astype(np.int32) if bias else np.zeros(outputs, np.int32)
        if bias:
            inputs.append(self._tensor(f"{name}.b", (outputs,), Quant(tuple(map(float, b_scale))), b))
        rule = RULES[type(kind)]
        real = []
        for v in self.real[x]:
            y = rule.forward(kind, (_as_rule_input(kind, v, w.shape), q * spread, b * b_scale))
            real.append(_activate(kind.activation, y[None] if y.ndim == 3 else y))
        return self._op(stem, kind, tuple(inputs), real)

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
    ) -> int:
        channels = self._shape(x)[-1]
        w = self.rng.normal(0, np.sqrt(2 / (kernel[0] * kernel[1] * channels)), (outputs, *kernel, channels))
        w *= self.rng.uniform(0.5, 1.5, (outputs, 1, 1, 1))
        return self._layer("conv", Conv2D(stride, dilation, pad, activation), x, w, 0, bias, per_channel)

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
        return self._layer("dwconv", DwConv2D(stride, dilation, pad, multiplier, activation), x, w, 3, True, True)

    def linear(self, x: int, outputs: int, *, activation: Activation = Activation.NONE, bias: bool = True, per_channel: bool = True) -> int:
        shape = self._shape(x)
        inputs = shape[-1] if len(shape) == 2 else int(np.prod(shape))
        w = self.rng.normal(0, np.sqrt(2 / inputs), (outputs, inputs))
        return self._layer("linear", Linear(activation), x, w, 0, bias, per_channel)

    def add(self, a: int, b: int, activation: Activation = Activation.NONE) -> int:
        real = [_activate(activation, u + v) for u, v in zip(self.real[a], self.real[b], strict=True)]
        return self._op("add", Add(activation), (a, b), real)

    def pool(self, x: int, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int, int, int] = (0, 0, 0, 0)) -> int:
        kind = AvgPool(kernel, stride, pad, Activation.NONE)
        real = [RULES[AvgPool].forward(kind, (v[0],))[None] for v in self.real[x]]
        return self._op("avgpool", kind, (x,), real, self.tensors[x].quant)

    def mean(self, x: int, *, keep_dims: bool = False) -> int:
        real = [v.mean(axis=(1, 2), keepdims=keep_dims) for v in self.real[x]]
        return self._op("mean", Mean(keep_dims), (x,), real)

    def softmax(self, x: int) -> int:
        real = [np.exp(v) / np.exp(v).sum() for v in self.real[x]]
        return self._op("softmax", Softmax(1.0), (x,), real, Quant((1 / 256,), -128))

    def reshape(self, x: int, shape: tuple[int, ...]) -> int:
        return self._op("reshape", Reshape(), (x,), [v.reshape(shape) for v in self.real[x]], self.tensors[x].quant)

    def pad(self, x: int, pad: tuple[int, int, int, int]) -> int:
        widths = ((0, 0), (pad[0], pad[2]), (pad[1], pad[3]), (0, 0))
        return self._op("pad", Pad(pad), (x,), [np.pad(v, widths) for v in self.real[x]], self.tensors[x].quant)

    def finish(self, output: int) -> Graph:
        return Graph("small", tuple(self.tensors), tuple(self.ops), self.input, output, model_hash=0x1234ABCD)


def _as_rule_input(kind: OpKind, v: npt.NDArray[np.float64], w_shape: tuple[int, ...]) -> Floats:
    return v.reshape(-1, w_shape[1]) if isinstance(kind, Linear) else v[0]


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


GRAPHS = {f.__name__: f for f in (chain, residual, double_residual, views, windows, rows, relu_by_zero_point)}
"""Name -> graph of a seed."""


def random_samples(graph: Graph, count: int, seed: int = 0) -> list[Int8]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-128, 128, graph.tensors[graph.input].shape).astype(np.int8) for _ in range(count)]


def with_data(graph: Graph, changed: Mapping[int, npt.NDArray[np.generic]]) -> Graph:
    """The graph with other values in some constant tensors."""
    tensors = tuple(replace(t, data=changed[k]) if k in changed else t for k, t in enumerate(graph.tensors))
    return replace(graph, tensors=tensors)


# ---- the int8 specification on a graph ----------------------------------------------------------------------------------


def run_int8(graph: Graph, sample: Int8) -> dict[int, Int8]:
    """int8 value of every activation, by the op's definition: real Pads, real Reshapes, whole weights, no plan."""
    values: dict[int, Int8] = {graph.input: sample.reshape(graph.tensors[graph.input].shape)}
    for op in graph.ops:
        y = graph.tensors[op.outputs[0]]
        values[op.outputs[0]] = _evaluate(graph, op, values).reshape(y.shape).astype(np.int8)
    return values


def head_accumulators(graph: Graph, op: Op, x: Int8) -> npt.NDArray[np.int64]:
    """A layer's int32 accumulators with bias, in the shape of its output's matrix."""
    x_quant, w = graph.tensors[op.inputs[0]].quant, graph.tensors[op.inputs[1]].data
    assert x_quant is not None and w is not None
    centred = x.astype(np.float64) - x_quant.zero_point
    b = graph.tensors[op.inputs[2]].data if len(op.inputs) == 3 else 0
    acc = RULES[type(op.kind)].forward(op.kind, (_as_rule_input(op.kind, centred, w.shape), w.astype(np.float64), 0.0))
    return wrap32(wrap32(acc.astype(np.int64)) + b)


def _evaluate(graph: Graph, op: Op, values: Mapping[int, Int8]) -> npt.NDArray[np.generic]:
    tensors = [graph.tensors[i] for i in (*op.inputs, *op.outputs)]
    x, y = values[op.inputs[0]], tensors[-1]
    xq, yq = tensors[0].quant, y.quant
    assert xq is not None and yq is not None
    match op.kind:
        case Conv2D() | DwConv2D() | Linear() as kind:
            w_quant = tensors[1].quant
            assert w_quant is not None
            derive = quant.linear_requant if isinstance(kind, Linear) else quant.conv_requant
            rq = derive(xq.scale[0], w_quant.scale, yq.scale[0])
            lo, hi = quant.activation_range(kind.activation, yq.scale[0], yq.zero_point)
            return clamp(yq.zero_point + requant(head_accumulators(graph, op, x), rq["mult"], rq["shift"]), lo, hi)
        case AvgPool() as kind:
            lo, hi = quant.activation_range(kind.activation, yq.scale[0], yq.zero_point)
            mean = RULES[AvgPool].forward(kind, (x[0].astype(np.float64),))
            return clamp((np.sign(mean) * np.floor(np.abs(mean) + 0.5 + 1e-9)).astype(np.int64), lo, hi)
        case Mean():
            p = quant.mean_params(xq.scale[0], xq.zero_point, yq.scale[0], x.shape[1] * x.shape[2])
            total = x.astype(np.int64).sum(axis=(1, 2)) + p.bias
            return clamp(yq.zero_point + requant(total, p.mult, p.shift), -128, 127)
        case Add() as kind:
            a = quant.add_params(xq.scale[0], _quant(tensors[1]).scale[0], yq.scale[0])
            lo, hi = quant.activation_range(kind.activation, yq.scale[0], yq.zero_point)
            out = np.zeros(x.size, np.int8)
            scalars = {"am": a.am, "ash": a.ash, "bm": a.bm, "bsh": a.bsh, "ym": a.ym, "ysh": a.ysh, "lo": lo, "hi": hi}
            scalars |= {"za": xq.zero_point, "zb": _quant(tensors[1]).zero_point, "zy": yq.zero_point}
            add_fwd_s8(scalars, {"a": x.ravel(), "b": values[op.inputs[1]].ravel(), "y": out})
            return out
        case Softmax() as kind:
            s = quant.softmax_params(kind.beta, xq.scale[0])
            out = np.zeros(x.size, np.int8)
            scalars = {"n": 1, "c": x.size, "mult": s.mult, "shift": s.shift, "diff_min": s.diff_min}
            softmax_fwd_s8(scalars, {"x": x.ravel(), "y": out})
            return out
        case Pad() as kind:
            p = kind.pad
            return np.pad(x, ((0, 0), (p[0], p[2]), (p[1], p[3]), (0, 0)), constant_values=xq.zero_point)
        case Reshape():
            return x.reshape(y.shape)
        case _:
            raise AssertionError(f"no evaluation for {op.name}")


def _quant(t: Tensor) -> Quant:
    assert t.quant is not None
    return t.quant
