"""A float graph executed in real numbers, op by op: what calibration observes, and the yardstick of the int8 model.

Values are float64 arrays in the tensors' own shapes, batch 1 included. The ops themselves are computed by autodiff/rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mcugrad.autodiff.rules import RULES, Array, resize_forward, slice_forward
from mcugrad.errors import ModelError
from mcugrad.graph import (
    Activation,
    Add,
    AvgPool,
    Conv2D,
    DwConv2D,
    Graph,
    Linear,
    MaxPool,
    Mean,
    Mul,
    Op,
    OpKind,
    Pad,
    ResizeNearest,
    Slice,
    Sub,
)
from mcugrad.lower.quant import resize_rows

Samples = npt.NDArray[np.floating]

LAYERS = (Conv2D, DwConv2D, Linear)
FUSING = (Conv2D, DwConv2D, Linear, AvgPool, MaxPool, Add, Sub, Mul)
"""The kinds that have a fused activation."""

_BOUNDS: Mapping[Activation, tuple[float, float]] = {
    Activation.NONE: (-np.inf, np.inf),
    Activation.RELU: (0.0, np.inf),
    Activation.RELU6: (0.0, 6.0),
    Activation.RELU_N1_1: (-1.0, 1.0),
}


def require_float(graph: Graph) -> None:
    """Raise ModelError unless every tensor is float32, every constant finite and every padding zero."""
    for t in graph.tensors:
        if t.quant is not None or t.dtype != np.float32:
            raise ModelError(f"tensor {t.name} is {t.dtype}, a float model has only float32", "is the model quantized already?")
        if t.data is not None and not np.isfinite(t.data).all():
            raise ModelError(f"the constant {t.name} has values that are NaN or infinite", "train the model again")
    for op in graph.ops:
        if isinstance(op.kind, Pad) and op.kind.value != 0:
            raise ModelError(f"{op.name} pads with {op.kind.value}, only 0 is supported in a float model", "pad with zeros")


def run_float(graph: Graph, samples: Sequence[Samples]) -> dict[int, Array]:
    """One sample through a float graph: an array for each model input -> tensor index -> value, constants included."""
    values = {i: t.data.astype(np.float64) for i, t in enumerate(graph.tensors) if t.data is not None}
    for index, sample in zip(graph.inputs, samples, strict=True):
        values[index] = np.asarray(sample, np.float64).reshape(graph.tensors[index].shape)
    for op in graph.ops:
        shape = graph.tensors[op.outputs[0]].shape
        values[op.outputs[0]] = _activate(op.kind, _compute(op, tuple(values[i] for i in op.inputs), shape)).reshape(shape)
    return values


def predict_float(graph: Graph, sample: Samples) -> Array:
    """The first output of a model with one input."""
    return run_float(graph, (sample,))[graph.output]


def _activate(kind: OpKind, y: Array) -> Array:
    return np.clip(y, *_BOUNDS[kind.activation]) if isinstance(kind, FUSING) and kind.activation is not Activation.NONE else y


def _compute(op: Op, inputs: tuple[Array, ...], shape: tuple[int, ...]) -> Array:
    x = inputs[0]
    match op.kind:
        case Conv2D() | DwConv2D():
            return RULES[type(op.kind)].forward(op.kind, (x[0], inputs[1], _bias(op.kind, inputs)))
        case Linear():
            return RULES[Linear].forward(op.kind, (x.reshape(-1, inputs[1].shape[1]), inputs[1], _bias(op.kind, inputs)))
        case AvgPool() | MaxPool() | Mean():
            return RULES[type(op.kind)].forward(op.kind, (x[0],))
        case Slice():
            return slice_forward(op.kind, x, shape)
        case ResizeNearest(align_corners=corners, half_pixel_centers=half):
            tables = (resize_rows(x.shape[a], shape[a], align_corners=corners, half_pixel_centers=half) for a in (1, 2))
            return resize_forward(x[0], *tables)
        case kind if type(kind) in RULES:
            return RULES[type(kind)].forward(kind, inputs)
        case _:
            raise ModelError(f"{op.name} ({type(op.kind).__name__}) has no meaning in a float model", "give a model that is not quantized")


def _bias(kind: Conv2D | DwConv2D | Linear, inputs: tuple[Array, ...]) -> Array:
    if len(inputs) > 2:
        return inputs[2].reshape(-1)
    return np.zeros(inputs[1].shape[3 if isinstance(kind, DwConv2D) else 0])
