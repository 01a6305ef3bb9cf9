"""Float gradients at the point where an integer step stood: the yardstick of the integer gradients.

The forward activations are those of the integer step; only the backward pass is in real numbers, by the rules of autodiff/rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mcugrad.autodiff.differentiate import LOSS_ERROR, MakeError, TrainGraph, UpdateBias, UpdateWeights, is_vector_layer
from mcugrad.autodiff.rules import RULES, Array
from mcugrad.graph import Graph, Linear, Op
from mcugrad.lower.lower import clamp_bounds
from mcugrad.lower.weights import read_layer

Gradients = dict[tuple[str, str], Array]
"""(layer name, "w" or "b") -> gradient of the loss in real units. w as (O, R, S, I) or, depthwise, (O, R, S, 1)."""


def softmax_error(logits: Array, label: int) -> Array:
    """dL/dlogits of softmax cross-entropy, (C,)."""
    e = np.exp(logits - logits.max())
    p = np.asarray(e / e.sum(), np.float64)
    p[label] -= 1.0
    return p


def float_gradients(train: TrainGraph, activations: Mapping[int, npt.NDArray[np.int8]], head_error: Array) -> Gradients:
    """Gradients of everything the scheme trains.

    ``train.graph`` holds the weights of that step; ``activations``: tensor -> int8 values; ``head_error``: dL/dlogits in real units.
    """
    graph = train.graph
    errors: dict[int, Array] = {LOSS_ERROR: head_error}
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


def _real(graph: Graph, tensor: int, activations: Mapping[int, npt.NDArray[np.int8]], op: Op) -> Array:
    """An activation in real units, in the shape that the op's rule reads."""
    t = graph.tensors[tensor]
    assert t.quant is not None
    real = t.quant.scale[0] * (activations[tensor].astype(np.float64) - t.quant.zero_point)
    if len(op.inputs) > 1 and is_vector_layer(graph, op):
        return real.reshape(-1, graph.tensors[op.inputs[1]].shape[-1])
    return real.reshape(graph.first_input(op).shape[-3:])


def _weights(graph: Graph, op: Op) -> Array:
    """Real weights in the graph's layout, or (O, I) for a layer that is a matrix times a vector."""
    layer = read_layer(graph, op)
    w = layer.w * layer.w_scale[:, None, None, None]
    if is_vector_layer(graph, op):
        return w[:, 0, 0, :]
    return w[..., 0].transpose(1, 2, 0)[None] if layer.depthwise else w


def _error(graph: Graph, step: MakeError, activations: Mapping[int, npt.NDArray[np.int8]], dy: Array, errors: Mapping[int, Array]) -> Array:
    shape = graph.tensors[step.tensor].shape
    dx = dy
    if step.op is not None:
        op = step.op
        vector = is_vector_layer(graph, op) if len(op.inputs) > 1 else False
        rule = RULES[Linear if vector else type(op.kind)]
        inputs = (_real(graph, step.tensor, activations, op),) + ((_weights(graph, op),) if len(op.inputs) > 1 else ())
        out = graph.tensors[op.outputs[0]].shape
        dx = rule.error(op.kind, inputs, dy.reshape((-1, out[-1]) if vector else out[-3:]), 0)
    dx = dx.reshape(shape)
    return dx if step.skip is None else dx + errors[step.skip].reshape(shape)


def _masked(graph: Graph, step: MakeError, dx: Array, activations: Mapping[int, npt.NDArray[np.int8]]) -> Array:
    if not step.masked:
        return dx
    lo, hi = clamp_bounds(graph, step.tensor)
    q = activations[step.tensor].reshape(dx.shape)
    return np.where((lo < q) & (q < hi), dx, 0.0)


def _weight_gradient(graph: Graph, op: Op, activations: Mapping[int, npt.NDArray[np.int8]], dy: Array) -> Array:
    x, w = _real(graph, op.inputs[0], activations, op), _weights(graph, op)
    out = graph.tensors[op.outputs[0]].shape
    if is_vector_layer(graph, op):
        rule = RULES[Linear]
        assert rule.weight is not None
        return rule.weight(op.kind, (x, w), dy.reshape(-1, out[-1]))[:, None, None, :]
    rule = RULES[type(op.kind)]
    assert rule.weight is not None
    dw = rule.weight(op.kind, (x, w), dy.reshape(out[-3:]))
    return dw[0].transpose(2, 0, 1)[..., None] if read_layer(graph, op).depthwise else dw
