"""Rung 1, whole graphs: float_gradients against finite differences of a float model that never saw the backward pass.

The float model runs through the same int8 activations: each tensor is a + mask · (f(z) - f(a)), a its int8 value, z the perturbed inputs.
It equals the int8 run where nothing is perturbed, and its derivative there is what backpropagation must give.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from helpers.graphs import GRAPHS, GraphBuilder, Int8, random_samples, run_int8
from helpers.kinds import BODIES, ENDS, Truth, truths, with_op
from mcugrad.autodiff import Loss, TrainGraph
from mcugrad.autodiff.rules import RULES
from mcugrad.graph import (
    Activation,
    Add,
    AvgPool,
    Conv2D,
    DwConv2D,
    Function,
    Graph,
    Linear,
    MaxPool,
    Mean,
    MinMax,
    Mul,
    Op,
    Prelu,
    Reshape,
    ResizeNearest,
    Slice,
    Sub,
    Unary,
)
from mcugrad.lower.quant import resize_rows
from mcugrad.lower.weights import read_layer
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.proof.tape import float_gradients, loss_error, softmax_error

Array = npt.NDArray[np.float64]
Params = dict[tuple[str, str], Array]


def real(graph: Graph, tensor: int, values: npt.NDArray[np.generic]) -> Array:
    q = graph.tensors[tensor].quant
    assert q is not None
    return q.scale[0] * (values.astype(np.float64) - q.zero_point)


def parameters(graph: Graph) -> Params:
    """Real weights in the graph's layout, and biases."""
    found: Params = {}
    for op in graph.layers:
        w = graph.tensors[op.inputs[1]]
        assert w.quant is not None and w.data is not None
        spread = np.reshape(w.quant.scale, [-1 if axis == w.quant.axis else 1 for axis in range(len(w.shape))])
        found[op.name, "w"] = w.data * spread
        layer = read_layer(graph, op)
        found[op.name, "b"] = layer.b * layer.w_scale * layer.x_scale
    return found


CLAMPS = {Function.RELU: Activation.RELU, Function.RELU6: Activation.RELU6, Function.RELU_N1_1: Activation.RELU_N1_1}


def passes(graph: Graph, op: Op, q: Int8) -> npt.NDArray[np.bool_]:
    """Where an output moves with what it is computed from: inside its clamp."""
    kind, quant = op.kind, graph.tensors[op.outputs[0]].quant
    assert quant is not None
    everywhere = np.ones(q.shape, bool)
    if isinstance(kind, Unary):
        activation = CLAMPS.get(kind.function, Activation.NONE)
    elif isinstance(kind, Conv2D | DwConv2D | Linear | Add | Sub | Mul | AvgPool | MaxPool):
        activation = kind.activation
        if activation is Activation.NONE and isinstance(kind, Conv2D | DwConv2D | Linear | Add | Sub):
            return q > -128 if quant.zero_point == -128 else everywhere
    else:
        activation = Activation.NONE
    low, high = {Activation.RELU: (0, np.inf), Activation.RELU6: (0, 6), Activation.RELU_N1_1: (-1, 1)}.get(activation, (-np.inf, np.inf))
    bottom, top = (quant.zero_point + np.round(end / quant.scale[0]) for end in (low, high))
    return everywhere & (q > max(bottom, -129 if low == -np.inf else -128)) & (q < (top if top <= 127 else 128))


def local(graph: Graph, op: Op, inputs: list[Array], anchors: list[Array], params: Params) -> Array:
    """One op in real numbers, without its clamp. Where it chooses (a maximum, a slope), the choice is that of ``anchors``."""
    x, kind, shape = inputs[0], op.kind, graph.tensors[op.outputs[0]].shape
    match kind:
        case Reshape():
            return x.reshape(shape)
        case Slice():
            return x[np.ix_(*(range(b, b + n * s, s) for b, n, s in zip(kind.begin, shape, kind.step, strict=True)))]
        case ResizeNearest():
            flags = {"align_corners": kind.align_corners, "half_pixel_centers": kind.half_pixel_centers}
            rows, cols = (resize_rows(x.shape[k], shape[k], **flags) for k in (1, 2))
            return x[:, rows][:, :, cols]
        case Unary() if kind.function in CLAMPS:
            return x
        case Unary(function=Function.LEAKY_RELU):
            return x * np.where(anchors[0] >= 0, 1.0, kind.alpha)
        case Prelu():
            return x * np.where(anchors[0] > 0, 1.0, inputs[1].reshape(-1))
        case MinMax():
            first = anchors[0] >= anchors[1] if kind.largest else anchors[0] <= anchors[1]
            second = anchors[1] >= anchors[0] if kind.largest else anchors[1] <= anchors[0]
            return np.where(first if x.shape == shape else ~second, x, inputs[1])
        case MaxPool():
            return largest(kind, x[0], anchors[0][0], shape)
        case Linear():
            x = x.reshape(-1, params[op.name, "w"].shape[1])
        case Conv2D() | DwConv2D() | AvgPool() | Mean():
            x = x[0]
        case _:
            return np.asarray(RULES[type(kind)].forward(kind, tuple(inputs))).reshape(shape)
    rest = (params[op.name, "w"], params[op.name, "b"]) if (op.name, "w") in params else ()
    return RULES[type(kind)].forward(kind, (x, *rest)).reshape(shape)


def largest(kind: MaxPool, x: Array, anchor: Array, shape: tuple[int, ...]) -> Array:
    """Of every window, the element of x that stands where the anchor is largest first."""
    y = np.zeros(shape)
    for p, q, c in np.ndindex(*shape[1:]):
        top, left = p * kind.stride[0] - kind.pad[0], q * kind.stride[1] - kind.pad[1]
        taps = [(top + r, left + s) for r, s in np.ndindex(kind.kernel) if 0 <= top + r < x.shape[0] and 0 <= left + s < x.shape[1]]
        y[0, p, q, c] = x[(*max(taps, key=lambda at: anchor[(*at, c)]), c)]
    return y


def loss(train: TrainGraph, values: dict[int, Int8], at: Params, params: Params, truth: Truth) -> float:
    """The loss of the model with the parameters ``params``; the int8 run had ``at``."""
    graph = train.graph
    z: dict[int, Array] = {graph.input: real(graph, graph.input, values[graph.input])}
    output = np.zeros(0)
    for op in graph.ops:
        if op is train.behind:
            break
        inputs = [i for i in op.inputs if i in z or (graph.tensors[i].data is not None and op not in graph.layers)]
        a = [real(graph, i, values[i]).reshape(graph.read(op, k).shape) for k, i in enumerate(inputs)]
        moved = [z[i].reshape(now.shape) if i in z else now for i, now in zip(inputs, a, strict=True)]
        y = op.outputs[0]
        now = local(graph, op, moved, a, params)
        if op is train.head:
            output = now.ravel()
            break
        z[y] = real(graph, y, values[y]) + passes(graph, op, values[y]) * (now - local(graph, op, a, a, at))
        output = z[y].ravel()
    return loss_of(train, output, truth)


def loss_of(train: TrainGraph, output: Array, truth: Truth) -> float:
    if train.loss is Loss.MSE:
        return float(((output - real(train.graph, train.graph.output, np.asarray(truth)).ravel()) ** 2).mean())
    if train.loss is Loss.BCE:
        logit = float(output[0])
        return float(np.log1p(np.exp(-abs(logit))) + max(logit, 0.0) - logit * bool(truth))
    assert isinstance(truth, int)
    return float(np.log(np.exp(output - output.max()).sum()) + output.max() - output[truth])


def loss_input(train: TrainGraph, values: dict[int, Int8], params: Params) -> Array:
    """What the loss reads, in real units: logits, or the int8 output."""
    op, graph = train.head, train.graph
    if op is None:
        return real(graph, graph.output, values[graph.output])
    x = real(graph, op.inputs[0], values[op.inputs[0]])
    return local(graph, op, [x], [x], params).ravel()


def in_graph_layout(graph: Graph, op: Op, dw: Array) -> Array:
    """The tape's (O, R, S, I) as the graph has its weights."""
    if isinstance(op.kind, DwConv2D):
        return dw[..., 0].transpose(1, 2, 0)[None]
    return dw.reshape(graph.tensors[op.inputs[1]].shape)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    compare_with_differences(compile_graph(GRAPHS[name](3), "all"), 1, 12)


@pytest.mark.parametrize("body", list(BODIES))
def test_gradients_through_every_kind_are_those_of_finite_differences(body: str) -> None:
    for end, (kind, _) in ENDS.items():
        compiled = compile_graph(with_op(body, end, 4), "all", None, kind)
        compare_with_differences(compiled, truths(compiled, 1, 3)[0], 2)


def compare_with_differences(compiled: Compiled, truth: Truth, count: int) -> None:
    """``count`` elements of every trained tensor."""
    train, graph = compiled.train, compiled.train.graph
    values, params = run_int8(compiled.model, random_samples(graph, 1, 5)[0]), parameters(graph)
    found = float_gradients(train, values, loss_error(train, loss_input(train, values, params), truth))
    assert {layer for layer, _ in found} == {op.name for op in graph.layers}
    rng = np.random.default_rng(0)
    for op in graph.layers:
        for what in ("w", "b"):
            if (op.name, what) not in found:
                assert what == "b" and len(op.inputs) == 2
                continue
            got = in_graph_layout(graph, op, found[op.name, what]) if what == "w" else found[op.name, what]
            assert np.abs(got).max() > 0, f"{op.name}.{what}: nothing to compare"
            for flat in rng.choice(got.size, min(count, got.size), replace=False):
                index = np.unravel_index(int(flat), got.shape)
                want = slope(train, values, params, truth, (op.name, what), index)
                assert got[index] == pytest.approx(want, rel=1e-4, abs=1e-7), f"{op.name}.{what}{index}"


def slope(train: TrainGraph, values: dict[int, Int8], at: Params, truth: Truth, key: tuple[str, str], index: tuple[np.intp, ...]) -> float:
    h = 1e-4
    ends = []
    for step in (h, -h):
        moved = at[key].copy()
        moved[index] += step
        ends.append(loss(train, values, at, {**at, key: moved}, truth))
    return (ends[0] - ends[1]) / (2 * h)


def test_masks_of_the_graphs_cut_something() -> None:
    """The comparison above is about masks only where both sides of every clamp occur."""
    for name in ("chain", "views", "relu_by_zero_point", "double_residual"):
        graph = GRAPHS[name](3)
        values = run_int8(graph, random_samples(graph, 1, 5)[0])
        cut = [passes(graph, op, values[op.outputs[0]]) for op in graph.ops]
        assert sum(0 < p.mean() < 1 for p in cut) >= 2, name


def test_relu6_cuts_above_where_the_scale_reaches_six() -> None:
    b = GraphBuilder((1, 4, 4, 2), 1, scale=1 / 4)
    y = b.conv(b.input, 4, activation=Activation.RELU6)
    graph = b.finish(b.linear(b.mean(y), 3))
    values = run_int8(graph, random_samples(graph, 1, 2)[0])
    assert (values[y] == 127).any()
    train = compile_graph(graph, "all").train
    params = parameters(graph)
    found = float_gradients(train, values, softmax_error(loss_input(train, values, params), 0))
    for index in np.ndindex((4,)):
        want = slope(train, values, params, 0, ("conv_0", "b"), index)  # type: ignore[arg-type]
        assert found["conv_0", "b"][index] == pytest.approx(want, rel=1e-4, abs=1e-7)


def test_the_errors_of_the_other_losses() -> None:
    """Against differences of the losses themselves."""
    b = GraphBuilder((1, 8), 1)
    bce = compile_graph(b.finish(b.linear(b.input, 1)), "all", None, Loss.BCE).train
    b = GraphBuilder((1, 8), 1)
    mse = compile_graph(b.finish(b.linear(b.input, 3)), "all", None, Loss.MSE).train
    target = np.array([3, -100, 127], np.int8)
    for train, output, truth in ((bce, np.array([0.7]), 0), (bce, np.array([-30.0]), 1), (mse, np.array([0.1, -0.4, 2.0]), target)):
        error, h = loss_error(train, output, truth), 1e-6
        for k in range(output.size):
            ends = [loss_of(train, output + step * (np.arange(output.size) == k), truth) for step in (h, -h)]
            assert error[k] == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("label", [0, 2])
def test_softmax_error(label: int) -> None:
    logits = np.array([0.5, -1.0, 3.0])
    e = softmax_error(logits, label)
    p = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(e, p - np.eye(3)[label], atol=1e-12)
    big = softmax_error(np.array([1e4, -1e4, 0.0]), label)
    assert np.isfinite(big).all() and big.sum() == pytest.approx(0)
