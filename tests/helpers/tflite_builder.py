"""Write small int8 .tflite files with chosen shapes, scales and zero points: the models that tests feed to the importer and to the oracle.

    m = ModelBuilder()
    x = m.tensor("x", (1, 8, 8, 3), quant=Quant((0.5,), -1))
    y = m.conv2d(x, w, w_scales, bias, Quant((0.7,), 3), stride=(2, 2), padding="SAME")
    data = m.finish([x], [y])

Every op method takes tensor indices, adds the output tensor and returns its index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import flatbuffers
import numpy as np
import numpy.typing as npt
import tflite

from mcugrad.graph.types import Activation, Function, Quant, Unary

Array = npt.NDArray[np.generic]
Options = Callable[[flatbuffers.Builder], int]

_TYPES = {"int8": 9, "int16": 7, "int32": 2, "float32": 0, "uint8": 3, "int64": 4, "bool": 6, "float16": 1}
_PADDING = {"SAME": 0, "VALID": 1}
_ACTIVATION = {Activation.NONE: 0, Activation.RELU: 1, Activation.RELU_N1_1: 2, Activation.RELU6: 3}
_UNARY = {
    Function.RELU: "RELU",
    Function.RELU6: "RELU6",
    Function.RELU_N1_1: "RELU_N1_TO_1",
    Function.LEAKY_RELU: "LEAKY_RELU",
    Function.LOGISTIC: "LOGISTIC",
    Function.TANH: "TANH",
    Function.HARD_SWISH: "HARD_SWISH",
    Function.REQUANTIZE: "QUANTIZE",
}


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    quant: Quant | None
    buffer: int


@dataclass(frozen=True, slots=True)
class _Op:
    code: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options_type: int
    options: Options | None


def options(table: str, **fields: float) -> tuple[int, Options]:
    """The options table of an op, for example options("SoftmaxOptions", Beta=1.0): its union type and how to write it."""

    def write(b: flatbuffers.Builder) -> int:
        getattr(tflite, f"{table}Start")(b)
        for name, value in fields.items():
            getattr(tflite, f"{table}Add{name}")(b, value)
        return int(getattr(tflite, f"{table}End")(b))

    return int(getattr(tflite.BuiltinOptions, table)), write


def out_size(size: int, taps: int, stride: int, dilation: int, padding: str) -> int:
    """TensorFlow's output length along one axis."""
    reach = (taps - 1) * dilation + 1
    return -(-size // stride) if padding == "SAME" else -(-(size - reach + 1) // stride)


class ModelBuilder:
    """Tensors and ops in order; ``finish`` gives the file."""

    def __init__(self) -> None:
        self._tensors: list[_Tensor] = []
        self._ops: list[_Op] = []
        self._buffers: list[bytes] = [b""]

    def shape(self, index: int) -> tuple[int, ...]:
        return self._tensors[index].shape

    def quant(self, index: int) -> Quant | None:
        return self._tensors[index].quant

    def tensor(self, name: str, shape: Sequence[int], dtype: str = "int8", *, quant: Quant | None = None, data: Array | None = None) -> int:
        """Add a tensor; with ``data`` it is a constant."""
        buffer = 0
        if data is not None:
            buffer = len(self._buffers)
            self._buffers.append(np.ascontiguousarray(data).tobytes())
        self._tensors.append(_Tensor(name, tuple(shape), np.dtype(dtype), quant, buffer))
        return len(self._tensors) - 1

    def op(self, code: int, inputs: Sequence[int], outputs: Sequence[int], written: tuple[int, Options] | None = None) -> None:
        """Add any op. ``written`` comes from ``options``; an absent input is -1."""
        kind, write = written if written is not None else (0, None)
        self._ops.append(_Op(code, tuple(inputs), tuple(outputs), kind, write))

    def _output(self, shape: Sequence[int], quant: Quant | None, dtype: str = "int8") -> int:
        return self.tensor(f"t{len(self._tensors)}", shape, dtype, quant=quant)

    def _weights(self, x: int, w: Array, w_quant: Quant, bias: Array | None) -> list[int]:
        name, x_quant = f"w{len(self._tensors)}", self.quant(x)
        out = [self.tensor(name, w.shape, quant=w_quant, data=w.astype(np.int8))]
        if bias is not None and x_quant is not None:
            scales = tuple(float(np.float32(x_quant.scale[0]) * np.float32(s)) for s in w_quant.scale)
            out.append(self.tensor(f"{name}_bias", bias.shape, "int32", quant=Quant(scales), data=bias.astype(np.int32)))
        return out

    def conv2d(
        self,
        x: int,
        w: Array,
        w_scale: Sequence[float],
        bias: Array | None,
        quant: Quant,
        *,
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        padding: str = "VALID",
        activation: Activation = Activation.NONE,
    ) -> int:
        """w (O,R,S,I) int8, one scale or O scales; bias (O,) int32 or None. x has I channels, or a multiple of I for groups."""
        _, h, width, _ = self.shape(x)
        o, r, s, _ = w.shape
        p, q = out_size(h, r, stride[0], dilation[0], padding), out_size(width, s, stride[1], dilation[1], padding)
        inputs = [x, *self._weights(x, w, Quant(tuple(w_scale)), bias)]
        y = self._output((1, p, q, o), quant)
        written = options(
            "Conv2DOptions",
            Padding=_PADDING[padding],
            StrideH=stride[0],
            StrideW=stride[1],
            DilationHFactor=dilation[0],
            DilationWFactor=dilation[1],
            FusedActivationFunction=_ACTIVATION[activation],
        )
        self.op(tflite.BuiltinOperator.CONV_2D, inputs, [y], written)
        return y

    def dwconv2d(
        self,
        x: int,
        w: Array,
        w_scale: Sequence[float],
        bias: Array | None,
        quant: Quant,
        *,
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        padding: str = "VALID",
        activation: Activation = Activation.NONE,
    ) -> int:
        """w (1,R,S,O) int8, O a multiple of the input channels; bias (O,) int32 or None."""
        _, h, width, i = self.shape(x)
        _, r, s, o = w.shape
        p, q = out_size(h, r, stride[0], dilation[0], padding), out_size(width, s, stride[1], dilation[1], padding)
        inputs = [x, *self._weights(x, w, Quant(tuple(w_scale), axis=3), bias)]
        y = self._output((1, p, q, o), quant)
        written = options(
            "DepthwiseConv2DOptions",
            Padding=_PADDING[padding],
            StrideH=stride[0],
            StrideW=stride[1],
            DepthMultiplier=o // i,
            DilationHFactor=dilation[0],
            DilationWFactor=dilation[1],
            FusedActivationFunction=_ACTIVATION[activation],
        )
        self.op(tflite.BuiltinOperator.DEPTHWISE_CONV_2D, inputs, [y], written)
        return y

    def linear(
        self, x: int, w: Array, w_scale: Sequence[float], bias: Array | None, quant: Quant, *, activation: Activation = Activation.NONE
    ) -> int:
        """w (O,I) int8, one scale or O scales; x has N·I elements; bias (O,) int32 or None."""
        n = int(np.prod(self.shape(x))) // w.shape[1]
        inputs = [x, *self._weights(x, w, Quant(tuple(w_scale)), bias)]
        if bias is None:
            inputs.append(-1)
        y = self._output((n, w.shape[0]), quant)
        written = options("FullyConnectedOptions", FusedActivationFunction=_ACTIVATION[activation])
        self.op(tflite.BuiltinOperator.FULLY_CONNECTED, inputs, [y], written)
        return y

    def avgpool(
        self,
        x: int,
        kernel: tuple[int, int],
        *,
        stride: tuple[int, int] = (1, 1),
        padding: str = "VALID",
        activation: Activation = Activation.NONE,
    ) -> int:
        """The output has the input's scale."""
        return self._pool(tflite.BuiltinOperator.AVERAGE_POOL_2D, x, kernel, stride, padding, activation)

    def mean(self, x: int, quant: Quant, *, keep_dims: bool = False) -> int:
        """Mean over H and W."""
        c = self.shape(x)[3]
        axes = self._index((1, 2))
        y = self._output((1, 1, 1, c) if keep_dims else (1, c), quant)
        self.op(tflite.BuiltinOperator.MEAN, [x, axes], [y], options("ReducerOptions", KeepDims=keep_dims))
        return y

    def maxpool(
        self,
        x: int,
        kernel: tuple[int, int],
        *,
        stride: tuple[int, int] = (1, 1),
        padding: str = "VALID",
        activation: Activation = Activation.NONE,
    ) -> int:
        """The output has the input's scale."""
        return self._pool(tflite.BuiltinOperator.MAX_POOL_2D, x, kernel, stride, padding, activation)

    def _pool(self, code: int, x: int, kernel: tuple[int, int], stride: tuple[int, int], padding: str, activation: Activation) -> int:
        _, h, w, c = self.shape(x)
        p, q = out_size(h, kernel[0], stride[0], 1, padding), out_size(w, kernel[1], stride[1], 1, padding)
        y = self._output((1, p, q, c), self.quant(x))
        written = options(
            "Pool2DOptions",
            Padding=_PADDING[padding],
            StrideH=stride[0],
            StrideW=stride[1],
            FilterHeight=kernel[0],
            FilterWidth=kernel[1],
            FusedActivationFunction=_ACTIVATION[activation],
        )
        self.op(code, [x], [y], written)
        return y

    def _binary(self, name: str, a: int, b: int, quant: Quant | None, written: tuple[int, Options]) -> int:
        y = self._output(np.broadcast_shapes(self.shape(a), self.shape(b)), quant)
        self.op(getattr(tflite.BuiltinOperator, name), [a, b], [y], written)
        return y

    def add(self, a: int, b: int, quant: Quant, *, activation: Activation = Activation.NONE) -> int:
        """The shapes broadcast, here and in sub, mul, minimum and maximum; either operand may be a constant."""
        return self._binary("ADD", a, b, quant, options("AddOptions", FusedActivationFunction=_ACTIVATION[activation]))

    def sub(self, a: int, b: int, quant: Quant, *, activation: Activation = Activation.NONE) -> int:
        return self._binary("SUB", a, b, quant, options("SubOptions", FusedActivationFunction=_ACTIVATION[activation]))

    def mul(self, a: int, b: int, quant: Quant, *, activation: Activation = Activation.NONE) -> int:
        return self._binary("MUL", a, b, quant, options("MulOptions", FusedActivationFunction=_ACTIVATION[activation]))

    def minimum(self, a: int, b: int) -> int:
        """The output has a's scale, as in maximum."""
        return self._binary("MINIMUM", a, b, self.quant(a), options("MaximumMinimumOptions"))

    def maximum(self, a: int, b: int) -> int:
        return self._binary("MAXIMUM", a, b, self.quant(a), options("MaximumMinimumOptions"))

    def unary(self, x: int, unary: Unary, quant: Quant) -> int:
        y = self._output(self.shape(x), quant)
        tables = {
            Function.LEAKY_RELU: options("LeakyReluOptions", Alpha=unary.alpha),
            Function.HARD_SWISH: options("HardSwishOptions"),
            Function.REQUANTIZE: options("QuantizeOptions"),
        }
        self.op(getattr(tflite.BuiltinOperator, _UNARY[unary.function]), [x], [y], tables.get(unary.function))
        return y

    def prelu(self, x: int, alpha: Array, alpha_quant: Quant, quant: Quant) -> int:
        """alpha (C,) or (1,1,C), int8."""
        slope = self.tensor(f"alpha{len(self._tensors)}", alpha.shape, quant=alpha_quant, data=alpha.astype(np.int8))
        y = self._output(self.shape(x), quant)
        self.op(tflite.BuiltinOperator.PRELU, [x, slope], [y])
        return y

    def concat(self, inputs: Sequence[int], axis: int, *, activation: Activation = Activation.NONE) -> int:
        """The output has the first input's scale."""
        shape = list(self.shape(inputs[0]))
        shape[axis] = sum(self.shape(x)[axis] for x in inputs)
        y = self._output(shape, self.quant(inputs[0]))
        written = options("ConcatenationOptions", Axis=axis, FusedActivationFunction=_ACTIVATION[activation])
        self.op(tflite.BuiltinOperator.CONCATENATION, inputs, [y], written)
        return y

    def _index(self, values: Sequence[int] | Sequence[Sequence[int]]) -> int:
        """A constant int32 tensor."""
        data = np.array(values, np.int32)
        return self.tensor(f"index{len(self._tensors)}", data.shape, "int32", data=data)

    def transpose(self, x: int, perm: Sequence[int]) -> int:
        index = self._index(perm)
        y = self._output([self.shape(x)[k] for k in perm], self.quant(x))
        self.op(tflite.BuiltinOperator.TRANSPOSE, [x, index], [y], options("TransposeOptions"))
        return y

    def slice(self, x: int, begin: Sequence[int], size: Sequence[int]) -> int:
        """A size of -1 is the rest of a dimension."""
        inputs = [x, self._index(begin), self._index(size)]
        shape = [n - b if k == -1 else k for n, b, k in zip(self.shape(x), begin, size, strict=True)]
        y = self._output(shape, self.quant(x))
        self.op(tflite.BuiltinOperator.SLICE, inputs, [y], options("SliceOptions"))
        return y

    def strided_slice(
        self,
        x: int,
        begin: Sequence[int],
        end: Sequence[int],
        step: Sequence[int],
        *,
        begin_mask: int = 0,
        end_mask: int = 0,
        shrink_mask: int = 0,
    ) -> int:
        """Bit k of a mask: begin[k] or end[k] is left out, or dimension k is one element and disappears."""
        inputs = [x, self._index(begin), self._index(end), self._index(step)]
        shape = []
        for k, n in enumerate(self.shape(x)):
            if shrink_mask >> k & 1:
                continue
            first = None if begin_mask >> k & 1 else begin[k]
            last = None if end_mask >> k & 1 else end[k]
            shape.append(len(range(*slice(first, last, step[k]).indices(n))))
        y = self._output(shape, self.quant(x))
        written = options("StridedSliceOptions", BeginMask=begin_mask, EndMask=end_mask, ShrinkAxisMask=shrink_mask)
        self.op(tflite.BuiltinOperator.STRIDED_SLICE, inputs, [y], written)
        return y

    def split(self, x: int, axis: int, count: int) -> list[int]:
        """``count`` equal parts."""
        index, shape = self._index([axis]), list(self.shape(x))
        shape[axis] //= count
        parts = [self._output(shape, self.quant(x)) for _ in range(count)]
        self.op(tflite.BuiltinOperator.SPLIT, [index, x], parts, options("SplitOptions", NumSplits=count))
        return parts

    def split_v(self, x: int, axis: int, sizes: Sequence[int]) -> list[int]:
        inputs, shape = [x, self._index(sizes), self._index([axis])], self.shape(x)
        parts = [self._output((*shape[:axis], n, *shape[axis + 1 :]), self.quant(x)) for n in sizes]
        self.op(tflite.BuiltinOperator.SPLIT_V, inputs, parts, options("SplitVOptions", NumSplits=len(sizes)))
        return parts

    def resize_nearest(self, x: int, size: tuple[int, int], *, align_corners: bool = False, half_pixel_centers: bool = False) -> int:
        n, _, _, c = self.shape(x)
        index = self._index(size)
        y = self._output((n, *size, c), self.quant(x))
        written = options("ResizeNearestNeighborOptions", AlignCorners=align_corners, HalfPixelCenters=half_pixel_centers)
        self.op(tflite.BuiltinOperator.RESIZE_NEAREST_NEIGHBOR, [x, index], [y], written)
        return y

    def softmax(self, x: int, *, beta: float = 1.0) -> int:
        y = self._output(self.shape(x), Quant((1 / 256,), -128))
        self.op(tflite.BuiltinOperator.SOFTMAX, [x], [y], options("SoftmaxOptions", Beta=beta))
        return y

    def pad(self, x: int, pad: tuple[int, int, int, int]) -> int:
        """``pad`` = (top, left, bottom, right), with the zero point."""
        top, left, bottom, right = pad
        return self.pad_any(x, ((0, 0), (top, bottom), (left, right), (0, 0)))

    def pad_any(self, x: int, amounts: Sequence[tuple[int, int]], value: int | None = None) -> int:
        """(before, after) of every dimension: PAD, or PADV2 where ``value``, a code of x, is given."""
        inputs = [x, self._index(amounts)]
        y = self._output([before + n + after for n, (before, after) in zip(self.shape(x), amounts, strict=True)], self.quant(x))
        if value is None:
            self.op(tflite.BuiltinOperator.PAD, inputs, [y], options("PadOptions"))
            return y
        fill = self.tensor(f"fill{len(self._tensors)}", (), quant=self.quant(x), data=np.array(value, np.int8))
        self.op(tflite.BuiltinOperator.PADV2, [*inputs, fill], [y], options("PadV2Options"))
        return y

    def reshape(self, x: int, shape: Sequence[int]) -> int:
        index = self._index(shape)
        y = self._output(shape, self.quant(x))
        self.op(tflite.BuiltinOperator.RESHAPE, [x, index], [y], options("ReshapeOptions"))
        return y

    def quantize(self, x: int, quant: Quant) -> int:
        """float32 -> int8."""
        y = self._output(self.shape(x), quant)
        self.op(tflite.BuiltinOperator.QUANTIZE, [x], [y], options("QuantizeOptions"))
        return y

    def dequantize(self, x: int) -> int:
        """int8 -> float32."""
        y = self._output(self.shape(x), None, "float32")
        self.op(tflite.BuiltinOperator.DEQUANTIZE, [x], [y], options("DequantizeOptions"))
        return y

    def finish(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """The bytes of the .tflite file."""
        b = flatbuffers.Builder(4096)
        codes = sorted({op.code for op in self._ops})
        buffers = _vector(b, tflite.ModelStartBuffersVector, [_buffer(b, data) for data in self._buffers])
        tensors = _vector(b, tflite.SubGraphStartTensorsVector, [_tensor(b, t) for t in self._tensors])
        ops = _vector(b, tflite.SubGraphStartOperatorsVector, [_operator(b, op, codes.index(op.code)) for op in self._ops])
        ins, outs = b.CreateNumpyVector(np.array(inputs, np.int32)), b.CreateNumpyVector(np.array(outputs, np.int32))
        tflite.SubGraphStart(b)
        tflite.SubGraphAddTensors(b, tensors)
        tflite.SubGraphAddInputs(b, ins)
        tflite.SubGraphAddOutputs(b, outs)
        tflite.SubGraphAddOperators(b, ops)
        graphs = _vector(b, tflite.ModelStartSubgraphsVector, [tflite.SubGraphEnd(b)])
        opcodes = _vector(b, tflite.ModelStartOperatorCodesVector, [_opcode(b, code) for code in codes])
        tflite.ModelStart(b)
        tflite.ModelAddVersion(b, 3)
        tflite.ModelAddOperatorCodes(b, opcodes)
        tflite.ModelAddSubgraphs(b, graphs)
        tflite.ModelAddBuffers(b, buffers)
        b.Finish(tflite.ModelEnd(b), file_identifier=b"TFL3")
        return bytes(b.Output())


def _vector(b: flatbuffers.Builder, start: Callable[[flatbuffers.Builder, int], object], offsets: Sequence[int]) -> int:
    start(b, len(offsets))
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return int(b.EndVector())


def _buffer(b: flatbuffers.Builder, data: bytes) -> int:
    vector = 0
    if data:
        b.StartVector(1, len(data), 16)
        b.head -= len(data)
        b.Bytes[b.head : b.head + len(data)] = data
        vector = b.EndVector()
    tflite.BufferStart(b)
    if data:
        tflite.BufferAddData(b, vector)
    return int(tflite.BufferEnd(b))


def _quantization(b: flatbuffers.Builder, quant: Quant) -> int:
    scales = b.CreateNumpyVector(np.array(quant.scale, np.float32))
    zero_points = b.CreateNumpyVector(np.full(len(quant.scale), quant.zero_point, np.int64))
    tflite.QuantizationParametersStart(b)
    tflite.QuantizationParametersAddScale(b, scales)
    tflite.QuantizationParametersAddZeroPoint(b, zero_points)
    tflite.QuantizationParametersAddQuantizedDimension(b, quant.axis)
    return int(tflite.QuantizationParametersEnd(b))


def _tensor(b: flatbuffers.Builder, t: _Tensor) -> int:
    name, shape = b.CreateString(t.name), b.CreateNumpyVector(np.array(t.shape, np.int32))
    quant = _quantization(b, t.quant) if t.quant is not None else 0
    tflite.TensorStart(b)
    tflite.TensorAddName(b, name)
    tflite.TensorAddShape(b, shape)
    tflite.TensorAddType(b, _TYPES[t.dtype.name])
    tflite.TensorAddBuffer(b, t.buffer)
    if quant:
        tflite.TensorAddQuantization(b, quant)
    return int(tflite.TensorEnd(b))


def _operator(b: flatbuffers.Builder, op: _Op, opcode: int) -> int:
    ins, outs = b.CreateNumpyVector(np.array(op.inputs, np.int32)), b.CreateNumpyVector(np.array(op.outputs, np.int32))
    written = op.options(b) if op.options is not None else 0
    tflite.OperatorStart(b)
    tflite.OperatorAddOpcodeIndex(b, opcode)
    tflite.OperatorAddInputs(b, ins)
    tflite.OperatorAddOutputs(b, outs)
    if written:
        tflite.OperatorAddBuiltinOptionsType(b, op.options_type)
        tflite.OperatorAddBuiltinOptions(b, written)
    return int(tflite.OperatorEnd(b))


def _opcode(b: flatbuffers.Builder, code: int) -> int:
    tflite.OperatorCodeStart(b)
    tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(code, 127))
    tflite.OperatorCodeAddBuiltinCode(b, code)
    tflite.OperatorCodeAddVersion(b, 1)
    return int(tflite.OperatorCodeEnd(b))


def one_layer(code: str, x_type: str, w_type: str) -> bytes:
    """A model of one CONV_2D or FULLY_CONNECTED with activations and weights of these types."""
    m = ModelBuilder()
    conv = code == "CONV_2D"
    shapes = ((1, 4, 4, 2), (3, 1, 1, 2), (1, 4, 4, 3)) if conv else ((1, 4), (3, 4), (1, 3))
    quant = None if x_type == "float32" else Quant((0.5,), 0)
    x = m.tensor("x", shapes[0], x_type, quant=quant)
    w_quant = None if w_type == "float32" else Quant((0.5,), 0)
    w = m.tensor("w", shapes[1], w_type, quant=w_quant, data=np.ones(shapes[1], w_type))
    y = m.tensor("y", shapes[2], x_type, quant=quant)
    table = {"Padding": 1, "StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1} if conv else {}
    m.op(getattr(tflite.BuiltinOperator, code), [x, w, -1], [y], options("Conv2DOptions" if conv else "FullyConnectedOptions", **table))
    return m.finish([x], [y])
