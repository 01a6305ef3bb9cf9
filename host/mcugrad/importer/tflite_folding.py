"""Arithmetic with constants that converters leave in a file: shapes computed from shapes, weights stored in another type.

An operator that is folded leaves no op in the graph, only a value for those that read it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mcugrad.importer.tflite_file import NO_TENSOR, RawOp
from mcugrad.importer.tflite_moves import strides
from mcugrad.importer.tflite_operands import Array, State, axis_of, fail, floats, integers, is_constant, operand, options, output


def fold(state: State, op: RawOp) -> bool:
    """Compute an operator that reads only constants, where it is one of those that occur. False: it is to be read as usual."""
    if op.code == "SHAPE":
        return _store(state, op, _shape(state, op))
    if op.code not in _FOLDERS or not op.inputs or NO_TENSOR in op.inputs:
        return False
    if not all(is_constant(state, state.raw.tensors[i]) for i in op.inputs):
        return False
    types, folder = _FOLDERS[op.code]
    if state.raw.tensors[op.inputs[0]].type not in types:
        return False
    return _store(state, op, folder(state, op))


def _store(state: State, op: RawOp, found: Array) -> bool:
    y = output(state, op)
    if y.index in state.values or y.index in state.tensors or y.data is not None:
        fail(op, f"writes {y.where}, which has a value already")
    if found.shape != y.shape:
        fail(op, f"gives shape {found.shape}, but the file says {y.shape} for {y.where}")
    if y.type != found.dtype.name and not (y.type == "int32" and found.dtype == np.int64):
        fail(op, f"gives {found.dtype}, but the file says {y.type} for {y.where}")
    state.values[y.index] = found
    return True


def _shape(state: State, op: RawOp) -> Array:
    t = operand(state, op, 0)
    return np.array(state.tensors[t.index].shape if t.index in state.tensors else t.shape, np.int64)


def _strided_slice(state: State, op: RawOp) -> Array:
    x = integers(state, op, 0)
    begin, step, count, dropped = strides(state, op, x.shape)
    part = x[tuple(slice(b, b + (n - 1) * s + 1, s) for b, s, n in zip(begin, step, count, strict=True))]
    return part.reshape(tuple(n for d, n in enumerate(part.shape) if d not in dropped))


def _pack(state: State, op: RawOp) -> Array:
    parts = [integers(state, op, slot) for slot in range(len(op.inputs))]
    if len({p.shape for p in parts}) != 1:
        fail(op, "packs constants of different shapes")
    return np.stack(parts, axis_of(op, options(op).axis, parts[0].ndim + 1))


def _concat(state: State, op: RawOp) -> Array:
    parts = [integers(state, op, slot) for slot in range(len(op.inputs))]
    if {p.ndim for p in parts} != {1}:
        fail(op, "joins constants that are not lists")
    return np.concatenate(parts)


def _dequantize(state: State, op: RawOp) -> Array:
    if not state.floating:
        fail(op, "turns a constant into float in an int8 model", "convert the model again")
    return floats(state, operand(state, op, 0))


_INTEGERS = ("int32", "int64")

_FOLDERS: dict[str, tuple[tuple[str, ...], Callable[[State, RawOp], Array]]] = {
    "STRIDED_SLICE": (_INTEGERS, _strided_slice),
    "PACK": (_INTEGERS, _pack),
    "CONCATENATION": (_INTEGERS, _concat),
    "DEQUANTIZE": (("float16", "int8", "uint8"), _dequantize),
}
"""Operator -> types of its first input for which it is folded, and how."""
