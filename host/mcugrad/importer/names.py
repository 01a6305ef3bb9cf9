"""The names of graph ops: the kind and a counter of that kind, in graph order."""

from __future__ import annotations

from mcugrad.graph.types import (
    Add,
    AvgPool,
    Concat,
    Conv2D,
    Dequantize,
    DwConv2D,
    Linear,
    MaxPool,
    Mean,
    MinMax,
    Mul,
    OpKind,
    Pad,
    Prelu,
    Quantize,
    Reshape,
    ResizeNearest,
    Slice,
    Softmax,
    Sub,
    Transpose,
    Unary,
)

_PREFIXES: dict[type[OpKind], str] = {
    Conv2D: "conv",
    DwConv2D: "dwconv",
    Linear: "linear",
    AvgPool: "avgpool",
    MaxPool: "maxpool",
    Mean: "mean",
    Add: "add",
    Sub: "sub",
    Mul: "mul",
    Prelu: "prelu",
    Softmax: "softmax",
    Concat: "concat",
    Slice: "slice",
    Transpose: "transpose",
    ResizeNearest: "resize",
    Pad: "pad",
    Reshape: "reshape",
    Quantize: "quantize",
    Dequantize: "dequantize",
}


def prefix(kind: OpKind) -> str:
    """The first part of an op's name: conv, maximum, leaky_relu, …"""
    if isinstance(kind, Unary):
        return kind.function.value
    if isinstance(kind, MinMax):
        return "maximum" if kind.largest else "minimum"
    return _PREFIXES[type(kind)]


class Namer:
    """Gives each op its name: conv_0, conv_1, dwconv_0, …"""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def name(self, kind: OpKind) -> str:
        first = prefix(kind)
        count = self._counts[first] = self._counts.get(first, -1) + 1
        return f"{first}_{count}"


Kinds = tuple[type[OpKind], ...]

_TFLITE: dict[str, Kinds] = {
    "CONV_2D": (Conv2D,),
    "DEPTHWISE_CONV_2D": (DwConv2D,),
    "FULLY_CONNECTED": (Linear,),
    "AVERAGE_POOL_2D": (AvgPool,),
    "MAX_POOL_2D": (MaxPool,),
    "MEAN": (Mean,),
    "SOFTMAX": (Softmax,),
    "ADD": (Add,),
    "SUB": (Sub,),
    "MUL": (Mul,),
    "MAXIMUM": (MinMax,),
    "MINIMUM": (MinMax,),
    "RELU": (Unary,),
    "RELU6": (Unary,),
    "RELU_N1_TO_1": (Unary,),
    "LEAKY_RELU": (Unary,),
    "LOGISTIC": (Unary,),
    "TANH": (Unary,),
    "HARD_SWISH": (Unary,),
    "PRELU": (Prelu,),
    "QUANTIZE": (Quantize, Unary),
    "DEQUANTIZE": (Dequantize,),
    "RESHAPE": (Reshape,),
    "SQUEEZE": (Reshape,),
    "EXPAND_DIMS": (Reshape,),
    "TRANSPOSE": (Transpose,),
    "PAD": (Pad,),
    "PADV2": (Pad,),
    "RESIZE_NEAREST_NEIGHBOR": (ResizeNearest,),
    "CONCATENATION": (Concat,),
    "PACK": (Concat,),
    "SLICE": (Slice,),
    "STRIDED_SLICE": (Slice,),
    "SPLIT": (Slice,),
    "SPLIT_V": (Slice,),
    "UNPACK": (Slice,),
    "SHAPE": (),
}

_ONNX: dict[str, Kinds] = {
    "Conv": (Conv2D, DwConv2D),
    "Gemm": (Linear,),
    "MatMul": (Linear,),
    "BatchNormalization": (),
    "Add": (Add,),
    "Sub": (Sub,),
    "Mul": (Mul,),
    "Div": (Mul,),
    "Max": (MinMax,),
    "Min": (MinMax,),
    "Relu": (Unary,),
    "Clip": (Unary,),
    "LeakyRelu": (Unary,),
    "Sigmoid": (Unary,),
    "Tanh": (Unary,),
    "HardSigmoid": (Unary,),
    "HardSwish": (Unary,),
    "PRelu": (Prelu,),
    "Softmax": (Softmax,),
    "MaxPool": (MaxPool,),
    "GlobalMaxPool": (MaxPool,),
    "AveragePool": (AvgPool,),
    "GlobalAveragePool": (Mean,),
    "ReduceMean": (Mean,),
    "Resize": (ResizeNearest,),
    "Reshape": (Reshape,),
    "Flatten": (Reshape,),
    "Squeeze": (Reshape,),
    "Unsqueeze": (Reshape,),
    "Transpose": (Transpose,),
    "Concat": (Concat,),
    "Slice": (Slice,),
    "Split": (Slice,),
    "Pad": (Pad,),
    "Identity": (),
    "Dropout": (),
    "Cast": (),
    "QuantizeLinear": (Quantize, Unary),
    "DequantizeLinear": (Dequantize,),
    "QLinearConv": (Conv2D, DwConv2D),
    "QLinearMatMul": (Linear,),
    "com.microsoft.QuantizeLinear": (Quantize, Unary),
    "com.microsoft.DequantizeLinear": (Dequantize,),
    "com.microsoft.QGemm": (Linear,),
    "com.microsoft.QLinearAdd": (Add,),
    "com.microsoft.QLinearMul": (Mul,),
    "com.microsoft.QLinearConcat": (Concat,),
    "com.microsoft.QLinearAveragePool": (AvgPool,),
    "com.microsoft.QLinearGlobalAveragePool": (Mean,),
    "com.microsoft.QLinearSigmoid": (Unary,),
    "com.microsoft.QLinearLeakyRelu": (Unary,),
    "com.microsoft.QLinearSoftmax": (Softmax,),
}


def operator_names(file: str) -> dict[str, Kinds]:
    """The operators that a ``file`` format ("tflite" or "onnx") may have, and the kinds that they become; () for those that vanish."""
    return {"tflite": _TFLITE, "onnx": _ONNX}[file]
