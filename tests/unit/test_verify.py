"""proof/verify.py: a wrong executor and a wrong layer are found and named; the inputs reach the edges; packing is that of the plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.graphs import GraphBuilder, Int8, chain, mixed, with_data
from helpers.kinds import ends_of_all_sorts, with_op
from mcugrad.errors import UnavailableError, VerifyError
from mcugrad.exporter import write_tflite
from mcugrad.graph import Graph
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.proof.oracle import LiteRtOracle, TflmOracle
from mcugrad.proof.verify import Compared, boundary_inputs, compare_layers, pack, random_inputs, require_layers, unpack, verify
from mcugrad.ref import Machine

ORACLES = [TflmOracle, LiteRtOracle]


def inputs_of(graph: Graph, count: int = 3) -> list[list[Int8]]:
    tensors = [graph.tensors[i] for i in graph.inputs]
    zero_points = [t.quant.zero_point for t in tensors if t.quant is not None]
    sizes = [t.size for t in tensors]
    return random_inputs(sizes, count, 1) + boundary_inputs(sizes, zero_points, count)


def with_a_wrong_weight(graph: Graph, layer: str) -> Compiled:
    """A plan of the same graph with other weights in one layer: a compiler that lowers this layer wrongly."""
    op = next(op for op in graph.layers if op.name == layer)
    w = np.array(graph.tensors[op.inputs[1]].data)
    return compile_graph(with_data(graph, {op.inputs[1]: np.clip(w + 40, -127, 127).astype(np.int8)}), None)


# ---- inputs -------------------------------------------------------------------------------------------------------------


def test_boundary_inputs_reach_every_edge() -> None:
    made = boundary_inputs([6, 3], [-128, 40], 20)
    assert len(made) == 20 and all([x.size for x in row] == [6, 3] and all(x.dtype == np.int8 for x in row) for row in made)
    first = [row[0].tolist() for row in made]
    for value in (-128, 127, 0, -127):
        assert [value] * 6 in first
    assert [[z] * n for z, n in ((-128, 6), (40, 3))] in [[x.tolist() for x in row] for row in made]
    assert [[-127] * 6, [41] * 3] in [[x.tolist() for x in row] for row in made]
    assert [-128, 127] * 3 in first
    assert len({str(row) for row in made}) >= 18
    assert any(len(set(row[0].tolist())) == 2 and (row[0] == row[0][0]).sum() in (1, 5) for row in made[14:]), "one value out of line"


@pytest.mark.parametrize("count", [0, 1, 13, 14, 15, 60])
def test_as_many_boundary_inputs_as_asked_for_and_always_the_same(count: int) -> None:
    a, b = (boundary_inputs([4], [127], count) for _ in "ab")
    assert len(a) == count and all((x[0] == y[0]).all() for x, y in zip(a, b, strict=True))


def test_random_inputs_depend_on_the_seed() -> None:
    a, b, c = (random_inputs([50, 7], 2, seed) for seed in (1, 1, 2))
    assert (a[0][0] == b[0][0]).all() and (a[0][0] != c[0][0]).any() and (a[0][0] != a[1][0]).any()
    assert min(a[0][0]) < -64 and max(a[0][0]) > 64


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_packed_values_come_back(sizes: list[int]) -> None:
    values = random_inputs(sizes, 1, 0)[0]
    flat = pack(values)
    starts = np.cumsum([0, *(n + -n % 4 for n in sizes[:-1])])
    assert flat.size == starts[-1] + sizes[-1]
    for start, value, back in zip(starts, values, unpack(flat, sizes), strict=True):
        assert (flat[start : start + value.size] == value).all() and (back == value).all()


# ---- right ones ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("oracle", ORACLES)
def test_a_right_executor_is_counted(oracle: type[TflmOracle | LiteRtOracle]) -> None:
    graph = chain(1)
    compiled = compile_graph(graph, None)
    ticks: list[None] = []
    run = Machine(compiled.plan).predict
    found = verify(compiled, oracle(write_tflite(graph), graph), {"a": run, "b": run}, inputs_of(graph), lambda: ticks.append(None))
    assert found == [Compared(name, 6, 24, 24, 0) for name in "ab"] and len(ticks) == 6


@pytest.mark.parametrize("oracle", ORACLES)
def test_several_inputs_and_outputs_are_compared_in_their_order(oracle: type[TflmOracle | LiteRtOracle]) -> None:
    b = GraphBuilder((1, 3, 5, 2), 3)
    second = b.new_input((1, 1, 1, 2), scale=1 / 30, zero_point=11)
    y = b.mul(second, b.conv(b.input, 2))
    graph = b.finish(b.slice(y, (0, 0, 0, 1), (1, 3, 3, 1)), b.linear(second, 3), y)
    compiled = compile_graph(graph, None)
    found = verify(compiled, oracle(write_tflite(graph), graph), {"reference": Machine(compiled.plan).predict}, inputs_of(graph))
    assert found[0].equal == found[0].values == 6 * (9 + 3 + 30)


def test_layers_of_every_kind_are_compared() -> None:
    for graph in (mixed(1), with_op("prelu"), with_op("transpose"), with_op("resize")):
        compiled = compile_graph(graph, None)
        layers = compare_layers(compiled, inputs_of(graph)[0], LiteRtOracle(write_tflite(graph), graph))
        require_layers(layers)
        assert [layer.op for layer in layers] == [op.name for op in compiled.train.graph.ops]
        assert all(layer.size == graph.tensors[op.outputs[0]].size for layer, op in zip(layers, compiled.train.graph.ops, strict=True))


# ---- wrong ones ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("oracle", ORACLES)
def test_a_wrong_executor_is_named_with_its_first_difference(oracle: type[TflmOracle | LiteRtOracle]) -> None:
    graph = chain(1)
    compiled = compile_graph(graph, None)
    machine = Machine(compiled.plan)
    seen = 0

    def liar(sample: Int8) -> Int8:
        nonlocal seen
        out = machine.predict(sample)
        seen += 1
        if seen == 4:
            out[2] += 1 if out[2] < 127 else -1
        return out

    executors = {"reference": machine.predict, "the liar": liar}
    with pytest.raises(VerifyError) as caught:
        verify(compiled, oracle(write_tflite(graph), graph), executors, inputs_of(graph))
    assert caught.value.exit_code == 7 and seen == 4
    assert f"the liar differs from {oracle.name} at input 3: output 2 by 1, 1 of 4 values" in str(caught.value)
    assert "the reference computes every layer as LiteRT does" in str(caught.value)


@pytest.mark.parametrize("layer", ["conv_0", "dwconv_0", "conv_1", "conv_2", "linear_0"])
@pytest.mark.parametrize("oracle", ORACLES)
def test_a_wrong_layer_is_named(oracle: type[TflmOracle | LiteRtOracle], layer: str) -> None:
    """Also where the oracle itself does not show inner tensors: LiteRT shows them."""
    graph = mixed(1)
    wrong = with_a_wrong_weight(graph, layer)
    with pytest.raises(VerifyError) as caught:
        verify(wrong, oracle(write_tflite(graph), graph), {"reference": Machine(wrong.plan).predict}, inputs_of(graph))
    op = next(op for op in wrong.train.graph.layers if op.name == layer)
    assert f"; first in {layer} ({graph.tensors[op.outputs[0]].name}), " in str(caught.value)


@pytest.mark.parametrize("layer", ["conv_0", "conv_1"])
def test_layerwise_names_the_first_wrong_layer(layer: str) -> None:
    graph = mixed(1)
    wrong = with_a_wrong_weight(graph, layer)
    layers = compare_layers(wrong, inputs_of(graph)[0], LiteRtOracle(write_tflite(graph), graph))
    assert [found.op for found in layers if found.wrong] == [layer], "a difference must not run on into the layers behind"
    with pytest.raises(VerifyError, match=f"{layer} .* is the first layer that differs from LiteRT") as caught:
        require_layers(layers)
    assert caught.value.exit_code == 7


@pytest.mark.parametrize("part", [0, 1])
def test_a_wrong_part_of_a_concat_is_seen(part: int) -> None:
    """A concat is written in several steps. Taking LiteRT's values in behind the first would hide what it did."""
    graph = with_op("concat of rows")
    compiled = compile_graph(graph, None)
    steps = list(compiled.lowered.segments[0])
    at = [k for k, step in enumerate(steps) if step.kind.name == "copy_s8"][part]
    steps[at] = replace(steps[at], scalars={**steps[at].scalars, "yo": steps[at].scalars["yo"] + (1, -1)[part]})
    program = replace(compiled.lowered, segments=(tuple(steps), (), (), (), ()))
    wrong = replace(compiled, lowered=program)
    layers = compare_layers(wrong, inputs_of(graph)[0], LiteRtOracle(write_tflite(graph), graph))
    assert [found.op for found in layers if found.wrong] == ["concat_0"]


def test_layers_without_names_cannot_be_compared() -> None:
    graph = chain(1)
    tensors = tuple(replace(t, name="same") for t in graph.tensors)
    nameless = replace(graph, tensors=tensors)
    compiled = compile_graph(nameless, None)
    layers = compare_layers(compiled, inputs_of(graph)[0], LiteRtOracle(write_tflite(nameless), nameless))
    with pytest.raises(UnavailableError, match="no inner tensor could be compared") as caught:
        require_layers(layers)
    assert caught.value.exit_code == 69


def test_a_file_that_litert_does_not_take_is_verified_without_layer_names() -> None:
    graph = chain(1)
    oracle = TflmOracle(write_tflite(graph), graph)
    oracle._file = b"no model", graph
    assert oracle.inside() is None
    compiled = compile_graph(graph, None)
    machine = Machine(compiled.plan)
    with pytest.raises(VerifyError) as caught:
        verify(compiled, oracle, {"reversed": lambda sample: machine.predict(sample[::-1].copy())}, inputs_of(graph))
    assert str(caught.value).count("first in") == 0


def test_all_outputs_of_all_sorts_in_one_block() -> None:
    graph = ends_of_all_sorts()
    values = inputs_of(graph)[0]
    flat = Machine(compile_graph(graph, None).plan).predict(pack(values))
    sizes = [graph.tensors[i].size for i in graph.outputs]
    assert (unpack(flat, sizes)[1] == values[1]).all() and (unpack(flat, sizes)[4] == unpack(flat, sizes)[5]).all()
