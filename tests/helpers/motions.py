"""Made-up motions: windows of a six-axis sensor, seven classes, so that end-to-end tests need no data set.

Each class is a triangle wave of its own frequency; the axes differ in phase, the start is random, noise lies on top.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

WINDOW, CHANNELS, CLASSES = 128, 6, 7


def motions(n: int, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """x (n, 128, 6) float32 within ±0.6, y (n,): every class equally often, in random order."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % CLASSES)
    step = (3 + 2 * y)[:, None, None] / 256
    t = rng.random(n)[:, None, None] + step * np.arange(WINDOW)[None, :, None]
    phase = t + (y + 1)[:, None, None] * np.arange(CHANNELS) / 16
    wave = 2 * np.abs(2 * (phase % 1) - 1) - 1
    x = 0.5 * wave + rng.uniform(-0.08, 0.08, wave.shape)
    return x.astype(np.float32), y.astype(np.int64)


def write_motions(path: Path, n: int, seed: int) -> Path:
    """The same as an .npz file; returns ``path``."""
    x, y = motions(n, seed)
    np.savez(path, x=x, y=y)
    return path
