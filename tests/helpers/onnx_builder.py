"""ONNX files built node by node, and what onnxruntime and the imported graph make of them.

b = OnnxBuilder()
x = b.input("x", (1, 3, 8, 8))
y = b.qdq(b.node("Conv", b.qdq(x, 0.02, 3), b.weights((4, 3, 3, 3)), pads=[1, 1, 1, 1]), 0.05, -5)
data = b.finish(y)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mcugrad.graph import (
    Concat,
    Dequantize,
    Graph,
    MaxPool,
    MinMax,
    Op,
    Pad,
    Quantize,
    Reshape,
    ResizeNearest,
    Slice,
    Tensor,
    Transpose,
)
from mcugrad.quantize import run_float

Array = npt.NDArray[Any]

IN_CODES = (Concat, MaxPool, MinMax, Reshape, ResizeNearest, Slice, Transpose)
"""Kinds that choose or move values: computed on the codes."""


class OnnxBuilder:
    """Names in, names out. Constants get names of their own."""

    def __init__(self, seed: int = 0, opset: int = 13, codes: type[np.generic] = np.int8) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.codes = codes
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.quantized: list[str] = []
        self.counter = 0

    def name(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def input(self, name: str, shape: Sequence[int | str], dtype: type[np.generic] = np.float32) -> str:
        import onnx  # noqa: PLC0415

        self.inputs.append(onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape))
        return name

    def const(self, array: Array | Sequence[float] | float, dtype: type[np.generic] | None = None) -> str:
        import onnx  # noqa: PLC0415

        name = self.name("c")
        self.constants.append(onnx.numpy_helper.from_array(np.array(array, dtype), name))
        return name

    def tensor(self, array: Array) -> Any:
        """The value of an attribute."""
        import onnx  # noqa: PLC0415

        return onnx.numpy_helper.from_array(array)

    def node(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        import onnx  # noqa: PLC0415

        names = [self.name(op.lower()) for _ in range(outputs)]
        self.nodes.append(onnx.helper.make_node(op, list(inputs), names, domain=domain, name=f"{op}_{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def scales(self, scale: float, zero_point: int | None) -> list[str]:
        given = [self.const(np.float32(scale))]
        return given if zero_point is None else [*given, self.const(zero_point, self.codes)]

    def q(self, x: str, scale: float, zero_point: int | None = 0) -> str:
        name = str(self.node("QuantizeLinear", x, *self.scales(scale, zero_point)))
        self.quantized.append(name)
        return name

    def dq(self, x: str, scale: float, zero_point: int | None = 0) -> str:
        return str(self.node("DequantizeLinear", x, *self.scales(scale, zero_point)))

    def qdq(self, x: str, scale: float, zero_point: int | None = 0) -> str:
        return self.dq(self.q(x, scale, zero_point), scale, zero_point)

    def random(self, shape: Sequence[int], dtype: type[np.generic] = np.int8, zero_point: int = 0, limit: int = 127) -> Array:
        return (self.rng.integers(-limit, limit + 1, shape) + zero_point).astype(dtype)

    def weights(self, shape: Sequence[int], *, axis: int | None = 0, dtype: type[np.generic] = np.int8, zero_point: int = 0) -> str:
        """Random weights behind DequantizeLinear, a scale per channel of ``axis``."""
        codes = self.const(self.random(shape, dtype, zero_point))
        if axis is None:
            return str(self.node("DequantizeLinear", codes, self.const(np.float32(0.005)), self.const(zero_point, dtype)))
        scale = self.rng.uniform(0.002, 0.01, shape[axis]).astype(np.float32)
        points = self.const(np.full(shape[axis], zero_point, dtype))
        return str(self.node("DequantizeLinear", codes, self.const(scale), points, axis=axis))

    def bias(self, weights: str, x_scale: float) -> str:
        """A random int32 bias in steps of input scale · weight scale."""
        dq = next(n for n in self.nodes if n.output[0] == weights)
        scale, codes = self._value(dq.input[1]), self._value(dq.input[0])
        axis = next((a.i for a in dq.attribute if a.name == "axis"), 0)
        product = (np.float32(x_scale) * scale).astype(np.float32)
        values = self.rng.integers(-2000, 2000, codes.shape[axis]).astype(np.int32)
        return str(self.node("DequantizeLinear", self.const(values), self.const(product), axis=0))

    def _value(self, name: str) -> Array:
        import onnx  # noqa: PLC0415

        return np.asarray(onnx.numpy_helper.to_array(next(c for c in self.constants if c.name == name)))

    def finish(self, *outputs: str) -> bytes:
        import onnx  # noqa: PLC0415

        graph = onnx.helper.make_graph(self.nodes, "g", self.inputs, [onnx.ValueInfoProto(name=o) for o in outputs], self.constants)
        domains = [onnx.helper.make_opsetid("", self.opset), onnx.helper.make_opsetid("com.microsoft", 1)]
        return bytes(onnx.helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString())


def run_onnxruntime(data: bytes, inputs: Mapping[str, Array], extra: Sequence[str] = ()) -> dict[str, Array]:
    """Name -> value of the model's outputs and of ``extra``."""
    import onnx  # noqa: PLC0415
    import onnxruntime  # noqa: PLC0415

    model = onnx.ModelProto()
    model.ParseFromString(data)
    known = {o.name for o in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra if name not in known)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def as_int8(value: Array) -> Array:
    return (value.astype(np.int16) - 128).astype(np.int8) if value.dtype == np.uint8 else value


def as_stored(value: Array, shape: tuple[int, ...]) -> Array:
    """A value of the file in the layout of the graph's tensor: images NHWC, where the shape allows it."""
    value = as_int8(np.asarray(value))
    if value.ndim == 3 and len(shape) == 4:
        return value.transpose(0, 2, 1).reshape(shape)
    if value.ndim == 4 and (tuple(value.shape[p] for p in (0, 2, 3, 1)) == shape or len(shape) == 2):
        value = value.transpose(0, 2, 3, 1)
    return value.reshape(shape)


def run_int8(graph: Graph, inputs: Sequence[Array], given: Mapping[str, Array] | None = None) -> tuple[dict[int, Array], dict[str, Array]]:
    """Every tensor of an int8 graph by the definition of its op: real numbers, one rounding to nearest.

    ``given``: name -> value; where a tensor of that name has been computed, the given value takes its place for what follows. Returns the
    values by index, and for the given names what was computed, in the graph's layout.
    """
    values: dict[int, Array] = {i: t.data for i, t in enumerate(graph.tensors) if t.data is not None}
    for index, sample in zip(graph.inputs, inputs, strict=True):
        t = graph.tensors[index]
        values[index] = np.asarray(sample, t.dtype).reshape(t.shape)
    computed = {}
    for op in graph.ops:
        y = graph.tensors[op.outputs[0]]
        value = _codes(graph, op, values)
        if given is not None and y.name in given:
            computed[y.name] = value
            value = as_stored(given[y.name], y.shape)
        values[op.outputs[0]] = value
    return values, computed


def real_value(t: Tensor, codes: Array) -> Array:
    if t.quant is None:
        return codes.astype(np.float64)
    spread = [-1 if a == t.quant.axis else 1 for a in range(codes.ndim)] if t.quant.per_channel else []
    return (codes.astype(np.float64) - t.quant.zero_point) * np.array(t.quant.scale).reshape(spread)


def _codes(graph: Graph, op: Op, values: Mapping[int, Array]) -> Array:
    tensors = [graph.tensors[i] for i in op.inputs]
    y = graph.tensors[op.outputs[0]]
    if isinstance(op.kind, Dequantize):
        return real_value(tensors[0], values[op.inputs[0]]).astype(np.float32)
    if isinstance(op.kind, Pad):
        width = tuple(zip(op.kind.before, op.kind.after, strict=True))
        return np.pad(values[op.inputs[0]], width, constant_values=op.kind.value)
    if isinstance(op.kind, IN_CODES):
        return _one_op(op, tensors, [values[i].astype(np.float64) for i in op.inputs], y).astype(np.int8)
    real = [real_value(t, values[i]) for t, i in zip(tensors, op.inputs, strict=True)]
    value = real[0] if isinstance(op.kind, Quantize) else _one_op(op, tensors, real, y)
    assert y.quant is not None
    scaled = (
        (value.astype(np.float32) / np.float32(y.quant.scale[0])).astype(np.float64)
        if isinstance(op.kind, Quantize)
        else (value / y.quant.scale[0])
    )
    return np.clip(np.rint(scaled) + y.quant.zero_point, -128, 127).astype(np.int8)


def _one_op(op: Op, tensors: Sequence[Tensor], inputs: Sequence[Array], y: Tensor) -> Array:
    """The op on real arrays, as a graph of its own."""
    n = len(tensors)
    plain = [replace(t, dtype=np.dtype(np.float32), quant=None, data=None) for t in (*tensors, y)]
    alone = Graph("op", tuple(plain), (replace(op, inputs=tuple(range(n)), outputs=(n,), reads=()),), tuple(range(n)), (n,))
    return run_float(alone, inputs)[n]
