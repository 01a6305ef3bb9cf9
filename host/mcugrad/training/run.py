"""Drive a session: train on a data set, evaluate on another. The board holds the weights; this side holds the order and the figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcugrad.autodiff import TrainGraph
from mcugrad.autodiff.differentiate import ends_in_probability
from mcugrad.data import DataSet
from mcugrad.errors import DivergedError
from mcugrad.graph import Graph
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
class Keeping:
    """``keep(n)`` brings STATE home, which then holds the first n samples: after every ``every`` of them (0: not on the way)."""

    every: int
    keep: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``confusion[label, predicted]`` counts samples; ``ticks`` per sample."""

    accuracy: float
    confusion: npt.NDArray[np.int64]
    ticks: float

    def as_dict(self) -> dict[str, object]:
        return {"accuracy": self.accuracy, "confusion": self.confusion.tolist()}


@dataclass(frozen=True, slots=True)
class Regression:
    """``mse`` is the mean squared error in real units over all outputs; ``ticks`` per sample."""

    mse: float
    ticks: float

    def as_dict(self) -> dict[str, object]:
        return {"mse": self.mse}


def train(
    session: Session,
    data: DataSet,
    recipe: Recipe,
    on_step: Callable[[Step], None],
    stopped: Callable[[], bool] = lambda: False,
    keeping: Keeping | None = None,
    earlier: Sequence[Step] = (),
    begin: int = 0,
) -> list[Step]:
    """Train on every sample of every epoch, in the recipe's order; ``on_step`` sees each step as it is done.

    Where the recipe says so, the board keeps a checkpoint every so many samples and one of the end.
    A micro-batch ends after ``recipe.batch`` samples, with an epoch, and where training ends early: what it has summed up is committed.

    A run that is taken up again has ``begin`` samples in STATE; ``earlier`` are its steps so far, as far as they are known.
    ``keeping`` is called as it says, and where training ends early, before what a micro-batch has summed up is committed.

    Ends early when ``stopped`` says so, and with DivergedError when the loss explodes. No sample is sent from then on, but those on their
    way are trained and seen: STATE is always that of the last step that ``on_step`` saw.
    """
    order = list(recipe.order(len(data.x)))
    rates = [recipe.learning_rate(k, len(order)) for k in range(len(order))]
    guard = _DivergenceGuard(0 if data.y is None else int(data.y.max()) + 1)
    for step in earlier:
        guard.see(step.loss)
    jobs = ((sample_of(data, order[k]), label_of(data, order[k]), rates[k]) for k in range(begin, len(order)))
    wanted = itertools.takewhile(lambda _: guard.error is None and not stopped(), jobs)
    done: list[Step] = []
    commits, saves = recipe.commits(len(data.x)), recipe.saves(len(data.x))
    every = keeping.every if keeping is not None else 0
    position = begin
    while True:
        part = itertools.islice(wanted, every or None)
        for reply in session.train_stream(part, recipe.skip, commits, saves, position):
            done.append(_step(position, order, rates, data, reply))
            on_step(done[-1])
            guard.see(reply.loss)
            position += 1
        if not every or (position - begin) % every or position == len(order) or guard.error is not None or stopped():
            break
        assert keeping is not None
        keeping.keep(position)
    if keeping is not None and position < len(order):
        keeping.keep(position)
    if position and commits and position - 1 not in commits:
        session.commit()
    if guard.error is not None:
        raise guard.error
    if recipe.save_every and position and position - 1 not in saves:
        session.save()
    return done


def sample_of(data: DataSet, i: int) -> npt.NDArray[np.int8]:
    """What goes over the wire for sample ``i``: the input, and behind it the target of a regression."""
    x = data.x[i].reshape(-1)
    return x if data.target is None else np.concatenate([x, data.target[i].reshape(-1)])


def label_of(data: DataSet, i: int) -> int:
    """The label of sample ``i``; 0 for a regression."""
    return 0 if data.y is None else int(data.y[i])


def _step(k: int, order: Sequence[int], rates: Sequence[float], data: DataSet, reply: TrainReply) -> Step:
    correct = data.y is not None and reply.argmax == label_of(data, order[k])
    return Step(k, k // len(data.x), order[k], rates[k], reply.loss, correct, reply.skipped, reply.ticks)


class _DivergenceGuard:
    """Watches the loss in windows of 50 steps. ``error`` is set when it has exploded.

    A regression (0 classes) knows no loss of guessing.
    """

    def __init__(self, classes: int) -> None:
        self._guessing = float(np.log(max(classes, 2))) if classes else None
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
        guess = self._guessing
        limit = DIVERGED_LOSS * (self._first if guess is None else max(min(self._first, BAD_START * guess), guess))
        if not mean <= limit:
            self.error = DivergedError(
                f"the loss is {mean:.3g} over the last {WINDOW} samples and was {self._first:.3g} over the first, the limit is {limit:.3g}",
                "use a smaller --lr",
            )


def evaluate(session: Session, data: DataSet, train: TrainGraph, on_sample: Callable[[], None]) -> Evaluation | Regression:
    """Predict every sample on the board.

    The class is the first maximum of the int8 output, as a deployed model would be read; with one output, whether it is above the middle.
    """
    if data.target is not None:
        return _regression(session, data, train, on_sample)
    assert data.y is not None
    classes = classes_of(train.graph)
    confusion = np.zeros((classes, classes), np.int64)
    ticks = 0
    middle = _middle(train)
    for label, reply in zip(data.y.tolist(), session.predict_stream(data.x), strict=True):
        confusion[label, reply.argmax if middle is None else int(reply.output[0] > middle)] += 1
        ticks += reply.ticks
        on_sample()
    return Evaluation(float(np.trace(confusion)) / len(data.x), confusion, ticks / len(data.x))


def classes_of(graph: Graph) -> int:
    """Classes that a model's output tells apart: one output tells two."""
    return max(2, graph.tensors[graph.output].size)


def _middle(train: TrainGraph) -> float | None:
    """The code of probability 0.5 where the model has one output, a probability or its logit; None where it has several."""
    output = train.graph.tensors[train.graph.output]
    if output.size > 1:
        return None
    assert output.quant is not None
    real = 0.5 if ends_in_probability(train.graph) else 0.0
    return output.quant.zero_point + real / output.quant.scale[0]


def _regression(session: Session, data: DataSet, train: TrainGraph, on_sample: Callable[[], None]) -> Regression:
    assert data.target is not None
    quant = train.graph.tensors[train.graph.output].quant
    assert quant is not None
    total, ticks = 0.0, 0
    for sample, target in zip(data.x, data.target, strict=True):
        session.sample(sample)
        reply = session.predict()
        difference = quant.scale[0] * (reply.output.astype(np.float64) - target.reshape(-1))
        total += float((difference**2).mean())
        ticks += reply.ticks
        on_sample()
    return Regression(total / len(data.x), ticks / len(data.x))
