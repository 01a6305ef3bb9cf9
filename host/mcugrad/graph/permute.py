"""Graph -> Graph: the same function with its channels in another order, so that the ones to train stand first.

Tensors that an op ties channel by channel (a sum, a depthwise convolution, a pool) form a class and share one order. A convolution and a
fully connected layer mix their channels, so a new class begins behind them. A class is fixed where its order can be seen: at an input or an
output of the model, or by an op that depends on it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mcugrad.graph.edit import Bias, Weights, bias_of, weight_of, with_operand
from mcugrad.graph.types import (
    Add,
    Conv2D,
    DwConv2D,
    Graph,
    Linear,
    MinMax,
    Mul,
    Op,
    Quant,
    Softmax,
    Sub,
    Tensor,
    Transpose,
)

Order = tuple[int, ...]
"""Channel k of the new order is channel order[k] of the old."""


class Channels(enum.Enum):
    """Which channels of a layer a share trains: the first of the model, or those whose weights have the largest norm."""

    FIRST = "first"
    NORM = "norm"


@dataclass(frozen=True, slots=True)
class LayerOrder:
    """How a layer's weights were reordered: along their last axis, and along ``axis``, that of the outputs; None: as they were.

    A depthwise layer has no inputs of its own, its last axis is that of the outputs.
    """

    inputs: Order | None
    outputs: Order | None
    axis: int

    def inverse(self) -> LayerOrder:
        """The way back."""
        inputs, outputs = (None if o is None else tuple(map(int, np.argsort(o))) for o in (self.inputs, self.outputs))
        return LayerOrder(inputs, outputs, self.axis)

    def weights(self, w: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A layer's weights in this order."""
        return _taken(_taken(w, -1, self.inputs), self.axis, self.outputs)

    def bias(self, b: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A layer's bias in this order."""
        return _taken(b, 0, self.outputs)


ChannelOrder = Mapping[str, LayerOrder]
"""Layer name -> its order. A layer that is not in it stands as in the model."""


@dataclass(frozen=True, slots=True)
class ChannelClasses:
    """``of``: graph tensor -> the number of its class. ``fixed``: class -> why it cannot be reordered, as the end of a sentence."""

    of: tuple[int, ...]
    fixed: Mapping[int, str]

    def why_fixed(self, tensor: int) -> str | None:
        """Why the channels of this tensor cannot be reordered; None where they can."""
        return self.fixed.get(self.of[tensor])


def order_by_norm(graph: Graph, slices: Mapping[int, int]) -> tuple[Graph, ChannelOrder]:
    """Bring the channels with the largest weights of every layer in ``slices`` to the front; the graph computes the same, bit for bit.

    ``graph`` is normalized. ``slices``: layer number -> how many of its channels are trained. The norm of a channel is the L2 norm of the
    layer's weights that read it, in real units (depthwise: of its own weights). Layers that read one class add their norms, each divided
    by its sum; equal channels keep their order. A layer whose class is fixed trains its first channels, and the graph gets a note of it.
    """
    classes = channel_classes(graph)
    scores: dict[int, npt.NDArray[np.float64]] = {}
    notes: list[str] = []
    for layer, count in sorted(slices.items()):
        op = graph.layers[layer]
        tensor = op.outputs[0] if isinstance(op.kind, DwConv2D) else op.inputs[0]
        why = classes.why_fixed(tensor) or _spans_positions(graph, op)
        if why is None:
            share = _shares(channel_norms(graph, op))
            before = scores.get(classes.of[tensor])
            scores[classes.of[tensor]] = share if before is None else before + share
        else:
            name = graph.tensors[tensor].name
            notes.append(f"{op.name} trains its first {count} channels: those of {name} cannot be reordered, {why}")
    orders = {c: tuple(map(int, np.argsort(-score, kind="stable"))) for c, score in scores.items()}
    permuted, order = permute(graph, classes, orders)
    return replace(permuted, notes=(*permuted.notes, *notes)), order


def _spans_positions(graph: Graph, op: Op) -> str | None:
    """A fully connected layer on a flattened map: its inputs are positions times channels, and a slice of them is no set of channels."""
    if isinstance(op.kind, Linear) and weight_of(graph, op).shape[1] != graph.tensors[op.inputs[0]].shape[-1]:
        return f"{op.name} reads them flattened"
    return None


def channel_norms(graph: Graph, op: Op) -> npt.NDArray[np.float64]:
    """L2 norm of a layer's real weights for each input channel, of a depthwise layer for each channel.

    Sums are rounded once, so that every machine finds the same order.
    """
    w = weight_of(graph, op)
    assert w.data is not None and w.quant is not None
    codes = np.asarray(w.data, np.float64)
    if isinstance(op.kind, DwConv2D):
        scale = np.broadcast_to(np.asarray(w.quant.scale), (w.shape[-1],))
        return np.asarray(scale * np.sqrt((codes**2).sum(axis=(0, 1, 2))))
    squares = (codes**2).reshape(w.shape[0], -1, w.shape[-1]).sum(axis=1)
    terms = squares * np.square(np.broadcast_to(np.asarray(w.quant.scale), (w.shape[0],)))[:, None]
    return np.sqrt([math.fsum(column) for column in terms.T])


def _shares(norms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    total = math.fsum(norms)
    return norms / total if total else norms


# ---- classes ----------------------------------------------------------------------------------------------------------


class _Union:
    """Union-find over tensors, with the reason that fixes a class."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.parent = list(range(len(graph.tensors)))
        self.fixed: dict[int, str] = {}

    def find(self, tensor: int) -> int:
        while self.parent[tensor] != tensor:
            self.parent[tensor] = self.parent[self.parent[tensor]]
            tensor = self.parent[tensor]
        return tensor

    def join(self, a: int, b: int) -> None:
        """One class; where both are fixed, the reason of the first."""
        a, b = self.find(a), self.find(b)
        self.parent[b] = a
        if a != b and b in self.fixed:
            self.fixed.setdefault(a, self.fixed.pop(b))

    def fix(self, tensor: int, why: str) -> None:
        self.fixed.setdefault(self.find(tensor), why)

    def width(self, tensor: int) -> tuple[int, ...]:
        """The last dimension; () of a scalar."""
        return self.graph.tensors[tensor].shape[-1:]


def channel_classes(graph: Graph) -> ChannelClasses:
    """Which tensors of a normalized graph share one order of their channels, and which orders are fixed."""
    union = _Union(graph)
    for index in graph.inputs:
        union.fix(index, "they are an input of the model")
    for index in graph.outputs:
        union.fix(index, "they are an output of the model")
    for op in graph.layers:
        for index in op.inputs[1:]:
            union.fix(index, f"they are a parameter of {op.name}")
    for op in graph.ops:
        _tie(union, op)
    return ChannelClasses(tuple(union.find(k) for k in range(len(graph.tensors))), union.fixed)


def _tie(union: _Union, op: Op) -> None:
    """What an op demands of the orders of its inputs and its output."""
    graph, x = union.graph, op.inputs[0]
    match op.kind:
        case Linear():
            width = union.width(x)
            _require(union, op, x, fits=width != () and weight_of(graph, op).shape[1] % width[0] == 0)
        case Conv2D(groups=1):
            _require(union, op, x, fits=union.width(x) == graph.read(op).shape[-1:])
        case DwConv2D(multiplier=m) if m > 1 and graph.read(op).shape[-1] == 1:
            _require(union, op, x, fits=union.width(x) == (1,))
        case DwConv2D(multiplier=1):
            _tie_input(union, op, 0)
        case Conv2D() | DwConv2D() | Softmax():
            for index in (x, op.outputs[0]):
                _require(union, op, index, fits=False)
        case _:
            for k in range(len(op.inputs)):
                _tie_input(union, op, k)


def _tie_input(union: _Union, op: Op, k: int) -> None:
    """Input ``k`` and the output have one order, but for an operand that is spread along the channels."""
    tensor, read, y = op.inputs[k], union.graph.read(op, k).shape[-1:], op.outputs[0]
    spread = isinstance(op.kind, Add | Sub | Mul | MinMax) and read in ((), (1,)) and union.width(y) != read
    wanted = read if spread else union.width(y)
    turned = isinstance(op.kind, Transpose) and op.kind.perm[-1] != len(op.kind.perm) - 1
    _require(union, op, tensor, fits=union.width(tensor) == read == wanted and not turned)
    if not spread:
        union.join(tensor, y)


def _require(union: _Union, op: Op, tensor: int, *, fits: bool) -> None:
    if not fits:
        union.fix(tensor, f"{op.name} depends on their order")


# ---- the new order ----------------------------------------------------------------------------------------------------


def permute(graph: Graph, classes: ChannelClasses, orders: Mapping[int, Order]) -> tuple[Graph, ChannelOrder]:
    """Reorder the channels of whole classes (class -> order): weights, biases, scales and constants.

    Returns the graph, which computes the same, and the order of every layer that has changed. Orders of fixed classes are a defect.
    """
    moved = {c: order for c, order in orders.items() if order != tuple(range(len(order)))}
    assert not moved.keys() & classes.fixed.keys()
    tensors = tuple(_constant(t, moved.get(classes.of[k])) for k, t in enumerate(graph.tensors))
    found: dict[str, LayerOrder] = {}
    result = replace(graph, tensors=tensors)
    for op in graph.layers:
        x, y = (moved.get(classes.of[k]) for k in (op.inputs[0], op.outputs[0]))
        depthwise, rank = isinstance(op.kind, DwConv2D), len(weight_of(graph, op).shape)
        inputs = None if x is None or depthwise else _repeated(x, weight_of(graph, op).shape[-1])
        if inputs is not None or y is not None:
            found[op.name] = LayerOrder(inputs, y, rank - 1 if depthwise else 0)
            result = _with_order(result, op, found[op.name])
    return result, found


def _constant(tensor: Tensor, order: Order | None) -> Tensor:
    """An operand of a sum, a product or a Prelu, its channels in the new order."""
    if tensor.data is None or order is None:
        return tensor
    data = tensor.data.reshape(-1, len(order))[:, order].reshape(tensor.shape)
    return replace(tensor, data=data)


def _repeated(order: Order, inputs: int) -> Order:
    """The order of a layer's inputs: the channels, once for each position of a flattened map."""
    n = len(order)
    return tuple(start + k for start in range(0, inputs, n) for k in order)


def _with_order(graph: Graph, op: Op, order: LayerOrder) -> Graph:
    """The graph with one layer's parameters in their new order."""
    w, b = weight_of(graph, op), bias_of(graph, op)
    assert w.data is not None
    graph = with_operand(graph, op.name, 1, replace(w, quant=_quant(w.quant, order.outputs), data=order.weights(w.data)))
    if b is None:
        return graph
    assert b.data is not None
    return with_operand(graph, op.name, 2, replace(b, quant=_quant(b.quant, order.outputs), data=order.bias(b.data)))


def _quant(quant: Quant | None, order: Order | None) -> Quant | None:
    """The scales in the order of their outputs, where there is one for each."""
    if quant is None or order is None or not quant.per_channel:
        return quant
    return replace(quant, scale=tuple(quant.scale[k] for k in order))


def _taken(data: npt.NDArray[Any], axis: int, order: Order | None) -> npt.NDArray[Any]:
    return data if order is None else np.ascontiguousarray(data.take(order, axis))


def in_model_order(order: ChannelOrder, values: Mapping[str, tuple[Weights, Bias | None]]) -> dict[str, tuple[Weights, Bias | None]]:
    """Layer -> (weights, bias) of a reordered graph, back in the order of the model."""
    found = {}
    for name, (w, b) in values.items():
        back = order[name].inverse() if name in order else LayerOrder(None, None, 0)
        found[name] = back.weights(w), None if b is None else back.bias(b)
    return found
