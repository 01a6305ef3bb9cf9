"""The whole proof on a board: bit for bit from the initial STATE and from a settled one, then the gradients against float."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcugrad.data import DataSet
from mcugrad.link import Session
from mcugrad.pipeline import Compiled
from mcugrad.plan import decode
from mcugrad.proof.compare import Agreement, compare, require_equal
from mcugrad.proof.gradients import MAX_RELATIVE_ERROR, MIN_MEDIAN, MIN_P5, Quality, gradient_quality, require_good
from mcugrad.training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Verdict:
    """``cold`` started at the plan's initial STATE, ``settled`` at a trained one."""

    cold: Agreement
    settled: Agreement
    gradients: tuple[Quality, ...]

    def require(self, board: str) -> None:
        """Raise VerifyError for the first thing that is wrong."""
        require_equal(self.cold, board)
        require_equal(self.settled, board)
        require_good(self.gradients)

    @property
    def worst(self) -> Quality | None:
        """The tensor with the lowest 5th percentile."""
        return min((q for q in self.gradients if q.samples), key=lambda q: q.p5, default=None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "samples": self.cold.samples + self.settled.samples,
            "outputs_compared": self.cold.outputs + self.settled.outputs,
            "bit_exact": self.cold.difference is None and self.settled.difference is None,
            "gradients": [q.as_dict() for q in self.gradients],
            "bounds": {"median": MIN_MEDIAN, "p5": MIN_P5, "relative_error": MAX_RELATIVE_ERROR},
        }


def check_cold(session: Session, compiled: Compiled, data: DataSet, recipe: Recipe, count: int) -> Agreement:
    """Compare ``count`` training samples from the initial STATE."""
    order = list(recipe.order(len(data.x)))[:count]
    return compare(session, compiled, decode(compiled.plan).init, data, order, recipe.sample_lr, 0.0, recipe.batch)


def check_settled(
    session: Session, compiled: Compiled, state: bytes, data: DataSet, recipe: Recipe, count: int
) -> tuple[Agreement, tuple[Quality, ...]]:
    """Compare ``count`` samples from ``state``, and their gradients with float ones. The board's STATE is changed."""
    order = list(recipe.order(len(data.x)))[-count:]
    truth = data.target if data.target is not None else data.y
    assert truth is not None
    agreement = compare(session, compiled, state, data, order, recipe.sample_lr, 0.0, recipe.batch)
    return agreement, gradient_quality(compiled, state, data.x[order], truth[order], recipe.lr)
