"""Small float graphs made by hand, and samples for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from unittest import mock

import numpy as np
import numpy.typing as npt

from mcugrad.exporter import write_tflite
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
from mcugrad.importer.windows import Pads, same_pads, window_outputs

FLOAT32 = np.dtype(np.float32)
Floats = npt.NDArray[np.float32]


@dataclass
class FloatNet:
    """Adds one op at a time; every method takes and returns tensor indices. Weights are random, sized so that activations stay near 1."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))
    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def tensor(self, shape: tuple[int, ...], data: Floats | None = None) -> int:
        self.tensors.append(Tensor(f"t{len(self.tensors)}", shape, FLOAT32, None, data))
        return len(self.tensors) - 1

    def constant(self, values: npt.ArrayLike) -> int:
        data = np.asarray(values, np.float32)
        return self.tensor(data.shape, data)

    def shape(self, x: int) -> tuple[int, ...]:
        return self.tensors[x].shape

    def op(self, kind: OpKind, inputs: tuple[int, ...], shape: tuple[int, ...]) -> int:
        count = sum(prefix(op.kind) == prefix(kind) for op in self.ops)
        y = self.tensor(shape)
        self.ops.append(Op(f"{prefix(kind)}_{count}", kind, inputs, (y,)))
        return y

    def _parameters(self, x: int, shape: tuple[int, ...], outputs: int, bias: bool) -> tuple[int, ...]:
        fan_in = max(1, int(np.prod(shape)) // outputs)
        w = self.constant(self.rng.normal(0, 1 / np.sqrt(fan_in), shape))
        return (x, w, self.constant(self.rng.normal(0, 0.1, outputs))) if bias else (x, w)

    def _window(self, x: int, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], pad: Pads | None) -> Pads:
        _, h, w, _ = self.shape(x)
        return same_pads((h, w), kernel, stride, dilation) if pad is None else pad

    def conv(
        self,
        x: int,
        o: int,
        kernel: tuple[int, int] = (3, 3),
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        pad: Pads | None = None,
        activation: Activation = Activation.NONE,
        groups: int = 1,
        bias: bool = True,
    ) -> int:
        """pad None: SAME."""
        _, h, w, i = self.shape(x)
        pad = self._window(x, kernel, stride, dilation, pad)
        p, q = window_outputs((h, w), kernel, stride, dilation, pad)
        inputs = self._parameters(x, (o, *kernel, i // groups), o, bias)
        return self.op(Conv2D(stride, dilation, pad, activation, groups), inputs, (1, p, q, o))

    def dwconv(
        self,
        x: int,
        multiplier: int = 1,
        kernel: tuple[int, int] = (3, 3),
        stride: tuple[int, int] = (1, 1),
        activation: Activation = Activation.NONE,
    ) -> int:
        _, h, w, i = self.shape(x)
        pad = self._window(x, kernel, stride, (1, 1), None)
        p, q = window_outputs((h, w), kernel, stride, (1, 1), pad)
        o = i * multiplier
        inputs = self._parameters(x, (1, *kernel, o), o, True)
        return self.op(DwConv2D(stride, (1, 1), pad, multiplier, activation), inputs, (1, p, q, o))

    def linear(self, x: int, o: int, activation: Activation = Activation.NONE, bias: bool = True) -> int:
        i = self.shape(x)[-1]
        return self.op(Linear(activation), self._parameters(x, (o, i), o, bias), (self.tensors[x].size // i, o))

    def pool(self, x: int, kernel: tuple[int, int], stride: tuple[int, int], pad: Pads = (0, 0, 0, 0), largest: bool = False) -> int:
        _, h, w, c = self.shape(x)
        p, q = window_outputs((h, w), kernel, stride, (1, 1), pad)
        return self.op((MaxPool if largest else AvgPool)(kernel, stride, pad, Activation.NONE), (x,), (1, p, q, c))

    def mean(self, x: int) -> int:
        return self.op(Mean(False), (x,), (1, self.shape(x)[3]))

    def pair(self, kind: Add | Sub | Mul | MinMax, a: int, b: int) -> int:
        return self.op(kind, (a, b), np.broadcast_shapes(self.shape(a), self.shape(b)))

    def add(self, a: int, b: int, activation: Activation = Activation.NONE) -> int:
        return self.pair(Add(activation), a, b)

    def unary(self, x: int, function: Function, alpha: float = 0.0) -> int:
        return self.op(Unary(function, alpha), (x,), self.shape(x))

    def prelu(self, x: int) -> int:
        return self.op(Prelu(), (x, self.constant(self.rng.uniform(0.05, 0.4, self.shape(x)[-1]))), self.shape(x))

    def softmax(self, x: int) -> int:
        return self.op(Softmax(1.0), (x,), self.shape(x))

    def concat(self, *inputs: int, axis: int = 3) -> int:
        shape = list(self.shape(inputs[0]))
        shape[axis] = sum(self.shape(i)[axis] for i in inputs)
        return self.op(Concat(axis), inputs, tuple(shape))

    def slice(self, x: int, begin: tuple[int, ...], shape: tuple[int, ...], step: tuple[int, ...] = (1, 1, 1, 1)) -> int:
        return self.op(Slice(begin, step), (x,), shape)

    def transpose(self, x: int, perm: tuple[int, ...]) -> int:
        return self.op(Transpose(perm), (x,), tuple(self.shape(x)[k] for k in perm))

    def resize(self, x: int, size: tuple[int, int]) -> int:
        return self.op(ResizeNearest(False, False), (x,), (1, *size, self.shape(x)[3]))

    def pad(self, x: int, pad: Pads) -> int:
        _, h, w, c = self.shape(x)
        kind = Pad((0, pad[0], pad[1], 0), (0, pad[2], pad[3], 0), 0)
        return self.op(kind, (x,), (1, h + pad[0] + pad[2], w + pad[1] + pad[3], c))

    def reshape(self, x: int, shape: tuple[int, ...]) -> int:
        return self.op(Reshape(), (x,), shape)

    def finish(self, source: int, *sinks: int) -> Graph:
        return Graph("float", tuple(self.tensors), tuple(self.ops), (source,), sinks)


def classifier(activation: Activation = Activation.RELU) -> Graph:
    """conv, depthwise conv, residual addition, mean, linear, softmax: a net of the usual build."""
    n = FloatNet()
    source = n.tensor((1, 8, 8, 3))
    x = n.conv(source, 8, stride=(2, 2), activation=activation)
    y = n.conv(n.dwconv(x, activation=activation), 8, (1, 1))
    x = n.mean(n.add(x, y, activation))
    return n.finish(source, n.softmax(n.linear(x, 4)))


def every_kind() -> Graph:
    """A net with each kind of op that a float model may have."""
    n = FloatNet()
    source = n.tensor((1, 9, 7, 4))
    x = n.unary(n.conv(source, 8, stride=(2, 2), groups=2, bias=False), Function.HARD_SWISH)
    x = n.prelu(n.pad(n.dwconv(x, 1, activation=Activation.RELU6), (0, 1, 2, 1)))
    x = n.concat(x, n.unary(x, Function.TANH), n.unary(n.unary(x, Function.LOGISTIC), Function.LEAKY_RELU, 0.1))
    x = n.slice(x, (0, 0, 1, 4), (1, 6, 3, 16), (1, 1, 2, 1))
    x = n.pool(n.pool(x, (2, 2), (1, 1)), (2, 2), (1, 1), largest=True)
    x = n.resize(n.transpose(x, (0, 2, 1, 3)), (4, 6))
    x = n.pair(MinMax(True), x, n.constant(np.full(16, -0.5)))
    x = n.pair(Sub(Activation.NONE), x, n.constant(n.rng.normal(0, 1, 16)))
    x = n.pair(Mul(Activation.RELU), x, n.unary(n.conv(x, 16, (1, 1)), Function.LOGISTIC))
    x = n.reshape(n.mean(x), (1, 1, 1, 16))
    x = n.linear(n.reshape(x, (1, 16)), 5, bias=False)
    return n.finish(source, n.softmax(n.add(x, n.constant([[0.3, -0.2, 0.1, 0.0, 0.5]]))))


def samples(graph: Graph, count: int = 32, seed: int = 5) -> Floats:
    """Normally distributed inputs, (count, *shape without batch)."""
    return np.random.default_rng(seed).normal(0, 1, (count, *graph.tensors[graph.input].shape[1:])).astype(np.float32)


def float_file(graph: Graph) -> bytes:
    """The graph as a float .tflite file. Users have no use for one, so the exporter refuses it when it is not talked into it."""
    exporter = "mcugrad.exporter.tflite"
    with mock.patch(f"{exporter}.is_float", lambda _: False), mock.patch(f"{exporter}._zero_point", lambda _: 0):
        return write_tflite(graph)
