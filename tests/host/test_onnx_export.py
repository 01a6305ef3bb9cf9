"""Graph -> ONNX: onnxruntime agrees with the graph to one step, and reading the file back gives the same weights and the same outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from test_onnx_import import CASES, build

from helpers.graphs import GRAPHS
from helpers.onnx_builder import OnnxBuilder, as_stored, run_int8, run_onnxruntime
from helpers.shared import shared
from mcugrad.errors import ModelError
from mcugrad.exporter.onnx import write_onnx
from mcugrad.graph import DwConv2D, Graph, Linear, Softmax
from mcugrad.graph.edit import replace_head, with_weights
from mcugrad.importer import read_model
from mcugrad.importer.onnx import import_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

MODELS = [
    "mlperf_tiny/kws_ref_model_int8",
    "mlperf_tiny/pretrainedResnet_quant_int8",
    "mlperf_tiny/ad01_int8",
    "mlperf_tiny/str_ww_ref_model_int8",
    "emlearn/mnist_cnn_int8",
    "tflm/person_detect",
    "tiny_training/mcunet-5fps_int8",
    "mlonmcu/micro_speech__micro_speech",
    "tinyengine/vww",
]


def constants(graph: Graph) -> list[npt.NDArray[Any]]:
    """Weights, biases and other constant operands, flat, in graph order. A depthwise convolution of one channel is a plain one in ONNX."""
    found = []
    for op in graph.ops:
        for i in op.inputs:
            data = graph.tensors[i].data
            if data is not None:
                plain = isinstance(op.kind, DwConv2D) and data.ndim == 4 and op.kind.multiplier == data.shape[3]
                found.append((data[0].transpose(2, 0, 1) if plain else data).ravel())
    return found


def samples(graph: Graph, rng: np.random.Generator) -> list[npt.NDArray[Any]]:
    tensors = [graph.tensors[i] for i in graph.inputs]
    return [
        rng.normal(0, 1, t.shape).astype(np.float32) if t.dtype == np.float32 else rng.integers(-128, 128, t.shape).astype(np.int8)
        for t in tensors
    ]


def check(graph: Graph, steps: int = 1) -> Graph:
    """The graph, its file in onnxruntime and the graph read back agree. Returns the last.

    Each op fed with onnxruntime's values is at most one code off, the whole net at most ``steps``.
    """
    data = write_onnx(graph)
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    again = import_onnx(data, graph.name)
    for a, b in zip(constants(graph), constants(again), strict=True):
        assert np.array_equal(a, b)
    rng = np.random.default_rng(0)
    for _ in range(2):
        inputs = samples(graph, rng)
        ours, theirs = run_int8(graph, inputs)[0], run_int8(again, inputs)[0]
        feed = {i.name: x for i, x in zip(model.graph.input, inputs, strict=True)}
        every = run_onnxruntime(data, feed, [n.output[0] for n in model.graph.node if n.op_type == "QuantizeLinear"])
        for name, value in run_int8(again, inputs, every)[1].items():
            shape = next(t.shape for t in again.tensors if t.name == name)
            if value.dtype == np.int8:
                assert np.abs(value.astype(int) - as_stored(every[name], shape).astype(int)).max() <= 1, name
        given = [every[o.name] for o in model.graph.output]
        for k, (a, b) in enumerate(zip(graph.outputs, again.outputs, strict=True)):
            assert np.array_equal(ours[a], theirs[b])
            assert graph.tensors[a].shape == again.tensors[b].shape == given[k].shape
            assert np.abs(given[k].astype(float) - ours[a]).max() <= steps * _step(graph, a) * 1.001
    return again


def _step(graph: Graph, output: int) -> float:
    """One code of an output, in its own unit."""
    if graph.tensors[output].quant is not None:
        return 1.0
    codes = next(graph.tensors[op.inputs[0]] for op in graph.ops if op.outputs[0] == output)
    assert codes.quant is not None
    return codes.quant.scale[0]


@pytest.mark.parametrize("name", [name for name, make in GRAPHS.items() if make(seed=1).tensors[0].shape[0] == 1])
def test_a_graph_survives_the_way_through_onnx(name: str) -> None:
    again = check(GRAPHS[name](seed=1), steps=2)
    assert again.rounding == 1


@pytest.mark.parametrize("name", CASES)
def test_an_imported_operator_survives_the_way_back(name: str) -> None:
    graph = import_onnx(build(name)[0], "g")
    check(graph)


@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_survives_the_way_through_onnx(name: str) -> None:
    check(read_model(shared(f"models/{name}.tflite")), steps=5)


def test_the_layouts_that_an_import_takes_away_do_not_come_back_twice() -> None:
    """Input Transpose NCHW -> NHWC of the graph and NHWC -> NCHW of the file cancel."""
    graph = import_onnx(build("residual")[0], "g")
    model = onnx.load_from_string(write_onnx(graph))
    assert not [n for n in model.graph.node if n.op_type == "Transpose"]


def test_a_new_head_is_an_ordinary_gemm_with_its_own_weights() -> None:
    graph = replace_head(import_onnx(build("residual")[0], "g"), 7)
    rng = np.random.default_rng(1)
    head = graph.layers[-1]
    w = rng.integers(-127, 128, graph.tensors[head.inputs[1]].shape).astype(np.int8)
    b = rng.integers(-500, 500, 7).astype(np.int32)
    again = check(with_weights(graph, {head.name: (w, b)}))
    last = again.layers[-1]
    assert isinstance(last.kind, Linear) and np.array_equal(again.tensors[last.inputs[1]].data, w)
    model = onnx.load_from_string(write_onnx(graph))
    assert [n.op_type for n in model.graph.node].count("Gemm") == 1


def test_scales_are_written_bit_for_bit() -> None:
    graph = import_onnx(build("conv relu")[0], "g")
    again = import_onnx(write_onnx(graph), "g")
    assert [t.quant for t in again.tensors] == [t.quant for t in graph.tensors]


def test_a_graph_that_only_quantizes_comes_back() -> None:
    b = OnnxBuilder()
    graph = import_onnx(b.finish(b.q(b.input("x", (1, 4)), 0.1)), "g")
    assert [op.name for op in import_onnx(write_onnx(graph), "g").ops] == ["quantize_0"]


def test_a_float_graph_is_not_written() -> None:
    b = OnnxBuilder()
    data = b.finish(b.node("Relu", b.node("Conv", b.input("x", (1, 2, 5, 5)), b.const(np.ones((2, 2, 1, 1)), np.float32))))
    with pytest.raises(ModelError, match="only int8 graphs become ONNX QDQ"):
        write_onnx(import_onnx(data, "g", allow_float=True))


def test_what_onnx_cannot_say_is_refused() -> None:
    graph = GRAPHS["views"](seed=1)
    ops = tuple(replace(op, kind=Softmax(2.0)) if isinstance(op.kind, Softmax) else op for op in graph.ops)
    with pytest.raises(ModelError, match="beta 2"):
        write_onnx(replace(graph, ops=ops))


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot write"):
        write_onnx(GRAPHS["chain"](seed=1), tmp_path / "no" / "m.onnx")
    write_onnx(GRAPHS["chain"](seed=1), tmp_path / "m.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert read_model(tmp_path / "m.onnx").name == "m"
