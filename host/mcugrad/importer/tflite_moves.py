"""Readers of the operators that only move elements: their output has the quantization of their input."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mcugrad.graph.types import Activation, Concat, Pad, Reshape, ResizeNearest, Slice, Tensor, Transpose
from mcugrad.importer.tflite_file import RawOp, RawTensor
from mcugrad.importer.tflite_operands import (
    Found,
    Shape,
    State,
    axis_of,
    constant,
    fail,
    floats,
    fused,
    image,
    integers,
    operand,
    options,
    output,
    quant_of,
    require_same_quant,
    value,
    value_or_constant,
)


def reshape(state: State, op: RawOp) -> list[Found]:
    """RESHAPE, SQUEEZE, EXPAND_DIMS: the output's shape is the file's; it must hold the same elements."""
    x, y = value(state, op, 0), output(state, op)
    require_same_quant(state, op, x, y)
    if math.prod(y.shape) != x.size:
        fail(op, f"turns shape {x.shape} into {y.shape}, the number of elements must stay the same")
    if op.code == "RESHAPE" and len(op.inputs) > 1:
        wanted = integers(state, op, 1).reshape(-1).tolist()
        if len(wanted) != len(y.shape) or any(w not in (-1, d) for w, d in zip(wanted, y.shape, strict=True)):
            fail(op, f"asks for shape {tuple(wanted)}, but the file says {y.shape} for {y.where}")
    return [Found(Reshape(), op.inputs[:1], y.index, y.shape)]


def transpose(state: State, op: RawOp) -> list[Found]:
    x, y = value(state, op, 0), output(state, op)
    require_same_quant(state, op, x, y)
    rank = len(x.shape)
    perm = tuple(axis_of(op, int(p), rank) for p in integers(state, op, 1).reshape(-1))
    if sorted(perm) != list(range(rank)):
        fail(op, f"has the permutation {perm} for {rank} sizes")
    return [Found(Transpose(perm), op.inputs[:1], y.index, tuple(x.shape[p] for p in perm))]


def pad(state: State, op: RawOp) -> list[Found]:
    x, y = value(state, op, 0), output(state, op)
    require_same_quant(state, op, x, y)
    pads = integers(state, op, 1)
    if pads.shape != (len(x.shape), 2) or (pads < 0).any() or (pads > np.iinfo(np.int32).max).any():
        fail(op, f"pads {pads.tolist()}, one pair of sizes from 0 up for each of the {len(x.shape)} dimensions is expected")
    before, after = (tuple(int(v) for v in pads[:, side]) for side in (0, 1))
    kind = Pad(before, after, _pad_value(state, op, x))
    return [Found(kind, op.inputs[:1], y.index, tuple(b + n + a for b, n, a in zip(before, x.shape, after, strict=True)))]


def _pad_value(state: State, op: RawOp, x: Tensor) -> int:
    """The code that PADV2 fills with; PAD fills with real 0."""
    if op.code != "PADV2" and len(op.inputs) < 3:
        return 0 if state.floating else quant_of(x).zero_point
    t = operand(state, op, 2)
    if math.prod(t.shape) != 1:
        fail(op, f"fills with {t.where} of shape {t.shape}, one value is expected")
    if state.floating:
        real = float(floats(state, t).reshape(-1)[0])
        if real != 0:
            fail(op, f"fills with {real:g}: a float model may only fill with 0", "pad with zeros")
        return 0
    require_same_quant(state, op, x, t)
    return int(constant(t, "int8").reshape(-1)[0])


def resize(state: State, op: RawOp) -> list[Found]:
    x, y, o = image(state, op), output(state, op), options(op)
    require_same_quant(state, op, x, y)
    size = integers(state, op, 1).reshape(-1).tolist()
    if len(size) != 2 or min(size) < 1:
        fail(op, f"resizes to {size}, a height and a width are expected")
    if o.align_corners and o.half_pixel_centers:
        fail(op, "has align_corners and half_pixel_centers, only one of them may be set")
    kind = ResizeNearest(o.align_corners, o.half_pixel_centers)
    return [Found(kind, op.inputs[:1], y.index, (1, size[0], size[1], x.shape[3]))]


def concat(state: State, op: RawOp) -> list[Found]:
    y = output(state, op)
    if not op.inputs:
        fail(op, "has no input 0")
    if fused(op) is not Activation.NONE:
        fail(op, f"has the fused activation {fused(op).value}, which is not supported", "export with a separate activation")
    parts = [value_or_constant(state, op, slot) for slot in range(len(op.inputs))]
    if all(p.data is not None for p in parts):
        fail(op, "joins constants only", "fold them into one")
    axis = axis_of(op, options(op).axis, max(len(parts[0].shape), 1))
    for part in parts:
        require_same_quant(state, op, part, y)
        if len(part.shape) != len(parts[0].shape) or _without(part.shape, axis) != _without(parts[0].shape, axis):
            fail(op, f"joins shapes {parts[0].shape} and {part.shape} along axis {axis}, their other sizes must be equal")
    shape = list(parts[0].shape)
    shape[axis] = sum(p.shape[axis] for p in parts)
    return [Found(Concat(axis), op.inputs, y.index, tuple(shape))]


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


# ---- slices ----------------------------------------------------------------------------------------------------------


def slices(state: State, op: RawOp) -> list[Found]:
    """SLICE: a begin and a size per dimension, size -1 up to the end."""
    x, y = value(state, op, 0), output(state, op)
    require_same_quant(state, op, x, y)
    begin, size = (integers(state, op, slot).reshape(-1).tolist() for slot in (1, 2))
    if len(begin) != len(x.shape) or len(size) != len(x.shape):
        fail(op, f"has {len(begin)} begins and {len(size)} sizes for shape {x.shape}")
    shape = tuple(n - b if s == -1 else s for b, s, n in zip(begin, size, x.shape, strict=True))
    if any(b < 0 or s < 1 or b + s > n for b, s, n in zip(begin, shape, x.shape, strict=True)):
        fail(op, f"takes {size} elements from {begin} out of shape {x.shape}")
    return [Found(Slice(tuple(begin), (1,) * len(begin)), op.inputs[:1], y.index, shape)]


def strided_slice(state: State, op: RawOp) -> list[Found]:
    x, y = value(state, op, 0), output(state, op)
    require_same_quant(state, op, x, y)
    begin, step, shape, dropped = strides(state, op, x.shape)
    kind = Slice(begin, step)
    if not dropped:
        return [Found(kind, op.inputs[:1], y.index, shape)]
    whole = state.scratch(f"{y.name}/whole", x, shape)
    kept = tuple(n for d, n in enumerate(shape) if d not in dropped)
    return [Found(kind, op.inputs[:1], whole, shape), Found(Reshape(), (whole,), y.index, kept)]


def strides(state: State, op: RawOp, sizes: Shape) -> tuple[Shape, Shape, Shape, frozenset[int]]:
    """A STRIDED_SLICE of a tensor of these sizes: begin, step and count per dimension, and the dimensions that it drops."""
    masks = options(op).masks
    for what, is_set in (("ellipsis_mask", masks.ellipsis), ("new_axis_mask", masks.new_axis), ("offset", masks.relative)):
        if is_set:
            fail(op, f"has {what} set, which is not supported", "slice with begin, end and stride of every dimension")
    begins, ends, steps = (integers(state, op, slot).reshape(-1).tolist() for slot in (1, 2, 3))
    if not len(begins) == len(ends) == len(steps) <= len(sizes):
        fail(op, f"has {len(begins)} begins, {len(ends)} ends and {len(steps)} strides for shape {sizes}")
    found = []
    for d, n in enumerate(sizes):
        given = (begins[d], ends[d], steps[d]) if d < len(begins) else (0, n, 1)
        found.append(_stride(op, n, given, masks.begin >> d & 1, masks.end >> d & 1, masks.shrink >> d & 1))
    begin, step, count = (tuple(f[k] for f in found) for k in range(3))
    return begin, step, count, frozenset(d for d in range(len(begins)) if masks.shrink >> d & 1)


def _stride(op: RawOp, n: int, given: tuple[int, int, int], no_begin: int, no_end: int, shrink: int) -> tuple[int, int, int]:
    """Begin, step and count along one dimension of n elements. Negative positions count from the end."""
    begin, end, step = given
    begin, end = (v + n if v < 0 else v for v in (begin, end))
    if shrink:
        if not 0 <= begin < n:
            fail(op, f"takes element {given[0]} of {n}")
        return begin, 1, 1
    if step < 1:
        fail(op, f"has stride {step}, only strides from 1 up are supported", "reverse the data instead")
    start = 0 if no_begin else min(max(begin, 0), n)
    stop = n if no_end else min(max(end, 0), n)
    count = -(-(stop - start) // step)
    if count < 1:
        fail(op, f"takes nothing from {given[0]} to {given[1]} of {n} elements")
    return start, step, count


def split(state: State, op: RawOp) -> list[Found]:
    """SPLIT into equal parts: inputs (axis, x)."""
    x = value(state, op, 1)
    axis = _split_axis(state, op, 0, x)
    parts = len(op.outputs)
    if not parts or options(op).pieces not in (0, parts) or x.shape[axis] % parts:
        fail(op, f"splits {x.shape[axis]} elements into {options(op).pieces} parts for {parts} outputs")
    return _parts(state, op, 1, axis, [x.shape[axis] // parts] * parts)


def split_v(state: State, op: RawOp) -> list[Found]:
    """SPLIT_V: inputs (x, sizes, axis); one size may be -1, the rest."""
    x = value(state, op, 0)
    axis, sizes = _split_axis(state, op, 2, x), integers(state, op, 1).reshape(-1).tolist()
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = x.shape[axis] - sum(sizes) - 1
    if len(sizes) != len(op.outputs) or min(sizes, default=0) < 1 or sum(sizes) != x.shape[axis]:
        fail(op, f"splits {x.shape[axis]} elements into {sizes} for {len(op.outputs)} outputs")
    return _parts(state, op, 0, axis, sizes)


def _split_axis(state: State, op: RawOp, slot: int, x: Tensor) -> int:
    axes = integers(state, op, slot).reshape(-1)
    if axes.size != 1:
        fail(op, f"names the axes {axes.tolist()}, one is expected")
    return axis_of(op, int(axes[0]), len(x.shape))


def _parts(state: State, op: RawOp, slot: int, axis: int, sizes: Sequence[int]) -> list[Found]:
    x, found, at = value(state, op, slot), [], 0
    for index, size in zip(op.outputs, sizes, strict=True):
        require_same_quant(state, op, x, state.raw.tensors[index])
        begin = tuple(at if d == axis else 0 for d in range(len(x.shape)))
        shape = tuple(size if d == axis else n for d, n in enumerate(x.shape))
        found.append(Found(Slice(begin, (1,) * len(begin)), op.inputs[slot : slot + 1], index, shape))
        at += size
    return found


# ---- PACK and UNPACK -------------------------------------------------------------------------------------------------


def pack(state: State, op: RawOp) -> list[Found]:
    """A new axis: every input gets it as a size of 1, then they are joined."""
    y = output(state, op)
    if not op.inputs:
        fail(op, "has no input 0")
    first = value(state, op, 0)
    axis = axis_of(op, options(op).axis, len(first.shape) + 1)
    shape = (*first.shape[:axis], 1, *first.shape[axis:])
    found, parts = [], []
    for slot, index in enumerate(op.inputs):
        x = value(state, op, slot)
        require_same_quant(state, op, x, y)
        if x.shape != first.shape:
            fail(op, f"packs shapes {first.shape} and {x.shape}, they must be equal")
        parts.append(state.scratch(f"{y.name}/part{slot}", x, shape))
        found.append(Found(Reshape(), (index,), parts[-1], shape))
    return [*found, Found(Concat(axis), tuple(parts), y.index, (*first.shape[:axis], len(parts), *first.shape[axis:]))]


def unpack(state: State, op: RawOp) -> list[Found]:
    """An axis taken apart: one slice of size 1 an output, then without that size."""
    x = value(state, op, 0)
    axis = axis_of(op, options(op).axis, len(x.shape))
    if len(op.outputs) != x.shape[axis]:
        fail(op, f"takes {x.shape[axis]} elements apart for {len(op.outputs)} outputs")
    found = []
    shape = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
    for at, index in enumerate(op.outputs):
        y: RawTensor = state.raw.tensors[index]
        require_same_quant(state, op, x, y)
        whole = state.scratch(f"{y.name}/whole", x, shape)
        begin = tuple(at if d == axis else 0 for d in range(len(x.shape)))
        found.append(Found(Slice(begin, (1,) * len(begin)), op.inputs[:1], whole, shape))
        found.append(Found(Reshape(), (whole,), index, _without(shape, axis)))
    return found
