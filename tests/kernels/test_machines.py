"""Whole plans: the C library and the reference leave the same STATE, results, outputs and trace."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tflite_micro import runtime

from helpers.graphs import GRAPHS
from helpers.shared import shared
from mcugrad.errors import DataError, PlanError
from mcugrad.graph.types import Graph
from mcugrad.lower import Options
from mcugrad.native import NativeMachine
from mcugrad.pipeline import compile_graph, compile_model
from mcugrad.ref import Machine, Result
from mcugrad.ref.fixed import Array

Either = Machine | NativeMachine
BOTH = pytest.mark.parametrize("machine", [Machine, NativeMachine])
REAL = {
    "mlperf_tiny/kws_ref_model_int8": 3,
    "mlperf_tiny/pretrainedResnet_quant_int8": 3,
    "mlperf_tiny/vww_96_int8": 3,
    "mlperf_tiny/ad01_int8": 3,
    "mlperf_tiny/str_ww_ref_model_int8": 3,
    "emlearn/mnist_cnn_int8": 3,
    "tflm/micro_speech_quantized": 3,
    "tflm/person_detect": 1,
    "tflm/hello_world_int8": 3,
    "tiny_training/mcunet-5fps_int8": 1,
}
"""Model -> samples."""
LAYERS = 70


def everything(graph: Graph) -> str:
    """The scheme that trains all biases and all weights."""
    return ",".join([f"bias:{len(graph.layers)}", *(f"weights:{op.name}" for op in graph.layers)])


def plan_of(name: str, ws: int = 2) -> bytes:
    graph = GRAPHS[name](3)
    return compile_graph(graph, everything(graph), Options(ws=ws, seed=5)).plan


def sample(machine: Either, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-128, 128, machine.plan.header.sample_bytes).astype(np.int8)


@pytest.mark.parametrize("ws", [1, 2])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_they_train_alike(name: str, ws: int) -> None:
    plan = plan_of(name, ws)
    a, b = Machine(plan), NativeMachine(plan)
    assert a.state == b.state == a.plan.init
    a.tracing = b.tracing = True
    for step in range(20):
        x, label = sample(a, step), step % a.plan.header.classes
        assert a.train(x, label, 0.05, skip=0.0) == b.train(x, label, 0.05, skip=0.0)
        assert a.trace == b.trace
        assert a.state == b.state, f"step {step}"
    assert a.state != a.plan.init
    x = sample(a, 99)
    assert np.array_equal(a.predict(x), b.predict(x))
    assert a.trace == b.trace


@BOTH
def test_a_certain_sample_is_skipped(machine: type[Either]) -> None:
    m = machine(plan_of("chain"))
    m.tracing = True
    result = m.train(sample(m, 1), 0, 0.1, skip=2.0)
    assert result.skipped
    assert m.state == m.plan.init
    assert len(m.trace) == m.plan.segments[0] + m.plan.segments[2]


@BOTH
def test_reset_and_state_restore(machine: type[Either]) -> None:
    m = machine(plan_of("chain"))
    first = [m.train(sample(m, i), 1, 0.1, skip=0.0) for i in range(3)]
    middle = m.state
    last = m.train(sample(m, 9), 1, 0.1, skip=0.0)
    m.state = middle
    assert m.train(sample(m, 9), 1, 0.1, skip=0.0) == last
    m.reset()
    assert m.state == m.plan.init
    assert [m.train(sample(m, i), 1, 0.1, skip=0.0) for i in range(3)] == first


@BOTH
@pytest.mark.parametrize(
    ("label", "lr", "skip", "words"),
    [
        (4, 0.1, 0.1, "label 4 is not in 0 … 3"),
        (-1, 0.1, 0.1, "label -1"),
        (0, -0.1, 0.1, "lr = -0.1"),
        (0, float("nan"), 0.1, "lr = nan"),
        (0, 1e39, 0.1, "lr = 1e+39"),
        (0, 0.1, float("inf"), "skip = inf"),
    ],
)
def test_bad_arguments_are_refused(machine: type[Either], label: int, lr: float, skip: float, words: str) -> None:
    m = machine(plan_of("chain"))
    with pytest.raises(DataError, match=re.escape(words)):
        m.train(sample(m, 1), label, lr, skip)
    assert m.state == m.plan.init


@BOTH
def test_bad_samples_and_states_are_refused(machine: type[Either]) -> None:
    m = machine(plan_of("chain"))
    with pytest.raises(DataError, match="of uint8"):
        m.predict(sample(m, 1).view(np.uint8))
    with pytest.raises(DataError, match="a sample is 143 values"):
        m.predict(sample(m, 1)[1:])
    with pytest.raises(PlanError, match="STATE has"):
        m.state = b"123"


@BOTH
def test_a_damaged_plan_is_refused(machine: type[Either]) -> None:
    plan = bytearray(plan_of("chain"))
    plan[200] ^= 1
    with pytest.raises(PlanError):
        machine(bytes(plan))


def test_observe_shows_every_step_and_the_gradients() -> None:
    m = Machine(plan_of("chain"))
    seen: list[tuple[int, str]] = []
    sums: dict[str, int] = {}

    def observe(index: int, kind: str, arrays: Mapping[str, Array]) -> None:
        seen.append((index, kind))
        if "grad" in arrays:
            assert arrays["grad"].dtype == np.int32
            sums[kind] = sums.get(kind, 0) + int(np.abs(arrays["grad"]).sum())

    m.observe = observe
    m.train(sample(m, 2), 1, 0.1, skip=0.0)
    steps = m.plan.steps
    forward, evaluate = m.plan.segments[:2]
    indices = [i for i in range(len(steps)) if not forward <= i < forward + evaluate]
    assert seen == [(i, steps[i].kind.name) for i in indices]
    assert set(sums) == {"conv2d_upd_q16", "dwconv2d_upd_q16", "linear_upd_q16", "bias_upd_s32"}
    assert all(sums.values())


def test_trace_is_the_crc_of_what_a_step_wrote() -> None:
    m = Machine(plan_of("chain"))
    written: list[int] = []
    m.tracing = True
    m.observe = lambda index, _, a: written.append(
        zlib.crc32(b"".join(a[r.name].tobytes() for r in m.plan.steps[index].kind.refs if r.writes))
    )
    m.train(sample(m, 2), 1, 0.1, skip=0.0)
    assert m.trace == written


def test_training_learns() -> None:
    """Four fixed samples, four labels: the loss must fall."""
    m = NativeMachine(plan_of("chain"))
    epochs: list[list[Result]] = [[m.train(sample(m, i), i, 0.02, skip=0.0) for i in range(4)] for _ in range(60)]
    assert sum(r.loss for r in epochs[-1]) < 0.3 * sum(r.loss for r in epochs[0])


def equals_the_interpreter(path: Path, count: int) -> None:
    """Several inputs stand one behind the other in the sample, each at a multiple of 4."""
    compiled = compile_model(path, None)
    a, b = Machine(compiled.plan), NativeMachine(compiled.plan)
    interpreter = runtime.Interpreter.from_bytes(path.read_bytes(), arena_size=4 << 20)
    for seed in range(count):
        x, at = sample(a, seed), 0
        for index in range(len(compiled.model.inputs)):
            shape = interpreter.get_input_details(index)["shape"]
            size = int(np.prod(shape))
            interpreter.set_input(x[at : at + size].reshape(shape), index)
            at += -(-size // 4) * 4
        interpreter.invoke()
        y = interpreter.get_output(0).reshape(-1)
        assert np.array_equal(a.predict(x), y)
        assert np.array_equal(b.predict(x), y)


@pytest.mark.parametrize("name", REAL)
def test_real_models_predict_as_tensorflow_lite_does(name: str) -> None:
    equals_the_interpreter(shared(f"models/{name}.tflite"), REAL[name])


def test_real_layers_predict_as_tensorflow_lite_does() -> None:
    paths = sorted(shared("models/mlonmcu").glob("layers__*.tflite"))
    assert len(paths) == LAYERS
    for path in paths:
        equals_the_interpreter(path, 2)
