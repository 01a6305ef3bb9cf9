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
    """inputs x (1,H,W,I), w (O,R,S,I), b (O,) or none -> y (1,P,Q,O). ``pad`` = (top, left, bottom, right), explicit."""

    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int, int, int]
    activation: Activation


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
    """inputs a, b of the same shape -> y."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class Softmax:
    """inputs x (N,C) -> y (N,C) with scale 1/256 and zero point -128."""

    beta: float


@dataclass(frozen=True, slots=True)
class Pad:
    """inputs x -> y, filled with x's zero point. ``pad`` = (top, left, bottom, right) of H and W."""

    pad: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Reshape:
    """inputs x -> y with the same elements in the same order (reshape, squeeze, expand_dims, flatten)."""


@dataclass(frozen=True, slots=True)
class Quantize:
    """float32 model input -> int8. Only at the border: the host does it."""


@dataclass(frozen=True, slots=True)
class Dequantize:
    """int8 -> float32 model output. Only at the border: the host does it."""


OpKind = Conv2D | DwConv2D | Linear | AvgPool | Mean | Add | Softmax | Pad | Reshape | Quantize | Dequantize


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. ``inputs`` and ``outputs`` are indices into Graph.tensors; a missing bias is not listed.

    ``name`` is unique: the kind and a counter of that kind, in graph order: conv_0, conv_1, dwconv_0, linear_0.
    ``reads`` is the shape in which the op reads its first input where normalization took away a reshape before it.
    """

    name: str
    kind: OpKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reads: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """A model. Ops are in execution order; one input, one output."""

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    input: int
    output: int
    model_hash: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def layers(self) -> tuple[Op, ...]:
        """The ops that have weights, in graph order; a layer's index in this tuple is its number in a scheme."""
        return tuple(op for op in self.ops if isinstance(op.kind, Conv2D | DwConv2D | Linear))

    def first_input(self, op: Op) -> Tensor:
        """An op's first input, in the shape in which the op reads it."""
        tensor = self.tensors[op.inputs[0]]
        return tensor if op.reads is None else replace(tensor, shape=op.reads)
