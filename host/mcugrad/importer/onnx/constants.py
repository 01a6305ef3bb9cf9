"""Nodes of constants only: computed at import. Exporters leave them behind, mostly to compute shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from mcugrad.importer.onnx.build import State
from mcugrad.importer.onnx.file import MAX_CONSTANT_ELEMENTS, MAX_RANK, Array, Node
from mcugrad.importer.onnx.values import Act, Const, Pending, QConst

_CASTS = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64}


def fold(state: State, node: Node) -> bool:
    """Compute the node if all that it needs is known. Returns whether it was."""
    if node.domain != "" or len(node.outputs) != 1:
        return False
    if node.op == "Shape" and node.has(0):
        v = state.value(node, 0)
        if isinstance(v, Act | Pending):
            state.values[node.outputs[0]] = _shape_of(node, v.shape)
            return True
    values = [state.value(node, k) for k in range(len(node.inputs)) if node.has(k)]
    if values and isinstance(values[0], QConst) and all(isinstance(v, Const) for v in values[1:]):
        moved = _moved(state, node, values[0])
        if moved is not None:
            state.values[node.outputs[0]] = moved
        return moved is not None
    if node.op not in _FOLDS or len(values) != len(node.inputs) or not all(isinstance(v, Const) for v in values):
        return False
    arrays = [v.array for v in values if isinstance(v, Const)]
    try:
        with np.errstate(all="ignore"):
            array = np.asarray(_FOLDS[node.op](node, arrays))
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError) as error:
        node.fail(f"cannot be computed from its constants: {error}"[:200])
    if array.size > MAX_CONSTANT_ELEMENTS or array.dtype.kind not in "fiub":
        node.fail(f"makes a constant of type {array.dtype} and shape {array.shape}, which is not supported")
    state.values[node.outputs[0]] = Const(array)
    return True


def _shape_of(node: Node, shape: tuple[int, ...]) -> Const:
    start, end = node.integer("start", 0), node.integer("end", len(shape))
    return Const(np.array(shape[start:end], np.int64))


def _moved(state: State, node: Node, q: QConst) -> QConst | None:
    """Quantized weights, transposed or reshaped."""
    if node.op == "Transpose":
        perm = node.integers("perm", tuple(reversed(range(q.codes.ndim))))
        if sorted(perm) != list(range(q.codes.ndim)):
            node.fail(f"has perm {perm} for shape {q.codes.shape}")
        return replace(q, codes=q.codes.transpose(perm), axis=perm.index(q.axis) if q.scale.ndim else 0)
    if node.op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze") and not q.scale.ndim:
        arrays = [q.codes, *(state.constant(node, k, "sizes") for k in range(1, len(node.inputs)))]
        try:
            return replace(q, codes=_FOLDS[node.op](node, arrays))
        except (ValueError, IndexError, TypeError) as error:
            node.fail(f"cannot be computed from its constants: {error}"[:200])
    return q if node.op == "Identity" else None


def _filled(node: Node, a: list[Array]) -> Array:
    """ConstantOfShape"""
    value = node.attributes.get("value")
    fill = value.reshape(-1)[0] if isinstance(value, np.ndarray) and value.size == 1 else np.float32(0)
    sizes = [int(d) for d in a[0].ravel()]
    if len(sizes) > MAX_RANK or min(sizes, default=0) < 0 or prod(sizes) > MAX_CONSTANT_ELEMENTS:
        raise ValueError(f"shape {sizes} is not possible")
    return np.full(sizes, fill)


def _first(node: Node, a: list[Array]) -> Array:
    return a[0]


def _constant(node: Node, a: list[Array]) -> Array:
    """The value of a Constant node, in whatever attribute it is."""
    for name in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        value = node.attributes.get(name)
        if isinstance(value, np.ndarray):
            return value
        if value is not None and not isinstance(value, str):
            return np.array(value, np.float32 if "float" in name else np.int64)
    raise ValueError("it has no value of a supported kind")


def _reshape(node: Node, a: list[Array]) -> Array:
    shape = [a[0].shape[k] if d == 0 and not node.integer("allowzero", 0) else int(d) for k, d in enumerate(a[1].ravel())]
    return a[0].reshape(shape)


def _axes(node: Node, a: list[Array]) -> tuple[int, ...]:
    return tuple(int(i) for i in a[1].ravel()) if len(a) > 1 else node.integers("axes", ())


def _squeeze(node: Node, a: list[Array]) -> Array:
    return np.squeeze(a[0], _axes(node, a) or None)


def _unsqueeze(node: Node, a: list[Array]) -> Array:
    return np.expand_dims(a[0], _axes(node, a))


def _flatten(node: Node, a: list[Array]) -> Array:
    axis = node.integer("axis", 1)
    return a[0].reshape(prod(a[0].shape[:axis]), -1)


def _transpose(node: Node, a: list[Array]) -> Array:
    return a[0].transpose(node.integers("perm", tuple(reversed(range(a[0].ndim)))))


def _cast(node: Node, a: list[Array]) -> Array:
    if node.integer("to", 0) not in _CASTS:
        raise ValueError(f"a cast to ONNX type {node.integer('to', 0)}")
    return a[0].astype(_CASTS[node.integer("to", 0)])


def _concat(node: Node, a: list[Array]) -> Array:
    return np.concatenate(a, node.integer("axis", 0))


def _gather(node: Node, a: list[Array]) -> Array:
    if a[0].size * max(a[1].size, 1) > MAX_CONSTANT_ELEMENTS:
        raise ValueError("it is too large")
    return np.take(a[0], a[1], axis=node.integer("axis", 0))


def _slice(node: Node, a: list[Array]) -> Array:
    lists = [[int(i) for i in array.ravel()] for array in a[1:]]
    starts, ends = lists[0], lists[1]
    axes = lists[2] if len(lists) > 2 else list(range(len(starts)))
    steps = lists[3] if len(lists) > 3 else [1] * len(starts)
    index = [slice(None)] * a[0].ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = slice(start, end, step)
    return a[0][tuple(index)]


def _two(compute: Callable[[Array, Array], Array]) -> Callable[[Node, list[Array]], Array]:
    def read(node: Node, a: list[Array]) -> Array:
        size = prod(np.broadcast_shapes(a[0].shape, a[1].shape))
        if size > MAX_CONSTANT_ELEMENTS:
            raise ValueError("it is too large")
        return np.asarray(compute(a[0], a[1])).astype(a[0].dtype)

    return read


def _divide(a: Array, b: Array) -> Array:
    """ONNX divides integers toward zero."""
    if a.dtype.kind == "f":
        return a / b
    if (b == 0).any():
        raise ValueError("a division by 0")
    return np.trunc(a / b)


_FOLDS: dict[str, Callable[[Node, list[Array]], Array]] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Identity": _first,
    "Dropout": _first,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Cast": _cast,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Add": _two(np.add),
    "Sub": _two(np.subtract),
    "Mul": _two(np.multiply),
    "Div": _two(_divide),
}
"""Operator -> its value from constant inputs."""

FOLDED = (*_FOLDS, "Shape")
