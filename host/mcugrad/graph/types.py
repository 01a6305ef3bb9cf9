"""Graph, Tensor and Op: what an importer returns and every later stage reads.

Layouts are TensorFlow Lite's: activations (N, H, W, C) with N = 1 or (N, C), conv weights (O, R, S, I), depthwise weights (1, R, S, O),
linear weights (O, I), bias (O,) int32.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt


class Activation(enum.Enum):
    """A fused activation."""

    NONE = "none"
    RELU = "relu"
    RELU6 = "relu6"
    RELU_N1_1 = "relu_n1_to_1"


@dataclass(frozen=True, slots=True)
class Quant:
    """real = scale · (q - zero_point). One scale, or one per channel along ``axis`` (then every zero point is 0).

    Scales are kept as float32 values, exactly as the file stores them.
    """

    scale: tuple[float, ...]
    zero_point: int = 0
    axis: int = 0

    @property
    def per_channel(self) -> bool:
        return len(self.scale) > 1


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A named tensor. ``data`` is None for activations. ``shape`` is static."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    quant: Quant | None = None
    data: npt.NDArray[np.generic] | None = None

    @property
    def size(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n


@dataclass(frozen=True, slots=True)
class Conv2D:
    """inputs x (1,H,W,groups·I), w (O,R,S,I), b (O,) or none -> y (1,P,Q,O). ``pad`` = (top, left, bottom, right), explicit."""

    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int, int, int]
    activation: Activation
    groups: int = 1


@dataclass(frozen=True, slots=True)
class DwConv2D:
    """inputs x (1,H,W,I), w (1,R,S,O), b (O,) or none -> y (1,P,Q,O), O = I · multiplier."""

    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int, int, int]
    multiplier: int
    activation: Activation


@dataclass(frozen=True, slots=True)
class Linear:
    """inputs x (N,I) (or anything with N·I elements), w (O,I), b (O,) or none -> y (N,O)."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class AvgPool:
    """inputs x (1,H,W,C) -> y (1,P,Q,C); taps outside x are not counted."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int, int, int]
    activation: Activation


@dataclass(frozen=True, slots=True)
class Mean:
    """inputs x (1,H,W,C) -> mean over H and W, (1,C) or (1,1,1,C)."""

    keep_dims: bool


@dataclass(frozen=True, slots=True)
class Add:
    """inputs a, b -> y = a + b. The shapes are equal, or one broadcasts to the other's; either may be a constant."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class Sub:
    """inputs a, b -> y = a - b, shapes as for Add."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class Mul:
    """inputs a, b -> y = a · b, shapes as for Add."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class MinMax:
    """inputs a, b -> y, elementwise; a, b and y have one quantization. Shapes as for Add."""

    largest: bool


class Function(enum.Enum):
    """A function of one value."""

    RELU = "relu"
    RELU6 = "relu6"
    RELU_N1_1 = "relu_n1_to_1"
    LEAKY_RELU = "leaky_relu"
    LOGISTIC = "logistic"
    TANH = "tanh"
    HARD_SWISH = "hard_swish"
    REQUANTIZE = "requantize"


@dataclass(frozen=True, slots=True)
class Unary:
    """inputs x -> y = function(x), elementwise. ``alpha`` is the slope of LEAKY_RELU. REQUANTIZE is a QUANTIZE of int8 to int8."""

    function: Function
    alpha: float = 0.0


@dataclass(frozen=True, slots=True)
class Prelu:
    """inputs x (…,C), alpha (C,) int8 constant (any shape of C elements) -> y."""


@dataclass(frozen=True, slots=True)
class MaxPool:
    """inputs x (1,H,W,C) -> y (1,P,Q,C), like AvgPool."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int, int, int]
    activation: Activation


@dataclass(frozen=True, slots=True)
class Concat:
    """inputs of equal shape but for ``axis`` (≥ 0), all with the output's quantization -> y."""

    axis: int


@dataclass(frozen=True, slots=True)
class Slice:
    """inputs x -> y[i] = x[begin + i · step] per dimension; y has x's rank. A SPLIT becomes one Slice an output."""

    begin: tuple[int, ...]
    step: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transpose:
    """inputs x -> y, y.shape[k] = x.shape[perm[k]]."""

    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResizeNearest:
    """inputs x (1,H,W,C) -> y (1,P,Q,C)."""

    align_corners: bool
    half_pixel_centers: bool


@dataclass(frozen=True, slots=True)
class Softmax:
    """inputs x (N,C) -> y (N,C) with scale 1/256 and zero point -128."""

    beta: float


@dataclass(frozen=True, slots=True)
class Pad:
    """inputs x -> y, ``before`` and ``after`` elements more per dimension, filled with ``value`` (a code of x; its zero point for zero)."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: int


@dataclass(frozen=True, slots=True)
class Reshape:
    """inputs x -> y with the same elements in the same order (reshape, squeeze, expand_dims, flatten)."""


@dataclass(frozen=True, slots=True)
class Quantize:
    """float32 model input -> int8. Only at the border: the host does it. (int8 to int8 is Unary REQUANTIZE.)"""


@dataclass(frozen=True, slots=True)
class Dequantize:
    """int8 -> float32 model output. Only at the border: the host does it."""


OpKind = (
    Conv2D
    | DwConv2D
    | Linear
    | AvgPool
    | MaxPool
    | Mean
    | Add
    | Sub
    | Mul
    | MinMax
    | Unary
    | Prelu
    | Softmax
    | Concat
    | Slice
    | Transpose
    | ResizeNearest
    | Pad
    | Reshape
    | Quantize
    | Dequantize
)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. ``inputs`` and ``outputs`` are indices into Graph.tensors; a missing bias is not listed. Every op has one output.

    ``name`` is unique: the kind and a counter of that kind, in graph order: conv_0, conv_1, dwconv_0, linear_0.
    ``reads`` is set by normalization: the shape in which the op reads each input, where a reshape stood before it (else None).
    """

    name: str
    kind: OpKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reads: tuple[tuple[int, ...] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """A model. Ops are in execution order. ``inputs`` and ``outputs`` are in the order of the file.

    ``rounding``: how outputs are requantized, 0 with TensorFlow Lite's two roundings, 1 with one (models from ONNX).
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    model_hash: int = 0
    notes: tuple[str, ...] = field(default=())
    rounding: int = 0

    @property
    def input(self) -> int:
        """The first input: the only one of a model that can be trained."""
        return self.inputs[0]

    @property
    def output(self) -> int:
        """The first output: the only one of a model that can be trained."""
        return self.outputs[0]

    @property
    def layers(self) -> tuple[Op, ...]:
        """The ops that have weights, in graph order; a layer's index in this tuple is its number in a scheme."""
        return tuple(op for op in self.ops if isinstance(op.kind, Conv2D | DwConv2D | Linear))

    def read(self, op: Op, k: int = 0) -> Tensor:
        """An op's input k, in the shape in which the op reads it."""
        tensor = self.tensors[op.inputs[k]]
        shape = op.reads[k] if op.reads else None
        return tensor if shape is None else replace(tensor, shape=shape)
