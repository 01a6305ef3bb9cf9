"""Readers of the operators that compute each output element from the elements at its place: two operands, one operand, the borders."""

from __future__ import annotations

import math

import numpy as np

from mcugrad.graph.types import Add, Dequantize, Function, MinMax, Mul, OpKind, Prelu, Quantize, Sub, Tensor, Unary
from mcugrad.importer.schemes import HINT_INT8
from mcugrad.importer.tflite_file import RawOp
from mcugrad.importer.tflite_operands import (
    INT8,
    Found,
    Shape,
    State,
    activation_quant,
    fail,
    fused,
    is_constant,
    operand,
    options,
    output,
    ready,
    require_output_quant,
    require_same_quant,
    value,
    value_or_constant,
)

LOGISTIC_SCALE, LOGISTIC_ZERO_POINT = 1 / 256, -128
TANH_SCALE, TANH_ZERO_POINT = 1 / 128, 0


_ARITHMETIC: dict[str, type[Add | Sub | Mul]] = {"ADD": Add, "SUB": Sub, "MUL": Mul}


def arithmetic(state: State, op: RawOp) -> list[Found]:
    """ADD, SUB, MUL."""
    return _two_operands(state, op, _ARITHMETIC[op.code](fused(op)))


def minmax(state: State, op: RawOp) -> list[Found]:
    for slot in (0, 1):
        require_same_quant(state, op, value_or_constant(state, op, slot), output(state, op))
    return _two_operands(state, op, MinMax(largest=op.code == "MAXIMUM"))


def _two_operands(state: State, op: RawOp, kind: OpKind) -> list[Found]:
    a, b = value_or_constant(state, op, 0), value_or_constant(state, op, 1)
    if a.data is not None and b.data is not None:
        fail(op, "computes with two constants", "fold them into one")
    return [Found(kind, op.inputs[:2], output(state, op).index, _broadcast(op, a, b))]


def _broadcast(op: RawOp, a: Tensor, b: Tensor) -> Shape:
    """The shape of the larger operand, to which the other must stretch."""
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        fail(op, f"combines shapes {a.shape} and {b.shape}, which do not fit together")
    if shape not in (a.shape, b.shape):
        fail(
            op,
            f"combines shapes {a.shape} and {b.shape} to {shape}, but only one of the two may be stretched",
            "give one operand the shape of the result",
        )
    return shape


def unary(state: State, op: RawOp) -> list[Found]:
    """RELU, RELU6, RELU_N1_TO_1, LEAKY_RELU, LOGISTIC, TANH, HARD_SWISH."""
    x, function, alpha = value(state, op, 0), Function(op.code.lower()), 0.0
    if function is Function.LOGISTIC:
        require_output_quant(state, op, LOGISTIC_SCALE, LOGISTIC_ZERO_POINT)
    if function is Function.TANH:
        require_output_quant(state, op, TANH_SCALE, TANH_ZERO_POINT)
    if function is Function.RELU6 and not state.floating and x.quant != activation_quant(output(state, op)):
        state.rescaled[op.index] = 1
    if function is Function.LEAKY_RELU:
        alpha = options(op).alpha
        if not math.isfinite(alpha):
            fail(op, f"has slope {alpha}, it must be finite")
    return [Found(Unary(function, alpha), op.inputs[:1], output(state, op).index, x.shape)]


def prelu(state: State, op: RawOp) -> list[Found]:
    x, t = value(state, op, 0), operand(state, op, 1)
    if not is_constant(state, t):
        fail(op, f"has slopes that are not a constant, {t.where}", "export a model with fixed weights")
    alpha = value_or_constant(state, op, 1)
    channels = x.shape[-1]
    if alpha.size != channels or alpha.shape[-1] != channels:
        fail(op, f"has slopes of shape {alpha.shape} for {channels} channels, one slope per channel is expected", "share the spatial axes")
    return [Found(Prelu(), op.inputs[:2], output(state, op).index, x.shape)]


def quantize(state: State, op: RawOp) -> list[Found]:
    """float32 -> int8 at a model's input, int8 -> int8 inside, uint8 -> int8 and int8 -> uint8 at the border."""
    x, y = ready(state, op, 0), output(state, op)
    if state.floating:
        fail(op, f"quantizes {x.name} in a model that computes in float", HINT_INT8)
    if x.dtype == INT8:
        return [Found(Unary(Function.REQUANTIZE), op.inputs[:1], y.index, x.shape)]
    if op.inputs[0] in state.quantized:
        fail(op, f"quantizes the model's input {x.name} a second time", "use one QUANTIZE for all branches")
    state.quantized.add(op.inputs[0])
    return [Found(Quantize(), op.inputs[:1], y.index, x.shape)]


def dequantize(state: State, op: RawOp) -> list[Found]:
    x = value(state, op, 0)
    if state.floating or output(state, op).index not in state.raw.outputs:
        fail(op, "turns an inner tensor into float, only int8 -> float32 at the model's output is supported", HINT_INT8)
    return [Found(Dequantize(), op.inputs[:1], output(state, op).index, x.shape)]
