"""Reverse mode on the graph, pruned to what a scheme needs.

Errors are in real units, so an addition hands its error on unchanged: both inputs share one error tensor. A tensor with several
consumers gets one error that is the sum: each kernel that makes an error can add one that exists already.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mcugrad.autodiff.rules import RULES
from mcugrad.autodiff.scheme import Scheme
from mcugrad.errors import ModelError, UsageError
from mcugrad.graph import Activation, Add, AvgPool, Conv2D, DwConv2D, Function, Graph, Linear, MaxPool, Mul, Op, Softmax, Sub, Unary

LOSS_ERROR = 0
"""Number of the error tensor that the loss makes."""


class Loss(enum.Enum):
    """Softmax cross-entropy on the logits, binary cross-entropy on one logit, mean squared error on the output."""

    XENT = "xent"
    BCE = "bce"
    MSE = "mse"


@dataclass(frozen=True, slots=True)
class MakeError:
    """``out`` = mask(error of input ``k`` of ``op`` under ``dy``, plus ``skip``).

    ``op`` is None where errors are only summed or masked. ``tensor`` is the graph tensor whose error this is; dy, skip and out are
    numbers of error tensors.
    """

    op: Op | None
    k: int
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
    """A normalized graph, its loss and its backward pass in execution order.

    ``head`` is the layer whose int32 accumulators go to the loss, ``behind`` the softmax or logistic that only evaluation runs. Without
    a head, the loss reads the int8 output. ``loss`` is None, and ``backward`` empty, for a plan that only predicts.
    """

    graph: Graph
    scheme: Scheme
    loss: Loss | None
    head: Op | None
    behind: Op | None
    backward: tuple[Backward, ...]

    @property
    def loss_tensor(self) -> int:
        """The graph tensor at which the loss makes its error."""
        return self.graph.output if self.head is None else self.head.outputs[0]

    @property
    def classes(self) -> int:
        """Labels run from 0 to this; 1 for a regression, 0 without loss."""
        if self.loss is Loss.XENT:
            return self.graph.tensors[self.loss_tensor].size
        return {None: 0, Loss.BCE: 2, Loss.MSE: 1}[self.loss]


def is_vector_layer(graph: Graph, op: Op) -> bool:
    """A layer that is a matrix times a vector: Linear, or a 1×1 convolution of a 1×1 map."""
    if isinstance(op.kind, Linear):
        return True
    if not isinstance(op.kind, Conv2D):
        return False
    x, w, y = graph.read(op), graph.tensors[op.inputs[1]], graph.tensors[op.outputs[0]]
    pixel = w.shape[1:3] == (1, 1) and x.size == x.shape[-1] and y.size == y.shape[-1]
    return pixel and op.kind.groups == 1 and not any(op.kind.pad)


def needs_mask(graph: Graph, producer: Op | None) -> bool:
    """Whether a clamp may have cut the producer's output: a fused activation, or the zero point -128 that stands for one."""
    if producer is None or not isinstance(producer.kind, Conv2D | DwConv2D | Linear | Add | Sub | Mul | AvgPool | MaxPool):
        return False
    quant = graph.tensors[producer.outputs[0]].quant
    at_bottom = quant is not None and quant.zero_point == -128 and not isinstance(producer.kind, AvgPool | MaxPool | Mul)
    return producer.kind.activation is not Activation.NONE or at_bottom


def differentiate(graph: Graph, scheme: Scheme, loss: Loss | None = None) -> TrainGraph:
    """Build the backward pass of a normalized graph under a scheme. Without ``loss`` the end of the graph says which.

    Raises ModelError where the loss does not fit the end of the model, or the error would have to pass an op that has no gradient.
    """
    if not scheme.layers:
        raise UsageError("the scheme trains nothing", "name at least the head: --train head")
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise ModelError(
            f"the model has {len(graph.inputs)} inputs and {len(graph.outputs)} outputs, training takes one of each",
            "export the part of the model that is to be trained",
        )
    loss = loss or _loss_of(graph)
    head, behind = _find_regression(graph) if loss is Loss.MSE else _find_head(graph, loss)
    end = graph.output if head is None else head.outputs[0]
    backward = _Walk(graph, scheme, end).run(masked=head is None and needs_mask(graph, _ends(graph)[0]))
    if not backward:
        raise UsageError(f"the scheme {scheme.describe(graph)} trains only biases of layers that have none", "train weights: --train head")
    return TrainGraph(graph, scheme, loss, head, behind, backward)


def only_predict(graph: Graph) -> TrainGraph:
    """A normalized graph without loss and backward pass."""
    return TrainGraph(graph, Scheme({}, frozenset()), None, None, None, ())


def _ends(graph: Graph) -> tuple[Op | None, Op | None]:
    """(last op, the op before it)."""
    producer = {op.outputs[0]: op for op in graph.ops}
    last = producer.get(graph.output)
    return last, producer.get(last.inputs[0]) if last else None


def _is_logistic(op: Op | None) -> bool:
    return op is not None and isinstance(op.kind, Unary) and op.kind.function is Function.LOGISTIC


def ends_in_probability(graph: Graph) -> bool:
    """Whether the output is a probability, not a logit or a value."""
    last, _ = _ends(graph)
    return _is_logistic(last) or (last is not None and isinstance(last.kind, Softmax))


def _loss_of(graph: Graph) -> Loss:
    last, _ = _ends(graph)
    return Loss.BCE if _is_logistic(last) and graph.tensors[graph.output].size == 1 else Loss.XENT


def _find_head(graph: Graph, loss: Loss) -> tuple[Op, Op | None]:
    last, before = _ends(graph)
    wanted = _is_logistic(last) if loss is Loss.BCE else last is not None and isinstance(last.kind, Softmax)
    behind, head = (last, before) if wanted else (None, last)
    if head is None or not is_vector_layer(graph, head):
        found = head.name if head is not None else "nothing"
        raise ModelError(f"the model ends in {found}, not in a classifier layer", "training needs a fully connected layer at the end")
    assert isinstance(head.kind, Linear | Conv2D)
    if head.kind.activation is not Activation.NONE:
        raise ModelError(f"the last layer {head.name} has a fused {head.kind.activation.value}", "export the model with plain logits")
    out = graph.tensors[head.outputs[0]]
    if out.size != out.shape[-1]:
        raise ModelError(f"the last layer {head.name} has {out.size // out.shape[-1]} rows, not 1", "export it with batch size 1")
    if loss is Loss.XENT and out.size < 2:
        raise ModelError(
            f"the last layer {head.name} has {out.size} output, cross-entropy needs 2",
            "use --classes N for a new head, or --loss bce or mse",
        )
    if loss is Loss.BCE and out.size != 1:
        raise ModelError(f"the last layer {head.name} has {out.size} outputs, binary cross-entropy takes 1", "use --loss xent")
    return head, behind


def _find_regression(graph: Graph) -> tuple[Op | None, None]:
    """The last layer where its accumulators are the output; else the loss reads the int8 output."""
    last, _ = _ends(graph)
    if last is None:
        raise ModelError("the model has no op", "nothing to train")
    plain = isinstance(last.kind, Linear | Conv2D) and last.kind.activation is Activation.NONE and is_vector_layer(graph, last)
    one_row = graph.tensors[graph.output].size == graph.tensors[graph.output].shape[-1]
    return (last, None) if plain and one_row and not needs_mask(graph, last) else (None, None)


class _Walk:
    """The state of one reverse walk from the tensor at which the loss makes its error."""

    def __init__(self, graph: Graph, scheme: Scheme, end: int) -> None:
        self.graph = graph
        self.scheme = scheme
        self.end = end
        self.producer = {op.outputs[0]: op for op in graph.ops}
        self.number = {op.name: k for k, op in enumerate(graph.layers)}
        self.biases = {k for k, op in enumerate(graph.layers) if k in scheme.biases and len(op.inputs) == 3}
        self.trainable = self._trainable_tensors()
        self.waiting = self._consumers()
        self.errors: dict[int, int] = {end: LOSS_ERROR}
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
        """Per tensor, how many reads lie on a path to the loss."""
        reach = {self.end}
        reads: dict[int, int] = {}
        for op in reversed(self.graph.ops):
            if op.outputs[0] in reach:
                for i in op.inputs:
                    reach.add(i)
                    reads[i] = reads.get(i, 0) + 1
        return reads

    def run(self, *, masked: bool) -> tuple[Backward, ...]:
        """``masked``: the loss reads the clamped output, so its error must pass the clamp first."""
        if masked and self.end in self.trainable:
            self._make(None, 0, self.end, LOSS_ERROR, None, masked=True)
        for op in reversed(self.graph.ops):
            dy = self.errors.get(op.outputs[0])
            if dy is None:
                continue
            for k, tensor in self._differentiable_inputs(op):
                self._hand_on(op, k, tensor, dy)
            self._update(op, dy)
        return tuple(self.steps)

    def _differentiable_inputs(self, op: Op) -> list[tuple[int, int]]:
        rule = RULES.get(type(op.kind))
        inputs = op.inputs if rule is not None and rule.pair else op.inputs[:1]
        return [(k, i) for k, i in enumerate(inputs) if i in self.trainable]

    def _hand_on(self, op: Op, k: int, tensor: int, dy: int) -> None:
        """Give ``tensor`` its error through input ``k`` of ``op``, added to what other consumers gave before."""
        rule = RULES.get(type(op.kind))
        if rule is None:
            raise ModelError(f"op {op.name} has no gradient", f"train only layers behind {op.name}")
        self.waiting[tensor] -= 1
        masked = self.waiting[tensor] == 0 and needs_mask(self.graph, self.producer.get(tensor))
        skip = self.errors.get(tensor)
        if passes_unchanged(self.graph, op, k):
            self._share(tensor, dy, skip, masked=masked)
        elif rule.step == "copy":
            self._make(op, k, tensor, dy, None, masked=False)
            self._share(tensor, self.errors[tensor], skip, masked=masked)
        else:
            self._make(op, k, tensor, dy, skip, masked=masked)

    def _share(self, tensor: int, dy: int, skip: int | None, *, masked: bool) -> None:
        """Let ``tensor`` share the error ``dy``; a sum or a mask makes a new one."""
        if skip is None and not masked:
            self.errors[tensor] = dy
        else:
            self._make(None, 0, tensor, dy, skip, masked=masked)

    def _make(self, op: Op | None, k: int, tensor: int, dy: int, skip: int | None, *, masked: bool) -> None:
        self.steps.append(MakeError(op, k, tensor, dy, skip, masked, self.made))
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


def passes_unchanged(graph: Graph, op: Op, k: int) -> bool:
    """Whether input ``k`` has the error of the output: a summand that is not spread, or the first of a difference."""
    first = isinstance(op.kind, Add) or (isinstance(op.kind, Sub) and k == 0)
    return first and graph.read(op, k).size == graph.tensors[op.outputs[0]].size
