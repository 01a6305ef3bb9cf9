"""An int8 ONNX model trains: onnxruntime#19078 says that there "on-device training doesn't work with INT8 models"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from test_onnx_import import CASES, IMAGE

from helpers.onnx_builder import OnnxBuilder, run_int8, run_onnxruntime
from mcugrad.exporter.onnx import write_onnx
from mcugrad.graph import Graph
from mcugrad.graph.edit import replace_head
from mcugrad.importer.onnx import import_onnx
from mcugrad.lower.read_back import apply_state
from mcugrad.native import NativeMachine
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.ref.run import Machine

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

Engine = Callable[[bytes], Machine | NativeMachine]


def qdq_block() -> Graph:
    """conv, relu, add, global average, fully connected: an int8 input, int8 logits."""
    b = OnnxBuilder(seed=3)
    data = b.finish(CASES["residual"](b))
    return import_onnx(data, "g")


def samples(count: int) -> list[tuple[np.ndarray[tuple[int, ...], np.dtype[np.int8]], int]]:
    """Images whose class is the channel that is bright."""
    rng = np.random.default_rng(0)
    found = []
    for k in range(count):
        x = rng.integers(-40, 40, IMAGE)
        x[0, k % 3] += 80
        found.append((np.clip(x, -128, 127).astype(np.int8), k % 3))
    return found


@pytest.mark.parametrize("engine", [Machine, NativeMachine])
@pytest.mark.parametrize("scheme", ["head", "all"])
def test_a_qdq_block_trains_and_its_loss_falls(engine: Engine, scheme: str) -> None:
    compiled = compile_graph(replace_head(qdq_block(), 3), scheme)
    machine = engine(compiled.plan)
    data = samples(30)
    first = [machine.train(x, label, 0.05, 0.0).loss for x, label in data]
    last = [machine.train(x, label, 0.05, 0.0).loss for x, label in data * 3][-30:]
    assert np.mean(last) < 0.7 * np.mean(first[:6])


def test_one_step_on_one_sample_lowers_its_loss() -> None:
    machine = Machine(compile_graph(qdq_block(), "all").plan)
    x, label = samples(1)[0]
    before = machine.train(x, label, 0.01, 0.0).loss
    assert machine.train(x, label, 0.01, 0.0).loss < before


def test_reference_and_c_train_alike() -> None:
    plan = compile_graph(replace_head(qdq_block(), 3), "all").plan
    reference, native = Machine(plan), NativeMachine(plan)
    for x, label in samples(12):
        assert reference.train(x, label, 0.05, 0.0) == native.train(x, label, 0.05, 0.0)
    assert reference.state == native.state


def trained() -> tuple[Compiled, Machine]:
    compiled = compile_graph(replace_head(qdq_block(), 3), "all")
    machine = Machine(compiled.plan)
    for x, label in samples(30):
        machine.train(x, label, 0.05, 0.0)
    return compiled, machine


def test_the_trained_model_goes_back_to_onnx_and_onnxruntime_agrees() -> None:
    compiled, machine = trained()
    graph = apply_state(compiled.model, compiled.program, compiled.layout, machine.state)
    data = write_onnx(graph)
    again = import_onnx(data, "g")
    source = next(t for t in graph.tensors if t.quant is not None)
    assert source.quant is not None
    fresh = Machine(compile_graph(again, None).plan)
    right = 0
    for x, label in samples(12):
        ours = machine.predict(x)
        assert np.array_equal(fresh.predict(x), ours)
        real = ((x.astype(np.float32) - source.quant.zero_point) * np.float32(source.quant.scale[0])).astype(np.float32)
        assert np.array_equal(run_int8(graph, [real])[0][graph.inputs[0]], real)
        given = next(iter(run_onnxruntime(data, {graph.tensors[graph.input].name: real}).values()))
        step = graph.tensors[graph.ops[-1].inputs[0]].quant
        assert step is not None
        codes = np.rint(given.ravel() / step.scale[0]) + step.zero_point
        assert np.abs(codes - ours).max() <= 2
        right += int(np.argmax(ours)) == label
    assert right == 12
