"""Where the exponents of the error tensors start: the first sample already gives gradients, of every kind of op and loss."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from helpers.graphs import GRAPHS, GraphBuilder, random_samples
from helpers.kinds import BODIES, ENDS, train, truths, with_op
from mcugrad.graph import Activation, Graph
from mcugrad.lower.exponents import initial_exponents
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.plan import decode
from mcugrad.ref import Machine

MOST_SATURATED = 0.65
"""Of the elements of an error tensor at a first sample, the median over a few."""

FIRST_SAMPLES = 3


def first_errors(compiled: Compiled) -> dict[str, list[npt.NDArray[np.int64]]]:
    """Name of a backward step -> its error tensor at each of some samples, each from the initial STATE."""
    found: dict[str, list[npt.NDArray[np.int64]]] = {}

    def observe(index: int, kind: str, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        if "dx" in arrays:
            found.setdefault(f"{index} {compiled.program.steps[index].name}", []).append(np.array(arrays["dx"], np.int64))

    samples = random_samples(compiled.model, FIRST_SAMPLES, 1)
    for sample, truth in zip(samples, truths(compiled, FIRST_SAMPLES, 2), strict=True):
        machine = Machine(compiled.plan)
        machine.observe = observe
        train(machine, sample, truth, 0.0)
    return found


def require_sensible(compiled: Compiled) -> None:
    for name, errors in first_errors(compiled).items():
        assert all(np.abs(e).max() >= 4 for e in errors), f"{name}: {[int(np.abs(e).max()) for e in errors]} rounds to almost nothing"
        saturated = [float((np.abs(e) == 127).mean()) for e in errors]
        assert np.median(saturated) <= MOST_SATURATED, f"{name}: {saturated} of the elements are cut"


@pytest.mark.parametrize("body", list(BODIES))
def test_the_first_errors_of_every_kind_are_neither_zero_nor_cut(body: str) -> None:
    for end, (loss, _) in ENDS.items():
        require_sensible(compile_graph(with_op(body, end, 1), "all", None, loss))


@pytest.mark.parametrize("name", list(GRAPHS))
def test_the_first_errors_of_a_net_are_neither_zero_nor_cut(name: str) -> None:
    require_sensible(compile_graph(GRAPHS[name](1), "all"))


def deep(layers: int) -> Graph:
    b = GraphBuilder((1, 6, 6, 4), 2, samples=2)
    y = b.input
    for _ in range(layers):
        y = b.conv(y, 8, (2, 2), pad=(1, 0, 0, 1), activation=Activation.RELU)
    return b.finish(b.linear(b.mean(y), 4))


def test_the_first_errors_of_a_deep_net_are_neither_zero_nor_cut() -> None:
    """Every ReLU halves the power of the error: over 12 layers the estimate would be 6 too high without that."""
    require_sensible(compile_graph(deep(12), "all"))


def test_the_start_is_that_of_the_plan_and_the_losss_own_is_zero() -> None:
    compiled = compile_graph(deep(3), "all")
    first = initial_exponents(compiled.train)
    init = decode(compiled.plan).init
    assert first[0] == 0
    starts = []
    for step in compiled.program.segments[3]:
        if "rx" in step.refs:
            value = step.refs["rx"]
            assert value is not None
            r, following, count, zero = np.frombuffer(init[compiled.layout.offsets[value] :][:4], np.int8)
            assert (r, count, zero) == (following, 0, 0)
            starts.append(int(r))
    assert starts == [first[k] for k in range(1, len(first))] and len(set(starts)) > 1


def test_exponents_stay_in_their_range() -> None:
    """An input scale of 1e-7 behind a product asks for more than an exponent can say."""
    b = GraphBuilder((1, 4, 4, 2), 1)
    y = b.conv(b.input, 4)
    for _ in range(3):
        y = b.mul(y, b.constant((4,), scale=1e-4))
    compiled = compile_graph(b.finish(b.linear(b.mean(b.mul(y, b.constant((4,), scale=3e6))), 3)), "all")
    assert all(-16 <= r <= 15 for r in initial_exponents(compiled.train).values())
    assert min(initial_exponents(compiled.train).values()) == -16 or max(initial_exponents(compiled.train).values()) == 15
