"""From the bytes of STATE back to the weights of a graph."""

from __future__ import annotations

import numpy as np

from mcugrad.errors import PlanError
from mcugrad.graph import DwConv2D, Graph
from mcugrad.graph.edit import Bias, Weights, with_weights
from mcugrad.lower.program import Program, TrainedLayer, Value
from mcugrad.lower.weights import bias_values, read_layer, trained_values
from mcugrad.memory.planner import Layout
from mcugrad.plan import Region


def apply_state(graph: Graph, program: Program, layout: Layout, state: bytes) -> Graph:
    """The graph of the plan with the trained values of a STATE in place. (The model: ``Compiled.trained_model``.)

    ``graph`` may be the model where its channels were not reordered. Raises PlanError where STATE has another size than the plan's.
    """
    return with_weights(graph, trained_weights(graph, program, layout, state))


def trained_weights(graph: Graph, program: Program, layout: Layout, state: bytes) -> dict[str, tuple[Weights, Bias | None]]:
    """Layer -> (weights in the graph's layout, bias or None where it is not trained) of the layers that are trained.

    Dead channels, which lowering may have folded, keep what the graph has. Raises PlanError where STATE has another size than the plan's.
    """
    if len(state) != layout.sizes[Region.STATE]:
        raise PlanError(f"STATE has {len(state)} bytes, the plan's has {layout.sizes[Region.STATE]}", "this checkpoint is of another plan")
    return {t.name: _layer_values(graph, t, layout, state) for t in program.trained}


def _layer_values(graph: Graph, trained: TrainedLayer, layout: Layout, state: bytes) -> tuple[Weights, Bias | None]:
    op = graph.layers[trained.layer]
    layer = read_layer(graph, op)
    w, alive = layer.w.copy(), ~layer.dead
    if trained.weights is not None:
        part = w[: trained.channels] if layer.depthwise else w[..., : trained.channels]
        values = trained_values(_bytes(trained.weights, layout, state), trained.ws).reshape(part.shape)
        keep = alive[: len(part)]
        part[keep] = values[keep]
    bias = None
    if trained.bias is not None:
        values_b = bias_values(_bytes(trained.bias, layout, state), trained.bf)
        bias = np.where(alive, values_b, layer.b).astype(np.int32)
    if isinstance(op.kind, DwConv2D):
        w = w[..., 0].transpose(1, 2, 0)[None]
    return w.reshape(graph.tensors[op.inputs[1]].shape), bias


def unchanged_weights(graph: Graph, program: Program, layout: Layout, before: bytes, after: bytes) -> dict[str, tuple[int, int]]:
    """Layer -> (weights that are the same in two STATEs to the last bit, weights), of the layers whose weights are trained.

    Dead channels, which are never updated, do not count.
    """
    found = {}
    for trained in program.trained:
        if trained.weights is None:
            continue
        layer = read_layer(graph, graph.layers[trained.layer])
        alive = ~layer.dead[: trained.channels] if layer.depthwise else ~layer.dead
        codes = (np.frombuffer(_bytes(trained.weights, layout, s), f"<i{trained.ws}") for s in (before, after))
        old, new = (c.reshape(len(alive), -1)[alive] for c in codes)
        found[trained.name] = int((old == new).sum()), old.size
    return found


def _bytes(value: Value, layout: Layout, state: bytes) -> bytes:
    offset = layout.offsets[value]
    return state[offset : offset + value.nbytes]
