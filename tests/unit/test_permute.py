"""Channels in another order: the same function, the right channels first, and the way back into the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.graphs import GRAPHS, GraphBuilder, chain, random_samples, residual, run_int8
from helpers.shared import shared
from mcugrad.autodiff import parse_scheme
from mcugrad.graph import Activation, DwConv2D, Function, Graph, Op, Quant
from mcugrad.graph.edit import bias_of, replace_head, weight_of
from mcugrad.graph.normalize import normalize
from mcugrad.graph.permute import ChannelClasses, Channels, Order, channel_classes, in_model_order, order_by_norm, permute
from mcugrad.importer import read_model
from mcugrad.lower import Options
from mcugrad.lower.read_back import trained_weights
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.ref import Machine


def turned(b: GraphBuilder, x: int) -> int:
    """The same elements as a map of another width."""
    _, h, w, c = b.tensors[x].shape
    return b.reshape(x, (1, w, c, h))


def other_rows(b: GraphBuilder, x: int) -> int:
    """The same elements in rows of 4, or of 2 or 1 where 4 does not divide them."""
    size = b.tensors[x].size
    wide = math.gcd(size, 4)
    return b.reshape(x, (size // wide, wide))


def channels(b: GraphBuilder, x: int) -> int:
    return b.tensors[x].shape[-1]


BODY: dict[str, Callable[[GraphBuilder, int], int]] = {
    "conv": lambda b, x: b.conv(x, 6, activation=Activation.RELU),
    "point": lambda b, x: b.point(x, 8),
    "groups": lambda b, x: b.conv(b.point(x, 6), 6, groups=3),
    "depthwise": lambda b, x: b.dwconv(x, activation=Activation.RELU6),
    "several of each": lambda b, x: b.dwconv(x, 2),
    "block": lambda b, x: b.add(x, b.point(b.dwconv(b.point(x, 9)), channels(b, x)), Activation.RELU),
    "difference": lambda b, x: b.sub(b.dwconv(x), x),
    "gate": lambda b, x: b.mul(x, b.unary(b.point(b.mean(x, keep_dims=True), channels(b, x)), Function.LOGISTIC)),
    "maximum": lambda b, x: b.minmax(b.conv(x, 5), b.point(x, 5), largest=True),
    "constant of each channel": lambda b, x: b.mul(b.constant((channels(b, x),), lowest=30), x),
    "constant map": lambda b, x: b.add(x, b.constant(b.tensors[x].shape)),
    "constant": lambda b, x: b.add(x, b.constant(())),
    "one channel to all": lambda b, x: b.mul(x, b.point(x, 1)),
    "slopes": lambda b, x: b.prelu(x),
    "table": lambda b, x: b.unary(x, Function.HARD_SWISH),
    "max pool": lambda b, x: b.maxpool(x, (2, 2), (1, 1), (0, 0, 1, 1)),
    "average pool": lambda b, x: b.pool(x, (3, 3), (1, 1), (1, 1, 1, 1)),
    "resize": lambda b, x: b.resize(x, (5, 3)),
    "pad": lambda b, x: b.pad_all(x, (0, 1, 0, 0), (0, 0, 2, 0), 11),
    "pad of channels": lambda b, x: b.pad_all(x, (0, 0, 0, 1), (0, 0, 0, 0)),
    "rows cut": lambda b, x: b.slice(x, (0, 1, 0, 0), (1, 2, 2, channels(b, x))),
    "channels cut": lambda b, x: b.slice(x, (0, 0, 0, 1), (1, 3, 3, channels(b, x) - 1)),
    "transposed": lambda b, x: b.transpose(x, (0, 2, 1, 3)),
    "channels transposed": lambda b, x: b.transpose(x, (0, 3, 1, 2)),
    "rows joined": lambda b, x: b.concat((x, b.dwconv(x)), 1),
    "channels joined": lambda b, x: b.concat((x, b.point(x, 4)), 3),
    "linear on positions": lambda b, x: b.linear(b.reshape(x, (b.tensors[x].size // channels(b, x), channels(b, x))), 5),
    "linear on other rows": lambda b, x: b.linear(other_rows(b, x), 5),
    "one row to all": lambda b, x: b.mul(
        x, b.reshape(b.point(b.mean(x, keep_dims=True), b.tensors[x].shape[1]), (1, b.tensors[x].shape[1], 1, 1))
    ),
    "table of a reshaped map": lambda b, x: b.unary(turned(b, x), Function.TANH),
    "depthwise on one channel": lambda b, x: b.dwconv(
        b.reshape(x, (*b.tensors[x].shape[:2], b.tensors[x].shape[2] * channels(b, x), 1)), 3
    ),
    "depthwise on a mixed channel": lambda b, x: b.dwconv(b.point(x, 1), 4),
    "channels of a square transposed": lambda b, x: b.transpose(b.slice(x, (0,) * 4, (1, 3, 3, 3)), (0, 3, 2, 1)),
    "softmax": lambda b, x: b.softmax(x),
    "reshape": turned,
}
"""A piece of a net: map -> map. All but the linear layer and the cut ones keep the rank."""

HEADS: dict[str, Callable[[GraphBuilder, int], int]] = {
    "mean": lambda b, x: b.linear(b.mean(x), 4),
    "flat": lambda b, x: b.linear(b.reshape(x, (1, b.tensors[x].size)), 4),
    "softmax": lambda b, x: b.softmax(b.reshape(b.point(b.mean(x, keep_dims=True), 4), (1, 4))),
}


@st.composite
def nets(draw: st.DrawFn) -> Graph:
    """A convolution, up to four pieces, a head."""
    b = GraphBuilder((1, 5, 4, 3), draw(st.integers(0, 2**16)), samples=2)
    y = b.conv(b.input, draw(st.integers(2, 8)), activation=Activation.RELU)
    for name in draw(st.lists(st.sampled_from(list(BODY)), max_size=4)):
        if len(b.tensors[y].shape) == 4 and min(b.tensors[y].shape[1:]) >= 3:
            y = BODY[name](b, y)
    if len(b.tensors[y].shape) != 4:
        y = b.reshape(y, (1, 1, *b.tensors[y].shape))
    return b.finish(HEADS[draw(st.sampled_from(list(HEADS)))](b, y))


def random_orders(graph: Graph, classes: ChannelClasses, seed: int) -> dict[int, Order]:
    """A random order of every class that may have one."""
    rng = np.random.default_rng(seed)
    written = {op.outputs[0] for op in graph.ops}
    widths = {classes.of[t]: graph.tensors[t].shape[-1] for t in written if classes.why_fixed(t) is None}
    return {c: tuple(map(int, rng.permutation(n))) for c, n in widths.items()}


def shuffled(graph: Graph, seed: int) -> tuple[Graph, dict[int, Order], ChannelClasses, Compiled]:
    classes = channel_classes(graph)
    orders = random_orders(graph, classes, seed)
    permuted, order = permute(graph, classes, orders)
    return permuted, orders, classes, replace(compile_graph(permuted, "all"), order=order)


def require_same_values(graph: Graph, permuted: Graph, classes: ChannelClasses, orders: dict[int, Order], seed: int) -> None:
    """Every tensor has the same values, its channels in the order of its class."""
    for sample in random_samples(graph, 2, seed):
        before, after = run_int8(graph, sample), run_int8(permuted, sample)
        for op in graph.ops:
            y = op.outputs[0]
            want = before[y].reshape(-1, before[y].shape[-1])
            order = orders.get(classes.of[y], tuple(range(want.shape[1])))
            np.testing.assert_array_equal(after[y].reshape(want.shape), want[:, order], op.name)


@settings(max_examples=60, deadline=None)
@given(nets(), st.integers(0, 2**16))
def test_every_tensor_keeps_its_values(model: Graph, seed: int) -> None:
    graph = normalize(model)
    classes = channel_classes(graph)
    orders = random_orders(graph, classes, seed)
    permuted, _ = permute(graph, classes, orders)
    require_same_values(graph, permuted, classes, orders, seed)
    np.testing.assert_array_equal(
        run_int8(permuted, random_samples(graph, 1)[0])[permuted.output], run_int8(graph, random_samples(graph, 1)[0])[graph.output]
    )


@pytest.mark.parametrize("piece", list(BODY))
def test_each_piece_keeps_its_values(piece: str) -> None:
    b = GraphBuilder((1, 5, 4, 3), 5, samples=2)
    y = BODY[piece](b, b.conv(b.input, 6))
    if len(b.tensors[y].shape) != 4:
        y = b.reshape(y, (1, 1, *b.tensors[y].shape))
    graph = normalize(b.finish(b.linear(b.mean(b.conv(y, 5)), 3)))
    classes = channel_classes(graph)
    orders = random_orders(graph, classes, 3)
    permuted, _ = permute(graph, classes, orders)
    assert orders, "the last convolution's output is free"
    require_same_values(graph, permuted, classes, orders, 3)
    assert run_int8(permuted, random_samples(graph, 1)[0])[permuted.ops[0].outputs[0]].shape == graph.tensors[graph.ops[0].outputs[0]].shape


FREE = {
    "conv": True,
    "point": True,
    "groups": True,
    "depthwise": True,
    "several of each": False,
    "block": True,
    "difference": True,
    "gate": True,
    "maximum": True,
    "constant of each channel": True,
    "constant map": True,
    "constant": True,
    "one channel to all": True,
    "slopes": True,
    "table": True,
    "max pool": True,
    "average pool": True,
    "resize": True,
    "pad": True,
    "pad of channels": False,
    "rows cut": True,
    "channels cut": False,
    "transposed": True,
    "channels transposed": False,
    "rows joined": True,
    "channels joined": False,
    "linear on positions": True,
    "linear on other rows": False,
    "one row to all": True,
    "table of a reshaped map": False,
    "depthwise on one channel": False,
    "depthwise on a mixed channel": True,
    "channels of a square transposed": False,
    "softmax": False,
    "reshape": False,
}
"""Whether a piece leaves its input's channels free."""


@pytest.mark.parametrize("piece", list(BODY))
def test_which_classes_are_fixed(piece: str) -> None:
    b = GraphBuilder((1, 5, 4, 3), 5, samples=2)
    x = b.conv(b.input, 6)
    y = BODY[piece](b, x)
    if len(b.tensors[y].shape) != 4:
        y = b.reshape(y, (1, 1, *b.tensors[y].shape))
    graph = normalize(b.finish(b.linear(b.mean(b.conv(y, 5)), 3)))
    classes = channel_classes(graph)
    assert (classes.why_fixed(x) is None) == FREE[piece], classes.why_fixed(x)
    assert classes.why_fixed(graph.input) is not None and classes.why_fixed(graph.output) is not None


# ---- which channels ---------------------------------------------------------------------------------------------------


def real_norms(graph: Graph, op: Op) -> npt.NDArray[np.float64]:
    """Norm of each channel, weight by weight."""
    w = weight_of(graph, op)
    assert w.data is not None and w.quant is not None
    depthwise = isinstance(op.kind, DwConv2D)
    total = np.zeros(w.shape[-1])
    for index, code in np.ndenumerate(w.data):
        o = index[-1] if depthwise else index[0]
        scale = w.quant.scale[o if w.quant.per_channel else 0]
        total[index[-1]] += (scale * int(code)) ** 2
    return np.sqrt(total)


def largest(norms: npt.NDArray[np.float64], count: int) -> set[int]:
    return set(sorted(range(len(norms)), key=lambda c: -norms[c])[:count])


def moved_channels(graph: Graph, trained: Graph, name: str) -> set[int]:
    """Channels of a layer whose weights differ."""
    old, new = (next(weight_of(g, op).data for op in g.layers if op.name == name) for g in (graph, trained))
    assert old is not None and new is not None
    return {int(c) for c in np.flatnonzero((old != new).reshape(-1, old.shape[-1]).any(axis=0))}


def trained_by(compiled: Compiled, steps: int, seed: int = 1) -> bytes:
    machine = Machine(compiled.plan)
    for k, sample in enumerate(random_samples(compiled.model, steps, seed)):
        machine.train(sample, k % 3, 0.5, 0.0)
    return machine.state


@pytest.mark.parametrize("ws", [1, 2])
@pytest.mark.parametrize(("name", "count"), [("conv_1", 2), ("conv_2", 4), ("dwconv_0", 4)])
def test_the_channels_with_the_largest_weights_are_trained(name: str, count: int, ws: int) -> None:
    """conv_1 reads 8 channels of a trunk with a sum, conv_2 the 16 of a depthwise layer."""
    graph = residual(4)
    op = next(op for op in graph.layers if op.name == name)
    scheme = f"weights:{name}:1/4,bias:linear_0"
    compiled = compile_graph(graph, scheme, Options(ws=ws), channels=Channels.NORM)
    wanted = largest(real_norms(graph, op), count)
    assert wanted != set(range(count)), "nothing to reorder"
    assert moved_channels(graph, compiled.trained_model(trained_by(compiled, 6)), name) == wanted
    first = compile_graph(graph, scheme, Options(ws=ws))
    assert moved_channels(graph, first.trained_model(trained_by(first, 6)), name) == set(range(count))
    assert compiled.plan != first.plan and not compiled.program.notes
    assert (compiled.layout.sizes, compiled.program.step_macs) == (first.layout.sizes, first.program.step_macs)


def test_layers_of_one_class_share_the_order() -> None:
    """A depthwise layer and the convolution behind it: the sum of their norms, each divided by its sum."""
    graph = residual(4)
    dw, point = (next(op for op in graph.layers if op.name == n) for n in ("dwconv_0", "conv_2"))
    compiled = compile_graph(graph, "weights:dwconv_0:1/2,weights:conv_2:1/4,bias:linear_0", channels=Channels.NORM)
    norms = [real_norms(graph, op) for op in (dw, point)]
    score = sum(n / n.sum() for n in norms)
    assert largest(score, 4) not in [largest(n, 4) for n in norms]
    trained = compiled.trained_model(trained_by(compiled, 6))
    assert moved_channels(graph, trained, "conv_2") == largest(score, 4)
    assert moved_channels(graph, trained, "dwconv_0") == largest(score, 8)


@pytest.mark.parametrize(
    ("name", "count", "why"),
    [
        ("conv_0", 2, "input cannot be reordered, they are an input of the model"),
        ("dwconv_0", 4, "dwconv_0.y cannot be reordered, dwconv_0 depends on their order"),
        ("conv_2", 2, "conv_1.y cannot be reordered, conv_2 depends on their order"),
        ("linear_0", 60, "dwconv_1.y cannot be reordered, linear_0 reads them flattened"),
    ],
)
def test_a_fixed_class_trains_its_first_channels(name: str, count: int, why: str) -> None:
    b = GraphBuilder((1, 5, 4, 4), 5)
    y = b.conv(b.dwconv(b.conv(b.input, 4), 2), 8)
    y = b.dwconv(b.point(b.conv(y, 6, groups=2), 6))
    graph = b.finish(b.linear(b.reshape(y, (1, 120)), 3))
    scheme = f"weights:{name}:1/2,bias:linear_0"
    compiled = compile_graph(graph, scheme, channels=Channels.NORM)
    assert compiled.plan == compile_graph(graph, scheme).plan and not compiled.order
    assert f"{name} trains its first {count} channels: those of {why}" in compiled.program.notes


def test_equal_channels_keep_their_order() -> None:
    """A fresh head is all zeros."""
    graph = replace_head(residual(1), 3)
    fresh = chain(2)
    head = replace_head(fresh, 3)
    scheme = "weights:linear_0:1/2"
    assert compile_graph(head, scheme, channels=Channels.NORM).plan == compile_graph(head, scheme).plan
    assert not compile_graph(graph, "all", channels=Channels.NORM).order, "whole layers need no order"


# ---- the way back -----------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(GRAPHS)), st.integers(0, 2**16))
def test_training_does_not_depend_on_the_order(name: str, seed: int) -> None:
    """All weights of all layers: the same predictions and, in the order of the model, the same weights and biases to the last bit."""
    model = GRAPHS[name](seed % 7)
    graph = normalize(model)
    _, _, _, permuted = shuffled(graph, seed)
    plain = compile_graph(graph, "all")
    ends = []
    for compiled in (plain, permuted):
        machine = Machine(compiled.plan)
        losses = [machine.train(sample, k % 3, 0.1, 0.0) for k, sample in enumerate(random_samples(graph, 4, seed))]
        ends.append((machine.state, losses, machine.predict(random_samples(graph, 1, 8)[0]).tolist()))
    assert ends[0][1:] == ends[1][1:]
    want = trained_weights(graph, plain.program, plain.layout, ends[0][0])
    found = in_model_order(permuted.order, trained_weights(permuted.train.graph, permuted.program, permuted.layout, ends[1][0]))
    assert found.keys() == want.keys()
    for layer, (w, b) in want.items():
        np.testing.assert_array_equal(found[layer][0], w)
        np.testing.assert_array_equal(found[layer][1], b)


@settings(max_examples=25, deadline=None)
@given(nets(), st.integers(0, 2**16), st.sampled_from(["1/8", "1/4", "1/2", "3/4"]), st.sampled_from([1, 2]))
def test_the_trained_model_computes_what_the_board_computes(model: Graph, seed: int, ratio: str, ws: int) -> None:
    """The exported model has the model's order and the plan's outputs; what is not trained is as it was."""
    reachable = [op for op in model.layers[-2:]]
    scheme = ",".join(f"weights:{op.name}:{ratio},bias:{op.name}" for op in reachable)
    compiled = compile_graph(model, scheme, Options(ws=ws), channels=Channels.NORM)
    machine = Machine(compiled.plan)
    samples = random_samples(model, 4, seed)
    np.testing.assert_array_equal(machine.predict(samples[0]), run_int8(model, samples[0])[model.output].ravel())
    for k, sample in enumerate(samples):
        machine.train(sample, k % 3, 0.3, 0.0)
    trained = compiled.trained_model(machine.state)
    for sample in samples:
        np.testing.assert_array_equal(machine.predict(sample), run_int8(trained, sample)[trained.output].ravel())
    for old, new in zip(model.layers[:-2], trained.layers[:-2], strict=True):
        for of in (weight_of, bias_of):
            before, after = of(model, old), of(trained, new)
            assert before is after


def test_shared_weights_get_an_order_each() -> None:
    """Two layers with one weight tensor that read different classes."""
    b = GraphBuilder((1, 4, 4, 3), 2)
    left, right = b.point(b.conv(b.input, 6), 6), b.conv(b.input, 6)
    y = b.point(right, 6)
    graph = b.finish(b.linear(b.mean(b.concat((b.conv(left, 4), b.conv(y, 4)), 1)), 3))
    one, two = (next(op for op in graph.ops if op.outputs[0] == t) for t in (left, y))
    twin = replace(two, inputs=(two.inputs[0], one.inputs[1], *two.inputs[2:]))
    shared_graph = normalize(replace(graph, ops=tuple(twin if op is two else op for op in graph.ops)))
    classes = channel_classes(shared_graph)
    orders = random_orders(shared_graph, classes, 1)
    permuted, order = permute(shared_graph, classes, orders)
    assert order[one.name] != order[two.name]
    require_same_values(shared_graph, permuted, classes, orders, 1)


def test_weights_that_are_an_operand_as_well_keep_their_order() -> None:
    b = GraphBuilder((6, 3), 2)
    both = b.constant((6, 6), zero_point=0, lowest=-127)
    y = b.linear(b.add(b.linear(b.input, 6), both), 6, per_channel=False)
    graph = b.finish(b.linear(b.reshape(y, (1, 36)), 3))
    user = next(op for op in graph.ops if op.outputs[0] == y)
    tied = replace(user, inputs=(user.inputs[0], both, *user.inputs[2:]))
    graph = normalize(replace(graph, ops=tuple(tied if op is user else op for op in graph.ops)))
    classes = channel_classes(graph)
    assert "parameter of linear_1" in str(classes.why_fixed(user.inputs[0]))
    permuted, order = permute(graph, classes, random_orders(graph, classes, 1))
    assert "linear_1" in order
    require_same_values(graph, permuted, classes, random_orders(graph, classes, 1), 1)


def test_scales_follow_their_channels() -> None:
    graph = normalize(residual(3))
    permuted, order = order_by_norm(graph, {1: 2})
    op = graph.layers[0]
    old, new = weight_of(graph, op), weight_of(permuted, permuted.layers[0])
    outputs = order[op.name].outputs
    assert isinstance(old.quant, Quant) and isinstance(new.quant, Quant) and outputs is not None
    assert new.quant.scale == tuple(old.quant.scale[k] for k in outputs) != old.quant.scale
    (old_b, new_b) = bias_of(graph, op), bias_of(permuted, permuted.layers[0])
    assert old_b is not None and new_b is not None and old_b.quant is not None and new_b.quant is not None
    assert new_b.quant.scale == tuple(old_b.quant.scale[k] for k in outputs)


# ---- a published scheme -----------------------------------------------------------------------------------------------

MCUNET = ("bias:20", "weights:24:1/4", "weights:27:1/2", "weights:30:1/2", "head")


def mcunet() -> Path:
    return shared("models/tiny_training/mcunet-5fps_int8.tflite")


def test_all_slices_of_the_49_kb_scheme_of_mcunet_can_be_reordered() -> None:
    """Convolutions 24, 27 and 30 read the trunk of a stage, which many layers share."""
    model = read_model(mcunet())
    graph = normalize(model)
    slices = parse_scheme(",".join(MCUNET), graph).slices(graph)
    assert slices == {24: 12, 27: 24, 30: 24}
    permuted, order = order_by_norm(graph, slices)
    assert not set(permuted.notes) - set(graph.notes)
    for k, count in slices.items():
        op = graph.layers[k]
        inputs = order[op.name].inputs
        assert inputs is not None
        assert set(inputs[:count]) != set(range(count))
    sample = random_samples(graph, 1, 1)[0]
    np.testing.assert_array_equal(run_int8(permuted, sample)[permuted.output], run_int8(graph, sample)[graph.output])
