"""RawModel -> Graph: what the numbers of a .tflite file mean, and whether they can be meant.

One reader per operator (tflite_layers.py, tflite_elementwise.py, tflite_moves.py); each checks its operands and recomputes its output
shape. The graph has the file's operators in their order and the tensors that they compute with; shapes, axes and paddings that the file
keeps in constant tensors become attributes. Nothing behind this module checks a shape, an index or a scale again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from mcugrad.errors import ModelError
from mcugrad.graph.types import Dequantize, Function, Graph, Op, Tensor, Unary
from mcugrad.importer import tflite_elementwise as elementwise
from mcugrad.importer import tflite_file
from mcugrad.importer import tflite_layers as layers
from mcugrad.importer import tflite_moves as moves
from mcugrad.importer.names import Namer
from mcugrad.importer.schemes import HINT_INT8, refuse_foreign, refuse_unsupported
from mcugrad.importer.tflite_file import RawModel, RawOp, RawTensor
from mcugrad.importer.tflite_folding import fold
from mcugrad.importer.tflite_operands import (
    FLOAT32,
    HINT_AGAIN,
    HINT_BATCH_1,
    INT8,
    Found,
    State,
    activation,
    check_shape,
    fail,
    unsigned_border,
)


def import_tflite(data: bytes, name: str, *, allow_float: bool = False) -> Graph:
    """The graph in the bytes of a .tflite file. ``name`` becomes the graph's. Raises ModelError.

    With ``allow_float``, float32 and hybrid models become graphs of float32 tensors without quantization, to be quantized.
    """
    raw = tflite_file.read(data)

    def cut(model: RawModel, bad: Collection[int]) -> str:
        return _cut(model, bad, allow_float=allow_float)

    refuse_unsupported(raw, _READERS, cut)
    return replace(_graph(raw, allow_float=allow_float), name=name, model_hash=zlib.crc32(data))


def _graph(raw: RawModel, *, allow_float: bool) -> Graph:
    """A model of supported operators as a graph without name and hash."""
    state = State(raw, refuse_foreign(raw, allow_float=allow_float))
    for what, indices in (("inputs", raw.inputs), ("outputs", raw.outputs)):
        if not indices or len(set(indices)) != len(indices):
            raise ModelError(f"the model's {what} are the tensors {indices}: one or more are expected, each once", HINT_AGAIN)
    for index in raw.inputs:
        state.tensors[index] = _model_input(state, raw.tensors[index])
    ops: list[Op] = []
    names: dict[int, str] = {}
    namer = Namer()
    for raw_op in raw.ops:
        if fold(state, raw_op):
            continue
        for found in _READERS[raw_op.code](state, raw_op):
            _produce(state, raw_op, found)
            ops.append(Op(namer.name(found.kind), found.kind, found.inputs, (found.output,)))
            names[raw_op.index] = ops[-1].name
    computed = {op.outputs[0] for op in ops}
    for index in raw.outputs:
        if index not in computed:
            raise ModelError(f"the model's output, {raw.tensors[index].where}, is computed by no operator", HINT_AGAIN)
    return _renumbered(Graph("", (), tuple(ops), raw.inputs, raw.outputs, notes=_notes(state, names)), state.tensors)


def _model_input(state: State, t: RawTensor) -> Tensor:
    """An input of the model: int8 or, before a QUANTIZE, uint8 or float32; in a float model float32."""
    check_shape(t)
    if t.data is not None:
        raise ModelError(f"the model's input, {t.where}, is a constant", HINT_AGAIN)
    if not t.shape or t.shape[0] != 1:
        raise ModelError(f"the model's input, {t.where}, has shape {t.shape}: the batch must be 1", HINT_BATCH_1)
    if t.type == "float32":
        return activation(t, FLOAT32)
    if t.type == "uint8" and not state.floating:
        state.unsigned.add(t.index)
        return unsigned_border(t)
    if t.type != "int8" or state.floating:
        raise ModelError(f"the model's input, {t.where}, is {t.type}: int8 or float32 is expected", HINT_INT8)
    return activation(t, INT8)


def _produce(state: State, op: RawOp, found: Found) -> None:
    """Check what an operator writes against what was computed, and add it to the graph."""
    index = found.output
    if index >= len(state.raw.tensors):
        return
    t = state.raw.tensors[index]
    if index in state.tensors or index in state.values or t.data is not None:
        fail(op, f"writes {t.where}, which has a value already")
    if t.shape != found.shape:
        fail(op, f"gives shape {found.shape}, but the file says {t.shape} for {t.where}")
    if t.type == "uint8" and index in state.raw.outputs and found.kind == Unary(Function.REQUANTIZE):
        state.unsigned.add(index)
        state.tensors[index] = unsigned_border(t)
        return
    dtype = FLOAT32 if isinstance(found.kind, Dequantize) else state.dtype
    if t.type != dtype.name:
        fail(op, f"writes {t.where} as {t.type}, {dtype} is expected", HINT_INT8)
    state.tensors[index] = activation(t, dtype)


def _renumbered(graph: Graph, tensors: Mapping[int, Tensor]) -> Graph:
    """Number the tensors anew, in the file's order, without those that only the file needs."""
    kept = sorted(tensors)
    new = {old: i for i, old in enumerate(kept)}

    def renumber(indices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(new[i] for i in indices)

    ops = tuple(replace(op, inputs=renumber(op.inputs), outputs=renumber(op.outputs)) for op in graph.ops)
    return replace(graph, tensors=tuple(tensors[i] for i in kept), ops=ops, inputs=renumber(graph.inputs), outputs=renumber(graph.outputs))


def _notes(state: State, names: Mapping[int, str]) -> tuple[str, ...]:
    border = [state.raw.tensors[i].name for i in sorted(state.unsigned)]
    texts = (
        (state.pruned, "channels have weight scale 0 (pruned, they stay frozen)"),
        (state.saturated, "biases are saturated at the end of int32"),
        (state.odd_bias_axes, "bias scales name an axis that a bias does not have, read along its only axis"),
        (state.rescaled, "RELU6 change the quantization: rescaled as in TensorFlow Lite, TensorFlow Lite Micro only clamps there"),
    )
    counted = tuple(f"{sum(by.values())} {text}: {', '.join(names[i] for i in by)}" for by, text in texts if by)
    return (f"uint8 in the file, here int8 with codes 128 less: {', '.join(border)}", *counted) if border else counted


# ---- cuts ------------------------------------------------------------------------------------------------------------

MAX_CUTS = 4
"""Tensors of one operator that are tried: each try reads the model once more."""


def _cut(raw: RawModel, bad: Collection[int], *, allow_float: bool) -> str:
    """What of a model with unsupported operators can be used: what stands before the first, else what stands behind the last."""
    first, last = raw.ops[min(bad)], raw.ops[max(bad)]
    before = {op.outputs[k]: op for op in raw.ops[: first.index] for k in range(len(op.outputs))}
    for index in [i for i in dict.fromkeys(first.inputs) if i in before][:MAX_CUTS]:
        if _works(replace(raw, ops=raw.ops[: first.index], outputs=(index,)), allow_float=allow_float):
            return f"cut the model: the graph up to tensor '{raw.tensors[index].name}' (op {before[index].index}) is supported"
    behind = raw.ops[last.index + 1 :]
    for index in last.outputs[:MAX_CUTS] if behind else ():
        if _works(replace(raw, ops=behind, inputs=(index,)), allow_float=allow_float):
            return f"cut the model: the graph from tensor '{raw.tensors[index].name}' (op {last.index}) on is supported"
    return ""


def _works(raw: RawModel, *, allow_float: bool) -> bool:
    try:
        _graph(raw, allow_float=allow_float)
    except ModelError:
        return False
    return True


# ---- the table -------------------------------------------------------------------------------------------------------

_Reader = Callable[[State, RawOp], list[Found]]

_READERS: dict[str, _Reader] = {
    "CONV_2D": layers.conv,
    "DEPTHWISE_CONV_2D": layers.dwconv,
    "FULLY_CONNECTED": layers.linear,
    "AVERAGE_POOL_2D": layers.avgpool,
    "MAX_POOL_2D": layers.maxpool,
    "MEAN": layers.mean,
    "SOFTMAX": layers.softmax,
    "ADD": elementwise.arithmetic,
    "SUB": elementwise.arithmetic,
    "MUL": elementwise.arithmetic,
    "MAXIMUM": elementwise.minmax,
    "MINIMUM": elementwise.minmax,
    "RELU": elementwise.unary,
    "RELU6": elementwise.unary,
    "RELU_N1_TO_1": elementwise.unary,
    "LEAKY_RELU": elementwise.unary,
    "LOGISTIC": elementwise.unary,
    "TANH": elementwise.unary,
    "HARD_SWISH": elementwise.unary,
    "PRELU": elementwise.prelu,
    "QUANTIZE": elementwise.quantize,
    "DEQUANTIZE": elementwise.dequantize,
    "RESHAPE": moves.reshape,
    "SQUEEZE": moves.reshape,
    "EXPAND_DIMS": moves.reshape,
    "TRANSPOSE": moves.transpose,
    "PAD": moves.pad,
    "PADV2": moves.pad,
    "RESIZE_NEAREST_NEIGHBOR": moves.resize,
    "CONCATENATION": moves.concat,
    "SLICE": moves.slices,
    "STRIDED_SLICE": moves.strided_slice,
    "SPLIT": moves.split,
    "SPLIT_V": moves.split_v,
    "PACK": moves.pack,
    "UNPACK": moves.unpack,
    "SHAPE": lambda _, op: fail(op, "is not computed from constants"),
}
