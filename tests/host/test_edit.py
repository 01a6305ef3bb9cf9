"""New weights and new heads, without touching the graph that they come from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.shared import shared
from helpers.tiny_graphs import TinyNet, assert_same_graph, every_op, one_linear, oracle, random_inputs, small_net
from mcugrad.errors import ModelError, UsageError
from mcugrad.exporter import write_tflite
from mcugrad.graph import Activation, Function, Graph, Linear, Quant
from mcugrad.graph.edit import bias_of, input_of, int8_share, macs, output_of, replace_head, weight_of, with_weights
from mcugrad.importer import import_tflite, read_model


def _layer(graph: Graph, name: str):
    return next(op for op in graph.layers if op.name == name)


def test_with_weights_changes_what_it_was_given_and_nothing_else() -> None:
    graph = small_net()
    before = write_tflite(graph)
    w = np.full((4, 3), 7, np.int8)
    b = np.array([1, 2, 3, 4], np.int32)
    changed = with_weights(graph, {"linear_0": (w, b)})
    head = _layer(changed, "linear_0")
    np.testing.assert_array_equal(weight_of(changed, head).data, w)
    np.testing.assert_array_equal(bias_of(changed, head).data, b)
    np.testing.assert_array_equal(weight_of(changed, _layer(changed, "conv_0")).data, weight_of(graph, _layer(graph, "conv_0")).data)
    w[:] = 0
    assert weight_of(changed, head).data.all()
    assert write_tflite(graph) == before


def test_with_the_same_weights_is_the_same_graph() -> None:
    graph = every_op()
    same = {op.name: (weight_of(graph, op).data, bias_of(graph, op).data) for op in graph.layers}
    assert_same_graph(graph, with_weights(graph, same))


def test_no_bias_given_leaves_the_bias() -> None:
    graph = small_net()
    head = _layer(graph, "linear_0")
    changed = with_weights(graph, {"linear_0": (np.zeros((4, 3), np.int8), None)})
    np.testing.assert_array_equal(bias_of(changed, head).data, bias_of(graph, head).data)


def test_a_layer_without_bias_gets_one() -> None:
    n = TinyNet()
    source = n.activation((1, 4, 4, 2))
    graph = n.finish(source, n.conv(source, 3, bias=False))
    assert bias_of(graph, graph.layers[0]) is None
    changed = with_weights(graph, {"conv_0": (weight_of(graph, graph.layers[0]).data, np.array([1, 2, 3], np.int32))})
    bias = bias_of(changed, changed.layers[0])
    np.testing.assert_allclose(bias.quant.scale, 0.05 * np.array(weight_of(changed, changed.layers[0]).quant.scale), rtol=1e-6)
    assert_same_graph(changed, import_tflite(write_tflite(changed), "again"))


def test_layers_that_share_weights_are_parted() -> None:
    n = TinyNet()
    source = n.activation((1, 3))
    graph = n.finish(source, n.linear(n.linear(source, 3), 3))
    first, second = graph.ops
    shared_ops = (first, replace(second, inputs=(second.inputs[0], first.inputs[1], second.inputs[2])))
    graph = with_weights(replace(graph, ops=shared_ops), {"linear_0": (np.zeros((3, 3), np.int8), None)})
    assert not weight_of(graph, graph.ops[0]).data.any()
    assert weight_of(graph, graph.ops[1]).data.any()


@pytest.mark.parametrize(
    ("name", "w", "b", "text"),
    [
        ("conv_9", np.zeros((4, 3), np.int8), None, "there is no layer conv_9"),
        ("linear_0", np.zeros((4, 4), np.int8), None, r"weights of shape \(4, 4\)"),
        ("linear_0", np.zeros((4, 3), np.int16), None, "type int16"),
        ("linear_0", np.zeros((4, 3), np.int8), np.zeros(3, np.int32), r"bias of shape \(3,\)"),
        ("linear_0", np.zeros((4, 3), np.int8), np.zeros(4, np.int64), "type int64"),
    ],
)
def test_weights_that_do_not_fit(name: str, w, b, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        with_weights(small_net(), {name: (w, b)})


@pytest.mark.parametrize("classes", [2, 3, 9])
def test_a_fresh_head_answers_evenly(classes: int) -> None:
    graph = small_net()
    fresh = replace_head(graph, classes)
    assert fresh.tensors[fresh.output].shape == (1, classes)
    assert graph.tensors[graph.output].shape == (1, 4)
    data = write_tflite(fresh)
    assert_same_graph(fresh, import_tflite(data, "again"))
    outputs = oracle(data, random_inputs(fresh, 3))
    assert (outputs == outputs.flat[0]).all()
    assert np.isclose((int(outputs.flat[0]) + 128) / 256, 1 / classes, atol=1 / 256)


def test_a_fresh_head_has_the_median_scale_and_the_old_output() -> None:
    graph = one_linear((0.001, 0.02, 0.5))
    fresh = replace_head(graph, 6)
    head = fresh.layers[-1]
    assert weight_of(fresh, head).quant == Quant((float(np.float32(0.02)),))
    assert bias_of(fresh, head).quant.scale == (float(np.float32(graph.tensors[0].quant.scale[0] * float(np.float32(0.02)))),)
    assert fresh.tensors[fresh.output].quant == graph.tensors[graph.output].quant
    assert not weight_of(fresh, head).data.any() and not bias_of(fresh, head).data.any()


def test_a_fresh_head_has_no_clamp() -> None:
    graph = one_linear()
    clamped = replace(graph, ops=tuple(replace(op, kind=Linear(Activation.RELU)) for op in graph.ops))
    assert replace_head(clamped, 3).ops[-1].kind == Linear(Activation.NONE)


def test_a_head_that_is_a_convolution_on_one_pixel() -> None:
    n = TinyNet()
    source = n.activation((1, 4, 4, 3))
    x = n.conv(n.mean(source, keep_dims=True), 5, (1, 1))
    graph = n.finish(source, n.softmax(n.reshape(x, (1, 5))))
    fresh = replace_head(graph, 8)
    assert [fresh.tensors[op.outputs[0]].shape for op in fresh.ops[1:]] == [(1, 1, 1, 8), (1, 8), (1, 8)]
    assert (oracle(write_tflite(fresh), random_inputs(fresh, 2)) == 32 - 128).all()


def test_a_float_output_is_adapted() -> None:
    n = TinyNet()
    source = n.activation((1, 4))
    graph = n.finish(source, n.dequantize(n.linear(source, 5)))
    fresh = replace_head(graph, 3)
    assert fresh.tensors[fresh.output].shape == (1, 3)


def test_a_logistic_becomes_a_softmax() -> None:
    """A gate in front of the head stays what it is."""
    n = TinyNet()
    source = n.activation((1, 4))
    gate = n.unary(source, Function.LOGISTIC)
    graph = n.finish(source, n.unary(n.linear(gate, 1), Function.LOGISTIC))
    fresh = replace_head(graph, 4)
    assert [op.name for op in fresh.ops] == ["logistic_0", "linear_0", "softmax_0"]
    data = write_tflite(fresh)
    assert_same_graph(fresh, import_tflite(data, "again"))
    assert (oracle(data, random_inputs(fresh, 2)) == 64 - 128).all()


def test_what_a_layer_costs() -> None:
    graph = every_op()
    conv, dwconv = _layer(graph, "conv_0"), _layer(graph, "dwconv_1")
    assert macs(graph, conv) == 5 * 4 * 4 * 3 * 3 * 3
    y = graph.tensors[dwconv.outputs[0]]
    assert macs(graph, dwconv) == y.size * 9
    assert macs(graph, graph.ops[0]) == 0
    n = TinyNet()
    source = n.activation((1, 6, 5, 4))
    grouped = n.finish(source, n.conv(source, 6, groups=2))
    assert macs(grouped, grouped.ops[0]) == 6 * 5 * 6 * 9 * 2
    assert int8_share(grouped) == 1


def test_the_int8_ends_of_several() -> None:
    n = TinyNet()
    a, b = n.float_tensor((1, 4)), n.activation((1, 4))
    x = n.quantize(a)
    y = n.add(x, b)
    graph = n.finish_all((a, b), (y, n.dequantize(n.linear(y, 3))))
    assert input_of(graph) == graph.tensors[x] and input_of(graph, 1) == graph.tensors[b]
    assert output_of(graph) == graph.tensors[y] and output_of(graph, 1).shape == (1, 3)


@pytest.mark.parametrize("classes", [-1, 0, 1, 65536])
def test_classes_that_cannot_be_meant(classes: int) -> None:
    with pytest.raises(UsageError, match=f"{classes} classes"):
        replace_head(small_net(), classes)


def test_models_without_a_classifier() -> None:
    n = TinyNet()
    source = n.activation((1, 4, 4, 2))
    with pytest.raises(ModelError, match="no layer with weights"):
        replace_head(n.finish(source, n.mean(source)), 3)
    n = TinyNet()
    source = n.activation((1, 4, 4, 2))
    with pytest.raises(ModelError, match="conv_0 with output shape"):
        replace_head(n.finish(source, n.conv(source, 3)), 3)
    n = TinyNet()
    source = n.activation((1, 4))
    x = n.linear(source, 4)
    with pytest.raises(ModelError, match="add_0 follows the last layer linear_0"):
        replace_head(n.finish(source, n.add(x, x)), 3)
    with pytest.raises(ModelError, match="reshape_1 makes shape"):
        replace_head(_reshaped_classes(), 3)


def _reshaped_classes() -> Graph:
    n = TinyNet()
    source = n.activation((1, 4))
    x = n.reshape(n.linear(source, 4), (1, 1, 4))
    return n.finish(source, n.reshape(x, (4, 1)))


def test_the_int8_ends_of_a_float_model() -> None:
    graph = every_op()
    assert (input_of(graph).dtype, output_of(graph).dtype) == (np.int8, np.int8)
    assert input_of(graph).shape == (1, 9, 7, 3)
    assert output_of(graph).quant == Quant((1 / 256,), -128)
    graph = small_net()
    assert (input_of(graph), output_of(graph)) == (graph.tensors[graph.input], graph.tensors[graph.output])


@pytest.mark.parametrize("name", ["mlperf_tiny/kws_ref_model_int8", "tflm/person_detect", "tiny_training/mcunet-5fps_int8"])
def test_a_fresh_head_on_a_real_model(name: str) -> None:
    fresh = replace_head(read_model(shared(f"models/{name}.tflite")), 10)
    outputs = oracle(write_tflite(fresh), random_inputs(fresh, 1))
    assert outputs.shape[-1] == 10
    assert len(np.unique(outputs)) == 1
