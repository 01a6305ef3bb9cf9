"""Reverse mode on the graph, pruned to what a scheme needs.

Errors are in real units, so an addition hands its error on unchanged: both inputs share one error tensor. A tensor with several
consumers gets one error that is the sum: each kernel that makes an error can add one that exists already.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcugrad.autodiff.scheme import Scheme
from mcugrad.errors import ModelError, UsageError
from mcugrad.graph import Activation, Add, AvgPool, Conv2D, DwConv2D, Graph, Linear, Mean, Op, Softmax

LOSS_ERROR = 0
"""Number of the error tensor that the loss makes, at the logits."""


@dataclass(frozen=True, slots=True)
class MakeError:
    """``out`` = mask(error of input ``tensor`` of ``op`` under ``dy``, plus ``skip``).

    ``op`` is None where errors are only summed or masked.
    dy, skip and out are numbers of error tensors, tensor is an index into graph.tensors.
    """

    op: Op | None
    tensor: int
    dy: int
    skip: int | None
    masked: bool
    out: int


@dataclass(frozen=True, slots=True)
class UpdateWeights:
    """Gradient and update of the trained slice of ``op``'s weights from the error ``dy`` of its output."""

    op: Op
    layer: int
    dy: int


@dataclass(frozen=True, slots=True)
class UpdateBias:
    """Gradient and update of ``op``'s bias."""

    op: Op
    layer: int
    dy: int


Backward = MakeError | UpdateWeights | UpdateBias


@dataclass(frozen=True, slots=True)
class TrainGraph:
    """A normalized graph, its head and its backward pass in execution order. ``softmax`` is the op behind the head, if any.

    ``head`` is None, and ``backward`` empty, for a plan that only predicts.
    """

    graph: Graph
    scheme: Scheme
    head: Op | None
    softmax: Op | None
    backward: tuple[Backward, ...]


def is_vector_layer(graph: Graph, op: Op) -> bool:
    """A layer that is a matrix times a vector: Linear, or a 1×1 convolution of a 1×1 map."""
    if isinstance(op.kind, Linear):
        return True
    x, w, y = graph.first_input(op), graph.tensors[op.inputs[1]], graph.tensors[op.outputs[0]]
    pixel = w.shape[1:3] == (1, 1) and x.size == x.shape[-1] and y.size == y.shape[-1]
    return pixel and isinstance(op.kind, Conv2D) and not any(op.kind.pad)


def needs_mask(graph: Graph, producer: Op | None) -> bool:
    """Whether a clamp may have cut the producer's output: a fused activation, or the zero point -128 that stands for one."""
    if producer is None or not isinstance(producer.kind, Conv2D | DwConv2D | Linear | Add | AvgPool):
        return False
    quant = graph.tensors[producer.outputs[0]].quant
    at_bottom = quant is not None and quant.zero_point == -128 and not isinstance(producer.kind, AvgPool)
    return producer.kind.activation is not Activation.NONE or at_bottom


def differentiate(graph: Graph, scheme: Scheme) -> TrainGraph:
    """Build the backward pass of a normalized graph under a scheme.

    Raises ModelError where the model does not end in a classifier, or the error would have to pass an op that has no gradient.
    """
    head, softmax = _find_head(graph)
    if not scheme.layers:
        raise UsageError("the scheme trains nothing", "name at least the head: --train head")
    backward = _Walk(graph, scheme, head).run()
    if not backward:
        raise UsageError(f"the scheme {scheme.describe(graph)} trains only biases of layers that have none", "train weights: --train head")
    return TrainGraph(graph, scheme, head, softmax, backward)


def only_predict(graph: Graph) -> TrainGraph:
    """A normalized graph without loss and backward pass."""
    return TrainGraph(graph, Scheme({}, frozenset()), None, None, ())


def _find_head(graph: Graph) -> tuple[Op, Op | None]:
    producer = {op.outputs[0]: op for op in graph.ops}
    last = producer.get(graph.output)
    softmax = last if last is not None and isinstance(last.kind, Softmax) else None
    head = producer.get(softmax.inputs[0]) if softmax else last
    if head is None or not is_vector_layer(graph, head):
        found = head.name if head is not None else "nothing"
        raise ModelError(f"the model ends in {found}, not in a classifier layer", "training needs a fully connected layer at the end")
    assert isinstance(head.kind, Linear | Conv2D)
    if head.kind.activation is not Activation.NONE:
        raise ModelError(f"the last layer {head.name} has a fused {head.kind.activation.value}", "export the model with plain logits")
    out = graph.tensors[head.outputs[0]]
    if out.size != out.shape[-1]:
        raise ModelError(f"the last layer {head.name} has {out.size // out.shape[-1]} rows, not 1", "export it with batch size 1")
    if out.size < 2:
        raise ModelError(f"the last layer {head.name} has {out.size} output, cross-entropy needs 2", "use --classes N for a new head")
    return head, softmax


class _Walk:
    """The state of one reverse walk."""

    def __init__(self, graph: Graph, scheme: Scheme, head: Op) -> None:
        self.graph = graph
        self.scheme = scheme
        self.head = head
        self.producer = {op.outputs[0]: op for op in graph.ops}
        self.number = {op.name: k for k, op in enumerate(graph.layers)}
        self.biases = {k for k, op in enumerate(graph.layers) if k in scheme.biases and len(op.inputs) == 3}
        self.trainable = self._trainable_tensors()
        self.waiting = self._consumers()
        self.errors: dict[int, int] = {head.outputs[0]: LOSS_ERROR}
        self.made = LOSS_ERROR + 1
        self.steps: list[Backward] = []

    def _trainable_tensors(self) -> set[int]:
        """Tensors that depend on something trained."""
        found: set[int] = set()
        for op in self.graph.ops:
            layer = self.number.get(op.name)
            if layer in self.scheme.weights or layer in self.biases or any(i in found for i in op.inputs):
                found.add(op.outputs[0])
        return found

    def _consumers(self) -> dict[int, int]:
        """Per tensor, how many reads lie on a path to the head."""
        reach = {self.head.outputs[0]}
        reads: dict[int, int] = {}
        for op in reversed(self.graph.ops):
            if op.outputs[0] in reach:
                for i in op.inputs:
                    reach.add(i)
                    reads[i] = reads.get(i, 0) + 1
        return reads

    def run(self) -> tuple[Backward, ...]:
        for op in reversed(self.graph.ops):
            dy = self.errors.get(op.outputs[0])
            if dy is None:
                continue
            for tensor in self._differentiable_inputs(op):
                self._hand_on(op, tensor, dy)
            self._update(op, dy)
        return tuple(self.steps)

    def _differentiable_inputs(self, op: Op) -> tuple[int, ...]:
        inputs = op.inputs if isinstance(op.kind, Add) else op.inputs[:1]
        return tuple(i for i in inputs if i in self.trainable)

    def _hand_on(self, op: Op, tensor: int, dy: int) -> None:
        """Give ``tensor`` its error through ``op``, added to what other consumers gave before."""
        self.waiting[tensor] -= 1
        masked = self.waiting[tensor] == 0 and needs_mask(self.graph, self.producer.get(tensor))
        skip = self.errors.get(tensor)
        if isinstance(op.kind, Add):
            if skip is None and not masked:
                self.errors[tensor] = dy
                return
            self._make(None, tensor, dy, skip, masked)
        elif isinstance(op.kind, Conv2D | DwConv2D | Linear | AvgPool | Mean):
            self._make(op, tensor, dy, skip, masked)
        else:
            raise ModelError(f"op {op.name} has no gradient", f"train only layers behind {op.name}")

    def _make(self, op: Op | None, tensor: int, dy: int, skip: int | None, masked: bool) -> None:
        self.steps.append(MakeError(op, tensor, dy, skip, masked, self.made))
        self.errors[tensor] = self.made
        self.made += 1

    def _update(self, op: Op, dy: int) -> None:
        layer = self.number.get(op.name)
        if layer is None:
            return
        if layer in self.scheme.weights:
            self.steps.append(UpdateWeights(op, layer, dy))
        if layer in self.biases:
            self.steps.append(UpdateBias(op, layer, dy))
