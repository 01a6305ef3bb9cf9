"""What normalization takes away must not change the function: reshapes, pads, the float border."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.graphs import GRAPHS, GraphBuilder, output_int8, random_inputs, random_samples, run_int8, views
from helpers.tiny_graphs import oracle
from mcugrad.errors import ModelError
from mcugrad.exporter import write_tflite
from mcugrad.graph import Conv2D, Dequantize, DwConv2D, Graph, Op, Pad, Quantize, Reshape, Tensor
from mcugrad.graph.normalize import normalize
from mcugrad.pipeline import compile_graph
from mcugrad.ref import Machine

PADS = st.tuples(*[st.integers(0, 3)] * 4)
BORDER = Reshape | Quantize | Dequantize
KEPT = {"shuffle": ["pad_0"]}
"""Pads that are no part of a convolution: this one is filled with another code than zero."""


@given(PADS, PADS, st.booleans(), st.sampled_from([(1, 1), (2, 1), (2, 3)]), st.integers(-128, 127))
@settings(max_examples=60, deadline=None)
def test_a_pad_before_a_convolution_is_the_pad_of_the_convolution(
    before: tuple[int, int, int, int], own: tuple[int, int, int, int], depthwise: bool, stride: tuple[int, int], zero_point: int
) -> None:
    """Both are filled with the zero point, so that the pads add up; the kernels see only the sum."""
    b = GraphBuilder((1, 5, 4, 2), 1, zero_point=zero_point, samples=2)
    padded = b.pad(b.input, before)
    y = b.dwconv(padded, 2, stride=stride, pad=own) if depthwise else b.conv(padded, 3, stride=stride, pad=own)
    graph = b.finish(y)
    small = normalize(graph)
    assert [type(op.kind) for op in small.ops] == [DwConv2D if depthwise else Conv2D]
    kind = small.ops[0].kind
    assert isinstance(kind, Conv2D | DwConv2D) and kind.pad == tuple(a + c for a, c in zip(before, own, strict=True))
    sample = random_samples(graph, 1)[0]
    want = run_int8(graph, sample)[graph.output]
    assert (run_int8(small, sample)[small.output] == want).all()
    assert (Machine(compile_graph(graph, None).plan).predict(sample) == want.ravel()).all()


@pytest.mark.parametrize("pad", [(1, 1, 1, 1), (0, 1, 2, 0), (2, 0, 0, 3)])
def test_tensorflow_agrees_about_pads(pad: tuple[int, int, int, int]) -> None:
    b = GraphBuilder((1, 6, 5, 3), 1, zero_point=-77)
    graph = b.finish(b.conv(b.pad(b.input, pad), 4, pad=(0, 0, 0, 0), stride=(2, 1)))
    machine = Machine(compile_graph(graph, None).plan)
    samples = random_samples(graph, 3)
    for sample, want in zip(samples, oracle(write_tflite(graph), list(samples)), strict=True):
        assert (machine.predict(sample) == want.ravel()).all()


@pytest.mark.parametrize("name", list(GRAPHS))
def test_normalization_changes_no_op_that_computes(name: str) -> None:
    graph = GRAPHS[name](1)
    small = normalize(graph)
    gone = [op.name for op in graph.ops if isinstance(op.kind, BORDER | Pad) and op.name not in KEPT.get(name, [])]
    assert [op.name for op in small.ops] == [op.name for op in graph.ops if op.name not in gone]
    assert len(gone) > 0 or name not in ("views", "residual", "rows", "shuffle")
    assert [op.name for op in small.layers] == [op.name for op in graph.layers]
    assert small.tensors == graph.tensors and small.model_hash == graph.model_hash
    made = {small.input} | {op.outputs[0] for op in small.ops}
    for op in small.ops:
        assert all(i in made or small.tensors[i].data is not None for i in op.inputs), op.name
    assert small.output in made


def test_normalizing_twice_is_normalizing_once() -> None:
    once = normalize(views(1))
    assert normalize(once) == once


def test_an_op_behind_a_reshape_reads_the_new_shape() -> None:
    graph = views(1)
    small = normalize(graph)
    shapes = {op.name: small.read(op).shape for op in small.layers}
    assert shapes == {"conv_0": (1, 6, 4, 2), "dwconv_0": (1, 4, 6, 3), "conv_1": (1, 2, 5, 6), "conv_2": (1, 1, 1, 6)}
    assert [op.reads for op in small.ops if op.name == "mean_0"] == [()]


def test_a_reshape_of_a_reshape_is_one_alias() -> None:
    b = GraphBuilder((1, 24), 1)
    x = b.reshape(b.reshape(b.reshape(b.input, (1, 2, 3, 4)), (1, 4, 6)), (1, 4, 3, 2))
    graph = b.finish(b.reshape(b.conv(x, 2), (1, 24)))
    small = normalize(graph)
    assert len(small.ops) == 1 and small.ops[0].inputs[0] == graph.input and small.ops[0].reads[:1] == ((1, 4, 3, 2),)
    assert small.output == small.ops[0].outputs[0]
    sample = random_samples(graph, 1)[0]
    assert (Machine(compile_graph(graph, None).plan).predict(sample) == run_int8(graph, sample)[graph.output].ravel()).all()


def float_border(graph: Graph) -> Graph:
    """The graph between a QUANTIZE and a DEQUANTIZE."""
    n = len(graph.tensors)
    source, target = graph.tensors[graph.input], graph.tensors[graph.output]
    tensors = (
        *graph.tensors,
        Tensor("float in", source.shape, np.dtype(np.float32)),
        Tensor("float out", target.shape, np.dtype(np.float32)),
    )
    ops = (Op("quantize_0", Quantize(), (n,), (graph.input,)), *graph.ops, Op("dequantize_0", Dequantize(), (graph.output,), (n + 1,)))
    return replace(graph, tensors=tensors, ops=ops, inputs=(n, *graph.inputs[1:]), outputs=(n + 1, *graph.outputs[1:]))


def test_each_float_input_and_output_is_the_hosts() -> None:
    """Two inputs, one of them float, and an int8 output behind a float one: the order stays the file's."""
    b = GraphBuilder((1, 4, 4, 2), 1)
    second = b.new_input((1, 4, 4, 2), scale=1 / 50, zero_point=-9)
    graph = b.finish(b.sub(b.input, second), b.mul(second, b.input))
    bordered = float_border(graph)
    assert bordered.inputs != graph.inputs and bordered.outputs != graph.outputs
    small = normalize(bordered)
    assert (small.inputs, small.outputs) == (graph.inputs, graph.outputs)
    assert compile_graph(bordered, None).plan == compile_graph(graph, None).plan
    machine = Machine(compile_graph(bordered, None).plan)
    for inputs in random_inputs(graph, 3):
        values = run_int8(graph, *inputs)
        want = np.concatenate([values[i].ravel() for i in graph.outputs])
        assert (machine.predict(np.concatenate([x.ravel() for x in inputs])) == want).all()


def test_an_op_reads_each_input_in_its_own_shape() -> None:
    b = GraphBuilder((1, 2, 6, 2), 1)
    a = b.reshape(b.input, (1, 4, 3, 2))
    c = b.reshape(b.constant((6,)), (3, 2))
    graph = b.finish(b.add(c, a))
    small = normalize(graph)
    op = small.ops[0]
    assert op.reads == ((3, 2), (1, 4, 3, 2)) and [small.read(op, k).shape for k in (0, 1)] == [(3, 2), (1, 4, 3, 2)]
    _plan_is_the_graph(graph)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_the_float_border_is_the_hosts(name: str) -> None:
    graph = GRAPHS[name](1)
    small, plain = normalize(float_border(graph)), normalize(graph)
    assert (small.inputs, small.outputs, small.ops) == (plain.inputs, plain.outputs, plain.ops)
    assert compile_graph(float_border(graph), "all").plan == compile_graph(graph, "all").plan


# ---- pads that stay --------------------------------------------------------------------------------------------------------


def _pooled(b: GraphBuilder, p: int) -> int:
    return b.pool(p, (2, 2), (2, 2))


def _reshaped(b: GraphBuilder, p: int) -> int:
    return b.linear(b.reshape(p, (1, b.tensors[p].shape[1] * 12)), 3)


def _added(b: GraphBuilder, p: int) -> int:
    return b.add(p, b.conv(p, 2))


def _is_output(b: GraphBuilder, p: int) -> int:
    return p


Behind = Callable[[GraphBuilder, int], int]


@pytest.mark.parametrize("behind", [_pooled, _reshaped, _added, _is_output])
def test_a_pad_that_not_only_convolutions_read_is_a_copy(behind: Behind) -> None:
    b = GraphBuilder((1, 4, 4, 2), 1)
    graph = b.finish(behind(b, b.pad(b.conv(b.input, 2), (1, 1, 1, 1))))
    _stays(graph)


@pytest.mark.parametrize(
    "before, after, value",
    [
        ((0, 1, 1, 0), (0, 1, 1, 0), 4),  # not the zero point, 3
        ((0, 1, 1, 1), (0, 1, 1, 0), 3),  # channels too
        ((0, 0, 0, 0), (0, 1, 1, 2), 3),
    ],
)
def test_a_pad_that_a_convolution_cannot_do_is_a_copy(before: tuple[int, ...], after: tuple[int, ...], value: int) -> None:
    b = GraphBuilder((1, 4, 4, 2), 1)
    _stays(b.finish(b.conv(b.pad_all(b.input, before, after, value), 2)))


def test_a_pad_of_vectors_and_a_pad_of_a_pad() -> None:
    b = GraphBuilder((3, 5), 1)
    _stays(b.finish(b.linear(b.pad_all(b.input, (1, 2), (0, 1)), 4)))
    b = GraphBuilder((1, 4, 4, 2), 1)
    graph = b.finish(b.conv(b.pad(b.pad(b.input, (1, 0, 0, 2)), (0, 1, 1, 0)), 2))
    small = normalize(graph)
    assert [op.name for op in small.ops] == ["pad_0", "conv_0"] and small.ops[1].kind.pad == (1, 2, 2, 1)  # type: ignore[union-attr]
    _plan_is_the_graph(graph)


def _stays(graph: Graph) -> None:
    assert sum(isinstance(op.kind, Pad) for op in normalize(graph).ops) == 1
    _plan_is_the_graph(graph)


def _plan_is_the_graph(graph: Graph) -> None:
    machine = Machine(compile_graph(graph, None).plan)
    for sample in random_samples(graph, 2):
        assert (machine.predict(sample) == output_int8(graph, sample)).all()


def test_a_pad_that_two_convolutions_read() -> None:
    b = GraphBuilder((1, 5, 5, 2), 1)
    p = b.pad(b.input, (1, 0, 1, 2))
    graph = b.finish(b.add(b.conv(p, 3, pad=(0, 0, 0, 0)), b.dwconv(b.conv(p, 3, pad=(0, 0, 0, 0)))))
    sample = random_samples(graph, 1)[0]
    assert (Machine(compile_graph(graph, None).plan).predict(sample) == run_int8(graph, sample)[graph.output].ravel()).all()


# ---- refusals ---------------------------------------------------------------------------------------------------------------


def test_quantize_and_dequantize_inside_the_graph() -> None:
    b = GraphBuilder((1, 4, 4, 2), 1)
    y = b.conv(b.input, 2)
    graph = b.finish(y)
    n = len(graph.tensors)
    tensors = (*graph.tensors, Tensor("again", graph.tensors[y].shape, np.dtype(np.int8), graph.tensors[y].quant))
    again = replace(graph, tensors=tensors, ops=(*graph.ops, Op("quantize_0", Quantize(), (y,), (n,))), outputs=(n,))
    with pytest.raises(ModelError, match="quantize_0 is a QUANTIZE with a float tensor inside the graph"):
        normalize(again)
    float_too = replace(graph, tensors=tensors, ops=(*graph.ops, Op("dequantize_0", Dequantize(), (y,), (n,))))
    with pytest.raises(ModelError, match="dequantize_0 is a DEQUANTIZE with a float tensor inside the graph"):
        normalize(float_too)
