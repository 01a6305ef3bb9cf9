"""write_tflite is the inverse of import_tflite, and the oracle gives the same answers to the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.meaning import evaluate
from helpers.shared import shared
from helpers.tiny_graphs import (
    ONE_OP,
    TinyNet,
    assert_same_graph,
    every_op,
    one_linear,
    oracle,
    oracle_all,
    random_inputs,
    random_samples,
    small_net,
)
from mcugrad.errors import ModelError
from mcugrad.exporter import write_tflite
from mcugrad.graph import Add, Conv2D, DwConv2D, Function, Mean, Mul, Pad, Prelu, Sub, Tensor, Unary
from mcugrad.graph.edit import with_weights
from mcugrad.importer import import_tflite, read_model

SHARED_MODELS = (
    "mlperf_tiny/kws_ref_model_int8",
    "mlperf_tiny/pretrainedResnet_quant_int8",
    "mlperf_tiny/vww_96_int8",
    "mlperf_tiny/ad01_int8",
    "mlperf_tiny/str_ww_ref_model_int8",
    "mlperf_tiny/model_ToyCar_quant_fullint",
    "tiny_training/mcunet-5fps_int8",
    "tiny_training/mbv2-w0.35_int8",
    "emlearn/mnist_cnn_int8",
    "tflm/person_detect",
    "tflm/hello_world_int8",
    "tflm/micro_speech_quantized",
    "mlonmcu/micro_speech_custom__micro_speech_custom",
    "mlonmcu/layers__vww_layer11",
)


@pytest.mark.parametrize("make", [every_op, small_net, one_linear])
def test_import_undoes_write(make) -> None:
    graph = make()
    data = write_tflite(graph)
    assert_same_graph(graph, import_tflite(data, "again"))
    assert write_tflite(import_tflite(data, graph.name)) == data


@pytest.mark.parametrize("name", ONE_OP)
def test_import_undoes_write_of_every_other_op(name: str) -> None:
    graph = ONE_OP[name]()
    data = write_tflite(graph)
    assert_same_graph(graph, import_tflite(data, "again"))
    assert write_tflite(import_tflite(data, graph.name)) == data


@pytest.mark.parametrize("name", ONE_OP)
def test_the_oracle_reads_what_the_graph_says(name: str) -> None:
    """Moves and comparisons exactly, arithmetic to one unit in the last place."""
    graph = ONE_OP[name]()
    samples = random_samples(graph, 5)
    exact = not any(isinstance(op.kind, Conv2D | DwConv2D | Add | Sub | Mul | Mean | Unary | Prelu) for op in graph.ops)
    for sample, got in zip(samples, oracle_all(write_tflite(graph), samples, len(graph.outputs)), strict=True):
        for expected, found in zip(evaluate(graph, sample), got, strict=True):
            assert np.abs(expected - found.astype(np.float64)).max() <= (0 if exact else 1)
            assert found.std() > 0


@pytest.mark.parametrize("name", SHARED_MODELS)
def test_real_models_come_back_with_the_same_outputs(name: str) -> None:
    path = shared(f"models/{name}.tflite")
    graph = read_model(path)
    data = write_tflite(graph)
    assert_same_graph(graph, import_tflite(data, graph.name))
    inputs = random_inputs(graph, 2)
    np.testing.assert_array_equal(oracle(data, inputs), oracle(path.read_bytes(), inputs))


@pytest.mark.parametrize("make", [every_op, one_linear, *ONE_OP.values()])
def test_the_other_interpreter_loads_it(make) -> None:
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    interpreter = litert.Interpreter(model_content=write_tflite(make()))
    interpreter.allocate_tensors()


def test_a_layer_without_bias_stays_without() -> None:
    n = TinyNet()
    source = n.activation((1, 4, 4, 2))
    graph = n.finish(source, n.conv(source, 3, bias=False))
    data = write_tflite(graph)
    assert_same_graph(graph, import_tflite(data, "again"))
    zero = with_weights(graph, {"conv_0": (graph.tensors[1].data, np.zeros(3, np.int32))})
    inputs = random_inputs(graph, 3)
    np.testing.assert_array_equal(oracle(data, inputs), oracle(write_tflite(zero), inputs))


def test_the_oracle_runs_every_op() -> None:
    graph = every_op()
    outputs = oracle(write_tflite(graph), random_inputs(graph, 5))
    assert outputs.std(axis=0).max() > 0
    np.testing.assert_allclose(outputs.sum(axis=-1), 1, atol=0.05)


def test_a_pad_that_is_neither_same_nor_valid_becomes_an_op() -> None:
    n = TinyNet()
    source = n.activation((1, 6, 6, 2))
    graph = n.finish(source, n.conv(source, 3, stride=(2, 2), pad=(1, 1, 1, 1)))
    back = import_tflite(write_tflite(graph), "again")
    assert [op.name for op in back.ops] == ["pad_0", "conv_0"]
    assert back.ops[0].kind == Pad((0, 1, 1, 0), (0, 1, 1, 0), -3)
    assert back.tensors[back.output].shape == graph.tensors[graph.output].shape


def test_an_explicit_pad_means_what_it_says() -> None:
    """SAME at stride 1 with a 3x3 kernel is (1, 1, 1, 1): written as SAME and as PAD the oracle must agree."""
    n = TinyNet()
    source = n.activation((1, 6, 6, 2))
    same = n.finish(source, n.conv(source, 3, pad=(1, 1, 1, 1)))
    m = TinyNet()
    source = m.activation((1, 6, 6, 2))
    padded = m.pad(source, (1, 1, 1, 1))
    explicit = m.finish(source, m.conv(padded, 3, pad=(0, 0, 0, 0)))
    assert "PAD" not in _codes(write_tflite(same))
    inputs = random_inputs(same, 3)
    np.testing.assert_array_equal(oracle(write_tflite(same), inputs), oracle(write_tflite(explicit), inputs))


def _codes(data: bytes) -> list[str]:
    from mcugrad.importer import tflite_file  # noqa: PLC0415

    return [op.code for op in tflite_file.read(data).ops]


def test_a_pool_with_odd_pads_is_refused() -> None:
    n = TinyNet()
    source = n.activation((1, 6, 6, 2))
    graph = n.finish(source, n.avgpool(source, (2, 2), (2, 2), pad=(1, 0, 1, 0)))
    with pytest.raises(ModelError, match=r"avgpool_0 has pads \(1, 0, 1, 0\)"):
        write_tflite(graph)


def test_linear_keeps_dimensions() -> None:
    n = TinyNet()
    source = n.activation((1, 2, 3, 4))
    graph = n.finish(source, n.linear(source, 5, out_shape=(1, 2, 3, 5)))
    data = write_tflite(graph)
    assert_same_graph(graph, import_tflite(data, "again"))
    assert oracle(data, random_inputs(graph, 1)).shape == (1, 1, 2, 3, 5)


def test_per_channel_linear_weights_reach_the_oracle() -> None:
    graph = one_linear((0.001, 0.01, 0.1))
    inputs = random_inputs(graph, 4)
    got = oracle(write_tflite(graph), inputs)[:, 0, :].astype(int)
    w, b = graph.tensors[1], graph.tensors[2]
    x_zero, y = -3, graph.tensors[graph.output].quant
    sums = np.stack([(w.data.astype(int) @ (x[0].astype(int) - x_zero)) + b.data for x in inputs])
    real = sums * np.array(b.quant.scale) / y.scale[0] + y.zero_point
    assert np.abs(got - np.clip(np.round(real), -128, 127)).max() <= 1


def test_a_max_pool_with_odd_pads_is_padded_with_the_least_value() -> None:
    n = TinyNet()
    source = n.activation((1, 6, 5, 4))
    graph = n.finish(source, n.maxpool(source, (3, 3), (2, 2), (0, 0, 2, 1)))
    data = write_tflite(graph)
    back = import_tflite(data, "again")
    assert back.ops[0].kind == Pad((0, 0, 0, 0), (0, 2, 1, 0), -128)
    for sample in random_samples(graph, 3):
        np.testing.assert_array_equal(oracle_all(data, [sample], 1)[0][0], evaluate(graph, sample)[0])


def test_a_float_graph_is_refused() -> None:
    n = TinyNet()
    source = n.float_tensor((1, 4))
    graph = n.finish(source, n.add_op(Unary(Function.RELU), (source,), n.float_tensor((1, 4))))
    with pytest.raises(ModelError, match="a float graph cannot be written: quantize it first"):
        write_tflite(graph)


def test_buffers_are_aligned_for_the_runtime() -> None:
    import tflite  # noqa: PLC0415

    model = tflite.Model.GetRootAs(write_tflite(every_op()))
    for i in range(1, model.BuffersLength()):
        tab = model.Buffers(i)._tab
        assert tab.Vector(tab.Offset(4)) % 16 == 0


def test_write_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.tflite"
    data = write_tflite(small_net(), target)
    assert target.read_bytes() == data

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ModelError, match="No space left"):
        write_tflite(every_op(), target)
    assert target.read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == ["model.tflite"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot write the model"):
        write_tflite(small_net(), tmp_path / "none" / "model.tflite")


def test_a_type_that_a_graph_has_not() -> None:
    graph = one_linear()
    odd = Tensor("odd", (1,), np.dtype(np.float64), None, np.zeros(1))
    with pytest.raises(ModelError, match="float64"):
        write_tflite(replace(graph, tensors=(*graph.tensors, odd)))
