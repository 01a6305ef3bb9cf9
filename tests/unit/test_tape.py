"""Rung 1, whole graphs: float_gradients against finite differences of a float model that never saw the backward pass.

The float model runs through the same int8 activations: each tensor is a + mask · (f(z) - f(a)), a its int8 value, z the perturbed inputs.
It equals the int8 run where nothing is perturbed, and its derivative there is what backpropagation must give.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from helpers.graphs import GRAPHS, GraphBuilder, Int8, random_samples, run_int8
from mcugrad.autodiff.rules import RULES
from mcugrad.graph import Activation, Add, AvgPool, Conv2D, DwConv2D, Graph, Linear, Op, Pad, Reshape, Softmax
from mcugrad.lower.weights import read_layer
from mcugrad.pipeline import compile_graph
from mcugrad.proof.tape import float_gradients, softmax_error

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


def passes(graph: Graph, op: Op, q: Int8) -> npt.NDArray[np.bool_]:
    """Where an output moves with what it is computed from: inside its clamp."""
    if not isinstance(op.kind, Conv2D | DwConv2D | Linear | Add | AvgPool):
        return np.ones(q.shape, bool)
    quant = graph.tensors[op.outputs[0]].quant
    assert quant is not None
    if op.kind.activation is Activation.NONE:
        return q > -128 if quant.zero_point == -128 and not isinstance(op.kind, AvgPool) else np.ones(q.shape, bool)
    top = quant.zero_point + round(6 / quant.scale[0]) if op.kind.activation is Activation.RELU6 else 128
    return (q > quant.zero_point) & (q < (top if top <= 127 else 128))


def local(graph: Graph, op: Op, inputs: list[Array], params: Params) -> Array:
    """One op in real numbers, without its clamp."""
    x, shape = inputs[0], graph.tensors[op.outputs[0]].shape
    if isinstance(op.kind, Reshape):
        return x.reshape(shape)
    if isinstance(op.kind, Pad):
        p = op.kind.pad
        return np.pad(x, ((0, 0), (p[0], p[2]), (p[1], p[3]), (0, 0)))
    if isinstance(op.kind, Linear):
        x = x.reshape(-1, params[op.name, "w"].shape[1])
    elif not isinstance(op.kind, Add):
        x = x[0]
    rest = (params[op.name, "w"], params[op.name, "b"]) if (op.name, "w") in params else tuple(inputs[1:])
    return RULES[type(op.kind)].forward(op.kind, (x, *rest)).reshape(shape)


def loss(graph: Graph, values: dict[int, Int8], at: Params, params: Params, label: int) -> float:
    """Softmax cross-entropy of the model with the parameters ``params``; the int8 run had ``at``."""
    z: dict[int, Array] = {graph.input: real(graph, graph.input, values[graph.input])}
    logits = np.zeros(0)
    for op in graph.ops:
        if isinstance(op.kind, Softmax):
            break
        inputs = [i for i in op.inputs if i in z]
        a = [real(graph, i, values[i]) for i in inputs]
        y = op.outputs[0]
        moved = local(graph, op, [z[i] for i in inputs], params)
        if op is graph.layers[-1]:
            logits = moved.ravel()
            break
        z[y] = real(graph, y, values[y]) + passes(graph, op, values[y]) * (moved - local(graph, op, a, at))
    top = logits.max()
    return float(np.log(np.exp(logits - top).sum()) + top - logits[label])


def head_logits(graph: Graph, values: dict[int, Int8], params: Params) -> Array:
    op = graph.layers[-1]
    return local(graph, op, [real(graph, op.inputs[0], values[op.inputs[0]])], params).ravel()


def in_graph_layout(graph: Graph, op: Op, dw: Array) -> Array:
    """The tape's (O, R, S, I) as the graph has its weights."""
    if isinstance(op.kind, DwConv2D):
        return dw[..., 0].transpose(1, 2, 0)[None]
    return dw.reshape(graph.tensors[op.inputs[1]].shape)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    graph = GRAPHS[name](3)
    train = compile_graph(graph, "all").train
    values, params, label = run_int8(graph, random_samples(graph, 1, 5)[0]), parameters(graph), 1
    found = float_gradients(train, values, softmax_error(head_logits(graph, values, params), label))
    assert {layer for layer, _ in found} == {op.name for op in graph.layers}
    rng = np.random.default_rng(0)
    for op in graph.layers:
        for what in ("w", "b"):
            if (op.name, what) not in found:
                assert what == "b" and len(op.inputs) == 2
                continue
            got = in_graph_layout(graph, op, found[op.name, what]) if what == "w" else found[op.name, what]
            assert np.abs(got).max() > 0, f"{op.name}.{what}: nothing to compare"
            for flat in rng.choice(got.size, min(12, got.size), replace=False):
                index = np.unravel_index(int(flat), got.shape)
                assert got[index] == pytest.approx(slope(graph, values, params, label, (op.name, what), index), rel=1e-4, abs=1e-7)


def slope(graph: Graph, values: dict[int, Int8], at: Params, label: int, key: tuple[str, str], index: tuple[np.intp, ...]) -> float:
    h = 1e-4
    ends = []
    for step in (h, -h):
        moved = at[key].copy()
        moved[index] += step
        ends.append(loss(graph, values, at, {**at, key: moved}, label))
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
    found = float_gradients(train, values, softmax_error(head_logits(graph, values, params), 0))
    for index in np.ndindex((4,)):
        want = slope(graph, values, params, 0, ("conv_0", "b"), index)  # type: ignore[arg-type]
        assert found["conv_0", "b"][index] == pytest.approx(want, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("label", [0, 2])
def test_softmax_error(label: int) -> None:
    logits = np.array([0.5, -1.0, 3.0])
    e = softmax_error(logits, label)
    p = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(e, p - np.eye(3)[label], atol=1e-12)
    big = softmax_error(np.array([1e4, -1e4, 0.0]), label)
    assert np.isfinite(big).all() and big.sum() == pytest.approx(0)
