"""The float executor against TensorFlow Lite Micro's float kernels and, on real models, LiteRT's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from helpers.float_graphs import FloatNet, classifier, every_kind, float_file, samples
from helpers.shared import shared
from helpers.tiny_graphs import oracle, small_net
from mcugrad.errors import ModelError
from mcugrad.graph import Activation, Function, Graph, MinMax, Mul, Pad, ResizeNearest, Sub
from mcugrad.importer import read_model
from mcugrad.quantize import predict_float, run_float
from mcugrad.quantize.run_float import require_float

Build = Callable[[FloatNet, int], int]

ONE_OP: dict[str, Build] = {
    "conv same stride 2": lambda n, x: n.conv(x, 5, stride=(2, 2), activation=Activation.RELU),
    "conv dilated": lambda n, x: n.conv(x, 5, dilation=(2, 2), activation=Activation.RELU6),
    "conv valid without bias": lambda n, x: n.conv(x, 5, (2, 3), pad=(0, 0, 0, 0), bias=False),
    "conv explicit pads": lambda n, x: n.conv(x, 5, stride=(2, 2), pad=(1, 1, 1, 1)),
    "conv groups": lambda n, x: n.conv(x, 6, groups=2, activation=Activation.RELU_N1_1),
    "dwconv": lambda n, x: n.dwconv(x, 1, activation=Activation.RELU6),
    "dwconv multiplier": lambda n, x: n.dwconv(x, 3, stride=(2, 2)),
    "linear": lambda n, x: n.linear(x, 7, Activation.RELU),
    "linear without bias": lambda n, x: n.linear(x, 7, bias=False),
    "avgpool": lambda n, x: n.pool(x, (2, 3), (2, 1), (0, 1, 0, 1)),
    "maxpool": lambda n, x: n.pool(x, (3, 3), (1, 1), (1, 1, 1, 1), largest=True),
    "mean": lambda n, x: n.mean(x),
    "add": lambda n, x: n.add(x, x, Activation.RELU),
    "add of channels": lambda n, x: n.add(x, n.constant([0.5, -1.0, 2.0, 0.0])),
    "sub": lambda n, x: n.pair(Sub(Activation.NONE), x, n.constant([0.5, -1.0, 2.0, 0.0])),
    "mul": lambda n, x: n.pair(Mul(Activation.RELU), x, n.constant([0.5, -1.0, 2.0, 0.1])),
    "maximum": lambda n, x: n.pair(MinMax(True), x, n.constant([0.5, -1.0, 0.2, 0.0])),
    "minimum": lambda n, x: n.pair(MinMax(False), x, n.constant([0.5, -1.0, 0.2, 0.0])),
    "prelu": lambda n, x: n.prelu(x),
    "softmax": lambda n, x: n.softmax(n.reshape(x, (12, 16))),
    "concat": lambda n, x: n.concat(x, x, n.unary(x, Function.TANH)),
    "slice": lambda n, x: n.slice(x, (0, 1, 0, 1), (1, 3, 6, 3), (1, 2, 1, 1)),
    "transpose": lambda n, x: n.transpose(x, (0, 3, 1, 2)),
    "resize": lambda n, x: n.resize(x, (5, 13)),
    "resize corners": lambda n, x: n.op(ResizeNearest(True, False), (x,), (1, 5, 13, 4)),
    "resize centers": lambda n, x: n.op(ResizeNearest(False, True), (x,), (1, 5, 13, 4)),
    "pad": lambda n, x: n.pad(x, (1, 0, 2, 3)),
    "reshape": lambda n, x: n.reshape(x, (1, 192)),
    **{
        f.value: lambda n, x, f=f: n.unary(x, f)
        for f in Function
        if f not in (Function.REQUANTIZE, Function.LEAKY_RELU, Function.RELU_N1_1)
    },
    "leaky relu": lambda n, x: n.unary(x, Function.LEAKY_RELU, 0.2),
}


def _agrees(graph: Graph, count: int = 4) -> None:
    inputs = list(2 * samples(graph, count)[:, None])
    expected = oracle(float_file(graph), inputs)
    got = np.stack([predict_float(graph, x) for x in inputs])
    assert np.ptp(expected) > 0
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", ONE_OP)
def test_each_op_agrees_with_the_oracle(name: str) -> None:
    n = FloatNet()
    source = n.tensor((1, 8, 6, 4))
    _agrees(n.finish(source, ONE_OP[name](n, source)))


@pytest.mark.parametrize("make", [classifier, every_kind])
def test_whole_nets_agree_with_the_oracle(make: Callable[[], Graph]) -> None:
    _agrees(make())


def test_every_tensor_has_its_value_and_shape() -> None:
    graph = every_kind()
    values = run_float(graph, (samples(graph, 1)[0],))
    assert [values[i].shape for i in range(len(graph.tensors))] == [t.shape for t in graph.tensors]


def test_an_int8_model_is_no_float_model() -> None:
    with pytest.raises(ModelError, match=r"int8.*quantized already"):
        require_float(small_net())


def test_weights_with_nan_are_refused_by_name() -> None:
    graph = classifier()
    bad = graph.tensors[1].data.copy()
    bad.flat[3] = np.nan
    with pytest.raises(ModelError, match=graph.tensors[1].name):
        require_float(replace(graph, tensors=(graph.tensors[0], replace(graph.tensors[1], data=bad), *graph.tensors[2:])))


def test_a_pad_with_another_value_is_refused() -> None:
    n = FloatNet()
    source = n.tensor((1, 4, 4, 2))
    graph = n.finish(source, n.op(Pad((0, 1, 1, 0), (0, 1, 1, 0), 3), (source,), (1, 6, 6, 2)))
    with pytest.raises(ModelError, match="pad_0 pads with 3"):
        require_float(graph)


@pytest.mark.parametrize(
    "name",
    [
        "emlearn/mnist_cnn_fp32",
        "mlperf_tiny/vww_96_float",
        "mlperf_tiny/pretrainedResnet_float",
        "mlperf_tiny/ad01_fp32",
        "mlonmcu/cifar10__cifar10",
        "mlonmcu/catdog__CNN_model",
        "mlonmcu/magic_wand__magic_wand",
        "mlonmcu/micro_kws_m_fp32__micro_kws_m_fp32",
        "tflm/hello_world_float",
    ],
)
def test_real_models_agree_with_litert(name: str) -> None:
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    path = shared(f"models/{name}.tflite")
    graph = read_model(path, allow_float=True)
    interpreter = litert.Interpreter(str(path))
    interpreter.allocate_tensors()
    source, sink = (d[0]["index"] for d in (interpreter.get_input_details(), interpreter.get_output_details()))
    for seed in range(3):
        x = np.random.default_rng(seed).normal(0, 1, graph.tensors[graph.input].shape).astype(np.float32)
        interpreter.set_tensor(source, x)
        interpreter.invoke()
        expected = interpreter.get_tensor(sink)
        np.testing.assert_allclose(predict_float(graph, x).reshape(expected.shape), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_an_onnx_file_and_a_tflite_file_of_one_model_agree() -> None:
    pytest.importorskip("onnx")
    graphs = [
        read_model(shared(f"models/{name}"), allow_float=True)
        for name in ("onnx/mlonmcu__micro_kws_m_static_fp32.onnx", "mlonmcu/micro_kws_m_fp32__micro_kws_m_fp32.tflite")
    ]
    for x in np.random.default_rng(0).normal(0, 1, (3, 1960)):
        np.testing.assert_allclose(*(predict_float(g, x).ravel() for g in graphs), atol=1e-6)
