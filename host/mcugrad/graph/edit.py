"""Graph -> Graph: new weights, a new head. Nothing here changes a graph in place."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mcugrad.errors import ModelError, UsageError
from mcugrad.graph.types import (
    Activation,
    Conv2D,
    Dequantize,
    DwConv2D,
    Function,
    Graph,
    Linear,
    Op,
    OpKind,
    Quant,
    Quantize,
    Reshape,
    Softmax,
    Tensor,
    Unary,
)

MIN_CLASSES = 2
MAX_CLASSES = 65535

Weights = npt.NDArray[np.int8]
Bias = npt.NDArray[np.int32]


def weight_of(graph: Graph, op: Op) -> Tensor:
    """The weights of a layer."""
    return graph.tensors[op.inputs[1]]


def bias_of(graph: Graph, op: Op) -> Tensor | None:
    """The bias of a layer, None where it has none."""
    return graph.tensors[op.inputs[2]] if len(op.inputs) > 2 else None


def input_of(graph: Graph, k: int = 0) -> Tensor:
    """The int8 tensor that a sample fills: the model's input k, or what QUANTIZE makes of a float input."""
    index = graph.inputs[k]
    readers = [op for op in graph.ops if index in op.inputs and isinstance(op.kind, Quantize)]
    return graph.tensors[readers[0].outputs[0] if readers else index]


def output_of(graph: Graph, k: int = 0) -> Tensor:
    """The int8 tensor that a prediction is read from: the model's output k, or what DEQUANTIZE makes float of."""
    index = graph.outputs[k]
    writers = [op for op in graph.ops if index in op.outputs and isinstance(op.kind, Dequantize)]
    return graph.tensors[writers[0].inputs[0] if writers else index]


def is_float(graph: Graph) -> bool:
    """Whether the graph computes in float and is still to be quantized. (A model with float at the border only computes in int8.)"""
    return not any(t.dtype == np.int8 for t in graph.tensors)


def macs(graph: Graph, op: Op) -> int:
    """Multiply-accumulates of a layer for one sample, taps outside the input counted too; 0 for an op without weights."""
    if not isinstance(op.kind, Conv2D | DwConv2D | Linear):
        return 0
    w, y = weight_of(graph, op), graph.tensors[op.outputs[0]]
    channels = w.shape[-1] if isinstance(op.kind, DwConv2D) else w.shape[0]
    return y.size * (w.size // channels)


def int8_share(graph: Graph) -> float:
    """The share of the multiply-accumulates that have int8 activations and weights, 0 … 1; 1 for an int8 model without layers."""
    total = sum(macs(graph, op) for op in graph.layers)
    if not total:
        return 0.0 if is_float(graph) else 1.0
    int8 = [op for op in graph.layers if graph.tensors[op.inputs[0]].dtype == np.int8 and weight_of(graph, op).dtype == np.int8]
    return sum(macs(graph, op) for op in int8) / total


def with_weights(graph: Graph, values: Mapping[str, tuple[Weights, Bias | None]]) -> Graph:
    """The same graph with other weights: layer name -> (w int8 in the shape of the old, b int32 (O,) or None to leave the bias alone).

    A layer without bias that is given one gets it. Raises ModelError for a name that is no layer, a wrong shape or dtype.
    """
    names = {op.name for op in graph.layers}
    for name in values:
        if name not in names:
            raise ModelError(f"there is no layer {name}", f"the layers are {', '.join(op.name for op in graph.layers)}")
    for op in graph.layers:
        if op.name in values:
            w, b = values[op.name]
            graph = _with_weight(graph, op.name, _checked(w, weight_of(graph, op), op.name, "weights"))
            if b is not None:
                graph = _with_bias(graph, op.name, _checked(b, _bias_tensor(graph, op), op.name, "bias"))
    return graph


def _checked(value: npt.NDArray[np.generic], old: Tensor, layer: str, what: str) -> Tensor:
    """``old`` with another value: a read-only copy."""
    if value.shape != old.shape or value.dtype != old.dtype:
        raise ModelError(
            f"{layer}: {what} of shape {value.shape} and type {value.dtype}, {old.shape} and {old.dtype} are expected",
            "do these values belong to this model?",
        )
    copy = value.copy()
    copy.setflags(write=False)
    return replace(old, data=copy)


def _bias_tensor(graph: Graph, op: Op) -> Tensor:
    """The bias of a layer, or the one it would have: zeros with scale s_x · s_w."""
    old = bias_of(graph, op)
    return old if old is not None else _zero_bias(graph, op, weight_of(graph, op), f"{op.name}/bias")


def _zero_bias(graph: Graph, op: Op, w: Tensor, name: str) -> Tensor:
    x = graph.tensors[op.inputs[0]]
    assert x.quant is not None and w.quant is not None
    scale = tuple(float(np.float32(x.quant.scale[0] * s)) for s in w.quant.scale)
    channels = w.shape[0] if isinstance(op.kind, Conv2D | Linear) else w.shape[-1]
    return Tensor(name, (channels,), np.dtype(np.int32), Quant(scale), np.zeros(channels, np.int32))


def _with_weight(graph: Graph, layer: str, tensor: Tensor) -> Graph:
    return with_operand(graph, layer, 1, tensor)


def _with_bias(graph: Graph, layer: str, tensor: Tensor) -> Graph:
    return with_operand(graph, layer, 2, tensor)


def with_operand(graph: Graph, layer: str, slot: int, tensor: Tensor) -> Graph:
    """Put a tensor into a slot of a layer: in the place of the old one, or behind all where there is none or another op reads it too."""
    op = next(op for op in graph.ops if op.name == layer)
    old = op.inputs[slot] if slot < len(op.inputs) else None
    if old is not None and sum(other.inputs.count(old) for other in graph.ops) == 1:
        return _with_tensor(graph, old, tensor)
    new = replace(op, inputs=(*op.inputs[:slot], len(graph.tensors), *op.inputs[slot + 1 :]))
    ops = tuple(new if o is op else o for o in graph.ops)
    return replace(graph, tensors=(*graph.tensors, tensor), ops=ops)


def _with_tensor(graph: Graph, index: int, tensor: Tensor) -> Graph:
    return replace(graph, tensors=tuple(tensor if i == index else t for i, t in enumerate(graph.tensors)))


def replace_head(graph: Graph, classes: int) -> Graph:
    """The same graph with a fresh last layer of ``classes`` outputs: zero weights, zero bias, the old output quantization, no clamp.

    The one weight scale is the median of the old classifier's. The last layer must be linear, or a 1x1 convolution on one pixel, and only
    reshape, softmax, logistic and dequantize may follow it; their shapes are adapted, and a logistic becomes a softmax: it answered yes or
    no, and now there are classes. Raises UsageError for a number of classes that cannot be meant, ModelError for a model whose last layer
    is no classifier.
    """
    if not MIN_CLASSES <= classes <= MAX_CLASSES:
        raise UsageError(f"{classes} classes, the range is {MIN_CLASSES} to {MAX_CLASSES:,}", "count the labels of your data")
    head = _head(graph)
    w = weight_of(graph, head)
    assert w.quant is not None
    scale = statistics.median([s for s in w.quant.scale if s > 0] or [1.0])
    shape = (classes, *w.shape[1:])
    fresh = replace(w, shape=shape, quant=Quant((float(np.float32(scale)),)), data=np.zeros(shape, np.int8))
    old_bias = bias_of(graph, head)
    bias = _zero_bias(graph, head, fresh, old_bias.name if old_bias else f"{head.name}/bias")
    graph = _resized_outputs(graph, head, w.shape[0], classes)
    graph = _with_bias(_with_weight(graph, head.name, fresh), head.name, bias)
    at = next(i for i, op in enumerate(graph.ops) if op.name == head.name)
    return replace(graph, ops=(*graph.ops[:at], *(_head_op(op) for op in graph.ops[at:])))


def _head_op(op: Op) -> Op:
    """From the head on: the head without its clamp, a logistic as a softmax, which has the same output quantization."""
    if isinstance(op.kind, Linear | Conv2D):
        return replace(op, kind=replace(op.kind, activation=Activation.NONE))
    return replace(op, kind=Softmax(1.0), name="softmax_0") if _answers(op.kind) else op


def _head(graph: Graph) -> Op:
    """The last layer, if it is a classifier."""
    hint = "use a model that ends in a fully connected layer or a 1x1 convolution on one pixel"
    if not graph.layers:
        raise ModelError("the model has no layer with weights", hint)
    head = graph.layers[-1]
    w, y = weight_of(graph, head), graph.tensors[head.outputs[0]]
    pointwise = isinstance(head.kind, Conv2D) and w.shape[1:3] == (1, 1) and graph.tensors[head.inputs[0]].shape[1:3] == (1, 1)
    if not (isinstance(head.kind, Linear) or pointwise) or y.size != w.shape[0]:
        raise ModelError(f"the last layer, {head.name} with output shape {y.shape}, is no classifier", hint)
    for op in graph.ops[graph.ops.index(head) + 1 :]:
        if not (isinstance(op.kind, Reshape | Softmax | Dequantize) or _answers(op.kind)):
            raise ModelError(f"{op.name} follows the last layer {head.name}, which is therefore no classifier", hint)
    return head


def _answers(kind: OpKind) -> bool:
    """Whether an op makes a probability of one logit."""
    return isinstance(kind, Unary) and kind.function is Function.LOGISTIC


def _resized_outputs(graph: Graph, head: Op, old: int, new: int) -> Graph:
    """Change the last size of the head's output, and of all that is computed from it, from ``old`` to ``new``."""
    for op in graph.ops[graph.ops.index(head) :]:
        y = graph.tensors[op.outputs[0]]
        if y.shape[-1] != old:
            raise ModelError(f"{op.name} makes shape {y.shape} of {old} classes: the classes must stay the last size", "export without it")
        graph = _with_tensor(graph, op.outputs[0], replace(y, shape=(*y.shape[:-1], new)))
    return graph
