"""Nodes that move values without computing: Reshape and its kin, Transpose, Concat, Slice, Split, Pad. They take codes as well."""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod

import numpy as np

from mcugrad.graph.types import Concat, Pad, Quant, Slice
from mcugrad.importer.onnx.build import HINT_QDQ, State
from mcugrad.importer.onnx.file import MAX_ELEMENTS, MAX_RANK, Node, short
from mcugrad.importer.onnx.quantization import requantize_all
from mcugrad.importer.onnx.values import Act, Const, Pending, QConst, Shape, inverse, transposed


def same(state: State, node: Node) -> None:
    """Identity; Dropout outside training; Cast to the type that the value has in the graph anyway."""
    if node.op == "Dropout" and len([o for o in node.outputs if o]) > 1 and state.uses.get(node.outputs[1], 0):
        node.fail("also returns its mask", "export with model.eval()")
    state.values[node.outputs[0]] = _kept(state, node)


def cast(state: State, node: Node) -> None:
    """In a float model the codes of an int8 input are read as the numbers they are."""
    x = state.act(node, 0)
    if node.integer("to", 0) != 1 or (state.quantized and not x.real):
        node.fail(f"casts to ONNX type {node.integer('to', 0)}, only a cast to float32 of a float model's input is supported", HINT_QDQ)
    state.values[node.outputs[0]] = replace(x, real=True)


def _kept(state: State, node: Node) -> Act | Pending:
    """The input: a result that only this node reads may stay pending."""
    v = state.value(node, 0)
    return v if isinstance(v, Pending) and state.uses[node.inputs[0]] == 1 else state.act(node, 0)


def _seen_as(state: State, node: Node, shape: Shape) -> None:
    state.values[node.outputs[0]] = replace(_kept(state, node), shape=shape)


def _input_shape(state: State, node: Node) -> Shape:
    return _kept(state, node).shape


def reshape(state: State, node: Node) -> None:
    old, wanted = _input_shape(state, node), state.integers(node, 1, "shapes")
    if len(wanted) > MAX_RANK:
        node.fail(f"makes {len(wanted)} axes, the limit is {MAX_RANK}", "simplify the reshapes")
    keep_zero = bool(node.integer("allowzero", 0))
    sizes = [old[k] if d == 0 and not keep_zero and k < len(old) else d for k, d in enumerate(wanted)]
    rest = prod(d for d in sizes if d != -1)
    if sizes.count(-1) == 1 and rest > 0:
        sizes[sizes.index(-1)] = prod(old) // rest
    if not sizes or min(sizes) < 1 or prod(sizes) != prod(old):
        node.fail(f"reshapes {old} to {wanted}, which does not fit", "export with batch size 1")
    _seen_as(state, node, tuple(sizes))


def flatten(state: State, node: Node) -> None:
    old = _input_shape(state, node)
    axis = node.integer("axis", 1)
    if not -len(old) <= axis <= len(old):
        node.fail(f"has axis {axis} for shape {old}")
    axis = axis % len(old) if axis < 0 else axis
    _seen_as(state, node, (prod(old[:axis]), prod(old[axis:])))


def squeeze(state: State, node: Node) -> None:
    old = _input_shape(state, node)
    given = _axes(state, node, tuple(k for k, d in enumerate(old) if d == 1))
    axes = {a % len(old) for a in given if -len(old) <= a < len(old)}
    if len(axes) != len(given) or any(old[a] != 1 for a in axes):
        node.fail(f"squeezes the axes {given} of {old}: they must be of size 1")
    _seen_as(state, node, tuple(d for k, d in enumerate(old) if k not in axes) or (1,))


def unsqueeze(state: State, node: Node) -> None:
    old = _input_shape(state, node)
    given = _axes(state, node, ())
    rank = len(old) + len(given)
    axes = {a % rank for a in given if -rank <= a < rank}
    if len(axes) != len(given) or rank > MAX_RANK:
        node.fail(f"inserts the axes {given} into {old}")
    rest = iter(old)
    _seen_as(state, node, tuple(1 if k in axes else next(rest) for k in range(rank)))


def _axes(state: State, node: Node, default: Shape) -> Shape:
    return state.integers(node, 1, "axes") if node.has(1) else node.integers("axes", default)


def transpose(state: State, node: Node) -> None:
    v = _kept(state, node)
    perm = node.integers("perm", tuple(reversed(range(len(v.shape)))))
    if sorted(perm) != list(range(len(v.shape))):
        node.fail(f"has perm {perm} for shape {v.shape}")
    turned = transposed(Act(0, v.shape, v.order), perm)
    state.values[node.outputs[0]] = replace(v, shape=turned.shape, order=turned.order)


# ---- concat ----------------------------------------------------------------------------------------------------------


def concat(state: State, node: Node) -> None:
    acts = [state.act(node, k) for k in range(len(node.inputs))]
    if len({(a.real, a.codes) for a in acts}) > 1:
        node.fail("joins codes and real numbers")
    state.values[node.outputs[0]] = concat_of(state, node, acts, _joint_quant(state, node, acts))


def _joint_quant(state: State, node: Node, acts: list[Act]) -> Quant | None:
    """The quantization of the result: that of a QuantizeLinear behind it, or the one that all inputs have."""
    if not state.quantized:
        return None
    quants = [state.tensors[a.tensor].quant for a in acts]
    if acts[0].real and (coming := state.coming_quant(node.outputs[0])) is not None:
        return coming
    if quants[0] is None or any(q != quants[0] for q in quants):
        node.fail("joins inputs of different quantization without a QuantizeLinear behind it", HINT_QDQ)
    return quants[0]


def concat_of(state: State, node: Node, acts: list[Act], quant: Quant | None) -> Act:
    """Inputs laid out like the first, joined where their axis lies there."""
    rank = len(acts[0].shape)
    axis = node.integer("axis", 0)
    if "axis" not in node.attributes or not -rank <= axis < rank:
        node.fail(f"has axis {axis} for shape {acts[0].shape}")
    axis %= rank
    for a in acts:
        if len(a.shape) != rank or any(d != e for k, (d, e) in enumerate(zip(a.shape, acts[0].shape, strict=True)) if k != axis):
            node.fail(f"joins shapes {acts[0].shape} and {a.shape} along axis {axis}")
    if quant is not None:
        acts = requantize_all(state, acts, quant, node.outputs[0])
    leader = next((a for a in acts if a.order is not None), acts[0])
    _, perm = state.perm_of(node, leader)
    stored = [transposed(a, inverse(perm)) for a in acts]
    inputs = tuple(state.stored(node, a, a.shape) for a in stored)
    shape = tuple(sum(a.shape[k] for a in acts) if k == axis else d for k, d in enumerate(acts[0].shape))
    target = tuple(shape[inverse(perm)[k]] for k in range(rank))
    y = state.op(node, Concat(perm[axis]), inputs, target, quant, node.outputs[0])
    return replace(transposed(Act(y, target), perm), real=acts[0].real, codes=acts[0].codes)


# ---- slices ----------------------------------------------------------------------------------------------------------


def slice_(state: State, node: Node) -> None:
    x = state.act(node, 0)
    rank = len(x.shape)
    starts, ends = state.integers(node, 1, "starts"), state.integers(node, 2, "ends")
    axes = state.integers(node, 3, "axes") if node.has(3) else tuple(range(len(starts)))
    steps = state.integers(node, 4, "steps") if node.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or len({a % rank for a in axes if -rank <= a < rank}) != len(axes):
        node.fail(f"has starts {starts}, ends {ends}, axes {axes} and steps {steps} for shape {x.shape}")
    if any(s < 1 for s in steps):
        node.fail(f"has steps {steps}, only steps of 1 or more are supported")
    begin, step, shape = [0] * rank, [1] * rank, list(x.shape)
    for start, end, axis, stride in zip(starts, ends, axes, steps, strict=True):
        first, last, _ = slice(start, end, stride).indices(x.shape[axis])
        begin[axis], step[axis], shape[axis] = first, stride, len(range(first, last, stride))
    if min(shape) < 1:
        node.fail(f"takes nothing of shape {x.shape}")
    step = [1 if n == 1 else s for n, s in zip(shape, step, strict=True)]
    state.values[node.outputs[0]] = _part(state, node, x, (tuple(begin), tuple(step), tuple(shape)), node.outputs[0])


def split(state: State, node: Node) -> None:
    """One Slice an output that something reads."""
    x = state.act(node, 0)
    rank, count = len(x.shape), len(node.outputs)
    axis = node.integer("axis", 0)
    if not -rank <= axis < rank or count != node.integer("num_outputs", count):
        node.fail(f"has axis {axis} and {count} outputs for shape {x.shape}")
    axis %= rank
    chunk = -(-x.shape[axis] // count)
    even = tuple(min(chunk, x.shape[axis] - k * chunk) for k in range(count))
    sizes = state.integers(node, 1, "sizes") if node.has(1) else node.integers("split", even)
    if len(sizes) != count or min(sizes) < 1 or sum(sizes) != x.shape[axis]:
        node.fail(f"splits {x.shape[axis]} into {sizes}")
    at = 0
    for name, size in zip(node.outputs, sizes, strict=True):
        begin = tuple(at if k == axis else 0 for k in range(rank))
        shape = tuple(size if k == axis else d for k, d in enumerate(x.shape))
        if state.uses.get(name, 0):
            state.values[name] = _part(state, node, x, (begin, (1,) * rank, shape), name)
        at += size


def _part(state: State, node: Node, x: Act, part: tuple[Shape, Shape, Shape], name: str) -> Act:
    """x[begin + i · step], by logical axes."""
    x, perm = state.perm_of(node, x)
    begin, step, shape = (tuple(values[k] for k in inverse(perm)) for values in part)
    y = state.op(node, Slice(begin, step), (x.tensor,), shape, state.tensors[x.tensor].quant, name)
    return replace(transposed(Act(y, shape), perm), real=x.real, codes=x.codes)


def pad(state: State, node: Node) -> None:
    x = state.act(node, 0)
    rank = len(x.shape)
    if node.text("mode", "constant") != "constant":
        node.fail(f"pads with mode {short(node.text('mode', ''))}, only constant is supported", "pad with zeros")
    pads = state.integers(node, 1, "pads")
    axes = state.integers(node, 3, "axes") if node.has(3) else tuple(range(rank))
    if len({a % rank for a in axes if -rank <= a < rank}) != len(axes) or len(pads) != 2 * len(axes) or min(pads, default=0) < 0:
        node.fail(f"has pads {pads} for the axes {axes} of shape {x.shape}: two numbers of 0 or more per axis are supported")
    if max(pads, default=0) > MAX_ELEMENTS:
        node.fail(f"has pads {pads}, the limit is {MAX_ELEMENTS:,}")
    before, after = [0] * rank, [0] * rank
    for k, a in enumerate(axes):
        before[a], after[a] = pads[k], pads[k + len(axes)]
    x, perm = state.perm_of(node, x)
    back = inverse(perm)
    kind = Pad(tuple(before[k] for k in back), tuple(after[k] for k in back), _fill(state, node, x))
    old = state.tensors[x.tensor]
    stored = tuple(d + b + a for d, b, a in zip(old.shape, kind.before, kind.after, strict=True))
    y = state.op(node, kind, (x.tensor,), stored, old.quant, node.outputs[0])
    state.values[node.outputs[0]] = replace(transposed(Act(y, stored), perm), real=x.real, codes=x.codes)


def _fill(state: State, node: Node, x: Act) -> int:
    """The code with which x is padded."""
    v = state.value(node, 2) if node.has(2) else None
    array = np.zeros(1) if v is None else v.real if isinstance(v, QConst) else v.array if isinstance(v, Const) else np.zeros(0)
    if array.size != 1 or not math.isfinite(float(array.ravel()[0])):
        node.fail("has a padding value that is no constant finite number", "pad with zeros")
    value = float(array.ravel()[0])
    quant = state.tensors[x.tensor].quant
    if quant is None:
        if value != 0:
            node.fail(f"pads with {value:g}, a float model may pad with 0 only", "pad with zeros")
        return 0
    shift = 128 if x.codes == "uint8" else 0
    code = float(np.rint(value / quant.scale[0])) + quant.zero_point if x.real else value - shift
    if not -128 <= code <= 127:
        node.fail(f"pads with {value:g}, which is code {code:g} of its input: outside int8")
    return int(code)
