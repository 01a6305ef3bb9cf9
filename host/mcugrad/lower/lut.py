"""A function of one int8 value as a table of 256, exactly as TensorFlow Lite Micro's int8 kernel computes it, and its slopes.

A table is indexed by code + 128. Each function has its own integer arithmetic; TensorFlow Lite's scales are float32 here, and a quotient
of two scales is float32 too, because that is where its kernels prepare their multipliers in single precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mcugrad.errors import ModelError
from mcugrad.graph.types import Activation, Function, Quant, Unary
from mcugrad.lower.quant import activation_range, quantize_multiplier
from mcugrad.ref import curves
from mcugrad.ref.fixed import Ints, clamp, i64, rdivpot, requant, sat8

_INT8_MIN, _INT8_MAX = -128, 127
_INT16_MIN, _INT16_MAX = -(2**15), 2**15 - 1
_CURVE_INTEGER_BITS = 4
_PROBABILITY = Quant((1 / 256,), -128)
_TANH = Quant((1 / 128,), 0)
_SLOPE_ONE = 1 << 14

ACTIVATION = {Function.RELU: Activation.RELU, Function.RELU6: Activation.RELU6, Function.RELU_N1_1: Activation.RELU_N1_1}
"""The functions that clamp, as fused activations."""

_BOUNDS = {Function.RELU: (0.0, math.inf), Function.RELU6: (0.0, 6.0), Function.RELU_N1_1: (-1.0, 1.0)}

Reals = npt.NDArray[np.floating]

CODES = np.arange(-128, 128, dtype=np.int64)


def table(unary: Unary, x: Quant, y: Quant) -> npt.NDArray[np.int8]:
    """unary, quantization of its input and output -> y code of every x code, (256,) int8.

    Raises ModelError where TensorFlow Lite has no kernel for these quantizations.
    """
    return sat8(_TABLES[unary.function](unary, x, y)).astype(np.int8)


def slopes(unary: Unary, x: Quant, y: Quant) -> tuple[npt.NDArray[np.int16], float]:
    """unary, quantization of its input and output -> dy/dx of the real function at every x code, (256,) int16, and their unit.

    0 where the function itself clamps: RELU, RELU6 and RELU_N1_1 at and beyond their bounds and where the y code stands at one, as in
    a layer with a fused activation, and HARD_SWISH at x <= -3. What leaves the int8 range only because of the output's scale keeps its
    slope. LEAKY_RELU has slope 1 at 0. The largest magnitude is 16384.
    """
    value = np.float64(x.scale[0]) * (CODES - x.zero_point)
    real = _derivative(unary, value)
    if unary.function in _BOUNDS:
        low, high = _BOUNDS[unary.function]
        output, half = y.scale[0] * (i64(table(unary, x, y)) - y.zero_point), y.scale[0] / 2
        inside = (low < value) & (value < high) & (low + half < output) & (output < high - half)
        real = np.where(inside, real, 0.0)
    unit = float(np.abs(real).max()) / _SLOPE_ONE or 1 / _SLOPE_ONE
    return np.floor(real / unit + 0.5).astype(np.int16), unit


def _derivative(unary: Unary, x: Reals) -> Reals:
    """dy/dx at real x, float64, without the bounds of the RELU functions."""
    if unary.function is Function.LEAKY_RELU:
        return np.where(x >= 0, 1.0, unary.alpha)
    if unary.function is Function.LOGISTIC:
        return np.asarray(0.25 * (1 - np.tanh(x / 2) ** 2))
    if unary.function is Function.TANH:
        return np.asarray(1 - np.tanh(x) ** 2)
    if unary.function is Function.HARD_SWISH:
        return np.where(x <= -3, 0.0, np.where(x >= 3, 1.0, (2 * x + 3) / 6))
    return np.ones_like(x)


# ---- the kernels of TensorFlow Lite Micro, one by one -----------------------------------------------------------------


def _ratio(a: float, b: float) -> float:
    """a / b in float32."""
    return float(np.float32(a) / np.float32(b))


def _rescaled(v: Ints, x: Quant, y: Quant) -> Ints:
    """v in units of x -> codes of y, not clamped."""
    return y.zero_point + requant(v, *quantize_multiplier(_ratio(x.scale[0], y.scale[0])))


def _requantize(_: Unary, x: Quant, y: Quant) -> Ints:
    return _rescaled(CODES - x.zero_point, x, y)


def _relu(unary: Unary, x: Quant, y: Quant) -> Ints:
    """RELU6 of TensorFlow Lite Micro clamps codes and does not rescale; with one quantization of x and y that is the same."""
    return clamp(_requantize(unary, x, y), *activation_range(ACTIVATION[unary.function], y.scale[0], y.zero_point))


def _leaky_relu(unary: Unary, x: Quant, y: Quant) -> Ints:
    """Both slopes have a multiplier; the quotient of the negative one is rounded to float32 after each operation."""
    v = CODES - x.zero_point
    slope = float(np.float32(x.scale[0]) * np.float32(unary.alpha) / np.float32(y.scale[0]))
    mult, shift = quantize_multiplier(abs(slope))
    return np.where(v >= 0, _rescaled(v, x, y), y.zero_point + requant(v, mult if slope >= 0 else -mult, shift))


def _curve(v: Ints, scale: float, function: Callable[[Ints], Ints], limits: tuple[int, int], fraction_bits: int, zero_point: int) -> Ints:
    """v in units of ``scale`` -> function(v) with ``fraction_bits``; beyond 15.99… the limits."""
    fraction, shift = math.frexp(float(np.float32(scale)) * 2.0 ** (31 - _CURVE_INTEGER_BITS))
    mult = math.floor(fraction * 2**31 + 0.5)
    radius = math.floor((2**_CURVE_INTEGER_BITS - 1) * 2.0 ** (31 - _CURVE_INTEGER_BITS) / 2.0**shift)
    inside = np.abs(v) < radius
    y = rdivpot(function(requant(np.where(inside, v, 0), mult, shift)), 31 - fraction_bits) + zero_point
    return np.where(inside, y, np.where(v < 0, *limits))


def _logistic(_: Unary, x: Quant, y: Quant) -> Ints:
    _check_output("logistic", y, _PROBABILITY)
    return _curve(CODES - x.zero_point, x.scale[0], curves.logistic, (_INT8_MIN, _INT8_MAX), 8, -128)


def _tanh(_: Unary, x: Quant, y: Quant) -> Ints:
    _check_output("tanh", y, _TANH)
    return _curve(CODES - x.zero_point, x.scale[0], curves.tanh, (_INT8_MIN, _INT8_MAX), 7, 0)


def _check_output(name: str, y: Quant, needed: Quant) -> None:
    if y.scale != needed.scale or y.zero_point != needed.zero_point:
        raise ModelError(
            f"{name}: the output has scale {y.scale[0]:g} and zero point {y.zero_point}, not {needed.scale[0]:g} and {needed.zero_point}",
            "export the model again: TensorFlow always gives it these",
        )


def _srdhm16(a: Ints, b: int) -> Ints:
    """The high 16 bits of 2·a·b, rounded, halves away from zero as the nudge of gemmlowp has it."""
    product = a * b
    nudged = product + np.where(product >= 0, 2**14, 1 - 2**14)
    return np.minimum(np.where(nudged >= 0, nudged >> 15, -(-nudged >> 15)), _INT16_MAX)


def _sdhm16(a: Ints, b: Ints) -> Ints:
    """The high 16 bits of 2·a·b, cut toward zero."""
    product = a * b
    return np.minimum(np.where(product >= 0, product >> 15, -(-product >> 15)), _INT16_MAX)


def _multiplier16(real: float) -> tuple[int, int]:
    """(mult, shift) with an int16 multiplier: the int32 one, rounded to its upper half."""
    mult, shift = quantize_multiplier(real)
    return min(mult + 2**15 >> 16, _INT16_MAX), shift


def _hard_swish(_: Unary, x: Quant, y: Quant) -> Ints:
    """x · relu6(x + 3) / 6 in int16: x on a scale 128 times finer, once as the factor and once as (x/3 clamped to ±1 + 1) / 2."""
    fine = np.float32(1 / 128) * np.float32(x.scale[0])
    out_mult, out_shift = _multiplier16(_ratio(float(fine), y.scale[0]))
    mult, shift = _multiplier16(_ratio(float(fine), float(np.float32(3) / np.float32(32768))))
    if out_shift > 0:
        limit = y.scale[0] * 128
        raise ModelError(
            f"hard_swish: the input's scale {x.scale[0]:g} is not below 128 output scales, {limit:g}", "export the model again"
        )
    v = (CODES - x.zero_point) << 7
    third = clamp(v << max(shift - 1, 0), _INT16_MIN, _INT16_MAX)
    third = _srdhm16(third, mult)
    third = clamp(third << (1 if shift > 0 else 0), _INT16_MIN, _INT16_MAX)
    third = rdivpot(third, max(-shift, 0))
    return y.zero_point + rdivpot(_sdhm16((third + 2**15) >> 1, _srdhm16(v, out_mult)), -out_shift)


_TABLES: dict[Function, Callable[[Unary, Quant, Quant], Ints]] = {
    Function.RELU: _relu,
    Function.RELU6: _relu,
    Function.RELU_N1_1: _relu,
    Function.LEAKY_RELU: _leaky_relu,
    Function.LOGISTIC: _logistic,
    Function.TANH: _tanh,
    Function.HARD_SWISH: _hard_swish,
    Function.REQUANTIZE: _requantize,
}
