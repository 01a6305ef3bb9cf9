"""The whole search: scores, one after the other and kept as they come, then the best choice under the budget, then the files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcugrad
from mcugrad.board import Board
from mcugrad.data import DataSet
from mcugrad.errors import FitError, UsageError
from mcugrad.paths import firmware_dir
from mcugrad.pipeline import Compiled
from mcugrad.report import PlanReport, report
from mcugrad.search.candidates import Candidates, find_candidates
from mcugrad.search.costs import CostJob, Costs, Estimate, board_share
from mcugrad.search.engine import Engine
from mcugrad.search.scores import (
    By,
    Contributions,
    FinetuneJob,
    Settings,
    finetune,
    finetune_contributions,
    fisher_contributions,
    fisher_job,
    fisher_of_sample,
    fisher_tasks,
    single_choices,
    split,
)
from mcugrad.search.solver import Problem, Solution, solve
from mcugrad.search.store import Inputs, Store, open_store

EXACT_OPTIONS = 120
"""Options of all slots together up to which branch and bound is tried."""

BODY_LR = 0.02
"""Where to start with the learning rate of layers behind a fresh head: at 0.1, which suits the head alone, first layers explode."""

Progress = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""progress(what, total) -> a context whose value is called once an item."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What is searched: ``head`` is the model compiled to train its head alone. ``held_out``: what short runs are judged by."""

    head: Compiled
    data: DataSet
    held_out: DataSet | None
    settings: Settings


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes on ``board``, all included: RAM with stack and the trainer's own, flash with firmware. ``plans``: how many are compiled."""

    board: Board
    ram: int
    flash: int
    plans: int


@dataclass(frozen=True, slots=True)
class Tools:
    """Where the work is done, how it is shown, and the folder that keeps what is known."""

    engine: Engine
    progress: Progress
    out: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found. ``resumed``: scores that an earlier run had found."""

    candidates: Candidates
    contributions: Contributions
    solution: Solution
    plan: PlanReport
    resumed: int
    notes: tuple[str, ...]

    @property
    def words(self) -> str:
        """The scheme in the words of --train."""
        return self.candidates.words(self.solution.choice)

    @property
    def best_possible(self) -> float:
        """The sum of every slot's best: what training without a budget would contribute."""
        return sum(max(v) for v in self.contributions.values)


def search(case: Case, budget: Budget, tools: Tools) -> Outcome:
    """Score the candidates and choose among them.

    Scores are kept in ``tools.out``/scores.jsonl, and what the compiler said in plans.jsonl; a later search goes on from there. Raises
    FitError where not even the head fits the budget, UsageError where there are scores of other inputs.
    """
    candidates = find_candidates(case.head.train.graph)
    job = _cost_job(case, budget)
    _require_fit(report(job.compile("head"), budget.board), budget, "training the head alone")
    with _opened(tools.out / "scores.jsonl", _inputs(case)) as store:
        contributions = _contributions(case, candidates, store, tools)
        resumed = store.resumed
    solution = _choose(case, candidates, contributions, budget, job, tools)
    plan = report(job.compile(candidates.words(solution.choice)), budget.board)
    _require_fit(plan, budget, "the scheme that was found")
    return Outcome(candidates, contributions, solution, plan, resumed, _notes(case, candidates, solution, plan))


def _cost_job(case: Case, budget: Budget) -> CostJob:
    settings = case.settings
    ram, flash = board_share(report(case.head, budget.board))
    return CostJob(case.head.model, settings.options, settings.loss, settings.channels, ram, flash, max(budget.ram - ram, 0))


@contextmanager
def _opened(path: Path, inputs: Inputs) -> Iterator[Store]:
    store = open_store(path, inputs)
    try:
        yield store
    finally:
        store.close()


def _inputs(case: Case) -> Inputs:
    """Everything that scores depend on."""
    settings, held_out = case.settings, case.held_out
    trains = settings.by.trains
    return {
        **_compiler_inputs(case),
        "mcugrad": mcugrad.__version__,
        "by": (By.FINETUNE if trains else By.FISHER).value,
        "data": _digest(case.data),
        "eval": _digest(held_out) if held_out is not None and trains else None,
        "steps" if trains else "samples": settings.steps if trains else settings.samples,
        "lr": settings.lr if trains else None,
        "seed": settings.seed,
    }


def _compiler_inputs(case: Case) -> dict[str, str | int | float | None]:
    """What a plan depends on beside its scheme."""
    head, settings = case.head, case.settings
    return {
        "model": f"{head.program.model_hash:08x}",
        "classes": head.program.classes if head.fresh_head else None,
        "loss": head.train.loss.value if head.train.loss else None,
        "weight bytes": settings.ws,
        "channels": settings.channels.value,
    }


def _digest(data: DataSet) -> str:
    digest = hashlib.sha256()
    for array in (data.x, data.y, data.target):
        digest.update(b"-" if array is None else str(array.shape).encode() + array.tobytes())
    return digest.hexdigest()[:16]


# ---- scores -----------------------------------------------------------------------------------------------------------


def _contributions(case: Case, candidates: Candidates, store: Store, tools: Tools) -> Contributions:
    head, settings = case.head, case.settings
    if settings.by.trains:
        train, held = (case.data, case.held_out) if case.held_out is not None else split(case.data, settings.seed)
        words = {c: candidates.words(c) for c in single_choices(candidates)}
        runs = _Work("short runs", finetune, lambda: FinetuneJob(head.model, train, held, settings), {w: w for w in words.values()})
        known = _done(runs, store, tools)
        return finetune_contributions(candidates, {c: known[w] for c, w in words.items()}, regression=case.data.target is not None)
    tasks = {f"sample {k}": task for k, task in enumerate(fisher_tasks(case.data, settings))}
    gradients = _Work(
        "gradients",
        fisher_of_sample,
        lambda: fisher_job(head.model, candidates, case.data, settings, fresh_head=head.fresh_head),
        tasks,
    )
    known = _done(gradients, store, tools)
    return fisher_contributions(candidates, [known[key] for key in tasks], settings.by)


@dataclass(frozen=True, slots=True)
class _Work:
    """``function(job(), task)`` for each of ``tasks``, whose keys name the results."""

    what: str
    function: Callable[[Any, Any], Any]
    job: Callable[[], Any]
    tasks: Mapping[str, Any]


def _done(work: _Work, store: Store, tools: Tools) -> Mapping[str, Any]:
    """The result of every task: those that are not known yet are found out, and kept as they come."""
    keys = [key for key in work.tasks if key not in store.known]
    if keys:
        with tools.progress(work.what, len(work.tasks)) as advance:
            for _ in range(len(work.tasks) - len(keys)):
                advance()
            for k, value in tools.engine.run(work.function, work.job(), [work.tasks[key] for key in keys]):
                store.add(keys[k], value)
                advance()
    return store.known


# ---- choice -----------------------------------------------------------------------------------------------------------


def _choose(case: Case, candidates: Candidates, contributions: Contributions, budget: Budget, job: CostJob, tools: Tools) -> Solution:
    settings = case.settings
    inputs = _compiler_inputs(case) | {"compiler": _compiler_digest(), "ram": job.ram, "flash": job.flash, "room": job.room}
    trained = candidates.trained_bytes(settings.ws)
    with _plans(tools.out / "plans.jsonl", inputs) as store, tools.progress("plans", candidates.options[0] + budget.plans) as advance:
        costs = Costs(job, candidates, tools.engine, store, advance)
        estimate = Estimate.measure(candidates, settings.ws, costs)
        problem = Problem(contributions.values, trained, estimate, costs, budget.ram, budget.flash)
        return solve(problem, settings.seed, budget.plans, exact=sum(candidates.options) <= EXACT_OPTIONS)


@contextmanager
def _plans(path: Path, inputs: Inputs) -> Iterator[Store]:
    """What the compiler said before; forgotten where it was of another board or another version of the compiler."""
    try:
        store = open_store(path, inputs)
    except UsageError:
        path.unlink(missing_ok=True)
        store = open_store(path, inputs)
    try:
        yield store
    finally:
        store.close()


def _compiler_digest() -> str:
    """Of the sources that make a plan."""
    digest = hashlib.sha256((firmware_dir() / "ops.def").read_bytes())
    for path in sorted(Path(mcugrad.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _require_fit(r: PlanReport, budget: Budget, what: str) -> None:
    if r.ram.total > budget.ram:
        raise FitError(
            f"{what} needs {r.ram.total:,} bytes of RAM (arena {r.ram.arena:,}, state {r.ram.state:,}, io {r.ram.io:,}, "
            f"stack {r.ram.stack:,}, runtime {r.ram.runtime:,}), the budget is {budget.ram:,}",
            "give more with --sram, or take a smaller model",
        )
    if r.flash.total > budget.flash:
        raise FitError(
            f"{what} needs {r.flash.total:,} bytes of flash (plan {r.flash.plan:,}, const {r.flash.const:,}, "
            f"firmware {r.flash.firmware:,}), the budget is {budget.flash:,}",
            "give more with --flash, or take a smaller model",
        )


def _notes(case: Case, candidates: Candidates, solution: Solution, plan: PlanReport) -> tuple[str, ...]:
    found = list(plan.notes)
    if not solution.proven:
        found.append(f"{solution.compiled:,} plans were compiled, which does not prove that no better scheme fits (more with --plans)")
    if solution.choice == candidates.none:
        found.append("nothing but the head fits, or nothing else contributes")
    elif case.head.fresh_head and any(solution.choice[1:]):
        found.append(f"layers behind a fresh head learn at a smaller rate than the head alone: start with --lr {BODY_LR}")
    return tuple(found)
