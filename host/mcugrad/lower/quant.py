"""Scales to fixed-point multipliers, the way TensorFlow Lite derives them when it prepares an int8 kernel.

A multiplier is a pair (mult, shift) with real = mult · 2^(shift - 31), 0 <= mult < 2^31: the mg_requant of SPEC.md section 1.
Scales are float32 values; every product and quotient is double unless a line says otherwise, because one unit in the last place of a
multiplier changes outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcugrad.errors import ModelError
from mcugrad.graph.types import Activation

REQUANT = np.dtype([("mult", "<i4"), ("shift", "<i4")])
"""The mg_requant of SPEC.md section 1; ``tobytes()`` of an array of these is what CONST holds."""

Requants = npt.NDArray[np.void]

_ADD_SHIFT = 20
_SOFTMAX_INTEGER_BITS = 5
_SOFTMAX_SHIFT_MAX = 30
_INT8_MIN, _INT8_MAX = -128, 127


@dataclass(frozen=True, slots=True)
class AddParams:
    """The scalars of add_fwd_s8: multiplier and shift of a, b and y."""

    am: int
    ash: int
    bm: int
    bsh: int
    ym: int
    ysh: int


@dataclass(frozen=True, slots=True)
class PreluParams:
    """The scalars of prelu_fwd_s8: multiplier and shift of the positive and of the negative side."""

    pm: int
    psh: int
    nm: int
    nsh: int


@dataclass(frozen=True, slots=True)
class SoftmaxParams:
    """The scalars of softmax_fwd_s8."""

    mult: int
    shift: int
    diff_min: int


@dataclass(frozen=True, slots=True)
class MeanParams:
    """The scalars of mean_fwd_s8 that depend on scales: ``bias`` is -zx · n."""

    mult: int
    shift: int
    bias: int


def quantize_multiplier(real: float) -> tuple[int, int]:
    """real >= 0 -> (mult, shift), real ~ mult · 2^(shift - 31), mult in [2^30, 2^31) or 0.

    Raises ModelError where real is negative, not finite or 2^30 and more.
    """
    if not (math.isfinite(real) and real >= 0):
        raise ModelError(f"a scale ratio of {real} is not a finite number >= 0", "check the quantization of the model")
    fraction, shift = math.frexp(real)
    mult = math.floor(fraction * 2**31 + 0.5)
    if mult == 2**31:
        mult, shift = mult // 2, shift + 1
    if shift < -31:
        return 0, 0
    if shift > 30:
        raise ModelError(f"a scale ratio of {real:g} is above the limit 2^30", "check the quantization of the model")
    return mult, shift


def _requants(reals: Sequence[float]) -> Requants:
    return np.array([quantize_multiplier(r) for r in reals], dtype=REQUANT)


def conv_requant(in_scale: float, w_scales: Sequence[float], out_scale: float) -> Requants:
    """Multipliers of a convolution or depthwise convolution, (len(w_scales),) REQUANT. One weight scale gives one record: repeat it."""
    return _requants([float(in_scale) * float(w) / float(out_scale) for w in w_scales])


def linear_requant(in_scale: float, w_scales: Sequence[float], out_scale: float) -> Requants:
    """Multipliers of a fully connected layer, (len(w_scales),) REQUANT. One weight scale gives one record: repeat it.

    With one scale for the whole weight tensor the product of the two scales is rounded to float32 first; per channel it is not.
    """
    if len(w_scales) > 1:
        return conv_requant(in_scale, w_scales, out_scale)
    product = np.float32(in_scale) * np.float32(w_scales[0])
    return _requants([float(product) / float(out_scale)])


def add_params(a_scale: float, b_scale: float, y_scale: float) -> AddParams:
    """Multipliers of add_fwd_s8, for sums and differences: both inputs are brought to 2 · max(a_scale, b_scale) / 2^20."""
    twice_max = 2.0 * max(float(a_scale), float(b_scale))
    am, ash = quantize_multiplier(float(a_scale) / twice_max)
    bm, bsh = quantize_multiplier(float(b_scale) / twice_max)
    ym, ysh = quantize_multiplier(twice_max / ((1 << _ADD_SHIFT) * float(y_scale)))
    return AddParams(am, ash, bm, bsh, ym, ysh)


def mul_params(a_scale: float, b_scale: float, y_scale: float) -> tuple[int, int]:
    """(mult, shift) of mul_fwd_s8."""
    return quantize_multiplier(float(a_scale) * float(b_scale) / float(y_scale))


def prelu_params(x_scale: float, alpha_scale: float, y_scale: float) -> PreluParams:
    """Multipliers of prelu_fwd_s8."""
    pm, psh = quantize_multiplier(float(x_scale) / float(y_scale))
    nm, nsh = quantize_multiplier(float(x_scale) * float(alpha_scale) / float(y_scale))
    return PreluParams(pm, psh, nm, nsh)


def resize_rows(size_in: int, size_out: int, *, align_corners: bool, half_pixel_centers: bool) -> npt.NDArray[np.uint16]:
    """The input row (or column) that each output row of a nearest-neighbour resize reads, (size_out,). The arithmetic is float32."""
    corners = align_corners and size_out > 1
    scale = np.float32(size_in - 1) / np.float32(size_out - 1) if corners else np.float32(size_in) / np.float32(size_out)
    offset = np.float32(0.5 if half_pixel_centers else 0)
    at = (np.arange(size_out, dtype=np.float32) + offset) * scale
    rows = np.floor(at.astype(np.float64) + 0.5) if align_corners else np.floor(at)
    return np.clip(rows, 0, size_in - 1).astype(np.uint16)


def softmax_params(beta: float, in_scale: float) -> SoftmaxParams:
    """Scalars of softmax_fwd_s8: the difference to the maximum in Q5.26, and the smallest difference that is not 0.

    A shift of 31 becomes the 30 that a step can hold: its diff_min is 0, so the only difference ever shifted is 0.
    Raises ModelError where beta · in_scale is below 2^-26.
    """
    real = min(float(beta) * float(in_scale) * 2.0 ** (31 - _SOFTMAX_INTEGER_BITS), 2.0**31 - 1.0)
    if real < 1.0:
        raise ModelError(f"softmax: beta {beta:g} times scale {in_scale:g} is below 2^-26", "check the quantization of the model")
    fraction, shift = math.frexp(real)
    mult = math.floor(fraction * 2**31 + 0.5)
    if mult == 2**31:
        mult, shift = mult // 2, shift + 1
    radius = math.floor((2**_SOFTMAX_INTEGER_BITS - 1) * 2.0 ** (31 - _SOFTMAX_INTEGER_BITS) / 2.0**shift)
    return SoftmaxParams(mult, min(shift, _SOFTMAX_SHIFT_MAX), -radius)


def mean_params(in_scale: float, in_zero_point: int, out_scale: float, n: int) -> MeanParams:
    """Scalars of mean_fwd_s8 over n elements: the division by n goes into the multiplier, whose quotient is cut, not rounded."""
    mult, shift = quantize_multiplier(float(in_scale) / float(out_scale))
    head = min(n.bit_length() - 1, 32, 31 + shift)
    return MeanParams((mult << head) // n, shift - head, -in_zero_point * n)


def activation_range(activation: Activation, scale: float, zero_point: int) -> tuple[int, int]:
    """The clamp (lo, hi) of an int8 output with a fused activation. The quotient is float32, rounded half away from zero."""

    def level(real: float) -> int:
        q = float(np.float32(real) / np.float32(scale))
        return zero_point + int(math.copysign(math.floor(abs(q) + 0.5), q))

    bounds = {
        Activation.NONE: (_INT8_MIN, _INT8_MAX),
        Activation.RELU: (level(0.0), _INT8_MAX),
        Activation.RELU6: (level(0.0), level(6.0)),
        Activation.RELU_N1_1: (level(-1.0), level(1.0)),
    }
    lo, hi = bounds[activation]
    return max(lo, _INT8_MIN), min(hi, _INT8_MAX)
