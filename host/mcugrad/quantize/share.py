"""Which tensors of a float graph get one quantization, and which get a prescribed one.

Ops that move or choose values keep the quantization of their input. Where a softmax's, logistic's or tanh's prescribed output meets
another quantization in a concatenation or a minimum, a requantization is put between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mcugrad.graph import (
    Activation,
    AvgPool,
    Concat,
    Function,
    Graph,
    MaxPool,
    MinMax,
    Op,
    Pad,
    Quant,
    Reshape,
    ResizeNearest,
    Slice,
    Softmax,
    Tensor,
    Transpose,
    Unary,
)
from mcugrad.quantize.run_float import FUSING

KEEPING = (Reshape, MaxPool, AvgPool, Pad, Slice, Transpose, ResizeNearest)
"""One input, and the output has its quantization."""

CLAMPS = (Function.RELU6, Function.RELU_N1_1)
"""As ops of their own these too: TensorFlow Lite Micro clamps the codes of a RELU6 and does not rescale them."""

JOINING = (Concat, MinMax)
"""All inputs and the output have one quantization."""

UNIT = Quant((1 / 256,), -128)
SIGNED_UNIT = Quant((1 / 128,), 0)

_FUSED: Mapping[Function, Activation] = {
    Function.RELU: Activation.RELU,
    Function.RELU6: Activation.RELU6,
    Function.RELU_N1_1: Activation.RELU_N1_1,
}


@dataclass(frozen=True, slots=True)
class Sharing:
    """``group[i]`` is the group of tensor i; ``prescribed`` the quantization of the groups that have no choice."""

    graph: Graph
    group: tuple[int, ...]
    prescribed: Mapping[int, Quant]


def fuse_activations(graph: Graph) -> Graph:
    """Take a RELU, RELU6 or RELU_N1_1 that alone reads the output of an op without activation into that op."""
    readers = [i for op in graph.ops for i in op.inputs] + list(graph.outputs)
    makers = {op.outputs[0]: k for k, op in enumerate(graph.ops)}
    ops: list[Op | None] = list(graph.ops)
    for k, op in enumerate(graph.ops):
        if not isinstance(op.kind, Unary) or op.kind.function not in _FUSED:
            continue
        x = op.inputs[0]
        maker = ops[makers[x]] if x in makers and readers.count(x) == 1 else None
        if maker is not None and isinstance(maker.kind, FUSING) and maker.kind.activation is Activation.NONE:
            kind = replace(maker.kind, activation=_FUSED[op.kind.function])
            ops[makers[x]] = replace(maker, kind=kind, outputs=op.outputs)
            makers[op.outputs[0]] = makers[x]
            ops[k] = None
    return replace(graph, ops=tuple(op for op in ops if op is not None))


def is_clamp(op: Op) -> bool:
    return isinstance(op.kind, Unary) and op.kind.function in CLAMPS


def prescribed_quant(op: Op) -> Quant | None:
    """The output quantization that TensorFlow Lite demands of an op, None where there is a choice."""
    if isinstance(op.kind, Softmax) or (isinstance(op.kind, Unary) and op.kind.function is Function.LOGISTIC):
        return UNIT
    return SIGNED_UNIT if isinstance(op.kind, Unary) and op.kind.function is Function.TANH else None


class _Groups:
    """A forest over tensors: those of one tree share their quantization."""

    def __init__(self, count: int) -> None:
        self.parent = list(range(count))
        self.prescribed: dict[int, Quant] = {}

    def find(self, i: int) -> int:
        """The group of tensor i, grown by the tensors up to i."""
        self.parent.extend(range(len(self.parent), i + 1))
        while self.parent[i] != i:
            i = self.parent[i]
        return i

    def demand(self, i: int) -> Quant | None:
        return self.prescribed.get(self.find(i))

    def join(self, i: int, j: int) -> None:
        """One group of two, of which at most one has a demand or both have the same."""
        a, b = self.find(i), self.find(j)
        if a != b:
            self.parent[b] = a
            if b in self.prescribed:
                self.prescribed[a] = self.prescribed.pop(b)


def share(graph: Graph) -> Sharing:
    """Group the tensors of a float graph; the graph may come back with requantizations in it."""
    tensors, ops = list(graph.tensors), list[Op]()
    groups = _Groups(len(tensors))
    for op in graph.ops:
        y, demand = op.outputs[0], prescribed_quant(op)
        if demand is not None:
            groups.prescribed[groups.find(y)] = demand
        ops += _requantized(op, tensors, groups) if isinstance(op.kind, JOINING) else [op]
        if isinstance(op.kind, KEEPING + JOINING) or is_clamp(op):
            for i in ops[-1].inputs:
                groups.join(i, y)
    found = replace(graph, tensors=tuple(tensors), ops=tuple(ops))
    return Sharing(found, tuple(groups.find(i) for i in range(len(tensors))), groups.prescribed)


def _requantized(op: Op, tensors: list[Tensor], groups: _Groups) -> list[Op]:
    """``op``, and before it a requantization of each input that is bound to another quantization than the rest may have."""
    if len({groups.demand(i) for i in op.inputs}) == 1:
        return [op]
    before, inputs = [], list(op.inputs)
    for slot, i in enumerate(op.inputs):
        if groups.demand(i) is not None:
            inputs[slot] = len(tensors)
            tensors.append(replace(tensors[i], name=f"{op.name}/requantized_{slot}"))
            before.append(Op(f"{op.name}/requantize_{slot}", Unary(Function.REQUANTIZE), (i,), (inputs[slot],)))
    return [*before, replace(op, inputs=tuple(inputs))]
