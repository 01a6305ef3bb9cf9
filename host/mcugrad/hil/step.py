"""One training step of a user's model on a board, beside the reference."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mcugrad import data
from mcugrad.autodiff import Loss
from mcugrad.data import DataSet
from mcugrad.errors import FitError
from mcugrad.link import Loaded, Session
from mcugrad.pipeline import Compiled
from mcugrad.proof.compare import Difference, train_both
from mcugrad.ref.run import Machine


@dataclass(frozen=True, slots=True, repr=False)
class StepResult:
    """What the board said of the ``step``-th training step with its plan, counted from 0.

    ``loss``, ``argmax``: before the update. ``skipped``: nothing was learned. ``state``: all that the board has learned so far.
    ``trace``: the CRC-32 of every step kind's outputs, empty where the board has no room to keep them. ``difference``: the first thing
    in which board and reference differ, by the name of the plan's step or of the value in STATE.
    """

    board: str
    step: int
    loss: float
    argmax: int
    skipped: bool
    ticks: int
    state: bytes
    trace: tuple[int, ...]
    difference: Difference | None

    def equals_reference(self) -> bool:
        """Whether loss, every step's outputs and STATE are those of the NumPy reference, to the bit."""
        return self.difference is None

    def __repr__(self) -> str:
        d = self.difference
        found = "equal to the reference" if d is None else f"first differs in {d.what}: {d.board} there, {d.reference} in the reference"
        return f"<training step {self.step} on {self.board}, loss {self.loss:.4f}: {found}>"


@dataclass(slots=True)
class _Run:
    """A plan on the board and in the reference, which have done ``steps`` steps with it."""

    compiled: Compiled
    loaded: Loaded
    machine: Machine
    steps: int = 0


class TrainStep:
    """Trains one sample at a time. A model is loaded, its STATE fresh, when it is first asked for; each call learns on from there."""

    def __init__(self, board: str, session: Session, compile_plan: Callable[..., Compiled]) -> None:
        self._board = board
        self._session = session
        self._compile = compile_plan
        self._run: _Run | None = None

    def __call__(
        self,
        model: str | Path | Compiled,
        sample: npt.ArrayLike,
        label: int = 0,
        lr: float = 0.01,
        *,
        train: str = "head",
        classes: int | None = None,
        target: npt.ArrayLike | None = None,
        skip: float = 0.0,
    ) -> StepResult:
        """One step, and what it left. ``model``: a file, or a plan of ``compile_plan``; ``train`` and ``classes`` are for a file.

        ``sample``: one input, without a batch dimension: int8 codes, or float values, which are quantized. ``target``: the wanted output of
        a regression; without it the sample is its own. Raises ModelError, DataError, FitError, LinkError.
        """
        compiled = model if isinstance(model, Compiled) else self._compile(model, train, classes)
        if self._run is None or self._run.compiled is not compiled or self._session.loaded is not self._run.loaded:
            self._run = self._begin(compiled)
        run = self._run
        one = _one_sample(compiled, sample, label, target)
        reply, look = train_both(self._session, compiled, run.machine, one, 0, lr, skip, run.steps)
        run.steps += 1
        return StepResult(
            self._board, run.steps - 1, reply.loss, reply.argmax, reply.skipped, reply.ticks, look.state, look.trace, look.difference
        )

    def _begin(self, compiled: Compiled) -> _Run:
        run = _Run(compiled, self._session.load_plan(compiled.plan), Machine(compiled.plan))
        with contextlib.suppress(FitError):
            self._session.trace_on()
            run.machine.tracing = True
        return run


def _one_sample(compiled: Compiled, sample: npt.ArrayLike, label: int, target: npt.ArrayLike | None) -> DataSet:
    x = np.asarray(sample)[None]
    if compiled.train.loss is Loss.MSE:
        return data.regression(x, None if target is None else np.asarray(target)[None], compiled.model)
    return data.labelled(x, np.array([label]), compiled.model)
