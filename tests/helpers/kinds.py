"""One graph for every kind of op: conv -> the op -> conv -> an end for each loss. All are small, all are trained in every layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from helpers.graphs import GraphBuilder, Int8, random_samples
from mcugrad.autodiff import Loss
from mcugrad.graph import Activation, Function, Graph
from mcugrad.pipeline import Compiled
from mcugrad.ref import Machine, Result

Body = Callable[[GraphBuilder, int], int]
"""Put the op behind a map (1, 8, 6, 8)."""


def _unary(function: Function, alpha: float = 0.0) -> Body:
    return lambda b, x: b.unary(x, function, alpha)


def _gate(b: GraphBuilder, x: int) -> int:
    return b.point(b.mean(x, keep_dims=True), 8)


def _column(b: GraphBuilder, x: int) -> int:
    return b.reshape(b.linear(b.mean(x), 48), (1, 8, 6, 1))


def _split(b: GraphBuilder, x: int) -> int:
    parts = [b.slice(x, (0, 0, 0, at), (1, 8, 6, 4)) for at in (0, 4)]
    return b.concat((b.point(parts[1], 3), parts[0]), 3)


def _inner_softmax(b: GraphBuilder, x: int) -> int:
    return b.softmax(b.reshape(x, (48, 8)), 2.0)


BODIES: Mapping[str, Body] = {
    "conv with groups": lambda b, x: b.conv(x, 6, groups=2),
    "conv with dilation": lambda b, x: b.conv(x, 3, dilation=(2, 1), pad=(2, 1, 2, 1)),
    "dwconv": lambda b, x: b.dwconv(x, 2, stride=(2, 1)),
    "linear": lambda b, x: b.reshape(b.linear(b.mean(x), 36, activation=Activation.RELU), (1, 3, 2, 6)),
    "avgpool": lambda b, x: b.pool(x, (3, 2), (2, 2), (0, 0, 1, 0)),
    "maxpool": lambda b, x: b.maxpool(x, (2, 2), (2, 2)),
    "maxpool that overlaps": lambda b, x: b.maxpool(x, (3, 3), (1, 2), (1, 1, 1, 1), Activation.RELU),
    "mean": lambda b, x: b.mean(x, keep_dims=True),
    "add": lambda b, x: b.add(x, b.point(x, 8), Activation.RELU),
    "add a constant": lambda b, x: b.add(x, b.constant((8,)), Activation.RELU6),
    "add to a constant": lambda b, x: b.add(b.constant((1, 8, 6, 8)), x),
    "add a vector": lambda b, x: b.add(x, _gate(b, x)),
    "add to a column": lambda b, x: b.add(_column(b, x), x),
    "sub": lambda b, x: b.sub(b.point(x, 8), x, Activation.RELU),
    "sub a vector": lambda b, x: b.sub(x, _gate(b, x)),
    "sub from a vector": lambda b, x: b.sub(_gate(b, x), x),
    "sub from a constant": lambda b, x: b.sub(b.constant((1, 1, 6, 8)), x),
    "sub a constant": lambda b, x: b.sub(x, b.constant((1,))),
    "mul": lambda b, x: b.mul(x, b.point(x, 8)),
    "square": lambda b, x: b.mul(x, x),
    "mul by a constant": lambda b, x: b.mul(x, b.constant((8,)), Activation.RELU),
    "mul a scalar constant": lambda b, x: b.mul(b.constant((1, 1, 1, 1), zero_point=90), x),
    "mul by a vector": lambda b, x: b.mul(x, b.unary(_gate(b, x), Function.LOGISTIC)),
    "mul a column": lambda b, x: b.mul(_column(b, x), x),
    "maximum": lambda b, x: b.minmax(x, b.point(x, 8), largest=True),
    "minimum": lambda b, x: b.minmax(b.point(x, 8), x, largest=False),
    "maximum with a constant": lambda b, x: b.minmax(x, b.constant((8,), like=x), largest=True),
    "minimum of a constant": lambda b, x: b.minmax(b.constant((1, 8, 6, 1), like=x), x, largest=False),
    "relu": _unary(Function.RELU),
    "relu6": _unary(Function.RELU6),
    "relu_n1_1": _unary(Function.RELU_N1_1),
    "leaky relu": _unary(Function.LEAKY_RELU, 0.2),
    "logistic": _unary(Function.LOGISTIC),
    "tanh": _unary(Function.TANH),
    "hard swish": _unary(Function.HARD_SWISH),
    "requantize": _unary(Function.REQUANTIZE),
    "prelu": lambda b, x: b.prelu(x),
    "softmax inside": lambda b, x: b.reshape(_inner_softmax(b, x), (1, 8, 6, 8)),
    "concat": lambda b, x: b.concat((x, b.point(x, 3), x), 3),
    "concat of rows": lambda b, x: b.concat((b.constant((1, 2, 6, 8), like=x), x), 1),
    "slice": lambda b, x: b.slice(x, (0, 1, 0, 1), (1, 5, 6, 6)),
    "strided slice": lambda b, x: b.slice(x, (0, 1, 0, 0), (1, 3, 2, 8), (1, 2, 3, 1)),
    "split": _split,
    "transpose": lambda b, x: b.transpose(x, (0, 3, 1, 2)),
    "resize": lambda b, x: b.resize(x, (10, 13)),
    "resize to less": lambda b, x: b.resize(x, (5, 3), half_pixel_centers=True),
    "pad": lambda b, x: b.pad_all(x, (0, 1, 2, 3), (0, 2, 0, 1)),
    "pad with a value": lambda b, x: b.pad_all(x, (0, 1, 0, 0), (0, 0, 1, 0), 77),
}
"""Every kind of op that may stand behind a trained layer, both operands of those that have two."""


def _classes(b: GraphBuilder, y: int) -> int:
    return b.softmax(b.linear(b.mean(y), 4))


def _yes_or_no(b: GraphBuilder, y: int) -> int:
    return b.unary(b.linear(b.mean(y), 1), Function.LOGISTIC)


def _numbers(b: GraphBuilder, y: int) -> int:
    return b.linear(b.mean(y), 5)


def _map(b: GraphBuilder, y: int) -> int:
    return b.conv(y, 4, (1, 2), pad=(0, 1, 0, 0))


ENDS: Mapping[str, tuple[Loss, Body]] = {
    "xent": (Loss.XENT, _classes),
    "bce": (Loss.BCE, _yes_or_no),
    "mse_s32": (Loss.MSE, _numbers),
    "mse_s8": (Loss.MSE, _map),
}
"""Loss step -> the loss, and the end of a net that has it."""


def with_op(body: str, end: str = "xent", seed: int = 0) -> Graph:
    """conv -> the op of BODIES -> conv -> the end of ENDS."""
    b = GraphBuilder((1, 8, 6, 3), seed)
    y = BODIES[body](b, b.conv(b.input, 8, (2, 2), pad=(1, 0, 0, 1)))
    return b.finish(ENDS[end][1](b, b.conv(y, 8, (2, 2), pad=(0, 1, 1, 0), activation=Activation.RELU)))


def ends_of_all_sorts() -> Graph:
    """Three inputs; outputs that are an input, a reshape of one, a constant, the same tensor twice, and one that is read on."""
    b = GraphBuilder((1, 3, 5, 2), 3)
    second = b.new_input((1, 7), scale=1 / 40, zero_point=-60)
    third = b.new_input((1, 1, 1, 2), scale=1 / 30, zero_point=11)
    y = b.mul(third, b.conv(b.input, 2))
    z = b.sub(b.reshape(b.linear(second, 10), (5, 2)), y)
    return b.finish(y, second, b.reshape(third, (2, 1)), b.constant((3,)), z, z)


Truth = int | Int8
"""A label, or a target."""


def truths(compiled: Compiled, count: int, seed: int) -> list[Truth]:
    """Random labels; for a regression, the outputs of the model on other samples, each channel pushed by some constant."""
    rng = np.random.default_rng(seed)
    if compiled.program.target is None:
        return [int(k) for k in rng.integers(0, compiled.program.classes, count)]
    machine = Machine(compiled.plan)
    outputs = (machine.predict(sample) for sample in random_samples(compiled.model, count, seed + 1))
    channels = compiled.model.tensors[compiled.model.output].shape[-1]
    return [np.clip(y.reshape(-1, channels) + rng.integers(-60, 61, channels), -128, 127).astype(np.int8) for y in outputs]


def train(machine: Machine, sample: Int8, truth: Truth, lr: float) -> Result:
    """One training step, never skipped."""
    if isinstance(truth, int):
        return machine.train(sample, truth, lr, 0.0)
    return machine.train(sample, 0, lr, 0.0, target=truth)
