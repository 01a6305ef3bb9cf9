"""A float graph with its quantizations decided -> the int8 graph: codes in place of numbers, names and indices in order again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from mcugrad.errors import ModelError
from mcugrad.graph import Dequantize, DwConv2D, Graph, Linear, Op, Pad, Quant, Quantize, Tensor
from mcugrad.importer.names import Namer
from mcugrad.quantize.codes import LayerCodes, layer_codes, to_codes
from mcugrad.quantize.run_float import LAYERS
from mcugrad.quantize.share import Sharing

INT8, INT32 = np.dtype(np.int8), np.dtype(np.int32)


@dataclass(slots=True)
class _State:
    """Tensors so far; layer name -> channels, for the notes."""

    tensors: list[Tensor]
    per_channel_linear: bool
    widened: dict[str, int] = field(default_factory=dict)
    zero: dict[str, int] = field(default_factory=dict)

    def add(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def notes(self) -> tuple[str, ...]:
        texts = (
            (self.widened, "weight scales are larger than the weights need, so that the bias fits into int32"),
            (self.zero, "channels have only zero weights, they take the largest scale of their layer"),
        )
        return tuple(f"{sum(by.values())} {text}: {', '.join(by)}" for by, text in texts if by)


def parameters(graph: Graph) -> set[int]:
    """The weights and biases that only layers read."""
    layers = [op for op in graph.ops if isinstance(op.kind, LAYERS)]
    others = {i for op in graph.ops for i in (op.inputs[:1] if isinstance(op.kind, LAYERS) else op.inputs)}
    return {i for op in layers for i in op.inputs[1:]} - others


def rewrite(shared: Sharing, quants: Mapping[int, Quant], *, per_channel_linear: bool) -> tuple[Graph, tuple[str, ...]]:
    """The int8 graph, and notes. ``quants``: group -> quantization. The float parameters stay behind among the tensors, unused."""
    graph = shared.graph
    of_layers = parameters(graph)
    state = _State(
        [t if i in of_layers else _activation(t, quants[g]) for i, (t, g) in enumerate(zip(graph.tensors, shared.group, strict=True))],
        per_channel_linear,
    )
    ops = tuple(_op(graph, op, state) for op in graph.ops)
    return replace(graph, tensors=tuple(state.tensors), ops=ops), state.notes()


def _activation(t: Tensor, quant: Quant) -> Tensor:
    data = None if t.data is None else to_codes(t.data.astype(np.float64), quant)
    return replace(t, dtype=INT8, quant=quant, data=data)


def _op(graph: Graph, op: Op, state: _State) -> Op:
    x = state.tensors[op.inputs[0]].quant
    assert x is not None
    if isinstance(op.kind, Pad):
        return replace(op, kind=replace(op.kind, value=x.zero_point))
    if not isinstance(op.kind, LAYERS):
        return op
    w, b = graph.tensors[op.inputs[1]], graph.tensors[op.inputs[2]] if len(op.inputs) > 2 else None
    if w.data is None or (b is not None and b.data is None):
        raise ModelError(f"{op.name} has weights that are computed, not constant", "export a model with fixed weights")
    axis = 3 if isinstance(op.kind, DwConv2D) else 0
    channels = 1 if isinstance(op.kind, Linear) and not state.per_channel_linear else w.shape[axis]
    bias = None if b is None or b.data is None else b.data.astype(np.float64).reshape(-1)
    codes = layer_codes(w.data.astype(np.float64), bias, x.scale[0], axis, channels)
    for counts, number in ((state.widened, codes.widened), (state.zero, codes.zero)):
        if number:
            counts[op.name] = number
    return replace(op, inputs=(op.inputs[0], *_layer_tensors(state, w, b, codes, axis)))


def _layer_tensors(state: _State, w: Tensor, b: Tensor | None, codes: LayerCodes, axis: int) -> tuple[int, ...]:
    """A layer has its own copies: a bias means something else behind another input scale."""
    scale = tuple(float(s) for s in codes.scale)
    found = [state.add(replace(w, dtype=INT8, quant=Quant(scale, 0, axis if len(scale) > 1 else 0), data=codes.w))]
    if b is not None and codes.b is not None:
        quant = Quant(tuple(float(s) for s in codes.bias_scale))
        found.append(state.add(replace(b, shape=codes.b.shape, dtype=INT32, quant=quant, data=codes.b)))
    return tuple(found)


def with_float_border(graph: Graph) -> Graph:
    """float32 inputs and outputs behind QUANTIZE and DEQUANTIZE; they keep the names, the int8 tensors get a suffix."""
    tensors, ops = list(graph.tensors), list(graph.ops)
    border: dict[int, int] = {}
    for i in dict.fromkeys((*graph.inputs, *graph.outputs)):
        t = tensors[i]
        border[i] = len(tensors)
        tensors.append(Tensor(t.name, t.shape, np.dtype(np.float32)))
        tensors[i] = replace(t, name=f"{t.name}/int8")
    front = [Op("quantize", Quantize(), (border[i],), (i,)) for i in graph.inputs]
    back = [Op("dequantize", Dequantize(), (i,), (border[i],)) for i in graph.outputs]
    inputs, outputs = (tuple(border[i] for i in ends) for ends in (graph.inputs, graph.outputs))
    return replace(graph, tensors=tuple(tensors), ops=(*front, *ops, *back), inputs=inputs, outputs=outputs)


def renumbered(graph: Graph) -> Graph:
    """Without tensors that nothing reads or writes; those left in the order in which the ops meet them; ops named by kind and counter."""
    order = dict.fromkeys((*graph.inputs, *(i for op in graph.ops for i in (*op.inputs, *op.outputs)), *graph.outputs))
    new = {old: i for i, old in enumerate(order)}
    namer = Namer()
    ops = []
    for op in graph.ops:
        inputs, outputs = (tuple(new[i] for i in ends) for ends in (op.inputs, op.outputs))
        ops.append(Op(namer.name(op.kind), op.kind, inputs, outputs))
    inputs, outputs = (tuple(new[i] for i in ends) for ends in (graph.inputs, graph.outputs))
    return replace(graph, tensors=tuple(graph.tensors[i] for i in order), ops=tuple(ops), inputs=inputs, outputs=outputs)
