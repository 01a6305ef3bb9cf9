"""Small int8 graphs made by hand, equality of graphs, and the oracle's answer to a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mcugrad.graph import (
    Activation,
    Add,
    AvgPool,
    Concat,
    Conv2D,
    Dequantize,
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
    Quantize,
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
from mcugrad.importer.windows import same_pads, window_outputs


@dataclass
class TinyNet:
    """Adds one op at a time; every method takes and returns tensor indices. Weights are random, scales are ordinary."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def activation(self, shape: tuple[int, ...], scale: float = 0.05, zero_point: int = -3) -> int:
        quant = Quant((float(np.float32(scale)),), zero_point)
        return self.add_tensor(Tensor(f"t{len(self.tensors)}", shape, np.dtype(np.int8), quant))

    def float_tensor(self, shape: tuple[int, ...]) -> int:
        return self.add_tensor(Tensor(f"t{len(self.tensors)}", shape, np.dtype(np.float32)))

    def add_tensor(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def add_op(self, kind: OpKind, inputs: tuple[int, ...], output: int) -> int:
        count = sum(prefix(op.kind) == prefix(kind) for op in self.ops)
        self.ops.append(Op(f"{prefix(kind)}_{count}", kind, inputs, (output,)))
        return output

    def _parameters(self, x: int, shape: tuple[int, ...], axis: int, scales: tuple[float, ...], bias: bool) -> tuple[int, ...]:
        scales = tuple(float(np.float32(s)) for s in scales)
        data = self.rng.integers(-127, 128, shape, dtype=np.int8)
        w = Tensor(f"w{len(self.tensors)}", shape, np.dtype(np.int8), Quant(scales, 0, axis if len(scales) > 1 else 0), data)
        found = (x, self.add_tensor(w))
        if not bias:
            return found
        sx = self.tensors[x].quant
        assert sx is not None
        b_quant = Quant(tuple(float(np.float32(sx.scale[0] * s)) for s in scales))
        values = self.rng.integers(-500, 500, (shape[axis],), dtype=np.int32)
        return (*found, self.add_tensor(Tensor(f"b{len(self.tensors)}", values.shape, np.dtype(np.int32), b_quant, values)))

    def conv(
        self,
        x: int,
        o: int,
        kernel: tuple[int, int] = (3, 3),
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        pad: tuple[int, int, int, int] | None = None,
        activation: Activation = Activation.NONE,
        bias: bool = True,
        groups: int = 1,
    ) -> int:
        """pad None: SAME."""
        _, h, w, i = self.tensors[x].shape
        pad = same_pads((h, w), kernel, stride, dilation) if pad is None else pad
        p, q = window_outputs((h, w), kernel, stride, dilation, pad)
        inputs = self._parameters(x, (o, *kernel, i // groups), 0, tuple(0.01 + 0.001 * c for c in range(o)), bias)
        return self.add_op(Conv2D(stride, dilation, pad, activation, groups), inputs, self.activation((1, p, q, o), 0.1))

    def dwconv(
        self,
        x: int,
        multiplier: int = 1,
        kernel: tuple[int, int] = (3, 3),
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
    ) -> int:
        _, h, w, i = self.tensors[x].shape
        pad = same_pads((h, w), kernel, stride, dilation)
        p, q = window_outputs((h, w), kernel, stride, dilation, pad)
        o = i * multiplier
        inputs = self._parameters(x, (1, *kernel, o), 3, tuple(0.02 + 0.001 * c for c in range(o)), True)
        return self.add_op(DwConv2D(stride, dilation, pad, multiplier, Activation.RELU), inputs, self.activation((1, p, q, o), 0.1, -128))

    def linear(self, x: int, o: int, scales: tuple[float, ...] = (0.01,), out_shape: tuple[int, ...] | None = None) -> int:
        i = self.tensors[x].shape[-1]
        inputs = self._parameters(x, (o, i), 0, scales, True)
        return self.add_op(Linear(Activation.NONE), inputs, self.activation(out_shape or (self.tensors[x].size // i, o), 0.2, 4))

    def like(self, x: int, shape: tuple[int, ...]) -> int:
        """A new activation with the quantization of another."""
        t = self.tensors[x]
        return self.add_tensor(Tensor(f"t{len(self.tensors)}", shape, t.dtype, t.quant))

    def avgpool(self, x: int, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int, int, int] = (0, 0, 0, 0)) -> int:
        _, h, w, c = self.tensors[x].shape
        p, q = window_outputs((h, w), kernel, stride, (1, 1), pad)
        return self.add_op(AvgPool(kernel, stride, pad, Activation.NONE), (x,), self.like(x, (1, p, q, c)))

    def maxpool(self, x: int, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int, int, int] = (0, 0, 0, 0)) -> int:
        _, h, w, c = self.tensors[x].shape
        p, q = window_outputs((h, w), kernel, stride, (1, 1), pad)
        return self.add_op(MaxPool(kernel, stride, pad, Activation.NONE), (x,), self.like(x, (1, p, q, c)))

    def constant(self, shape: tuple[int, ...], scale: float = 0.04, zero_point: int = 5) -> int:
        """A random int8 constant."""
        quant = Quant((float(np.float32(scale)),), zero_point)
        data = self.rng.integers(-128, 128, shape, dtype=np.int8)
        return self.add_tensor(Tensor(f"c{len(self.tensors)}", shape, np.dtype(np.int8), quant, data))

    def two(self, kind: Add | Sub | Mul, a: int, b: int, scale: float = 0.15) -> int:
        """An operation of two operands; the output has the larger one's shape."""
        shape = np.broadcast_shapes(self.tensors[a].shape, self.tensors[b].shape)
        return self.add_op(kind, (a, b), self.activation(shape, scale, 7))

    def minmax(self, a: int, b: int, largest: bool) -> int:
        """The operands must have one quantization."""
        shape = np.broadcast_shapes(self.tensors[a].shape, self.tensors[b].shape)
        return self.add_op(MinMax(largest), (a, b), self.like(a, shape))

    def unary(self, x: int, function: Function, alpha: float = 0.0, scale: float = 0.06, zero_point: int = -20) -> int:
        scale, zero_point = {Function.LOGISTIC: (1 / 256, -128), Function.TANH: (1 / 128, 0)}.get(function, (scale, zero_point))
        return self.add_op(Unary(function, alpha), (x,), self.activation(self.tensors[x].shape, scale, zero_point))

    def prelu(self, x: int) -> int:
        alpha = self.constant((1, 1, self.tensors[x].shape[-1]), 0.003, 0)
        return self.add_op(Prelu(), (x, alpha), self.activation(self.tensors[x].shape, 0.05, 3))

    def concat(self, parts: tuple[int, ...], axis: int) -> int:
        shape = list(self.tensors[parts[0]].shape)
        shape[axis] = sum(self.tensors[p].shape[axis] for p in parts)
        return self.add_op(Concat(axis), parts, self.like(parts[0], tuple(shape)))

    def slice(self, x: int, begin: tuple[int, ...], shape: tuple[int, ...], step: tuple[int, ...] | None = None) -> int:
        return self.add_op(Slice(begin, step or (1,) * len(begin)), (x,), self.like(x, shape))

    def transpose(self, x: int, perm: tuple[int, ...]) -> int:
        return self.add_op(Transpose(perm), (x,), self.like(x, tuple(self.tensors[x].shape[p] for p in perm)))

    def resize(self, x: int, size: tuple[int, int], align_corners: bool = False, half_pixel_centers: bool = False) -> int:
        kind = ResizeNearest(align_corners, half_pixel_centers)
        return self.add_op(kind, (x,), self.like(x, (1, *size, self.tensors[x].shape[3])))

    def mean(self, x: int, keep_dims: bool = False) -> int:
        c = self.tensors[x].shape[3]
        return self.add_op(Mean(keep_dims), (x,), self.activation((1, 1, 1, c) if keep_dims else (1, c), 0.03, 2))

    def add(self, a: int, b: int) -> int:
        return self.add_op(Add(Activation.RELU), (a, b), self.activation(self.tensors[a].shape, 0.15, -128))

    def pad(self, x: int, pad: tuple[int, int, int, int]) -> int:
        """(top, left, bottom, right) of an image, filled with real 0."""
        return self.pad_all(x, (0, *pad[:2], 0), (0, *pad[2:], 0))

    def pad_all(self, x: int, before: tuple[int, ...], after: tuple[int, ...], value: int | None = None) -> int:
        t = self.tensors[x]
        assert t.quant is not None
        shape = tuple(b + n + a for b, n, a in zip(before, t.shape, after, strict=True))
        return self.add_op(Pad(before, after, t.quant.zero_point if value is None else value), (x,), self.like(x, shape))

    def reshape(self, x: int, shape: tuple[int, ...]) -> int:
        return self.add_op(Reshape(), (x,), self.like(x, shape))

    def softmax(self, x: int) -> int:
        return self.add_op(Softmax(1.0), (x,), self.activation(self.tensors[x].shape, 1 / 256, -128))

    def quantize(self, x: int) -> int:
        return self.add_op(Quantize(), (x,), self.activation(self.tensors[x].shape, 0.04, 1))

    def dequantize(self, x: int) -> int:
        return self.add_op(Dequantize(), (x,), self.float_tensor(self.tensors[x].shape))

    def finish(self, source: int, sink: int) -> Graph:
        return self.finish_all((source,), (sink,))

    def finish_all(self, sources: tuple[int, ...], sinks: tuple[int, ...]) -> Graph:
        return Graph("tiny", tuple(self.tensors), tuple(self.ops), sources, sinks)


def every_op() -> Graph:
    """A net with each kind of op, float at both ends."""
    n = TinyNet()
    source = n.float_tensor((1, 9, 7, 3))
    x = n.quantize(source)
    x = n.conv(x, 4, stride=(2, 2), activation=Activation.RELU)
    y = n.dwconv(x)
    y = n.conv(y, 4, (1, 1))
    x = n.add(x, y)
    x = n.pad(x, (0, 1, 2, 0))
    x = n.dwconv(x, 2, stride=(2, 1))
    x = n.avgpool(x, (2, 2), (1, 1))
    x = n.mean(x)
    x = n.linear(x, 5)
    x = n.reshape(x, (5, 1))
    x = n.reshape(x, (1, 5))
    x = n.softmax(x)
    return n.finish(source, n.dequantize(x))


def small_net() -> Graph:
    """conv, mean, linear, softmax: the smallest classifier worth the name."""
    n = TinyNet()
    source = n.activation((1, 6, 5, 2))
    x = n.conv(source, 3, activation=Activation.RELU6)
    x = n.linear(n.mean(x), 4)
    return n.finish(source, n.softmax(x))


def one_linear(scales: tuple[float, ...] = (0.01,), inputs: int = 4) -> Graph:
    """One fully connected layer of three outputs."""
    n = TinyNet()
    source = n.activation((1, inputs))
    return n.finish(source, n.linear(source, 3, scales))


def _image(n: TinyNet) -> int:
    return n.activation((1, 6, 5, 4))


def _one(build: Callable[[TinyNet, int], int]) -> Graph:
    n = TinyNet()
    source = _image(n)
    return n.finish(source, build(n, source))


def _add_inputs() -> Graph:
    """Two inputs, two outputs."""
    n = TinyNet()
    a, b = n.activation((1, 6, 5, 4)), n.activation((1, 6, 5, 4), 0.02, 9)
    return n.finish_all((a, b), (n.two(Add(Activation.NONE), a, b), n.two(Sub(Activation.RELU), b, a)))


def _stretched(n: TinyNet, x: int) -> int:
    """The smaller operand first, and computed."""
    return n.two(Mul(Activation.NONE), n.slice(x, (0, 1, 2, 0), (1, 1, 1, 4)), x)


def _split(n: TinyNet, x: int) -> int:
    parts = tuple(n.slice(x, (0, 0, 0, at), (1, 6, 5, 2)) for at in (0, 2))
    return n.concat((n.maxpool(parts[1], (3, 3), (1, 1), (1, 1, 1, 1)), parts[0]), 3)


ONE_OP: dict[str, Callable[[], Graph]] = {
    "conv with groups": lambda: _one(lambda n, x: n.conv(x, 6, groups=2)),
    "conv with dilation": lambda: _one(lambda n, x: n.conv(x, 3, dilation=(2, 1))),
    "dwconv with dilation": lambda: _one(lambda n, x: n.dwconv(x, 2, dilation=(1, 2))),
    "maxpool": lambda: _one(lambda n, x: n.maxpool(x, (2, 2), (2, 2))),
    "maxpool SAME": lambda: _one(lambda n, x: n.maxpool(x, (3, 3), (1, 1), (1, 1, 1, 1))),
    "two inputs, two outputs": _add_inputs,
    "add a constant": lambda: _one(lambda n, x: n.two(Add(Activation.RELU6), x, n.constant((4,)))),
    "add to a scalar constant": lambda: _one(lambda n, x: n.two(Add(Activation.NONE), n.constant((1,)), x)),
    "sub a column": lambda: _one(lambda n, x: n.two(Sub(Activation.NONE), x, n.constant((1, 6, 5, 1)))),
    "sub from a constant": lambda: _one(lambda n, x: n.two(Sub(Activation.NONE), n.constant((1, 1, 1, 4)), x)),
    "mul by a constant": lambda: _one(lambda n, x: n.two(Mul(Activation.RELU_N1_1), x, n.constant((4,)))),
    "mul by a pixel": lambda: _one(_stretched),
    "maximum": lambda: _one(lambda n, x: n.minmax(x, n.constant((4,), 0.05, -3), largest=True)),
    "minimum": lambda: _one(lambda n, x: n.minmax(x, n.constant((1, 1, 1, 1), 0.05, -3), largest=False)),
    "relu": lambda: _one(lambda n, x: n.unary(x, Function.RELU)),
    "relu6": lambda: _one(lambda n, x: n.unary(x, Function.RELU6, scale=0.05, zero_point=-3)),
    "leaky relu": lambda: _one(lambda n, x: n.unary(x, Function.LEAKY_RELU, 0.25)),
    "prelu": lambda: _one(lambda n, x: n.prelu(x)),
    "logistic": lambda: _one(lambda n, x: n.unary(x, Function.LOGISTIC)),
    "tanh": lambda: _one(lambda n, x: n.unary(x, Function.TANH)),
    "hard swish": lambda: _one(lambda n, x: n.unary(x, Function.HARD_SWISH)),
    "requantize": lambda: _one(lambda n, x: n.unary(x, Function.REQUANTIZE)),
    "split, maxpool, concat": lambda: _one(_split),
    "concat with a constant": lambda: _one(lambda n, x: n.concat((x, n.constant((1, 6, 2, 4), 0.05, -3)), 2)),
    "slice": lambda: _one(lambda n, x: n.slice(x, (0, 1, 0, 2), (1, 4, 5, 2))),
    "strided slice": lambda: _one(lambda n, x: n.slice(x, (0, 1, 0, 0), (1, 3, 2, 4), (1, 2, 3, 1))),
    "transpose": lambda: _one(lambda n, x: n.transpose(x, (0, 3, 1, 2))),
    "resize": lambda: _one(lambda n, x: n.resize(x, (9, 11))),
    "resize, half pixel": lambda: _one(lambda n, x: n.resize(x, (4, 7), half_pixel_centers=True)),
    "resize, corners": lambda: _one(lambda n, x: n.resize(x, (9, 7), align_corners=True)),
    "pad of every dimension": lambda: _one(lambda n, x: n.pad_all(x, (0, 1, 2, 3), (0, 2, 0, 1))),
    "pad with a value": lambda: _one(lambda n, x: n.pad_all(x, (0, 1, 0, 0), (0, 0, 1, 0), 77)),
}
"""A small graph for each kind of op that ``every_op`` has not."""


def assert_same_graph(a: Graph, b: Graph) -> None:
    """Equal in all but name, hash and notes."""
    assert (a.inputs, a.outputs) == (b.inputs, b.outputs)
    assert a.ops == b.ops
    assert [(t.name, t.shape, t.dtype, t.quant) for t in a.tensors] == [(t.name, t.shape, t.dtype, t.quant) for t in b.tensors]
    for s, t in zip(a.tensors, b.tensors, strict=True):
        assert (s.data is None) == (t.data is None)
        if s.data is not None and t.data is not None:
            np.testing.assert_array_equal(s.data, t.data)


def random_inputs(graph: Graph, count: int, seed: int = 0) -> list[npt.NDArray[np.generic]]:
    """Values of the graph's first input, in its own type."""
    return [x[0] for x in random_samples(graph, count, seed)]


def random_samples(graph: Graph, count: int, seed: int = 0) -> list[tuple[npt.NDArray[np.generic], ...]]:
    """Values of all inputs of the graph, in their own types."""
    rng = np.random.default_rng(seed)

    def value(t: Tensor) -> npt.NDArray[np.generic]:
        return rng.integers(-128, 128, t.shape, dtype=np.int8) if t.dtype == np.int8 else rng.normal(0, 2, t.shape).astype(np.float32)

    return [tuple(value(graph.tensors[i]) for i in graph.inputs) for _ in range(count)]


def oracle(data: bytes, inputs: list[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    """What the tflite-micro interpreter makes of the inputs of a model with one input and one output."""
    return np.stack([outputs[0] for outputs in oracle_all(data, [(x,) for x in inputs], 1)])


def oracle_all(data: bytes, samples: list[tuple[npt.NDArray[np.generic], ...]], outputs: int) -> list[list[npt.NDArray[np.generic]]]:
    """The outputs, one list a sample."""
    from tflite_micro import runtime  # noqa: PLC0415

    interpreter = runtime.Interpreter.from_bytes(data, arena_size=4_000_000)
    found = []
    for sample in samples:
        for k, x in enumerate(sample):
            interpreter.set_input(x, k)
        interpreter.invoke()
        found.append([interpreter.get_output(k).copy() for k in range(outputs)])
    return found
