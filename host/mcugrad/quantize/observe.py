"""What a tensor's values look like: extremes and a histogram that grows with them, and the range that each method takes from it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

import numpy as np

from mcugrad.autodiff.rules import Array

HALF = 2048
"""Bins on each side of zero."""

LEVELS = 255
"""Steps between the lowest and the highest int8 code."""

MIN_EXPONENT = -1000
"""Of the bins' width, a power of two."""

CANDIDATES = 96
"""Clipping bounds on each side that the least-squares search tries, from the extreme value to 1/61 of it."""


class Method(enum.StrEnum):
    """How calibration chooses the range of an activation."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    MSE = "mse"


@dataclass(slots=True)
class Observer:
    """The values of a group of tensors that share their quantization, sample by sample.

    Zeros are counted apart: they are always exact. The bins are ``width`` wide and meet at zero; when a value does not fit, neighbours
    merge and the width doubles, so one pass over the data is enough. ``kept`` is a range that no method may clip (constants).
    """

    low: float = 0.0
    high: float = 0.0
    zeros: int = 0
    width: float = 0.0
    counts: Array = field(default_factory=lambda: np.zeros(2 * HALF))
    kept_low: float = 0.0
    kept_high: float = 0.0

    def keep(self, values: Array) -> None:
        """Values that must stay representable whatever the method says."""
        self.kept_low = min(self.kept_low, float(values.min()))
        self.kept_high = max(self.kept_high, float(values.max()))

    def see(self, values: Array) -> None:
        """Add finite values."""
        low, high = float(values.min()), float(values.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        peak = max(-low, high)
        flat = values[values != 0]
        self.zeros += values.size - flat.size
        if peak <= 0.0:
            return
        self._widen(peak)
        bins = np.minimum(np.floor(flat / self.width).astype(np.int64) + HALF, 2 * HALF - 1)
        self.counts += np.bincount(bins, minlength=2 * HALF)

    def _widen(self, peak: float) -> None:
        if self.width == 0.0:
            self.width = 2.0 ** max(math.ceil(math.log2(peak) - math.log2(HALF)), MIN_EXPONENT)
        while peak > HALF * self.width:
            pairs = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.pad(pairs, HALF // 2)
            self.width *= 2.0

    def range(self, method: Method, percentile: float) -> tuple[float, float]:
        """(low, high) with low <= 0 <= high."""
        low, high = self.low, self.high
        if method is Method.PERCENTILE and self.width > 0:
            low, high = self._percentile(percentile)
        if method is Method.MSE and self.width > 0:
            low, high = self._least_squares()
        return min(low, self.kept_low), max(high, self.kept_high)

    def _percentile(self, percentile: float) -> tuple[float, float]:
        """Cut the largest and the smallest values off: of all values, 100 - ``percentile`` percent at each end that has any."""
        allowed = (1.0 - percentile / 100.0) * (self.counts.sum() + self.zeros)
        edges = self.width * np.arange(-HALF, HALF + 1)
        below, above = np.cumsum(self.counts[:HALF]), np.cumsum(self.counts[: HALF - 1 : -1])
        low = edges[int(np.searchsorted(below, allowed, side="right"))]
        high = edges[2 * HALF - int(np.searchsorted(above, allowed, side="right"))]
        return max(self.low, float(low)), min(self.high, float(high))

    def _least_squares(self) -> tuple[float, float]:
        """The bounds with the least squared error: values inside are off by step² / 12 on average, those outside by their distance."""
        centres = self.width * (np.arange(-HALF, HALF, dtype=np.float64) + 0.5)
        lows, low_cost, low_out = _clipping(-self.low, -centres[HALF - 1 :: -1], self.counts[HALF - 1 :: -1])
        highs, high_cost, high_out = _clipping(self.high, centres[HALF:], self.counts[HALF:])
        step = (lows[:, None] + highs[None, :]) / LEVELS
        inside = self.counts.sum() - low_out[:, None] - high_out[None, :]
        cost = low_cost[:, None] + high_cost[None, :] + inside * step**2 / 12
        best = np.unravel_index(int(cost.argmin()), cost.shape)
        return -float(lows[best[0]]), float(highs[best[1]])


def _clipping(limit: float, centres: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Bounds from the limit downwards on one side of zero (centres ascending), their squared errors of clipping, and how many they clip."""
    if limit <= 0:
        return np.zeros(1), np.zeros(1), np.zeros(1)
    bounds = limit * 2.0 ** (-np.arange(CANDIDATES) / 16)
    beyond = np.maximum(centres[None, :] - bounds[:, None], 0.0)
    return bounds, (counts * beyond**2).sum(axis=1), (counts * (beyond > 0)).sum(axis=1)
