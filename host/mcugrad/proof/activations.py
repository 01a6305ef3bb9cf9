"""Layers whose output says nothing: one code everywhere, or nearly all codes cut off at the ends of int8."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mcugrad.graph import Activation, Graph, Op
from mcugrad.lower.program import Value
from mcugrad.pipeline import Compiled
from mcugrad.ref.run import Machine

MAX_SAMPLES = 8
MAX_MACS = 30_000_000
"""Of all samples together; one sample is always looked at."""

MAX_SATURATED = 0.99

Int8 = npt.NDArray[np.int8]


def dull_layers(compiled: Compiled, state: bytes, samples: Int8) -> tuple[str, ...]:
    """Notes on the layers of the trained net that are stuck, from its outputs on a few of ``samples`` (N, …), from first to last."""
    graph = compiled.train.graph
    count = max(1, min(MAX_SAMPLES, len(samples), MAX_MACS // max(compiled.program.forward_macs, 1)))
    few = samples[np.linspace(0, len(samples) - 1, count).astype(int)]
    codes = layer_outputs(compiled, state, few)
    notes = (_note(graph, op, codes[op.name]) for op in graph.layers if op.name in codes)
    return tuple(note for note in notes if note)


def layer_outputs(compiled: Compiled, state: bytes, samples: Int8) -> dict[str, Int8]:
    """Layer -> its int8 outputs on all samples, one behind the other."""
    compiled = compiled.with_whole_steps()
    machine = Machine(compiled.plan)
    machine.state = state
    layer_of: dict[Value, str] = {}
    for op in compiled.train.graph.layers:
        if op.outputs[0] in compiled.program.tensors:
            layer_of[compiled.program.tensors[op.outputs[0]]] = op.name
    found: dict[str, list[Int8]] = {}

    def observe(index: int, _kind: str, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        step = compiled.program.steps[index]
        for ref in step.kind.refs:
            value = step.refs[ref.name]
            if ref.writes and value is not None and value in layer_of:
                found.setdefault(layer_of[value], []).append(np.array(arrays[ref.name], np.int8))

    machine.observe = observe
    for sample in samples:
        machine.predict(sample)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _note(graph: Graph, op: Op, codes: Int8) -> str | None:
    quant = graph.tensors[op.outputs[0]].quant
    assert quant is not None
    if codes.size > 1 and (codes == codes[0]).all():
        return (
            f"{op.name} puts out {codes[0]}, real {quant.scale[0] * (int(codes[0]) - quant.zero_point):.3g}, everywhere: its input is lost"
        )
    cut = np.zeros(codes.shape, np.bool_)
    for end in _ends(op, quant.zero_point):
        cut |= codes == end
    share = float(cut.mean())
    if share > MAX_SATURATED:
        return f"{100 * share:.3g} % of the outputs of {op.name} are cut off at the ends of int8: use a smaller --lr"
    return None


def _ends(op: Op, zero_point: int) -> tuple[int, ...]:
    """The ends of int8 at which a value is lost: not the 0 of a ReLU, nor the bounds of an activation that has two."""
    if getattr(op.kind, "activation", Activation.NONE) in (Activation.RELU6, Activation.RELU_N1_1):
        return ()
    return (127,) if zero_point == -128 else (-128, 127)
