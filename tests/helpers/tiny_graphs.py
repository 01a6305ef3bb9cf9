"""Small int8 graphs made by hand, equality of graphs, and the oracle's answer to a file."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mcugrad.graph import (
    Activation,
    Add,
    AvgPool,
    Conv2D,
    Dequantize,
    DwConv2D,
    Graph,
    Linear,
    Mean,
    Op,
    OpKind,
    Pad,
    Quant,
    Quantize,
    Reshape,
    Softmax,
    Tensor,
)
from mcugrad.importer.windows import same_pads, window_outputs

NAMES = {
    Conv2D: "conv",
    DwConv2D: "dwconv",
    Linear: "linear",
    AvgPool: "avgpool",
    Mean: "mean",
    Add: "add",
    Softmax: "softmax",
    Pad: "pad",
    Reshape: "reshape",
    Quantize: "quantize",
    Dequantize: "dequantize",
}


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
        prefix = NAMES[type(kind)]
        count = sum(isinstance(op.kind, type(kind)) for op in self.ops)
        self.ops.append(Op(f"{prefix}_{count}", kind, inputs, (output,)))
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
    ) -> int:
        """pad None: SAME."""
        _, h, w, i = self.tensors[x].shape
        pad = same_pads((h, w), kernel, stride, dilation) if pad is None else pad
        p, q = window_outputs((h, w), kernel, stride, dilation, pad)
        inputs = self._parameters(x, (o, *kernel, i), 0, tuple(0.01 + 0.001 * c for c in range(o)), bias)
        return self.add_op(Conv2D(stride, dilation, pad, activation), inputs, self.activation((1, p, q, o), 0.1))

    def dwconv(self, x: int, multiplier: int = 1, kernel: tuple[int, int] = (3, 3), stride: tuple[int, int] = (1, 1)) -> int:
        _, h, w, i = self.tensors[x].shape
        pad = same_pads((h, w), kernel, stride, (1, 1))
        p, q = window_outputs((h, w), kernel, stride, (1, 1), pad)
        o = i * multiplier
        inputs = self._parameters(x, (1, *kernel, o), 3, tuple(0.02 + 0.001 * c for c in range(o)), True)
        return self.add_op(DwConv2D(stride, (1, 1), pad, multiplier, Activation.RELU), inputs, self.activation((1, p, q, o), 0.1, -128))

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

    def mean(self, x: int, keep_dims: bool = False) -> int:
        c = self.tensors[x].shape[3]
        return self.add_op(Mean(keep_dims), (x,), self.activation((1, 1, 1, c) if keep_dims else (1, c), 0.03, 2))

    def add(self, a: int, b: int) -> int:
        return self.add_op(Add(Activation.RELU), (a, b), self.activation(self.tensors[a].shape, 0.15, -128))

    def pad(self, x: int, pad: tuple[int, int, int, int]) -> int:
        _, h, w, c = self.tensors[x].shape
        return self.add_op(Pad(pad), (x,), self.like(x, (1, h + pad[0] + pad[2], w + pad[1] + pad[3], c)))

    def reshape(self, x: int, shape: tuple[int, ...]) -> int:
        return self.add_op(Reshape(), (x,), self.like(x, shape))

    def softmax(self, x: int) -> int:
        return self.add_op(Softmax(1.0), (x,), self.activation(self.tensors[x].shape, 1 / 256, -128))

    def quantize(self, x: int) -> int:
        return self.add_op(Quantize(), (x,), self.activation(self.tensors[x].shape, 0.04, 1))

    def dequantize(self, x: int) -> int:
        return self.add_op(Dequantize(), (x,), self.float_tensor(self.tensors[x].shape))

    def finish(self, source: int, sink: int) -> Graph:
        return Graph("tiny", tuple(self.tensors), tuple(self.ops), source, sink)


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


def assert_same_graph(a: Graph, b: Graph) -> None:
    """Equal in all but name, hash and notes."""
    assert (a.input, a.output) == (b.input, b.output)
    assert a.ops == b.ops
    assert [(t.name, t.shape, t.dtype, t.quant) for t in a.tensors] == [(t.name, t.shape, t.dtype, t.quant) for t in b.tensors]
    for s, t in zip(a.tensors, b.tensors, strict=True):
        assert (s.data is None) == (t.data is None)
        if s.data is not None and t.data is not None:
            np.testing.assert_array_equal(s.data, t.data)


def random_inputs(graph: Graph, count: int, seed: int = 0) -> list[npt.NDArray[np.generic]]:
    """Inputs of the graph's own type."""
    rng = np.random.default_rng(seed)
    t = graph.tensors[graph.input]
    if t.dtype == np.int8:
        return [rng.integers(-128, 128, t.shape, dtype=np.int8) for _ in range(count)]
    return [rng.normal(0, 2, t.shape).astype(np.float32) for _ in range(count)]


def oracle(data: bytes, inputs: list[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    """What the tflite-micro interpreter makes of the inputs."""
    from tflite_micro import runtime  # noqa: PLC0415

    interpreter = runtime.Interpreter.from_bytes(data, arena_size=4_000_000)
    outputs = []
    for x in inputs:
        interpreter.set_input(x, 0)
        interpreter.invoke()
        outputs.append(interpreter.get_output(0).copy())
    return np.stack(outputs)
