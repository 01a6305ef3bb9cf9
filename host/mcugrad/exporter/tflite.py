"""Graph -> .tflite. The inverse of importer/tflite.py: reading the file back gives the same graph.

The tensors keep their order and their names; the constants that only the file needs (axes, paddings, shapes) follow behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
import tflite

from mcugrad.errors import ModelError
from mcugrad.exporter.whole import write_whole
from mcugrad.graph.edit import is_float
from mcugrad.graph.types import (
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
from mcugrad.importer.tflite_file import ACTIVATIONS, IDENTIFIER, VERSION
from mcugrad.importer.windows import Pads, same_pads

DATA_ALIGNMENT = 16

_DTYPES = {
    np.dtype(np.int8): tflite.TensorType.INT8,
    np.dtype(np.int32): tflite.TensorType.INT32,
    np.dtype(np.float32): tflite.TensorType.FLOAT32,
}
_ACTIVATION_CODES = {activation: code for code, activation in ACTIVATIONS.items()}


@dataclass(frozen=True, slots=True)
class FileOp:
    """An operator as the file will have it. ``options`` names its table in the schema ("" for none), ``fields`` that table's fields."""

    code: int
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: str
    fields: Mapping[str, float]


@dataclass(slots=True)
class File:
    """The file under construction: the graph's tensors and, behind them, those that only the file needs."""

    tensors: list[Tensor]
    ops: list[FileOp] = field(default_factory=list)

    def add_tensor(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def add_constant(self, name: str, values: Sequence[int] | Sequence[Sequence[int]]) -> int:
        data = np.array(values, np.int32)
        return self.add_tensor(Tensor(name, data.shape, data.dtype, None, data))

    def add_op(
        self, code: str, version: int, inputs: tuple[int, ...], outputs: tuple[int, ...], options: str = "", **fields: float
    ) -> None:
        self.ops.append(FileOp(getattr(tflite.BuiltinOperator, code), version, inputs, outputs, options, fields))


def write_tflite(graph: Graph, path: str | Path | None = None) -> bytes:
    """The graph as the bytes of a .tflite file; with ``path``, written there as well, whole or not at all.

    Raises ModelError where the graph cannot be said in a .tflite file (a float graph among them) or the file cannot be written.
    """
    data = serialize(to_file(graph), graph)
    if path is not None:
        write_whole(Path(path), data)
    return data


def to_file(graph: Graph) -> File:
    """The graph's operators and tensors in the words of the file. Raises ModelError for a float graph: it is not quantized yet."""
    if is_float(graph):
        raise ModelError("a float graph cannot be written", "quantize it first")
    file = File(list(graph.tensors))
    for op in graph.ops:
        _WRITERS[type(op.kind)](file, op)
    return file


# ---- operators -------------------------------------------------------------------------------------------------------


def _explicit(file: File, op: Op, pad: Pads) -> int:
    """Put a PAD before a window whose pads are neither SAME nor VALID. Returns the padded tensor. A maximum is padded with -128."""
    x = file.tensors[op.inputs[0]]
    top, left, bottom, right = pad
    shape = (1, x.shape[1] + top + bottom, x.shape[2] + left + right, x.shape[3])
    padded = file.add_tensor(replace(x, name=f"{op.name}/padded", shape=shape))
    value = -128 if isinstance(op.kind, MaxPool) else _zero_point(x)
    kind = Pad((0, top, left, 0), (0, bottom, right, 0), value)
    _write_pad(file, replace(op, kind=kind, inputs=(op.inputs[0],), outputs=(padded,)))
    return padded


def _zero_point(x: Tensor) -> int:
    if x.quant is None:
        raise ModelError(f"tensor {x.name} is {x.dtype} without quantization", "quantize the model before it is written")
    return x.quant.zero_point


def _padding(pad: Pads, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> int | None:
    """The file's name for explicit pads, None where it has none."""
    if not any(pad):
        return int(tflite.Padding.VALID)
    return int(tflite.Padding.SAME) if pad == same_pads(size, kernel, stride, dilation) else None


def _write_conv(file: File, op: Op) -> None:
    assert isinstance(op.kind, Conv2D)
    inputs, window = _window(file, op, op.kind)
    file.add_op("CONV_2D", 3, inputs, op.outputs, "Conv2DOptions", **window)


def _write_dwconv(file: File, op: Op) -> None:
    assert isinstance(op.kind, DwConv2D)
    inputs, window = _window(file, op, op.kind)
    file.add_op("DEPTHWISE_CONV_2D", 3, inputs, op.outputs, "DepthwiseConv2DOptions", DepthMultiplier=op.kind.multiplier, **window)


def _window(file: File, op: Op, k: Conv2D | DwConv2D) -> tuple[tuple[int, ...], dict[str, int]]:
    """The inputs and the options that both kinds of convolution share."""
    x, w = file.tensors[op.inputs[0]], file.tensors[op.inputs[1]]
    padding = _padding(k.pad, (x.shape[1], x.shape[2]), (w.shape[1], w.shape[2]), k.stride, k.dilation)
    inputs = op.inputs if padding is not None else (_explicit(file, op, k.pad), *op.inputs[1:])
    return inputs, {
        "Padding": tflite.Padding.VALID if padding is None else padding,
        "StrideH": k.stride[0],
        "StrideW": k.stride[1],
        "DilationHFactor": k.dilation[0],
        "DilationWFactor": k.dilation[1],
        "FusedActivationFunction": _ACTIVATION_CODES[k.activation],
    }


def _write_linear(file: File, op: Op) -> None:
    assert isinstance(op.kind, Linear)
    x, w, y = (file.tensors[i] for i in (*op.inputs[:2], op.outputs[0]))
    keep_dims = len(y.shape) != 2
    if keep_dims and y.shape[:-1] != x.shape[:-1]:
        raise ModelError(f"{op.name} turns shape {x.shape} into {y.shape}, a .tflite file cannot say that", "add a reshape")
    file.add_op(
        "FULLY_CONNECTED",
        12 if w.quant is not None and w.quant.per_channel else 5,
        op.inputs,
        op.outputs,
        "FullyConnectedOptions",
        FusedActivationFunction=_ACTIVATION_CODES[op.kind.activation],
        KeepNumDims=keep_dims,
    )


def _write_pool(file: File, op: Op) -> None:
    assert isinstance(op.kind, AvgPool | MaxPool)
    k, x = op.kind, file.tensors[op.inputs[0]]
    padding = _padding(k.pad, (x.shape[1], x.shape[2]), k.kernel, k.stride, (1, 1))
    inputs = op.inputs
    if padding is None:
        if isinstance(k, AvgPool):
            raise ModelError(f"{op.name} has pads {k.pad}, which are neither SAME nor VALID", "a .tflite file cannot say that")
        inputs, padding = (_explicit(file, op, k.pad),), tflite.Padding.VALID
    file.add_op(
        "AVERAGE_POOL_2D" if isinstance(k, AvgPool) else "MAX_POOL_2D",
        2,
        inputs,
        op.outputs,
        "Pool2DOptions",
        Padding=padding,
        StrideH=k.stride[0],
        StrideW=k.stride[1],
        FilterHeight=k.kernel[0],
        FilterWidth=k.kernel[1],
        FusedActivationFunction=_ACTIVATION_CODES[k.activation],
    )


def _write_mean(file: File, op: Op) -> None:
    assert isinstance(op.kind, Mean)
    axes = file.add_constant(f"{op.name}/axes", [1, 2])
    file.add_op("MEAN", 2, (*op.inputs, axes), op.outputs, "ReducerOptions", KeepDims=op.kind.keep_dims)


def _write_arithmetic(file: File, op: Op) -> None:
    assert isinstance(op.kind, Add | Sub | Mul)
    name = type(op.kind).__name__
    fused = _ACTIVATION_CODES[op.kind.activation]
    file.add_op(name.upper(), 2, op.inputs, op.outputs, f"{name}Options", FusedActivationFunction=fused)


def _write_minmax(file: File, op: Op) -> None:
    assert isinstance(op.kind, MinMax)
    file.add_op("MAXIMUM" if op.kind.largest else "MINIMUM", 2, op.inputs, op.outputs, "MaximumMinimumOptions")


def _write_unary(file: File, op: Op) -> None:
    assert isinstance(op.kind, Unary)
    code, version, options = _FUNCTIONS[op.kind.function]
    fields = {"Alpha": op.kind.alpha} if op.kind.function is Function.LEAKY_RELU else {}
    file.add_op(code, version, op.inputs, op.outputs, options, **fields)


def _write_prelu(file: File, op: Op) -> None:
    file.add_op("PRELU", 1, op.inputs, op.outputs)


def _write_softmax(file: File, op: Op) -> None:
    assert isinstance(op.kind, Softmax)
    file.add_op("SOFTMAX", 2, op.inputs, op.outputs, "SoftmaxOptions", Beta=op.kind.beta)


def _write_pad(file: File, op: Op) -> None:
    assert isinstance(op.kind, Pad)
    x = file.tensors[op.inputs[0]]
    pads = file.add_constant(f"{op.name}/paddings", list(zip(op.kind.before, op.kind.after, strict=True)))
    if op.kind.value == _zero_point(x):
        file.add_op("PAD", 2, (*op.inputs, pads), op.outputs, "PadOptions")
        return
    value = file.add_tensor(Tensor(f"{op.name}/value", (1,), x.dtype, x.quant, np.array([op.kind.value], np.int8)))
    file.add_op("PADV2", 2, (*op.inputs, pads, value), op.outputs, "PadV2Options")


def _write_concat(file: File, op: Op) -> None:
    assert isinstance(op.kind, Concat)
    file.add_op("CONCATENATION", 2, op.inputs, op.outputs, "ConcatenationOptions", Axis=op.kind.axis)


def _write_slice(file: File, op: Op) -> None:
    """SLICE where every step is 1, else STRIDED_SLICE."""
    assert isinstance(op.kind, Slice)
    k, shape = op.kind, file.tensors[op.outputs[0]].shape
    begin = file.add_constant(f"{op.name}/begin", k.begin)
    if all(s == 1 for s in k.step):
        file.add_op("SLICE", 2, (*op.inputs, begin, file.add_constant(f"{op.name}/size", shape)), op.outputs, "SliceOptions")
        return
    end = file.add_constant(f"{op.name}/end", [b + (n - 1) * s + 1 for b, n, s in zip(k.begin, shape, k.step, strict=True)])
    step = file.add_constant(f"{op.name}/strides", k.step)
    file.add_op("STRIDED_SLICE", 2, (*op.inputs, begin, end, step), op.outputs, "StridedSliceOptions")


def _write_transpose(file: File, op: Op) -> None:
    assert isinstance(op.kind, Transpose)
    perm = file.add_constant(f"{op.name}/perm", op.kind.perm)
    file.add_op("TRANSPOSE", 2, (*op.inputs, perm), op.outputs, "TransposeOptions")


def _write_resize(file: File, op: Op) -> None:
    assert isinstance(op.kind, ResizeNearest)
    size = file.add_constant(f"{op.name}/size", file.tensors[op.outputs[0]].shape[1:3])
    file.add_op(
        "RESIZE_NEAREST_NEIGHBOR",
        3,
        (*op.inputs, size),
        op.outputs,
        "ResizeNearestNeighborOptions",
        AlignCorners=op.kind.align_corners,
        HalfPixelCenters=op.kind.half_pixel_centers,
    )


def _write_reshape(file: File, op: Op) -> None:
    shape = file.add_constant(f"{op.name}/shape", file.tensors[op.outputs[0]].shape)
    file.add_op("RESHAPE", 1, (*op.inputs, shape), op.outputs, "ReshapeOptions")


def _write_quantize(file: File, op: Op) -> None:
    file.add_op("QUANTIZE", 1, op.inputs, op.outputs, "QuantizeOptions")


def _write_dequantize(file: File, op: Op) -> None:
    file.add_op("DEQUANTIZE", 2, op.inputs, op.outputs, "DequantizeOptions")


_FUNCTIONS = {
    Function.RELU: ("RELU", 2, ""),
    Function.RELU6: ("RELU6", 2, ""),
    Function.RELU_N1_1: ("RELU_N1_TO_1", 1, ""),
    Function.LEAKY_RELU: ("LEAKY_RELU", 2, "LeakyReluOptions"),
    Function.LOGISTIC: ("LOGISTIC", 2, ""),
    Function.TANH: ("TANH", 2, ""),
    Function.HARD_SWISH: ("HARD_SWISH", 1, "HardSwishOptions"),
    Function.REQUANTIZE: ("QUANTIZE", 2, "QuantizeOptions"),
}
"""Function -> operator, version, options."""

_WRITERS: dict[type[OpKind], Callable[[File, Op], None]] = {
    Conv2D: _write_conv,
    DwConv2D: _write_dwconv,
    Linear: _write_linear,
    AvgPool: _write_pool,
    MaxPool: _write_pool,
    Mean: _write_mean,
    Add: _write_arithmetic,
    Sub: _write_arithmetic,
    Mul: _write_arithmetic,
    MinMax: _write_minmax,
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


# ---- the flatbuffer --------------------------------------------------------------------------------------------------


def serialize(file: File, graph: Graph) -> bytes:
    """Children before parents: a flatbuffer grows from its end."""
    b = flatbuffers.Builder(1024)
    codes = sorted({(op.code, op.version) for op in file.ops})
    ops = [_operator(b, op, codes) for op in file.ops]
    tensors = []
    arrays: list[npt.NDArray[np.generic]] = []
    for tensor in file.tensors:
        if tensor.data is not None:
            arrays.append(tensor.data)
        tensors.append(_tensor(b, tensor, len(arrays) if tensor.data is not None else 0))
    subgraph = _subgraph(b, graph, tensors, ops)
    buffers = [_buffer(b, None), *(_buffer(b, a) for a in arrays)]
    subgraphs_at = _offsets(b, [subgraph])
    buffers_at = _offsets(b, buffers)
    codes_at = _offsets(b, [_operator_code(b, *c) for c in codes])
    description = b.CreateString("mcugrad")
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, VERSION)
    tflite.ModelAddOperatorCodes(b, codes_at)
    tflite.ModelAddSubgraphs(b, subgraphs_at)
    tflite.ModelAddDescription(b, description)
    tflite.ModelAddBuffers(b, buffers_at)
    b.Finish(tflite.ModelEnd(b), IDENTIFIER)
    return bytes(b.Output())


def _offsets(b: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    b.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return int(b.EndVector())


def _int32s(b: flatbuffers.Builder, values: Sequence[int]) -> int:
    return int(b.CreateNumpyVector(np.array(values, np.int32)))


def _operator(b: flatbuffers.Builder, op: FileOp, codes: list[tuple[int, int]]) -> int:
    inputs, outputs, options = _int32s(b, op.inputs), _int32s(b, op.outputs), _options(b, op) if op.options else None
    tflite.OperatorStart(b)
    tflite.OperatorAddOpcodeIndex(b, codes.index((op.code, op.version)))
    tflite.OperatorAddInputs(b, inputs)
    tflite.OperatorAddOutputs(b, outputs)
    if options is not None:
        tflite.OperatorAddBuiltinOptionsType(b, getattr(tflite.BuiltinOptions, op.options))
        tflite.OperatorAddBuiltinOptions(b, options)
    return int(tflite.OperatorEnd(b))


def _options(b: flatbuffers.Builder, op: FileOp) -> int:
    getattr(tflite, f"{op.options}Start")(b)
    for name, value in op.fields.items():
        getattr(tflite, f"{op.options}Add{name}")(b, value)
    return int(getattr(tflite, f"{op.options}End")(b))


def _operator_code(b: flatbuffers.Builder, code: int, version: int) -> int:
    tflite.OperatorCodeStart(b)
    tflite.OperatorCodeAddDeprecatedBuiltinCode(b, code)
    tflite.OperatorCodeAddBuiltinCode(b, code)
    tflite.OperatorCodeAddVersion(b, version)
    return int(tflite.OperatorCodeEnd(b))


def _quantization(b: flatbuffers.Builder, quant: Quant) -> int:
    scale = b.CreateNumpyVector(np.array(quant.scale, np.float32))
    zero_point = b.CreateNumpyVector(np.full(len(quant.scale), quant.zero_point, np.int64))
    tflite.QuantizationParametersStart(b)
    tflite.QuantizationParametersAddScale(b, scale)
    tflite.QuantizationParametersAddZeroPoint(b, zero_point)
    tflite.QuantizationParametersAddQuantizedDimension(b, quant.axis)
    return int(tflite.QuantizationParametersEnd(b))


def _tensor(b: flatbuffers.Builder, tensor: Tensor, buffer: int) -> int:
    if tensor.dtype not in _DTYPES:
        raise ModelError(f"tensor {tensor.name} is {tensor.dtype}", "a graph holds int8, int32 and float32")
    name = b.CreateString(tensor.name)
    shape = _int32s(b, tensor.shape)
    quant = None if tensor.quant is None else _quantization(b, tensor.quant)
    tflite.TensorStart(b)
    tflite.TensorAddShape(b, shape)
    tflite.TensorAddType(b, _DTYPES[tensor.dtype])
    tflite.TensorAddBuffer(b, buffer)
    tflite.TensorAddName(b, name)
    if quant is not None:
        tflite.TensorAddQuantization(b, quant)
    return int(tflite.TensorEnd(b))


def _subgraph(b: flatbuffers.Builder, graph: Graph, tensors: Sequence[int], ops: Sequence[int]) -> int:
    tensors_at, ops_at = _offsets(b, tensors), _offsets(b, ops)
    inputs, outputs = _int32s(b, graph.inputs), _int32s(b, graph.outputs)
    name = b.CreateString(graph.name)
    tflite.SubGraphStart(b)
    tflite.SubGraphAddTensors(b, tensors_at)
    tflite.SubGraphAddInputs(b, inputs)
    tflite.SubGraphAddOutputs(b, outputs)
    tflite.SubGraphAddOperators(b, ops_at)
    tflite.SubGraphAddName(b, name)
    return int(tflite.SubGraphEnd(b))


def _buffer(b: flatbuffers.Builder, data: npt.NDArray[np.generic] | None) -> int:
    """A buffer; its bytes begin at a multiple of 16, so that the runtime may read them in place."""
    at: Any = None
    if data is not None:
        raw = data.astype(data.dtype.newbyteorder("<")).tobytes()
        b.Prep(DATA_ALIGNMENT, len(raw))
        at = b.CreateByteVector(raw)
    tflite.BufferStart(b)
    if at is not None:
        tflite.BufferAddData(b, at)
    return int(tflite.BufferEnd(b))
