"""The bytes of a .tflite file -> RawModel: plain, typed, and complete, but not yet understood.

The generated accessors trust every offset. Here each length is compared with the file before anything is read, and the sum of all that
is read is bounded, so that a damaged file ends in one ModelError, soon and in little memory. ``tflite.py`` checks what the numbers mean.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, SupportsIndex

import numpy as np
import numpy.typing as npt
import tflite

from mcugrad.errors import ModelError
from mcugrad.graph.types import Activation

IDENTIFIER = b"TFL3"
VERSION = 3
NO_TENSOR = -1
HINT_DAMAGED = "the file is cut or damaged, export or copy it again"

TYPE_NAMES = {v: k.lower() for k, v in vars(tflite.TensorType).items() if isinstance(v, int)}
"""TensorType code -> "int8", "float32", …"""

ACTIVATION_NAMES = {v: k for k, v in vars(tflite.ActivationFunctionType).items() if isinstance(v, int)}

ACTIVATIONS = {
    tflite.ActivationFunctionType.NONE: Activation.NONE,
    tflite.ActivationFunctionType.RELU: Activation.RELU,
    tflite.ActivationFunctionType.RELU6: Activation.RELU6,
    tflite.ActivationFunctionType.RELU_N1_TO_1: Activation.RELU_N1_1,
}


@dataclass(frozen=True, slots=True, eq=False)
class RawTensor:
    """A tensor as the file has it. ``data`` is None where the buffer is empty, else its bytes (a read-only view of the file)."""

    index: int
    name: str
    shape: tuple[int, ...]
    type: str
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int
    data: npt.NDArray[np.uint8] | None
    variable: bool

    @property
    def where(self) -> str:
        return f"tensor {self.index} ({self.name})"


@dataclass(frozen=True, slots=True)
class Masks:
    """The bit masks of STRIDED_SLICE, bit d for dimension d; ``relative``: an end is counted from its begin."""

    begin: int = 0
    end: int = 0
    ellipsis: int = 0
    new_axis: int = 0
    shrink: int = 0
    relative: bool = False


@dataclass(frozen=True, slots=True)
class RawOptions:
    """The attributes of an operator that the importer reads; an attribute that the operator does not have keeps its default.

    ``activation`` is the file's code; ``same`` means SAME padding. ``plain_weights`` is false for shuffled linear weights. ``pieces`` is
    the number of outputs that SPLIT and UNPACK, or of inputs that PACK says it has.
    """

    activation: int = 0
    same: bool = False
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    kernel: tuple[int, int] = (1, 1)
    multiplier: int = 0
    keep_dims: bool = False
    beta: float = 1.0
    plain_weights: bool = True
    alpha: float = 0.0
    axis: int = 0
    pieces: int = 0
    masks: Masks = Masks()
    align_corners: bool = False
    half_pixel_centers: bool = False


@dataclass(frozen=True, slots=True)
class RawOp:
    """An operator. ``code`` is the builtin's name or "CUSTOM"; an index of NO_TENSOR among the inputs is an operand left out."""

    index: int
    code: str
    custom: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: RawOptions | None

    @property
    def where(self) -> str:
        return f"op {self.index} {self.custom or self.code}"


@dataclass(frozen=True, slots=True)
class RawModel:
    """The first subgraph of a file, and how many the file has. Every index in it is inside its list."""

    tensors: tuple[RawTensor, ...]
    ops: tuple[RawOp, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    subgraphs: int = 1


def read(data: bytes) -> RawModel:
    """Read a .tflite file. Raises ModelError where it is damaged or of another version."""
    _check_head(data)
    try:
        return _Reader(data).model()
    except (struct.error, IndexError, ValueError, TypeError, OverflowError, AttributeError) as error:
        raise ModelError(f"damaged .tflite file of {len(data):,} bytes ({error})", HINT_DAMAGED) from None


def _check_head(data: bytes) -> None:
    if len(data) < 16:
        raise ModelError(f"damaged .tflite file: {len(data)} bytes, even an empty model has more than 16", HINT_DAMAGED)
    if data[4:8] != IDENTIFIER:
        raise ModelError(f"not a .tflite file: bytes 4 to 7 are {data[4:8]!r}, not {IDENTIFIER!r}", "give a .tflite model")


def _damaged(text: str) -> NoReturn:
    raise ModelError(f"damaged .tflite file: {text}", HINT_DAMAGED)


class _Strict(bytes):
    """Bytes whose slices never come back shorter than asked: the accessors cut strings by slice and would not notice the file's end."""

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        if isinstance(key, slice) and (key.start > len(self) or key.stop > len(self)):
            raise IndexError(f"text ends at byte {key.stop}")
        return super().__getitem__(key)


class _Reader:
    """One pass over one file. ``budget``: bytes that vectors may still give, so that tables that share a vector cannot multiply it."""

    def __init__(self, data: bytes) -> None:
        self.data = _Strict(data)
        self.budget = 8 * len(data) + 65536

    def length(self, items: int, item_bytes: int, what: str) -> int:
        """Check a vector's length before anyone walks along it."""
        self.budget -= items * item_bytes
        if self.budget < 0:
            _damaged(f"{what}, {items:,} entries, goes beyond what a file of {len(self.data):,} bytes can hold")
        return items

    def text(self, value: bytes | None) -> str:
        raw = value or b""
        self.length(len(raw), 1, "a name")
        return raw.decode("utf-8", errors="replace")

    def ints(self, table: Any, field: str, what: str) -> tuple[int, ...]:
        """A vector of numbers by the accessor's name. Absent is empty."""
        values = self.numbers(table, field, what)
        return tuple(int(v) for v in values)

    def numbers(self, table: Any, field: str, what: str) -> npt.NDArray[Any]:
        if not self.length(getattr(table, field + "Length")(), 4, what):
            return np.zeros(0, np.int64)
        values: npt.NDArray[Any] = getattr(table, field + "AsNumpy")()
        return values

    def model(self) -> RawModel:
        model = tflite.Model.GetRootAs(self.data)
        if model.Version() != VERSION:
            raise ModelError(f".tflite schema version {model.Version()}, mcugrad reads version {VERSION}", HINT_DAMAGED)
        codes = self.codes(model)
        buffers = self.buffers(model)
        self.extras(model)
        subgraphs = self.length(model.SubgraphsLength(), 4, "the list of subgraphs")
        if not subgraphs:
            _damaged("it has 0 subgraphs")
        graph = model.Subgraphs(0)
        self.text(graph.Name())
        count = self.length(graph.TensorsLength(), 4, "the list of tensors")
        tensors = tuple(self.tensor(graph.Tensors(i), i, buffers) for i in range(count))
        ops = tuple(
            self.op(graph.Operators(i), i, codes, count) for i in range(self.length(graph.OperatorsLength(), 4, "the list of operators"))
        )
        inputs = self.indices(graph, "Inputs", "the model's inputs", count)
        return RawModel(tensors, ops, inputs, self.indices(graph, "Outputs", "the model's outputs", count), subgraphs)

    def codes(self, model: Any) -> list[tuple[str, str]]:
        """(builtin name, custom name) by operator code index."""
        found = []
        for i in range(self.length(model.OperatorCodesLength(), 4, "the list of operator codes")):
            code = model.OperatorCodes(i)
            number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
            if code.Version() < 1:
                _damaged(f"operator code {i} has version {code.Version()}")
            name = tflite.BUILTIN_OPCODE2NAME.get(number, f"builtin {number}")
            found.append((name, self.text(code.CustomCode()) or "(no name)" if name == "CUSTOM" else ""))
        return found

    def buffers(self, model: Any) -> list[npt.NDArray[np.uint8] | None]:
        """Every buffer, used or not, so that a cut file is found out."""
        found: list[npt.NDArray[np.uint8] | None] = []
        for i in range(self.length(model.BuffersLength(), 4, "the list of buffers")):
            buffer = model.Buffers(i)
            if buffer.Offset() > 1:
                raise ModelError(f"buffer {i} is stored outside the flatbuffer", "export a model below 2 GB")
            size = self.length(buffer.DataLength(), 1, f"buffer {i}")
            found.append(buffer.DataAsNumpy() if size else None)
        return found

    def extras(self, model: Any) -> None:
        """Read through what the importer has no use for: a file cut there is still cut."""
        self.text(model.Description())
        for i in range(self.length(model.MetadataLength(), 4, "the metadata")):
            self.text(model.Metadata(i).Name())
        for i in range(self.length(model.SignatureDefsLength(), 4, "the signatures")):
            signature = model.SignatureDefs(i)
            self.text(signature.SignatureKey())
            for j in range(self.length(signature.InputsLength(), 4, "the signature's inputs")):
                self.text(signature.Inputs(j).Name())
            for j in range(self.length(signature.OutputsLength(), 4, "the signature's outputs")):
                self.text(signature.Outputs(j).Name())

    def tensor(self, t: Any, index: int, buffers: list[npt.NDArray[np.uint8] | None]) -> RawTensor:
        name = self.text(t.Name())
        where = f"tensor {index} ({name})"
        if t.Buffer() >= len(buffers):
            _damaged(f"{where} names buffer {t.Buffer()}, the file has {len(buffers)}")
        if t.Sparsity() is not None:
            raise ModelError(f"{where} is stored sparse, which is not supported", "export dense weights")
        scale: tuple[float, ...] = ()
        zero_point: tuple[int, ...] = ()
        axis = 0
        q = t.Quantization()
        if q is not None:
            if q.DetailsType() != tflite.QuantizationDetails.NONE:
                raise ModelError(f"{where} has custom quantization, which is not supported", "export with int8 affine quantization")
            scale = tuple(float(v) for v in self.numbers(q, "Scale", f"the scales of {where}"))
            zero_point = self.ints(q, "ZeroPoint", f"the zero points of {where}")
            axis = q.QuantizedDimension()
        type_name = TYPE_NAMES.get(t.Type(), f"type {t.Type()}")
        shape = self.ints(t, "Shape", f"the shape of {where}")
        return RawTensor(index, name, shape, type_name, scale, zero_point, axis, buffers[t.Buffer()], t.IsVariable())

    def indices(self, table: Any, field: str, what: str, limit: int, lowest: int = 0) -> tuple[int, ...]:
        found = self.ints(table, field, what)
        for i in found:
            if not lowest <= i < limit:
                _damaged(f"{what} name tensor {i}, the file has {limit}")
        return found

    def op(self, op: Any, index: int, codes: list[tuple[str, str]], tensors: int) -> RawOp:
        if op.OpcodeIndex() >= len(codes):
            _damaged(f"op {index} has operator code {op.OpcodeIndex()}, the file has {len(codes)}")
        code, custom = codes[op.OpcodeIndex()]
        inputs = self.indices(op, "Inputs", f"the inputs of op {index} {code}", tensors, NO_TENSOR)
        outputs = self.indices(op, "Outputs", f"the outputs of op {index} {code}", tensors)
        return RawOp(index, code, custom, inputs, outputs, _options(op, index, code))


def _options(op: Any, index: int, code: str) -> RawOptions | None:
    """The options of an operator that has some and that mcugrad knows, else None."""
    if code not in _OPTIONS or op.BuiltinOptionsType() == tflite.BuiltinOptions.NONE:
        return None
    kind, make, fill = _OPTIONS[code]
    table = op.BuiltinOptions()
    if op.BuiltinOptionsType() != kind or table is None:
        _damaged(f"op {index} {code} has options of kind {op.BuiltinOptionsType()}, not {kind}")
    options = make()
    options.Init(table.Bytes, table.Pos)
    return fill(options)


def _same(padding: int) -> bool:
    if padding not in (tflite.Padding.SAME, tflite.Padding.VALID):
        _damaged(f"padding {padding} is neither SAME nor VALID")
    return bool(padding == tflite.Padding.SAME)


def _conv(o: Any) -> RawOptions:
    return RawOptions(
        activation=o.FusedActivationFunction(),
        same=_same(o.Padding()),
        stride=(o.StrideH(), o.StrideW()),
        dilation=(o.DilationHFactor(), o.DilationWFactor()),
    )


def _dwconv(o: Any) -> RawOptions:
    return RawOptions(
        activation=o.FusedActivationFunction(),
        same=_same(o.Padding()),
        stride=(o.StrideH(), o.StrideW()),
        dilation=(o.DilationHFactor(), o.DilationWFactor()),
        multiplier=o.DepthMultiplier(),
    )


def _linear(o: Any) -> RawOptions:
    return RawOptions(
        activation=o.FusedActivationFunction(),
        keep_dims=o.KeepNumDims(),
        plain_weights=o.WeightsFormat() == tflite.FullyConnectedOptionsWeightsFormat.DEFAULT,
    )


def _pool(o: Any) -> RawOptions:
    return RawOptions(
        activation=o.FusedActivationFunction(),
        same=_same(o.Padding()),
        stride=(o.StrideH(), o.StrideW()),
        kernel=(o.FilterHeight(), o.FilterWidth()),
    )


def _mean(o: Any) -> RawOptions:
    return RawOptions(keep_dims=o.KeepDims())


def _arithmetic(o: Any) -> RawOptions:
    return RawOptions(activation=o.FusedActivationFunction())


def _leaky_relu(o: Any) -> RawOptions:
    return RawOptions(alpha=o.Alpha())


def _concat(o: Any) -> RawOptions:
    return RawOptions(activation=o.FusedActivationFunction(), axis=o.Axis())


def _strided_slice(o: Any) -> RawOptions:
    masks = Masks(o.BeginMask(), o.EndMask(), o.EllipsisMask(), o.NewAxisMask(), o.ShrinkAxisMask(), o.Offset())
    return RawOptions(masks=masks)


def _split(o: Any) -> RawOptions:
    return RawOptions(pieces=o.NumSplits())


def _pack(o: Any) -> RawOptions:
    return RawOptions(axis=o.Axis(), pieces=o.ValuesCount())


def _unpack(o: Any) -> RawOptions:
    return RawOptions(axis=o.Axis(), pieces=o.Num())


def _resize(o: Any) -> RawOptions:
    return RawOptions(align_corners=o.AlignCorners(), half_pixel_centers=o.HalfPixelCenters())


def _softmax(o: Any) -> RawOptions:
    return RawOptions(beta=o.Beta())


_OPTIONS: dict[str, tuple[int, Callable[[], Any], Callable[[Any], RawOptions]]] = {
    "CONV_2D": (tflite.BuiltinOptions.Conv2DOptions, tflite.Conv2DOptions, _conv),
    "DEPTHWISE_CONV_2D": (tflite.BuiltinOptions.DepthwiseConv2DOptions, tflite.DepthwiseConv2DOptions, _dwconv),
    "FULLY_CONNECTED": (tflite.BuiltinOptions.FullyConnectedOptions, tflite.FullyConnectedOptions, _linear),
    "AVERAGE_POOL_2D": (tflite.BuiltinOptions.Pool2DOptions, tflite.Pool2DOptions, _pool),
    "MEAN": (tflite.BuiltinOptions.ReducerOptions, tflite.ReducerOptions, _mean),
    "MAX_POOL_2D": (tflite.BuiltinOptions.Pool2DOptions, tflite.Pool2DOptions, _pool),
    "ADD": (tflite.BuiltinOptions.AddOptions, tflite.AddOptions, _arithmetic),
    "SUB": (tflite.BuiltinOptions.SubOptions, tflite.SubOptions, _arithmetic),
    "MUL": (tflite.BuiltinOptions.MulOptions, tflite.MulOptions, _arithmetic),
    "LEAKY_RELU": (tflite.BuiltinOptions.LeakyReluOptions, tflite.LeakyReluOptions, _leaky_relu),
    "CONCATENATION": (tflite.BuiltinOptions.ConcatenationOptions, tflite.ConcatenationOptions, _concat),
    "STRIDED_SLICE": (tflite.BuiltinOptions.StridedSliceOptions, tflite.StridedSliceOptions, _strided_slice),
    "SPLIT": (tflite.BuiltinOptions.SplitOptions, tflite.SplitOptions, _split),
    "SPLIT_V": (tflite.BuiltinOptions.SplitVOptions, tflite.SplitVOptions, _split),
    "PACK": (tflite.BuiltinOptions.PackOptions, tflite.PackOptions, _pack),
    "UNPACK": (tflite.BuiltinOptions.UnpackOptions, tflite.UnpackOptions, _unpack),
    "RESIZE_NEAREST_NEIGHBOR": (
        tflite.BuiltinOptions.ResizeNearestNeighborOptions,
        tflite.ResizeNearestNeighborOptions,
        _resize,
    ),
    "SOFTMAX": (tflite.BuiltinOptions.SoftmaxOptions, tflite.SoftmaxOptions, _softmax),
}
