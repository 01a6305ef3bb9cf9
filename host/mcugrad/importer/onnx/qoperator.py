"""QOperator graphs: operators that name the scales of all their operands. Each is read as its plain counterpart between DQ and Q."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mcugrad.graph.types import Function, Mul, OpKind
from mcugrad.importer.onnx.build import HINT_QDQ, State
from mcugrad.importer.onnx.elementwise import function_of, softmax_of, swish, two_of
from mcugrad.importer.onnx.file import Node
from mcugrad.importer.onnx.layers import conv_of, linear_layer, linear_of
from mcugrad.importer.onnx.moves import concat_of
from mcugrad.importer.onnx.pools import avgpool_of, global_avgpool_of
from mcugrad.importer.onnx.quantization import constant_behind, finish, quant_of, raw, with_bias
from mcugrad.importer.onnx.values import Act, Const, Gate, Pending, QConst, Value, inverse, transposed


def conv(state: State, node: Node) -> None:
    """x xs xz w ws wz ys yz [b]"""
    x = raw(state, node, 0)
    w = _weights(state, node, 3, 0)
    bias = _bias(state, node, 8, x, w)
    v = conv_of(state, node, x, w, bias)
    finish(state, node, v, 6, _codes(state, node, 0))


def matmul(state: State, node: Node) -> None:
    """a as az b bs bz ys yz"""
    x = raw(state, node, 0)
    finish(state, node, linear_of(state, node, x, linear_layer(state, node, _weights(state, node, 3, 1), transposed=False)), 6)


def gemm(state: State, node: Node) -> None:
    """a as az b bs bz [c] [ys yz]"""
    if node.integer("transA", 0) or node.number("alpha", 1.0) != 1.0 or not node.has(7):
        node.fail("has transA, alpha or a float result, which are not supported", HINT_QDQ)
    x = raw(state, node, 0)
    transposed_w = bool(node.integer("transB", 0))
    w = _weights(state, node, 3, 0 if transposed_w else 1)
    layer = linear_layer(state, node, w, transposed=transposed_w)
    bias = _bias(state, node, 6, x, w)
    if bias is not None:
        layer = with_bias(state, node, layer, x, bias, layer.channels)
    finish(state, node, linear_of(state, node, x, layer), 7)


def two(kind: OpKind) -> Callable[[State, Node], None]:
    """a as az b bs bz ys yz; either may be a constant."""

    def read(state: State, node: Node) -> None:
        gates = [k for k in (0, 3) if isinstance(state.value(node, k), Gate)]
        if gates and isinstance(kind, Mul):
            _finish_any(state, node, swish(state, node, state.value(node, gates[0]), raw(state, node, 3 - gates[0])), 6)
            return
        sides: list[Value] = []
        for k in (0, 3):
            v = state.value(node, k)
            sides.append(constant_behind(state, node, v.array, k + 1, 0) if isinstance(v, Const) else raw(state, node, k))
        finish(state, node, two_of(state, node, kind, sides[0], sides[1]), 6)

    return read


def concat(state: State, node: Node) -> None:
    """ys yz, then x xs xz for each input."""
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        node.fail(f"has {len(node.inputs)} inputs, two and three for each operand are expected")
    quant, codes = quant_of(state, node, 0)
    acts = [raw(state, node, k) for k in range(2, len(node.inputs), 3)]
    state.values[node.outputs[0]] = replace(concat_of(state, node, acts, quant), real=False, codes=codes)


def global_avgpool(state: State, node: Node) -> None:
    """x xs xz ys yz"""
    x = raw(state, node, 0)
    v = global_avgpool_of(state, node, _channels_first(node, x))
    finish(state, node, _channels_as_before(node, v), 3)


def avgpool(state: State, node: Node) -> None:
    x = raw(state, node, 0)
    y = avgpool_of(state, node, _channels_first(node, x))
    if node.integer("channels_last", 0):
        y = transposed(y, (0, *range(2, len(y.shape)), 1))
    _finish_act(state, node, y, 3)


def function(which: Function) -> Callable[[State, Node], None]:
    """x xs xz ys yz"""

    def read(state: State, node: Node) -> None:
        _finish_any(state, node, function_of(state, node, which, raw(state, node, 0)), 3)

    return read


def softmax(state: State, node: Node) -> None:
    """x xs xz ys yz, axis by the rules of the opset in its attribute."""
    _finish_act(state, node, softmax_of(state, node, raw(state, node, 0), node.integer("opset", 13)), 3)


def _finish_any(state: State, node: Node, v: Act | Pending, first: int) -> None:
    if isinstance(v, Act):
        _finish_act(state, node, v, first)
    else:
        finish(state, node, v, first)


def _finish_act(state: State, node: Node, y: Act, first: int) -> None:
    """A result that has a quantization of its own already."""
    quant, codes = quant_of(state, node, first, "int8")
    tensor = state.requantized(y.tensor, quant, node.outputs[0])
    state.values[node.outputs[0]] = replace(y, tensor=tensor, real=False, codes=codes)


def _codes(state: State, node: Node, k: int) -> str:
    return state.act(node, k).codes


def _channels_first(node: Node, x: Act) -> Act:
    if not node.integer("channels_last", 0):
        return x
    if len(x.shape) < 3:
        node.fail(f"reads shape {x.shape}, (1,H,W,C) is expected")
    return transposed(x, (0, len(x.shape) - 1, *range(1, len(x.shape) - 1)))


def _channels_as_before(node: Node, v: Pending) -> Pending:
    if not node.integer("channels_last", 0):
        return v
    back = transposed(Act(0, v.shape, v.order), inverse((0, len(v.shape) - 1, *range(1, len(v.shape) - 1))))
    return replace(v, shape=back.shape, order=back.order)


def _weights(state: State, node: Node, k: int, axis: int) -> QConst:
    return constant_behind(state, node, state.constant(node, k, "weights"), k + 1, axis)


def _bias(state: State, node: Node, k: int, x: Act, w: QConst) -> QConst | None:
    """int32 codes in steps of input scale · weight scale."""
    if not node.has(k):
        return None
    codes = state.constant(node, k, "biases")
    if codes.dtype != np.int32 or codes.ndim > 2:
        node.fail(f"has a bias of type {codes.dtype} and shape {codes.shape}, int32 is expected")
    flat = codes.reshape(-1)
    scale = (np.float32(state.quant(x.tensor).scale[0]) * w.scale).astype(np.float32)
    if scale.ndim and scale.size != flat.size:
        node.fail(f"has {flat.size} biases for {scale.size} weight scales")
    return QConst(flat, scale, np.zeros(scale.shape, np.int64), 0)
