"""Every kind of op in a plan: its int8 outputs are what the op means, for operands spread in any way, several inputs and outputs, moves."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.graphs import GraphBuilder, Int8, output_int8, random_inputs, random_samples, run_int8
from helpers.kinds import BODIES, ENDS, ends_of_all_sorts, with_op
from helpers.tiny_graphs import oracle
from mcugrad.errors import ModelError
from mcugrad.exporter import write_tflite
from mcugrad.graph import Activation, Function, Graph, Unary
from mcugrad.lower import Options
from mcugrad.lower.blocks import MAX_DIM
from mcugrad.pipeline import compile_graph
from mcugrad.proof.verify import pack, unpack
from mcugrad.ref import Machine

BINARY: dict[str, Callable[[GraphBuilder, int, int], int]] = {
    "add": lambda b, x, y: b.add(x, y),
    "sub": lambda b, x, y: b.sub(x, y, Activation.RELU),
    "mul": lambda b, x, y: b.mul(x, y, Activation.RELU6),
    "maximum": lambda b, x, y: b.minmax(x, y, largest=True),
    "minimum": lambda b, x, y: b.minmax(x, y, largest=False),
}


def plan_outputs(graph: Graph, inputs: tuple[Int8, ...], machine: Machine | None = None) -> list[Int8]:
    """The plan's outputs, each flat."""
    machine = machine or Machine(compile_graph(graph, None).plan)
    return unpack(machine.predict(pack([x.ravel() for x in inputs])), [graph.tensors[i].size for i in graph.outputs])


def require_the_graph(graph: Graph, samples: int = 2) -> None:
    """The plan gives all outputs that the graph means."""
    machine = Machine(compile_graph(graph, None).plan)
    for inputs in random_inputs(graph, samples, 1):
        values = run_int8(graph, *inputs)
        for index, got in zip(graph.outputs, plan_outputs(graph, inputs, machine), strict=True):
            assert (got == values[index].ravel()).all(), graph.tensors[index].name


def in_tensorflow(graph: Graph) -> bool:
    """TensorFlow Lite Micro has no RELU_N1_TO_1 of its own."""
    return not any(isinstance(op.kind, Unary) and op.kind.function is Function.RELU_N1_1 for op in graph.ops)


@pytest.mark.parametrize("rounding", [0, 1])
@pytest.mark.parametrize("body", list(BODIES))
def test_every_kind(body: str, rounding: int) -> None:
    """Where the whole net is trained, one half of each layer, and nothing; each plan with both formats of trained weights."""
    graph = replace(with_op(body, "xent", 6), rounding=rounding)
    samples = random_samples(graph, 2, 1)
    expected = [output_int8(graph, s) for s in samples]
    assert any((e != expected[0]).any() for e in expected) or body == "softmax inside"
    half = ",".join(f"weights:{op.name}:1/2" for op in graph.layers)
    for scheme, ws in (("all", 1), ("all", 2), (half, 2), (half, 1), (None, 2)):
        machine = Machine(compile_graph(graph, scheme, Options(ws=ws)).plan)
        for sample, want in zip(samples, expected, strict=True):
            assert (machine.predict(sample) == want).all(), scheme


@pytest.mark.parametrize("end", list(ENDS))
def test_every_kind_is_what_tensorflow_computes(end: str) -> None:
    for body in BODIES:
        graph = with_op(body, end, 7)
        if in_tensorflow(graph):
            samples = random_samples(graph, 2, 1)
            machine = Machine(compile_graph(graph, "all", None, ENDS[end][0]).plan)
            for sample, want in zip(samples, oracle(write_tflite(graph), list(samples)), strict=True):
                assert (machine.predict(sample) == want.ravel()).all(), body


def test_one_rounding_is_not_two() -> None:
    graph = with_op("mul", "mse_s8")
    sample = random_samples(graph, 1)[0]
    assert (output_int8(graph, sample) != output_int8(replace(graph, rounding=1), sample)).any()


# ---- spread operands ----------------------------------------------------------------------------------------------------


@st.composite
def spreads(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast, of up to four dimensions; leading ones may be missing."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    a, b = (tuple(n if draw(st.booleans()) else 1 for n in shape) for _ in "ab")
    cut = a[draw(st.integers(0, len(a) - 1)) if draw(st.booleans()) else 0 :]
    return (cut, b) if draw(st.booleans()) else (b, cut)


@given(spreads(), st.sampled_from(sorted(BINARY)), st.sampled_from(["both inputs", "first constant", "second constant"]))
@settings(max_examples=250, deadline=None)
def test_operands_spread_as_numpy_spreads_them(shapes: tuple[tuple[int, ...], tuple[int, ...]], name: str, ends: str) -> None:
    first, second = shapes
    b = GraphBuilder(second if ends == "first constant" else first, 1, samples=4)
    if ends == "both inputs":
        operands = b.input, b.new_input(second, scale=1 / 50, zero_point=-90)
    elif ends == "first constant":
        operands = b.constant(first), b.input
    else:
        operands = b.input, b.constant(second)
    require_the_graph(b.finish(BINARY[name](b, *operands)), 1)


@pytest.mark.parametrize("name", sorted(BINARY))
def test_both_operands_may_be_spread(name: str) -> None:
    """A column and a row; then shapes that are spread in turns, which rows and columns cannot say. Also with a constant."""
    for first, second in (((1, 5, 1, 3), (1, 1, 4, 1)), ((4, 1, 3, 1), (1, 5, 1, 2)), ((2, 3, 4), (2, 1, 4)), ((2, 1, 4), (2, 3, 4))):
        b = GraphBuilder(first, 2)
        other = b.new_input(second, scale=1 / 80, zero_point=40)
        steps = compile_graph(b.finish(BINARY[name](b, b.input, other)), None).program.steps
        assert sum(s.kind.name == "copy_s8" for s in steps) == (b.tensors[b.input].size < 24) + (b.tensors[other].size < 24)
        require_the_graph(b.finish(b.ops[-1].outputs[0]))
        b = GraphBuilder(first, 2)
        require_the_graph(b.finish(BINARY[name](b, b.constant(second), b.input)))


# ---- inputs and outputs -------------------------------------------------------------------------------------------------


def test_several_inputs_and_outputs_of_all_sorts() -> None:
    require_the_graph(ends_of_all_sorts())


def test_a_graph_that_computes_nothing() -> None:
    b = GraphBuilder((1, 3, 5), 1)
    graph = b.finish(b.reshape(b.input, (5, 3)))
    assert not compile_graph(graph, None).train.graph.ops
    require_the_graph(graph)
    require_the_graph(b.finish(b.input))


def test_an_output_of_more_values_than_a_copy_has_along_one_axis() -> None:
    b = GraphBuilder((1, 300, 300, 1), 1, samples=1)
    assert b.tensors[b.input].size > MAX_DIM
    require_the_graph(b.finish(b.input), 1)


def test_an_output_that_other_ops_read_on() -> None:
    b = GraphBuilder((1, 4, 4, 2), 1)
    y = b.conv(b.input, 3)
    require_the_graph(b.finish(b.unary(y, Function.TANH), y))


def test_a_trained_plan_gives_an_output_that_is_no_op_of_its_own() -> None:
    """The head's output seen through a reshape: evaluation writes it where the host reads."""
    b = GraphBuilder((1, 12), 1)
    graph = b.finish(b.reshape(b.linear(b.input, 4), (4, 1)))
    sample = random_samples(graph, 1)[0]
    assert (Machine(compile_graph(graph, "all").plan).predict(sample) == output_int8(graph, sample)).all()


# ---- moves --------------------------------------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=5).map(tuple)


@given(SHAPES, st.data())
@settings(max_examples=120, deadline=None)
def test_slices_and_pads_of_any_rank(shape: tuple[int, ...], data: st.DataObject) -> None:
    begin = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    step = tuple(data.draw(st.integers(1, 3)) for _ in shape)
    size = tuple(data.draw(st.integers(1, (n - 1 - b) // s + 1)) for n, b, s in zip(shape, begin, step, strict=True))
    b = GraphBuilder(shape, 1, samples=1)
    cut = b.slice(b.input, begin, size, step)
    before, after = (tuple(data.draw(st.integers(0, 2)) for _ in shape) for _ in "ab")
    wide = b.pad_all(b.input, before, after, data.draw(st.integers(-128, 127)))
    try:
        require_the_graph(b.finish(cut, wide), 1)
    except ModelError as e:
        assert len(shape) == 5 and "axes" in str(e)


@given(st.permutations(range(5)), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_transposes_of_up_to_five_axes(order: list[int], rank: int) -> None:
    perm = tuple(i for i in order if i < rank)
    b = GraphBuilder((2, 3, 4, 2, 3)[:rank], 1, samples=1)
    graph = b.finish(b.transpose(b.input, perm))
    neighbours = sum(b == a + 1 for a, b in itertools.pairwise(perm))
    if rank - neighbours > 4:
        with pytest.raises(ModelError, match="transpose_0 moves elements along 5 axes, 4 is the limit"):
            compile_graph(graph, None)
    else:
        require_the_graph(graph, 1)


@given(SHAPES, st.data())
@settings(max_examples=60, deadline=None)
def test_concats_along_any_axis(shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    b = GraphBuilder(shape, 1, samples=1)
    parts = [b.input]
    for n in data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)):
        other = (*shape[:axis], n, *shape[axis + 1 :])
        parts.append(b.constant(other, like=b.input) if data.draw(st.booleans()) else b.new_input(other))
    parts.append(data.draw(st.sampled_from(parts)))
    require_the_graph(b.finish(b.concat(parts, axis)), 1)


def test_a_copy_along_a_dimension_that_no_record_holds_is_refused() -> None:
    """65,536 is 2 · 32,768; 65,537 is a prime."""
    b = GraphBuilder((2, MAX_DIM + 1), 1, samples=1)
    require_the_graph(b.finish(b.transpose(b.input, (1, 0))), 1)
    b = GraphBuilder((2, MAX_DIM + 2), 1, samples=1)
    with pytest.raises(ModelError, match=f"transpose_0 moves {MAX_DIM + 2} elements along one axis, {MAX_DIM} is the limit"):
        compile_graph(b.finish(b.transpose(b.input, (1, 0))), None)
