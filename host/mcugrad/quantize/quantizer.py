"""Float graph -> int8 graph from representative samples: TensorFlow Lite's full-int8 scheme.

Weights of convolutions are symmetric with a scale per output channel, those of linear layers with one scale; biases are int32 with scale
s_x · s_w; activations are asymmetric with an exact zero; ops that only move values keep their input's quantization (share.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugrad.errors import DataError
from mcugrad.graph import Graph, Quant
from mcugrad.quantize.codes import MIN_RANGE, range_quant
from mcugrad.quantize.observe import Method, Observer
from mcugrad.quantize.rewrite import parameters, renumbered, rewrite, with_float_border
from mcugrad.quantize.run_float import Samples, require_float, run_float
from mcugrad.quantize.share import JOINING, KEEPING, Sharing, fuse_activations, is_clamp, share

DEFAULT_PERCENTILE = 99.99
HINT_SAMPLES = "give samples as the model will meet them, preprocessed as for its training"


@dataclass(frozen=True, slots=True)
class Options:
    """``percentile`` belongs to Method.PERCENTILE: the percentage of values that each end of a range keeps. ``per_channel_linear``: a
    scale per output of linear layers too. ``float_border``: float32 input and output behind QUANTIZE and DEQUANTIZE instead of int8."""

    method: Method = Method.MINMAX
    percentile: float = DEFAULT_PERCENTILE
    per_channel_linear: bool = False
    float_border: bool = False


def quantize_graph(
    graph: Graph, samples: Samples | Sequence[Samples], options: Options | None = None, advance: Callable[[], None] = lambda: None
) -> Graph:
    """Quantize a float graph.

    ``samples`` (N, *shape of the model's input, with or without batch): representative data in real units; for a model with several
    inputs one such array each. ``advance`` is called after each sample. What was unusual stands in the notes of the result.

    Raises ModelError where the graph is not float, DataError where the samples do not fit it or say nothing about it.
    """
    require_float(graph)
    options = options or Options()
    arrays = (samples,) if isinstance(samples, np.ndarray) else tuple(samples)
    check_samples(graph, arrays)
    shared = share(fuse_activations(graph))
    quants, notes = _quants(shared, _calibrate(shared, arrays, advance), options)
    found, layer_notes = rewrite(shared, quants, per_channel_linear=options.per_channel_linear)
    found = replace(found, notes=(*graph.notes, *notes, *layer_notes))
    return renumbered(with_float_border(found) if options.float_border else found)


def check_samples(graph: Graph, arrays: Sequence[Samples]) -> None:
    """Raise DataError, naming the tensor, where samples are missing, have the wrong shape, are not finite or do not vary."""
    if len(arrays) != len(graph.inputs):
        raise DataError(f"{len(arrays)} arrays of calibration data for {len(graph.inputs)} model inputs", "give one for each input")
    for array, index in zip(arrays, graph.inputs, strict=True):
        t = graph.tensors[index]
        if array.ndim == 0 or len(array) == 0:
            raise DataError(f"the calibration data of tensor {t.name} is empty (shape {array.shape})", HINT_SAMPLES)
        if len(array) != len(arrays[0]):
            raise DataError(
                f"tensor {t.name} has {len(array):,} calibration samples, the first input {len(arrays[0]):,}", "give as many of each"
            )
        if array[0].size != t.size:
            raise DataError(
                f"the calibration data of tensor {t.name} has samples of shape {array.shape[1:]}, the model's input is {t.shape}",
                HINT_SAMPLES,
            )
        bad = [n for n, sample in enumerate(array) if not is_float32(sample)]
        if bad:
            raise DataError(
                f"the calibration data of tensor {t.name} has NaN or infinite values in {len(bad):,} of {len(array):,} samples, the first "
                f"is sample {bad[0]}",
                "clean the data",
            )
        if array.min() == array.max():
            raise DataError(
                f"the calibration data of tensor {t.name} is {array.flat[0]:g} throughout, which says nothing of its range", HINT_SAMPLES
            )


def is_float32(values: Samples) -> bool:
    """Whether all values are finite in float32."""
    return bool((np.abs(values) <= np.finfo(np.float32).max).all())


# ---- ranges ----------------------------------------------------------------------------------------------------------


def _calibrate(shared: Sharing, arrays: Sequence[Samples], advance: Callable[[], None]) -> dict[int, Observer]:
    """An observer for each group that has values of its own."""
    graph = shared.graph
    observers = {g: Observer() for g in shared.group}
    watched = [i for i in _watched(graph) if shared.group[i] not in shared.prescribed]
    for i in _operands(graph):
        observers[shared.group[i]].keep(np.asarray(graph.tensors[i].data, np.float64))
    for n in range(len(arrays[0])):
        values = run_float(graph, [a[n] for a in arrays])
        for i in watched:
            if not is_float32(values[i]):
                raise DataError(f"tensor {graph.tensors[i].name} becomes NaN or infinite on calibration sample {n}", HINT_SAMPLES)
            observers[shared.group[i]].see(values[i])
        advance()
    return observers


def _watched(graph: Graph) -> list[int]:
    """The activations that count: neither those that only repeat other values, nor those that only clamps read. What a clamp cuts off needs
    no code."""
    moved = {op.outputs[0] for op in graph.ops if isinstance(op.kind, KEEPING + JOINING)}
    read = {i for op in graph.ops if not is_clamp(op) for i in op.inputs} | set(graph.outputs)
    clamped = {op.inputs[0] for op in graph.ops if is_clamp(op)} - read
    return [i for i in (*graph.inputs, *(op.outputs[0] for op in graph.ops)) if i not in moved | clamped]


def _operands(graph: Graph) -> list[int]:
    """The constants that ops read like activations: of additions, slopes of a prelu."""
    of_layers = parameters(graph)
    return [i for i, t in enumerate(graph.tensors) if t.data is not None and i not in of_layers]


def _quants(shared: Sharing, observers: Mapping[int, Observer], options: Options) -> tuple[dict[int, Quant], tuple[str, ...]]:
    """The quantization of every group, and notes on activations that calibration saw nothing of."""
    found: dict[int, Quant] = {}
    silent, narrow = list[str](), list[str]()
    seen = {shared.group[i] for i in _watched(shared.graph)} - shared.prescribed.keys()
    for g, observer in observers.items():
        low, high = observer.range(options.method, options.percentile)
        found[g] = shared.prescribed.get(g) or range_quant(low, high)
        if g in seen and high - low < MIN_RANGE:
            (silent if high == low else narrow).append(shared.graph.tensors[g].name)
    texts = (
        (silent, "activations are 0 in every calibration sample, their range is taken as 0 to 1"),
        (narrow, f"activations span less than {MIN_RANGE:g}, their range is widened to that"),
    )
    return found, tuple(f"{len(names)} {text}: {', '.join(names)}" for names, text in texts if names)
