"""What a training run does: epochs, learning rate and its schedule, the order of the samples."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass

import numpy as np

from mcugrad.errors import UsageError

SCHEDULES = ("cosine", "constant")
MIN_LR, MAX_LR = 1e-30, 1e30
"""A learning rate travels as float32: outside of this it would arrive as 0 or not at all."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """``lr`` is in real units (SPEC.md section 3.6); ``skip``: samples whose largest |dL/dlogit| is below it change nothing.

    ``batch``: samples of a micro-batch. ``lr`` then goes with the mean of their gradients: each sample's step has lr / batch.
    ``save_every``: samples between two checkpoints in the board's flash; 0: none are kept there.
    """

    epochs: int
    lr: float
    schedule: str
    skip: float
    seed: int
    batch: int = 1
    save_every: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise UsageError(f"--epochs {self.epochs}: at least 1", "5 is the default")
        if not (MIN_LR <= self.lr <= MAX_LR):
            raise UsageError(
                f"--lr {self.lr}: a number from {MIN_LR:g} to {MAX_LR:g}", "0.001 for an existing classifier, 0.01 to 0.03 for a new head"
            )
        if not (math.isfinite(self.skip) and 0 <= self.skip < 1):
            raise UsageError(f"--skip {self.skip}: from 0 to below 1", "0 trains on every sample, 0.1 skips the certain ones")

    def order(self, samples: int) -> Iterator[int]:
        """Sample indices of the whole run: every epoch a new seeded permutation."""
        rng = np.random.default_rng(self.seed)
        for _ in range(self.epochs):
            yield from rng.permutation(samples).tolist()

    def learning_rate(self, step: int, steps: int) -> float:
        """Learning rate of ``step``, which is one sample, out of ``steps``: constant, or a half cosine down to 0."""
        return self.sample_lr if self.schedule == "constant" else self.sample_lr * 0.5 * (1 + math.cos(math.pi * step / steps))

    @property
    def sample_lr(self) -> float:
        """What one sample of a micro-batch contributes at the full rate."""
        return self.lr / self.batch

    def commits(self, samples: int) -> frozenset[int]:
        """The steps of the whole run behind which a micro-batch ends: ``batch`` samples, or the last ones of an epoch. None for batch 1."""
        if self.batch == 1:
            return frozenset()
        ends = (k for k in range(samples) if (k + 1) % self.batch == 0 or k + 1 == samples)
        return frozenset(epoch * samples + k for k in ends for epoch in range(self.epochs))

    def saves(self, samples: int) -> Container[int]:
        """The steps of the whole run behind which the board keeps a checkpoint, but for the one at its end."""
        return range(self.save_every - 1, self.epochs * samples, self.save_every) if self.save_every else ()
