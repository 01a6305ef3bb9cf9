"""How well an int8 model does what its float original did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mcugrad.data import DataSet, check_labels
from mcugrad.errors import UnavailableError
from mcugrad.graph import Graph
from mcugrad.graph.edit import input_of, output_of
from mcugrad.native import NativeMachine
from mcugrad.pipeline import compile_graph
from mcugrad.quantize.codes import to_codes, to_real
from mcugrad.quantize.run_float import predict_float
from mcugrad.quantize.samples import RealSet
from mcugrad.ref import Machine


@dataclass(frozen=True, slots=True)
class Score:
    """Accuracies (None without labels); ``mse``: mean squared difference of the two models' outputs, ``power``: of the float outputs' mean
    square, to compare it with."""

    samples: int
    float_accuracy: float | None
    int8_accuracy: float | None
    mse: float
    power: float


def compare(original: Graph, quantized: Graph, data: RealSet, advance: Callable[[], None] = lambda: None) -> Score:
    """Run both models over a data set: the float one in real numbers, the int8 one in the runtime that boards run.

    Both are judged by their first output, and the prediction is its first maximum. Raises DataError where a label is no class of the model.
    """
    source, sink = input_of(quantized).quant, output_of(quantized).quant
    assert source is not None and sink is not None
    codes = to_codes(data.x, source)
    if data.y is not None:
        check_labels(DataSet(codes, data.y), output_of(quantized).size)
    machine = _machine(compile_graph(quantized, None).plan)
    floats, ints = [], []
    for x, q in zip(data.x, codes, strict=True):
        floats.append(predict_float(original, x).reshape(-1))
        ints.append(to_real(machine.predict(q)[: floats[-1].size], sink))
        advance()
    f, i = np.array(floats), np.array(ints)
    hits = [None if data.y is None else float((v.argmax(axis=1) == data.y).mean()) for v in (f, i)]
    return Score(len(data), hits[0], hits[1], float(((f - i) ** 2).mean()), float((f**2).mean()))


def _machine(plan: bytes) -> NativeMachine | Machine:
    """The C library, or where it cannot be built the reference, which gives the same bytes."""
    try:
        return NativeMachine(plan)
    except UnavailableError:
        return Machine(plan)
