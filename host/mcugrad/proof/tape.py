"""Float gradients at the point where an integer step stood: the yardstick of the integer gradients.

The forward activations are those of the integer step; only the backward pass is in real numbers, by the rules of autodiff/rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mcugrad.autodiff.differentiate import LOSS_ERROR, Loss, MakeError, TrainGraph, UpdateBias, UpdateWeights, is_vector_layer
from mcugrad.autodiff.rules import RULES, Array, resize_error
from mcugrad.graph import AvgPool, Conv2D, DwConv2D, Graph, Linear, MaxPool, Mean, Op, ResizeNearest, Unary
from mcugrad.lower import quant
from mcugrad.lower.backward import activation_bounds, clamp_bounds
from mcugrad.lower.lut import ACTIVATION
from mcugrad.lower.weights import read_layer

Gradients = dict[tuple[str, str], Array]
"""(layer name, "w" or "b") -> gradient of the loss in real units. w as (O, R, S, I) or, depthwise, (O, R, S, 1)."""


Activations = Mapping[int, npt.NDArray[np.int8]]
"""Graph tensor -> its int8 values in one step."""


def loss_error(train: TrainGraph, output: Array, truth: int | npt.NDArray[np.int8]) -> Array:
    """dL/d(output) in real units. ``output``: the logits, or what a regression compares; ``truth``: a label, or the int8 target."""
    if train.loss is Loss.XENT:
        assert isinstance(truth, int)
        return softmax_error(output, truth)
    if train.loss is Loss.BCE:
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * output)) - float(bool(truth)))
    quant_y = train.graph.tensors[train.graph.output].quant
    assert quant_y is not None
    wanted = quant_y.scale[0] * (np.asarray(truth, np.float64).reshape(output.shape) - quant_y.zero_point)
    return np.asarray(2.0 * (output - wanted) / output.size)


def softmax_error(logits: Array, label: int) -> Array:
    """dL/dlogits of softmax cross-entropy, (C,)."""
    e = np.exp(logits - logits.max())
    p = np.asarray(e / e.sum(), np.float64)
    p[label] -= 1.0
    return p


def float_gradients(train: TrainGraph, activations: Activations, head_error: Array) -> Gradients:
    """Gradients of everything the scheme trains.

    ``train.graph`` holds the weights of that step; ``activations``: tensor -> int8 values; ``head_error``:
    dL/d(logits, or output) in real units.
    """
    graph = train.graph
    errors: dict[int, Array] = {LOSS_ERROR: head_error.reshape(graph.tensors[train.loss_tensor].shape)}
    found: Gradients = {}
    for step in train.backward:
        dy = errors[step.dy]
        match step:
            case MakeError():
                errors[step.out] = _masked(graph, step, _error(graph, step, activations, dy, errors), activations)
            case UpdateWeights(op=op):
                found[op.name, "w"] = _weight_gradient(graph, op, activations, dy)
            case UpdateBias(op=op):
                found[op.name, "b"] = dy.reshape(-1, dy.shape[-1]).sum(axis=0)
    return found


def _real(graph: Graph, op: Op, k: int, activations: Activations) -> Array:
    """Input ``k`` of an op in real units, in the shape that the op's rule reads."""
    t = graph.read(op, k)
    assert t.quant is not None
    codes = activations[op.inputs[k]] if t.data is None else np.asarray(t.data)
    real = t.quant.scale[0] * (codes.astype(np.float64) - t.quant.zero_point)
    if op in graph.layers and is_vector_layer(graph, op):
        return real.reshape(-1, graph.tensors[op.inputs[1]].shape[-1])
    return real.reshape(_rule_shape(op, t.shape))


def _rule_shape(op: Op, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Windows see a map without the batch."""
    return shape[-3:] if isinstance(op.kind, Conv2D | DwConv2D | AvgPool | MaxPool | Mean | ResizeNearest) else shape


def _inputs(graph: Graph, op: Op, activations: Activations) -> tuple[Array, ...]:
    if op in graph.layers:
        return _real(graph, op, 0, activations), _weights(graph, op)
    return tuple(_real(graph, op, k, activations) for k in range(len(op.inputs)))


def _weights(graph: Graph, op: Op) -> Array:
    """Real weights in the graph's layout, or (O, I) for a layer that is a matrix times a vector."""
    layer = read_layer(graph, op)
    w = layer.w * layer.w_scale[:, None, None, None]
    if is_vector_layer(graph, op):
        return w[:, 0, 0, :]
    return w[..., 0].transpose(1, 2, 0)[None] if layer.depthwise else w


def _error(graph: Graph, step: MakeError, activations: Activations, dy: Array, errors: Mapping[int, Array]) -> Array:
    shape = graph.tensors[step.tensor].shape
    dx = dy if step.op is None else _through(graph, step.op, step.k, activations, dy)
    dx = dx.reshape(shape)
    return dx if step.skip is None else dx + errors[step.skip].reshape(shape)


def _through(graph: Graph, op: Op, k: int, activations: Activations, dy: Array) -> Array:
    """The error of input ``k`` of an op."""
    out = graph.tensors[op.outputs[0]].shape
    inputs = _inputs(graph, op, activations)
    if isinstance(op.kind, ResizeNearest):
        flags = {"align_corners": op.kind.align_corners, "half_pixel_centers": op.kind.half_pixel_centers}
        rows, cols = (quant.resize_rows(inputs[0].shape[a], out[1 + a], **flags) for a in (0, 1))
        return resize_error(inputs[0], dy.reshape(out[-3:]), rows, cols)
    if op in graph.layers and is_vector_layer(graph, op):
        return RULES[Linear].error(op.kind, inputs, dy.reshape(-1, out[-1]), 0)
    if isinstance(op.kind, Unary) and op.kind.function in ACTIVATION:
        lo, hi = activation_bounds(ACTIVATION[op.kind.function], graph.tensors[op.outputs[0]])
        y = activations[op.outputs[0]].reshape(out)
        dy = np.where((lo < y) & (y < hi), dy.reshape(out), 0.0)
    return RULES[type(op.kind)].error(op.kind, inputs, dy.reshape(_rule_shape(op, out)), k)


def _masked(graph: Graph, step: MakeError, dx: Array, activations: Activations) -> Array:
    if not step.masked:
        return dx
    lo, hi = clamp_bounds(graph, step.tensor)
    q = activations[step.tensor].reshape(dx.shape)
    return np.where((lo < q) & (q < hi), dx, 0.0)


def _weight_gradient(graph: Graph, op: Op, activations: Activations, dy: Array) -> Array:
    x, w = _inputs(graph, op, activations)
    out = graph.tensors[op.outputs[0]].shape
    if is_vector_layer(graph, op):
        rule = RULES[Linear]
        assert rule.weight is not None
        return rule.weight(op.kind, (x, w), dy.reshape(-1, out[-1]))[:, None, None, :]
    rule = RULES[type(op.kind)]
    assert rule.weight is not None
    dw = rule.weight(op.kind, (x, w), dy.reshape(out[-3:]))
    return dw[0].transpose(2, 0, 1)[..., None] if read_layer(graph, op).depthwise else dw
