"""Rung 2: the integer gradients of the reference against float gradients, after the exponents have settled.

A wrong scale, mask, exponent, fold or zero point in lowering shows here: the cosine sees directions, the relative error sees sizes,
and the last test sees whether the update that follows is minus lr times the gradient, in real units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from helpers.graphs import GRAPHS, GraphBuilder, Int8, chain, mixed, random_samples, residual, run_int8
from helpers.kinds import BODIES, ENDS, train, truths, with_op
from mcugrad.graph import Graph, Quant
from mcugrad.lower import Options
from mcugrad.lower.read_back import apply_state
from mcugrad.lower.weights import read_layer
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.proof.gradients import MAX_RELATIVE_ERROR, MIN_MEDIAN, MIN_P5, gradient_quality
from mcugrad.ref import Machine

SETTLE, MEASURE, LR = 40, 25, 0.002
USUAL_RELATIVE_ERROR = 0.08
"""The ordinary nets are better than the bound of `mcugrad check`; gate has 17 error tensors behind each other."""


def settled(compiled: Compiled, seed: int) -> tuple[bytes, npt.NDArray[np.int8], npt.NDArray[np.int64]]:
    """STATE after some training steps, and fresh samples with labels."""
    samples = random_samples(compiled.model, SETTLE + MEASURE, seed)
    labels = np.random.default_rng(seed).integers(0, 3, len(samples))
    machine = Machine(compiled.plan)
    for sample, label in zip(samples[:SETTLE], labels[:SETTLE], strict=True):
        machine.train(sample, int(label), LR, 0.0)
    return machine.state, np.stack(samples[SETTLE:]), labels[SETTLE:]


SHORT_SETTLE, SHORT_MEASURE = 8, 22
"""The exponents start near where they settle. Of 22 samples, the 5th percentile forgives one: it may be that with almost no gradient."""


@pytest.mark.parametrize("end", list(ENDS))
@pytest.mark.parametrize("body", list(BODIES))
def test_gradients_through_every_kind_are_those_of_float(body: str, end: str) -> None:
    """Every op that errors pass, behind and before layers that are trained, for every loss: the bounds are those of `mcugrad check`."""
    compiled = compile_graph(with_op(body, end, 1), "all", Options(ws=1 if end == "bce" else 2), ENDS[end][0])
    machine, count = Machine(compiled.plan), SHORT_SETTLE + SHORT_MEASURE
    x, y = random_samples(compiled.model, count, 1), truths(compiled, count, 2)
    for sample, truth in zip(x[:SHORT_SETTLE], y[:SHORT_SETTLE], strict=True):
        train(machine, sample, truth, LR)
    found = gradient_quality(compiled, machine.state, np.stack(x[SHORT_SETTLE:]), np.array(y[SHORT_SETTLE:]), LR)
    assert [(q.layer, q.what) for q in found] == [(op.name, what) for op in compiled.train.graph.layers for what in "wb"]
    for q in found:
        assert q.samples >= SHORT_MEASURE - 4, f"{q}: no gradient in too many samples"
        assert q.median >= MIN_MEDIAN and q.p5 >= MIN_P5 and q.relative_error <= MAX_RELATIVE_ERROR and q.good, q


def require_quality(compiled: Compiled, seed: int = 1, bound: float = USUAL_RELATIVE_ERROR) -> None:
    found = gradient_quality(compiled, *settled(compiled, seed), LR)
    assert len({q.layer for q in found}) == len(compiled.train.graph.layers)
    for q in found:
        assert q.samples == MEASURE and q.median >= 0.99 and q.p5 >= 0.98, q
        assert q.relative_error < bound, q


@pytest.mark.parametrize("ws", [1, 2])
@pytest.mark.parametrize("name", list(GRAPHS))
def test_gradients_are_those_of_float(name: str, ws: int) -> None:
    require_quality(compile_graph(GRAPHS[name](1), "all", Options(ws=ws)), bound=0.12 if name == "gate" else USUAL_RELATIVE_ERROR)


@pytest.mark.parametrize("operation", [GraphBuilder.add, GraphBuilder.sub, GraphBuilder.mul])
def test_a_vector_spread_over_many_positions(operation: Callable[[GraphBuilder, int, int], int]) -> None:
    """Its error is a sum over 2,500 positions: fewer fraction bits, or the accumulator would overflow."""
    b = GraphBuilder((1, 50, 50, 2), 1, samples=2)
    y = operation(b, b.input, b.linear(b.pool(b.input, (25, 25), (25, 25)), 2))
    graph = b.finish(b.linear(b.pool(y, (10, 10), (10, 10)), 4))
    compiled = compile_graph(graph, "all")
    machine, x = Machine(compiled.plan), random_samples(graph, 30, 3)
    for k, sample in enumerate(x[:12]):
        machine.train(sample, k % 4, 0.0, 0.0)
    for q in gradient_quality(compiled, machine.state, np.stack(x[12:]), np.arange(18) % 4, 0.0):
        assert q.samples >= 16 and q.good, q


@pytest.mark.parametrize("ratio", ["1/8", "1/4", "1/2"])
@pytest.mark.parametrize("build, seed", [(chain, 2), (mixed, 1)])
def test_gradients_of_slices(build: Callable[[int], Graph], seed: int, ratio: str) -> None:
    """mixed: the slice of a grouped convolution is that part of each group's input channels."""
    graph = build(seed)
    scheme = ",".join(f"weights:{op.name}:{ratio},bias:{op.name}" for op in graph.layers)
    require_quality(compile_graph(graph, scheme), bound=0.1)


def test_gradients_under_uneven_weight_scales() -> None:
    """Channels whose scales differ by 30 times: the fold of the scales into the error carries the difference."""
    graph = residual(4)
    tensors = list(graph.tensors)
    for op in graph.layers[1:4]:
        w = tensors[op.inputs[1]]
        assert w.quant is not None
        spread = np.geomspace(0.1, 3.0, len(w.quant.scale))
        scale = tuple(float(np.float32(s * k)) for s, k in zip(w.quant.scale, spread, strict=True))
        tensors[op.inputs[1]] = replace(w, quant=Quant(scale, 0, w.quant.axis))
    require_quality(compile_graph(replace(graph, tensors=tuple(tensors)), "all"), seed=2)


@pytest.mark.parametrize("name", ["chain", "residual", "mixed"])
def test_an_update_is_minus_lr_times_the_gradient(name: str) -> None:
    """Quantization-aware scaling is plain SGD in real units: planes and biases move by -lr · dL/dw, to half a unit of their last bit."""
    graph = GRAPHS[name](1)
    compiled = compile_graph(graph, "all")
    machine = Machine(compiled.plan)
    machine.state, x, y = settled(compiled, 1)
    steps, seen = compiled.program.steps, 0

    def observe(index: int, kind: str, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        nonlocal seen
        if "grad" not in arrays:
            return
        layer = read_layer(graph, next(op for op in graph.layers if op.name == steps[index].label))
        unit = float(np.asarray(arrays["unit"])[0]) * 2.0 ** int(np.asarray(arrays["ry"])["r"][0])
        name, is_bias = steps[index].label, kind == "bias_upd_s32"
        grad = np.asarray(arrays["grad"], np.float64).reshape(len(layer.b), -1) * unit * (1.0 if is_bias else layer.x_scale)
        bf = next(t.bf for t in compiled.program.trained if t.name == name)
        lsb = (layer.x_scale * layer.w_scale / 2**bf if is_bias else layer.w_scale / 256)[:, None]
        after = np.asarray(arrays["b" if is_bias else "wt"], np.int64).reshape(grad.shape)
        moved = (after - before[name, is_bias].reshape(grad.shape)) * lsb
        saturated = np.abs(after) >= 127 * 256 if not is_bias else np.zeros(after.shape, bool)
        assert saturated.mean() < 0.2
        assert (saturated | (np.abs(moved + 0.05 * grad) <= 0.501 * lsb + 1e-5 * np.abs(moved))).all(), (name, kind)
        assert np.abs(moved).max() > 20 * lsb.min(), f"{name}: the step is too small to compare"
        seen += 1

    before = planes(compiled, machine.state)
    machine.observe = observe  # type: ignore[assignment]
    machine.train(x[0], int(y[0]), 0.05, 0.0)
    assert seen == 2 * len(graph.layers)


def planes(compiled: Compiled, state: bytes) -> dict[tuple[str, bool], npt.NDArray[np.int64]]:
    """(layer, is bias) -> the fixed-point numbers in STATE."""
    found = {}
    for t in compiled.program.trained:
        for value, dtype, is_bias in ((t.weights, "<i2", False), (t.bias, "<i4", True)):
            if value is not None:
                offset = compiled.layout.offsets[value]
                found[t.name, is_bias] = np.frombuffer(state[offset : offset + value.nbytes], dtype).astype(np.int64)
    return found


def test_training_learns_three_samples() -> None:
    """The loss falls to almost nothing, and the trained graph, read back, predicts what the machine predicts."""
    graph = chain(5)
    compiled = compile_graph(graph, "all")
    machine = Machine(compiled.plan)
    samples: list[Int8] = random_samples(graph, 3, 9)
    first = [machine.train(s, k, 0.0, 0.0).loss for k, s in enumerate(samples)]
    for _ in range(60):
        last = [machine.train(s, k, 0.02, 0.0).loss for k, s in enumerate(samples)]
    assert max(last) < 0.1 < min(first)
    trained = apply_state(graph, compiled.program, compiled.layout, machine.state)
    for sample in samples:
        assert (machine.predict(sample) == run_int8(trained, sample)[trained.output].ravel()).all()
