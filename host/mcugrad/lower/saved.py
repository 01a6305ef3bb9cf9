"""What the forward pass keeps for the backward pass, in the least form: one bit for a clamp mask, only the channels that are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcugrad.autodiff.differentiate import MakeError, TrainGraph, UpdateWeights
from mcugrad.autodiff.scheme import trained_channels
from mcugrad.graph import Conv2D, DwConv2D, Graph, Linear, MaxPool, MinMax, Mul, Op, Prelu, Softmax, Unary


@dataclass(frozen=True, slots=True)
class Saved:
    """By graph tensor. ``masks``: of which only the clamp mask is kept. ``slices``: of which that many leading channels are kept.

    A tensor that backward reads whole is in neither.
    """

    masks: frozenset[int]
    slices: Mapping[int, int]


def what_is_saved(train: TrainGraph) -> Saved:
    """The least that the backward pass of ``train`` can work with."""
    graph = train.graph
    whole = {graph.output}
    slices: dict[int, int] = {}
    masks: set[int] = set()
    for step in train.backward:
        if isinstance(step, UpdateWeights):
            channels = _input_channels(graph, step.op, trained_channels(graph, step.op, train.scheme.weights[step.layer]))
            slices[step.op.inputs[0]] = max(channels, slices.get(step.op.inputs[0], 0))
            whole |= set() if _reads_channels(graph, step.op) else {step.op.inputs[0]}
        elif isinstance(step, MakeError):
            whole |= _operands(step)
            masks |= {step.tensor} if step.masked else set()
    whole |= {tensor for tensor, channels in slices.items() if channels >= graph.tensors[tensor].shape[-1]}
    return Saved(frozenset(masks - whole), {t: n for t, n in slices.items() if t not in whole})


def _input_channels(graph: Graph, op: Op, trained: int) -> int:
    """How many leading channels of its input the gradient of ``trained`` channels reads."""
    if isinstance(op.kind, DwConv2D):
        return -(-trained // op.kind.multiplier)
    grouped = isinstance(op.kind, Conv2D) and op.kind.groups > 1
    return graph.read(op).shape[-1] if grouped else trained


def _reads_channels(graph: Graph, op: Op) -> bool:
    """Whether the channels of a layer's input are those of the tensor: not where it reads a flattened or reshaped map."""
    width = graph.tensors[op.inputs[1]].shape[1] if isinstance(op.kind, Linear) else graph.read(op).shape[-1]
    return width == graph.tensors[op.inputs[0]].shape[-1]


def _operands(step: MakeError) -> set[int]:
    """Activations that the error of an op is made from, besides the incoming error."""
    if step.op is None:
        return set()
    match step.op.kind:
        case Mul():
            return {step.op.inputs[1 - step.k]}
        case MinMax():
            return set(step.op.inputs)
        case MaxPool() | Unary() | Prelu():
            return {step.op.inputs[0]}
        case Softmax():
            return {step.op.outputs[0]}
    return set()
