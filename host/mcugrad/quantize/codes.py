"""Real numbers to int8 and int32 codes: activations asymmetric, weights symmetric, biases with the scale of the accumulator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcugrad.data import round_steps
from mcugrad.graph import Quant
from mcugrad.quantize.observe import LEVELS

WEIGHT_MAX = 127
MIN_RANGE = 1e-6
"""An activation's range is made at least this wide; that of an activation which is 0 throughout becomes 0 to 1."""

ZERO_CHANNEL = 1e-20
"""A channel whose weights are all smaller than this has no scale of its own."""

BIAS_LIMIT = 2**30
"""|bias| stays below this, so that accumulator and bias together stay inside int32: |acc| <= inputs · 127 · 255 < 2^30 for up to 33,000
inputs."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LayerCodes:
    """w int8 in the shape of the float weights, b int32 (O,) or None, ``scale`` float32 (O,) or (1,). ``widened``: channels whose bias
    needed a larger weight scale; ``zero``: channels without weights."""

    w: npt.NDArray[np.int8]
    b: npt.NDArray[np.int32] | None
    scale: npt.NDArray[np.float32]
    bias_scale: npt.NDArray[np.float32]
    widened: int
    zero: int


def range_quant(low: float, high: float) -> Quant:
    """The quantization of an activation between low <= 0 and high >= 0: both fit, and 0 has a code."""
    if high - low < MIN_RANGE:
        low, high = (0.0, 1.0) if high == low else (min(low, 0.0), low + MIN_RANGE)
    scale = np.float32((high - low) / LEVELS)
    return Quant((float(scale),), int(np.clip(np.rint(-128 - low / float(scale)), -128, 127)))


def to_codes(real: npt.NDArray[np.floating], quant: Quant) -> npt.NDArray[np.int8]:
    """zero point + real / scale in float32, rounded half away from zero, clipped: what QUANTIZE computes."""
    q = quant.zero_point + round_steps(real.astype(np.float32), quant.scale[0])
    codes: npt.NDArray[np.int8] = np.clip(q, -128, 127).astype(np.int8)
    return codes


def to_real(codes: npt.NDArray[np.int8], quant: Quant) -> Floats:
    """scale · (code - zero point)."""
    return quant.scale[0] * (codes.astype(np.float64) - quant.zero_point)


def layer_codes(w: Floats, b: Floats | None, x_scale: float, axis: int, channels: int) -> LayerCodes:
    """Weights (output channels along ``axis``) and bias (O,) of a layer. ``channels``: O for a scale per channel, 1 for one scale."""
    rows = np.moveaxis(w, axis, 0).reshape(channels, -1)
    peak = np.abs(rows).max(axis=1)
    zero = peak < ZERO_CHANNEL
    scale = np.where(zero, peak.max() if not zero.all() else 1.0, peak) / WEIGHT_MAX
    needed = np.zeros(channels)
    if b is not None:
        needed = np.abs(b).reshape(channels, -1).max(axis=1) / (x_scale * BIAS_LIMIT)
    scale32 = np.maximum(scale, needed).astype(np.float32)
    shape = [-1 if a == axis and channels > 1 else 1 for a in range(w.ndim)]
    codes = np.clip(np.rint(w / scale32.astype(np.float64).reshape(shape)), -WEIGHT_MAX, WEIGHT_MAX).astype(np.int8)
    bias_scale = np.float32(x_scale) * scale32
    bias = None if b is None else np.rint(b / bias_scale.astype(np.float64)).astype(np.int32)
    return LayerCodes(codes, bias, scale32, bias_scale, int((needed > scale).sum()), int(zero.sum()) if channels > 1 else 0)
