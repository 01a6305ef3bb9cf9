"""Graph -> ONNX, as QDQ: every operator stands in float between DequantizeLinear and QuantizeLinear, with the graph's own codes and scales.

The inputs and outputs keep the graph's shapes. In between, images are NCHW as ONNX wants them: a tensor of the graph is known here by the
name of its codes and a perm, graph axis k is ONNX axis perm[k]; a Transpose of codes is written where an operator needs another perm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mcugrad.errors import ModelError
from mcugrad.exporter.whole import write_whole
from mcugrad.graph.types import (
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
from mcugrad.importer.onnx.file import onnx_package

OPSET = 13
OPSET_HARD_SWISH = 14
IR_VERSION = 8
NCHW = (0, 2, 3, 1)
"""Perm of an image: the graph's (N,H,W,C) stand at ONNX axes 0, 2, 3 and 1."""

Array = npt.NDArray[Any]
Perm = tuple[int, ...]

_CLIPS = {Activation.RELU6: (0.0, 6.0), Activation.RELU_N1_1: (-1.0, 1.0)}
_FUNCTIONS = {Function.LOGISTIC: "Sigmoid", Function.TANH: "Tanh", Function.HARD_SWISH: "HardSwish", Function.LEAKY_RELU: "LeakyRelu"}
_AS_ACTIVATION = {Function.RELU: Activation.RELU, Function.RELU6: Activation.RELU6, Function.RELU_N1_1: Activation.RELU_N1_1}
_RESIZE = {
    (False, False): ("asymmetric", "floor"),
    (False, True): ("half_pixel", "round_prefer_ceil"),
    (True, False): ("align_corners", "round_prefer_ceil"),
}


@dataclass(slots=True)
class File:
    """The file under construction. ``codes``: tensor of the graph -> (name of its value in the file, perm)."""

    onnx: Any
    graph: Graph
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    codes: dict[int, tuple[str, Perm]] = field(default_factory=dict)
    written: dict[tuple[str, int, Perm], str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    opset: int = OPSET

    def name(self, wanted: str) -> str:
        """``wanted``, or that with a number where it is taken."""
        found, k = wanted or "value", 0
        while found in self.names:
            k += 1
            found = f"{wanted or 'value'}/{k}"
        self.names.add(found)
        return found

    def constant(self, wanted: str, array: Array) -> str:
        name = self.name(wanted)
        self.constants.append(self.onnx.numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def node(self, op: str, inputs: Sequence[str], wanted: str, **attributes: Any) -> str:
        output = self.name(wanted)
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), [output], name=f"{op}_{len(self.nodes)}", **attributes))
        return output

    # ---- codes and real numbers ----

    def laid(self, t: int, perm: Perm) -> str:
        """The codes of an activation with another perm."""
        name, now = self.codes[t]
        if perm == now:
            return name
        key = ("laid", t, perm)
        if key not in self.written:
            turn = [now[perm.index(axis)] for axis in range(len(perm))]
            self.written[key] = self.node("Transpose", [name], f"{name}/transposed", perm=turn)
        return self.written[key]

    def flat(self, t: int) -> tuple[str, Perm]:
        """The codes of an activation, row by row in the graph's order, and the shape that they have in the file."""
        shape = self.graph.tensors[t].shape
        name, perm = self.codes[t]
        moved = [perm[axis] for axis, d in enumerate(shape) if d > 1]
        if moved == sorted(moved):
            return name, tuple(shape[perm.index(axis)] for axis in range(len(perm)))
        return self.laid(t, tuple(range(len(shape)))), shape

    def real(self, t: int, perm: Perm) -> str:
        """An activation or a constant operand in real numbers, with ``perm``."""
        tensor = self.graph.tensors[t]
        key = ("real", t, perm)
        if key not in self.written:
            if tensor.data is not None:
                full = tensor.data.reshape((1,) * (len(perm) - tensor.data.ndim) + tensor.data.shape)
                codes = self.constant(tensor.name, full.transpose([perm.index(axis) for axis in range(len(perm))]))
            else:
                codes = self.laid(t, perm)
            self.written[key] = self.dequantized(codes, _quant(tensor))
        return self.written[key]

    def dequantized(self, codes: str, quant: Quant, dtype: type[np.generic] = np.int8, axis: int = 0) -> str:
        scale = np.array(quant.scale if quant.per_channel else quant.scale[0], np.float32)
        parameters = [self.constant(f"{codes}/scale", scale), self.constant(f"{codes}/zero", np.full(scale.shape, quant.zero_point, dtype))]
        axis_of = {"axis": axis} if quant.per_channel else {}
        return self.node("DequantizeLinear", [codes, *parameters], f"{codes}/real", **axis_of)

    def done(self, t: int, real: str, perm: Perm) -> None:
        """Quantize a result in real numbers: the tensor t of the graph."""
        tensor = self.graph.tensors[t]
        quant = _quant(tensor)
        scale = self.constant(f"{tensor.name}/scale", np.array(quant.scale[0], np.float32))
        zero = self.constant(f"{tensor.name}/zero", np.array(quant.zero_point, np.int8))
        self.codes[t] = (self.node("QuantizeLinear", [real, scale, zero], tensor.name), perm)


def write_onnx(graph: Graph, path: str | Path | None = None) -> bytes:
    """The int8 graph as the bytes of an ONNX file (QDQ, opset 13; 14 with hard swish); with ``path``, written there as well, whole or not
    at all.

    Raises ModelError where the graph is not int8 or cannot be said in ONNX, UnavailableError where the package onnx is missing.
    """
    file = File(onnx_package(), graph)
    inputs = [_border(file, i) for i in graph.inputs]
    for op in graph.ops:
        _WRITERS[type(op.kind)](file, op)
    outputs = [_output(file, i) for i in graph.outputs]
    helper = file.onnx.helper
    made = helper.make_graph(file.nodes, graph.name or "graph", inputs, outputs, file.constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", file.opset)], ir_version=IR_VERSION, producer_name="mcugrad")
    data = bytes(model.SerializeToString())
    if path is not None:
        write_whole(Path(path), data)
    return data


def _identity(t: Tensor) -> Perm:
    return tuple(range(len(t.shape)))


def _quant(t: Tensor) -> Quant:
    if t.quant is None or t.dtype not in (np.int8, np.int32):
        raise ModelError(f"tensor {t.name} is {t.dtype} without a scale, only int8 graphs become ONNX QDQ", "quantize the model first")
    return t.quant


def _info(file: File, name: str, t: Tensor) -> Any:
    return file.onnx.helper.make_tensor_value_info(name, file.onnx.helper.np_dtype_to_tensor_dtype(t.dtype), t.shape)


def _border(file: File, index: int) -> Any:
    """A model input, int8 or float32."""
    t = file.graph.tensors[index]
    name = file.name(t.name)
    file.codes[index] = (name, _identity(t))
    return _info(file, name, t)


def _output(file: File, index: int) -> Any:
    t = file.graph.tensors[index]
    name = file.laid(index, _identity(t))
    if name in {info.name for info in map(lambda i: file.graph.tensors[i], file.graph.inputs)}:
        name = file.node("Identity", [name], t.name)
    return _info(file, name, t)


# ---- layers ----------------------------------------------------------------------------------------------------------


def _layer(file: File, op: Op, layout: Perm) -> list[str]:
    """Weights, transposed by ``layout``, and bias in real numbers."""
    x, w = file.graph.tensors[op.inputs[0]], file.graph.tensors[op.inputs[1]]
    if w.data is None:
        raise ModelError(f"{op.name} has weights without data", "this graph cannot be exported")
    quant = _quant(w)
    found = [file.dequantized(file.constant(w.name, w.data.transpose(layout)), quant)]
    if len(op.inputs) > 2:
        b = file.graph.tensors[op.inputs[2]]
        assert b.data is not None
        product = np.float32(_quant(x).scale[0]) * np.array(quant.scale, np.float32)
        found.append(file.dequantized(file.constant(b.name, b.data), Quant(tuple(map(float, product))), np.int32))
    return found


def _activated(file: File, activation: Activation, real: str) -> str:
    if activation is Activation.NONE:
        return real
    if activation is Activation.RELU:
        return file.node("Relu", [real], f"{real}/relu")
    lo, hi = _CLIPS[activation]
    bounds = [file.constant(f"{real}/{what}", np.array(v, np.float32)) for what, v in (("low", lo), ("high", hi))]
    return file.node("Clip", [real, *bounds], f"{real}/clip")


def _write_conv(file: File, op: Op) -> None:
    k = op.kind
    assert isinstance(k, Conv2D)
    _convolution(file, op, k, (0, 3, 1, 2), k.groups)


def _write_dwconv(file: File, op: Op) -> None:
    k = op.kind
    assert isinstance(k, DwConv2D)
    _convolution(file, op, k, (3, 0, 1, 2), file.graph.tensors[op.inputs[0]].shape[3])


def _convolution(file: File, op: Op, k: Conv2D | DwConv2D, layout: Perm, groups: int) -> None:
    x = file.real(op.inputs[0], NCHW)
    attributes = {"strides": list(k.stride), "dilations": list(k.dilation), "pads": list(k.pad), "group": groups}
    y = file.node("Conv", [x, *_layer(file, op, layout)], f"{op.name}/sum", **attributes)
    file.done(op.outputs[0], _activated(file, k.activation, y), NCHW)


def _write_linear(file: File, op: Op) -> None:
    k = op.kind
    assert isinstance(k, Linear)
    x, w, y = (file.graph.tensors[i] for i in (*op.inputs[:2], op.outputs[0]))
    codes, shape = file.flat(op.inputs[0])
    rows = (x.size // w.shape[1], w.shape[1])
    real = file.dequantized(_reshaped(file, codes, shape, rows), _quant(x))
    total = file.node("Gemm", [real, *_layer(file, op, (0, 1))], f"{op.name}/sum", transB=1)
    found = _activated(file, k.activation, total)
    file.done(op.outputs[0], _reshaped(file, found, (rows[0], w.shape[0]), y.shape), _identity(y))


def _reshaped(file: File, name: str, now: Perm, shape: Perm) -> str:
    if now == shape:
        return name
    return file.node("Reshape", [name, file.constant(f"{name}/shape", np.array(shape, np.int64))], f"{name}/reshaped")


# ---- windows ---------------------------------------------------------------------------------------------------------


def _write_pool(file: File, op: Op) -> None:
    k = op.kind
    assert isinstance(k, AvgPool | MaxPool)
    if any(p >= n for p, n in zip(k.pad, (*k.kernel, *k.kernel), strict=True)):
        raise ModelError(f"{op.name} has pads {k.pad} as large as its kernel {k.kernel}, ONNX cannot say that", "use smaller pads")
    name = "AveragePool" if isinstance(k, AvgPool) else "MaxPool"
    attributes = {"kernel_shape": list(k.kernel), "strides": list(k.stride), "pads": list(k.pad)}
    y = file.node(name, [file.real(op.inputs[0], NCHW)], f"{op.name}/real", **attributes)
    file.done(op.outputs[0], _activated(file, k.activation, y), NCHW)


def _write_mean(file: File, op: Op) -> None:
    k = op.kind
    assert isinstance(k, Mean)
    y = file.node("GlobalAveragePool", [file.real(op.inputs[0], NCHW)], f"{op.name}/real")
    if k.keep_dims:
        file.done(op.outputs[0], y, NCHW)
    else:
        file.done(op.outputs[0], file.node("Flatten", [y], f"{op.name}/flat"), (0, 1))


def _write_resize(file: File, op: Op) -> None:
    k = op.kind
    assert isinstance(k, ResizeNearest)
    _, p, q, c = file.graph.tensors[op.outputs[0]].shape
    how = _RESIZE.get((k.align_corners, k.half_pixel_centers))
    if how is None:
        raise ModelError(f"{op.name} has aligned corners and half pixel centers, ONNX cannot say that", "use one of them")
    sizes = file.constant(f"{op.name}/sizes", np.array([1, c, p, q], np.int64))
    attributes = {"mode": "nearest", "coordinate_transformation_mode": how[0], "nearest_mode": how[1]}
    y = file.node("Resize", [file.real(op.inputs[0], NCHW), "", "", sizes], f"{op.name}/real", **attributes)
    file.done(op.outputs[0], y, NCHW)


# ---- element by element ----------------------------------------------------------------------------------------------


def _write_two(file: File, op: Op) -> None:
    k = op.kind
    assert isinstance(k, Add | Sub | Mul | MinMax)
    y = file.graph.tensors[op.outputs[0]]
    perm = _joint_perm(file, op, y)
    name = ("Max" if k.largest else "Min") if isinstance(k, MinMax) else type(k).__name__
    result = file.node(name, [file.real(i, perm) for i in op.inputs], f"{op.name}/real")
    file.done(op.outputs[0], result if isinstance(k, MinMax) else _activated(file, k.activation, result), perm)


def _joint_perm(file: File, op: Op, y: Tensor) -> Perm:
    """The perm of the first activation with the result's shape; where the ranks differ, the graph's own order."""
    acts = [i for i in op.inputs if file.graph.tensors[i].data is None]
    if any(len(file.graph.tensors[i].shape) != len(y.shape) for i in acts):
        return _identity(y)
    return next((file.codes[i][1] for i in acts if file.graph.tensors[i].shape == y.shape), _identity(y))


def _write_unary(file: File, op: Op) -> None:
    k = op.kind
    assert isinstance(k, Unary)
    perm = file.codes[op.inputs[0]][1]
    x = file.real(op.inputs[0], perm)
    if k.function in _AS_ACTIVATION:
        x = _activated(file, _AS_ACTIVATION[k.function], x)
    elif k.function is not Function.REQUANTIZE:
        if k.function is Function.HARD_SWISH:
            file.opset = max(file.opset, OPSET_HARD_SWISH)
        slope = {"alpha": k.alpha} if k.function is Function.LEAKY_RELU else {}
        x = file.node(_FUNCTIONS[k.function], [x], f"{op.name}/real", **slope)
    file.done(op.outputs[0], x, perm)


def _write_prelu(file: File, op: Op) -> None:
    x, alpha = (file.graph.tensors[i] for i in op.inputs)
    perm = NCHW if len(x.shape) == 4 else _identity(x)
    assert alpha.data is not None
    shape = (-1, 1, 1) if perm == NCHW else (-1,)
    slopes = file.dequantized(file.constant(alpha.name, alpha.data.reshape(shape)), _quant(alpha))
    file.done(op.outputs[0], file.node("PRelu", [file.real(op.inputs[0], perm), slopes], f"{op.name}/real"), perm)


def _write_softmax(file: File, op: Op) -> None:
    k = op.kind
    assert isinstance(k, Softmax)
    if k.beta != 1.0:
        raise ModelError(f"{op.name} has beta {k.beta:g}, ONNX has beta 1 only", "export as .tflite")
    perm = _identity(file.graph.tensors[op.inputs[0]])
    file.done(op.outputs[0], file.node("Softmax", [file.real(op.inputs[0], perm)], f"{op.name}/real", axis=-1), perm)


# ---- moves -----------------------------------------------------------------------------------------------------------


def _write_transpose(file: File, op: Op) -> None:
    """Nothing is written: the same codes, their axes called otherwise."""
    k = op.kind
    assert isinstance(k, Transpose)
    name, perm = file.codes[op.inputs[0]]
    file.codes[op.outputs[0]] = (name, tuple(perm[p] for p in k.perm))


def _write_reshape(file: File, op: Op) -> None:
    x, y = file.graph.tensors[op.inputs[0]], file.graph.tensors[op.outputs[0]]
    codes, shape = file.flat(op.inputs[0])
    file.done(op.outputs[0], _reshaped(file, file.dequantized(codes, _quant(x)), shape, y.shape), _identity(y))


def _write_concat(file: File, op: Op) -> None:
    k = op.kind
    assert isinstance(k, Concat)
    first = next((i for i in op.inputs if file.graph.tensors[i].data is None), op.inputs[0])
    perm = file.codes[first][1] if first in file.codes else _identity(file.graph.tensors[first])
    y = file.node("Concat", [file.real(i, perm) for i in op.inputs], f"{op.name}/real", axis=perm[k.axis])
    file.done(op.outputs[0], y, perm)


def _write_slice(file: File, op: Op) -> None:
    k = op.kind
    assert isinstance(k, Slice)
    perm = file.codes[op.inputs[0]][1]
    size = file.graph.tensors[op.outputs[0]].shape
    ends = [b + (n - 1) * s + 1 for b, n, s in zip(k.begin, size, k.step, strict=True)]
    lists = (("starts", k.begin), ("ends", ends), ("axes", perm), ("steps", k.step))
    constants = [file.constant(f"{op.name}/{what}", np.array(values, np.int64)) for what, values in lists]
    file.done(op.outputs[0], file.node("Slice", [file.real(op.inputs[0], perm), *constants], f"{op.name}/real"), perm)


def _write_pad(file: File, op: Op) -> None:
    k = op.kind
    assert isinstance(k, Pad)
    perm = file.codes[op.inputs[0]][1]
    quant = _quant(file.graph.tensors[op.inputs[0]])
    order = [perm.index(axis) for axis in range(len(perm))]
    pads = file.constant(f"{op.name}/pads", np.array([*(k.before[a] for a in order), *(k.after[a] for a in order)], np.int64))
    fill = file.dequantized(file.constant(f"{op.name}/fill", np.array(k.value, np.int8)), quant)
    file.done(op.outputs[0], file.node("Pad", [file.real(op.inputs[0], perm), pads, fill], f"{op.name}/real", mode="constant"), perm)


def _write_quantize(file: File, op: Op) -> None:
    name, perm = file.codes[op.inputs[0]]
    file.done(op.outputs[0], name, perm)


def _write_dequantize(file: File, op: Op) -> None:
    x, y = file.graph.tensors[op.inputs[0]], file.graph.tensors[op.outputs[0]]
    name = file.node("Identity", [file.real(op.inputs[0], _identity(x))], y.name)
    file.codes[op.outputs[0]] = (name, _identity(y))


_WRITERS: dict[type[OpKind], Callable[[File, Op], None]] = {
    Conv2D: _write_conv,
    DwConv2D: _write_dwconv,
    Linear: _write_linear,
    AvgPool: _write_pool,
    MaxPool: _write_pool,
    Mean: _write_mean,
    Add: _write_two,
    Sub: _write_two,
    Mul: _write_two,
    MinMax: _write_two,
    Unary: _write_unary,
    Prelu: _write_prelu,
    Softmax: _write_softmax,
    Concat: _write_concat,
    Slice: _write_slice,
    Transpose: _write_transpose,
    ResizeNearest: _write_resize,
    Pad: _write_pad,
    Reshape: _write_reshape,
    Quantize: _write_quantize,
    Dequantize: _write_dequantize,
}
