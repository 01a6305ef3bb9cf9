"""Drive a session: train on a data set, evaluate on another. The board holds the weights; this side holds the order and the figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcugrad.data import DataSet
from mcugrad.errors import DivergedError
from mcugrad.link import Session, TrainReply
from mcugrad.training.recipe import Recipe

DIVERGED_LOSS = 3.0
"""Diverged: the loss averaged over a window is this many times that of the first window, and that of guessing."""

BAD_START = 5.0
"""A first window above this many times the loss of guessing has diverged itself, and counts as this much."""

WINDOW = 50


@dataclass(frozen=True, slots=True)
class Step:
    """One training step as the board reported it. ``correct``: the prediction before the update was the label."""

    step: int
    epoch: int
    sample: int
    lr: float
    loss: float
    correct: bool
    skipped: bool
    ticks: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``confusion[label, predicted]`` counts samples; ``ticks`` per sample."""

    accuracy: float
    confusion: npt.NDArray[np.int64]
    ticks: float


def train(
    session: Session, data: DataSet, recipe: Recipe, on_step: Callable[[Step], None], stopped: Callable[[], bool] = lambda: False
) -> list[Step]:
    """Train on every sample of every epoch, in the recipe's order; ``on_step`` sees each step as it is done.

    Ends early when ``stopped`` says so, and with DivergedError when the loss explodes. No sample is sent from then on, but those on their
    way are trained and seen: STATE is always that of the last step that ``on_step`` saw.
    """
    order = list(recipe.order(len(data.x)))
    assert data.y is not None
    rates = [recipe.learning_rate(k, len(order)) for k in range(len(order))]
    labels = data.y.tolist()
    guard = _DivergenceGuard(max(labels) + 1)
    jobs = ((data.x[i], labels[i], rates[k]) for k, i in enumerate(order))
    wanted = itertools.takewhile(lambda _: guard.error is None and not stopped(), jobs)
    done: list[Step] = []
    for k, reply in enumerate(session.train_stream(wanted, recipe.skip)):
        done.append(_step(k, order, rates, data, reply))
        on_step(done[-1])
        guard.see(reply.loss)
    if guard.error is not None:
        raise guard.error
    return done


def _step(k: int, order: Sequence[int], rates: Sequence[float], data: DataSet, reply: TrainReply) -> Step:
    assert data.y is not None
    correct = reply.argmax == int(data.y[order[k]])
    return Step(k, k // len(data.x), order[k], rates[k], reply.loss, correct, reply.skipped, reply.ticks)


class _DivergenceGuard:
    """Watches the loss in windows of 50 steps. ``error`` is set when it has exploded."""

    def __init__(self, classes: int) -> None:
        self._guessing = float(np.log(max(classes, 2)))
        self._losses: list[float] = []
        self._first: float | None = None
        self.error: DivergedError | None = None

    def see(self, loss: float) -> None:
        self._losses.append(loss)
        if len(self._losses) < WINDOW:
            return
        mean = float(np.mean(self._losses))
        self._losses.clear()
        if self._first is None:
            self._first = mean
        limit = DIVERGED_LOSS * max(min(self._first, BAD_START * self._guessing), self._guessing)
        if not mean <= limit:
            self.error = DivergedError(
                f"the loss is {mean:.3g} over the last {WINDOW} samples and was {self._first:.3g} over the first, the limit is {limit:.3g}",
                "use a smaller --lr",
            )


def evaluate(session: Session, data: DataSet, classes: int, on_sample: Callable[[], None]) -> Evaluation:
    """Predict every sample on the board. The prediction is the first maximum of the int8 output, as a deployed model would be read."""
    assert data.y is not None
    confusion = np.zeros((classes, classes), np.int64)
    ticks = 0
    for label, reply in zip(data.y.tolist(), _predictions(session, data), strict=True):
        confusion[label, reply[0]] += 1
        ticks += reply[1]
        on_sample()
    return Evaluation(float(np.trace(confusion)) / len(data.x), confusion, ticks / len(data.x))


def _predictions(session: Session, data: DataSet) -> Iterator[tuple[int, int]]:
    for reply in session.predict_stream(data.x):
        yield reply.argmax, reply.ticks
