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
