"""Notes on layers that are stuck, and on weights that did not move."""

from __future__ import annotations

from unittest import mock

import numpy as np

from helpers.graphs import GraphBuilder, chain, output_int8, random_samples, residual, with_data
from mcugrad.graph import Activation, Graph
from mcugrad.lower import Options
from mcugrad.pipeline import compile_graph
from mcugrad.plan import decode
from mcugrad.proof import activations
from mcugrad.proof.activations import MAX_SAMPLES, dull_layers, layer_outputs
from mcugrad.ref import Machine
from mcugrad.training.outcome import unchanged
from mcugrad.training.run import Step


def notes(graph: Graph, count: int = 4) -> tuple[str, ...]:
    compiled = compile_graph(graph, "head")
    return dull_layers(compiled, decode(compiled.plan).init, np.stack(random_samples(graph, count)))


def biased(graph: Graph, layer: int, bias: int) -> Graph:
    """The graph with one bias for all channels of a layer."""
    index = graph.layers[layer].inputs[2]
    return with_data(graph, {index: np.full(graph.tensors[index].shape, bias, np.int32)})


def test_an_ordinary_net_has_none() -> None:
    for build in (chain, residual):
        assert notes(build(1)) == ()


def test_the_outputs_of_a_layer_are_those_of_the_trained_net() -> None:
    graph = residual(1)
    compiled = compile_graph(graph, "all")
    samples = random_samples(graph, 3)
    machine = Machine(compiled.plan)
    machine.train(samples[0], 1, 0.05, 0.0)
    found = layer_outputs(compiled, machine.state, np.stack(samples))
    assert set(found) == {op.name for op in graph.layers}
    sizes = [found[op.name].size for op in graph.layers]
    assert sizes == [3 * graph.tensors[op.outputs[0]].size for op in graph.layers]
    before = layer_outputs(compiled, decode(compiled.plan).init, np.stack(samples))
    assert not np.array_equal(before["linear_0"], found["linear_0"])


def test_a_relu_that_is_always_closed() -> None:
    found = notes(biased(chain(1), 0, -(10**6)))
    assert found[0].startswith("conv_0 puts out -128, real 0, everywhere")


def test_an_output_that_is_cut_off() -> None:
    found = notes(biased(chain(1), 2, 10**6))
    assert any("conv_1 puts out 127" in note for note in found)
    graph = chain(1)
    index = graph.layers[2].inputs[2]
    ends = np.resize([10**6, -(10**6)], graph.tensors[index].shape).astype(np.int32)
    found = notes(with_data(graph, {index: ends}))
    assert any(note.startswith("100 % of the outputs of conv_1 are cut off") for note in found)


def test_a_relu6_at_its_bounds_loses_nothing_that_it_should_keep() -> None:
    b = GraphBuilder((1, 4, 4, 2), 3)
    y = b.conv(b.input, 6, activation=Activation.RELU6)
    graph = b.finish(b.linear(b.mean(y), 3))
    index = graph.layers[0].inputs[2]
    ends = np.resize([10**6, -(10**6)], graph.tensors[index].shape).astype(np.int32)
    graph = with_data(graph, {index: ends})
    assert not any("conv_0" in note for note in notes(graph))
    assert len({output_int8(graph, x).tobytes() for x in random_samples(graph, 4)}) == 1


def test_a_few_samples_from_everywhere_are_run() -> None:
    graph = chain(1)
    compiled = compile_graph(graph, "head")
    samples = np.stack(random_samples(graph, 40))
    expected = samples[[0, 5, 11, 16, 22, 27, 33, 39]]
    with mock.patch.object(activations, "layer_outputs", return_value={}) as run:
        dull_layers(compiled, decode(compiled.plan).init, samples)
        dull_layers(compiled, decode(compiled.plan).init, samples[:3])
    assert len(expected) == MAX_SAMPLES
    assert np.array_equal(run.call_args_list[0].args[2], expected) and np.array_equal(run.call_args_list[1].args[2], samples[:3])


def step(lr: float, skipped: bool) -> Step:
    return Step(0, 0, 0, lr, 1.0, True, skipped, 0)


def test_only_trained_weights_count_as_unchanged() -> None:
    graph = chain(1)
    for ws in (1, 2):
        compiled = compile_graph(graph, "weights:conv_1:1/2,bias:2", Options(ws=ws))
        machine = Machine(compiled.plan)
        start = unchanged(compiled, machine.state)
        assert start.as_dict() == {"layers": {"conv_1": 1.0}, "total": 1.0}
        assert ("--rounding residual" in start.notes([step(0.1, False)], ws)[0]) == (ws == 1)
        assert start.notes([step(0.1, True), step(0.0, False)], ws) == []
        for k, x in enumerate(random_samples(graph, 8)):
            machine.train(x, k % 4, 0.1, 0.0)
        assert 0 <= unchanged(compiled, machine.state).layers["conv_1"] < 0.99


def test_a_plan_without_trained_weights_has_no_share() -> None:
    compiled = compile_graph(chain(1), "bias:2")
    found = unchanged(compiled, decode(compiled.plan).init)
    assert found.as_dict() == {"layers": {}, "total": None} and found.notes([step(0.1, False)], 2) == []
