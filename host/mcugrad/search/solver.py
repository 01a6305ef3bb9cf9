"""The choice that contributes most and fits: by evolution, or exactly by branch and bound. The compiler decides what fits.

Both start from option 0 of every slot, which fits. A choice that has a higher option somewhere and a lower nowhere trains more, and is
taken to cost no less: branch and bound is exact under that assumption. Nothing is returned that the compiler has not found to fit.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mcugrad.search.candidates import Choice
from mcugrad.search.costs import Cost

POPULATION = 16
PATIENCE = 10
"""Generations without a better choice after which evolution ends."""

DRAWS = 8
TOURNAMENT = 2
NEAR = 1.03
"""The last improvements look at choices that are estimated to need up to this much of the budget."""

EVOLUTION = 0.7
"""The share of all plans that evolution may ask for; the rest is for the last improvements and for branch and bound."""

POLISH = 48
"""Neighbours that are compiled before a choice counts as one that has no better neighbour."""


@dataclass(frozen=True, slots=True)
class Problem:
    """``values[slot][option]``; ``trained_bytes[slot][option]``: a choice needs that much more RAM at least than one with option 0.

    ``costs`` asks the compiler, ``estimate`` guesses the RAM. ``ram`` and ``flash`` are the budget.
    """

    values: tuple[tuple[float, ...], ...]
    trained_bytes: tuple[tuple[int, ...], ...]
    estimate: Callable[[Choice], int]
    costs: Callable[[Sequence[Choice]], Sequence[Cost]]
    ram: int
    flash: int

    @property
    def none(self) -> Choice:
        return (0,) * len(self.values)

    def value(self, choice: Choice) -> float:
        return sum(v[option] for v, option in zip(self.values, choice, strict=True))

    def trained(self, choice: Choice) -> int:
        return sum(n[option] for n, option in zip(self.trained_bytes, choice, strict=True))

    def fits(self, cost: Cost) -> bool:
        return cost.ram <= self.ram and cost.flash <= self.flash


@dataclass(frozen=True, slots=True)
class Solution:
    """``proven``: branch and bound went through all that could be better. ``compiled``: choices that the compiler was asked about."""

    choice: Choice
    value: float
    cost: Cost
    solver: str
    proven: bool
    compiled: int


class _Spent(Exception):
    """The compiler has been asked often enough."""


@dataclass(slots=True)
class _Search:
    """What both solvers share: the budget of compiler calls, what they said, and the best choice so far."""

    problem: Problem
    limit: int
    known: dict[Choice, Cost] = field(default_factory=dict)
    best: Choice = ()
    offset: float = 0.0

    def ask(self, choices: Sequence[Choice]) -> list[Cost]:
        """Raises _Spent, with nothing asked, where it would be too often."""
        new = [c for c in dict.fromkeys(choices) if c not in self.known]
        if len(self.known) + len(new) > self.limit:
            raise _Spent
        for choice, cost in zip(new, self.problem.costs(new), strict=True):
            self.known[choice] = cost
            if self.problem.fits(cost):
                self.offer(choice)
        return [self.known[c] for c in choices]

    def offer(self, choice: Choice) -> None:
        if not self.best or self.rank(choice) > self.rank(self.best):
            self.best = choice

    def rank(self, choice: Choice) -> tuple[float, int, Choice]:
        """Value first; of equal ones that which needs less."""
        return self.problem.value(choice), -self.known[choice].ram, choice

    def expected(self, choice: Choice) -> float:
        """The estimate, moved by how far it was off lately."""
        return self.problem.estimate(choice) + self.offset

    def solution(self, solver: str, *, proven: bool) -> Solution:
        return Solution(self.best, self.problem.value(self.best), self.known[self.best], solver, proven, len(self.known))


def solve(problem: Problem, seed: int, limit: int, *, exact: bool) -> Solution:
    """Evolution, then, where ``exact``, branch and bound from what it found. At most ``limit`` choices are compiled, or a few to begin.

    The caller has seen that option 0 of every slot fits.
    """
    search = _Search(problem, max(limit, 1))
    search.ask([problem.none])
    ideal = tuple(int(np.argmax(v)) for v in problem.values)
    with contextlib.suppress(_Spent):
        if problem.fits(search.ask([ideal])[0]):
            return search.solution("everything", proven=True)
    with contextlib.suppress(_Spent):
        search.limit = max(1, round(EVOLUTION * limit))
        _evolve(search, np.random.default_rng(seed))
    with contextlib.suppress(_Spent):
        search.limit = max(limit, 1)
        _polish(search)
        if exact:
            _branch(search)
            return search.solution("branch and bound", proven=True)
    return search.solution("evolution", proven=False)


# ---- evolution --------------------------------------------------------------------------------------------------------


def _evolve(search: _Search, rng: np.random.Generator) -> None:
    population = _settled(search, [_grown(search, start) for start in _starts(search, rng)])
    idle = 0
    while idle < PATIENCE:
        before = search.rank(search.best)
        children = [_new_child(search, population, rng) for _ in range(POPULATION)]
        pool = dict.fromkeys([search.best, *population, *_settled(search, children)])
        population = sorted(pool, key=search.rank, reverse=True)[:POPULATION]
        idle = 0 if search.rank(search.best) > before else idle + 1


def _starts(search: _Search, rng: np.random.Generator) -> list[Choice]:
    """The head alone, one option each that is worth most in its slot, and random ones; all cut to the estimate."""
    values, none = search.problem.values, search.problem.none
    best = [int(np.argmax(v)) for v in values]
    singles = [(*none[:s], o, *none[s + 1 :]) for s, o in enumerate(best) if o]
    singles.sort(key=search.problem.value, reverse=True)
    drawn = [tuple(int(rng.integers(len(v))) for v in values) for _ in range(POPULATION // 2)]
    return [_cut(search, c) for c in [none, *singles[: POPULATION // 2], tuple(best), *drawn]]


def _new_child(search: _Search, population: Sequence[Choice], rng: np.random.Generator) -> Choice:
    """A child that was not compiled yet, if a few draws give one; half of the draws take what still fits."""
    for _ in range(DRAWS):
        child = _cut(search, _child(search, population, rng))
        if rng.random() < 0.5:
            child = _grown(search, child)
        if child not in search.known:
            break
    return child


def _child(search: _Search, population: Sequence[Choice], rng: np.random.Generator) -> Choice:
    """Uniform crossover of two tournament winners; about one slot is drawn anew."""
    mother, father = (max((population[i] for i in rng.integers(len(population), size=TOURNAMENT)), key=search.rank) for _ in range(2))
    values, slots = search.problem.values, len(mother)
    genes = [m if take else f for m, f, take in zip(mother, father, rng.random(slots) < 0.5, strict=True)]
    drawn = {int(rng.integers(slots)), *np.flatnonzero(rng.random(slots) < 1 / slots).tolist()}
    return tuple(int(rng.integers(len(values[s]))) if s in drawn else gene for s, gene in enumerate(genes))


def _settled(search: _Search, choices: Sequence[Choice]) -> list[Choice]:
    """Ask the compiler about all; those that do not fit are cut and asked about again, until all fit."""
    found: list[Choice] = []
    waiting = list(dict.fromkeys(choices))
    while waiting:
        costs = search.ask(waiting)
        search.offset = float(np.median([cost.ram - search.problem.estimate(c) for c, cost in zip(waiting, costs, strict=True)]))
        found += [c for c, cost in zip(waiting, costs, strict=True) if search.problem.fits(cost)]
        too_big = [(c, cost) for c, cost in zip(waiting, costs, strict=True) if not search.problem.fits(cost)]
        waiting = list(dict.fromkeys(_less(search, c, cost) for c, cost in too_big))
    return found


def _less(search: _Search, choice: Choice, cost: Cost) -> Choice:
    """Cut by as much as the compiler said is too much: at least one step down."""
    problem = search.problem
    ram = problem.estimate(choice) - max(cost.ram - problem.ram, 0)
    flash = problem.trained(choice) - max(cost.flash - problem.flash, 0)
    lower = _stepped_down(problem, choice, lambda c: c != choice and problem.estimate(c) <= ram and problem.trained(c) <= flash)
    return _grown_to(problem, lower, ram) if cost.flash <= problem.flash else lower


def _cut(search: _Search, choice: Choice) -> Choice:
    """Step down until the choice is expected to fit."""
    return _stepped_down(search.problem, choice, lambda c: search.expected(c) <= search.problem.ram)


def _stepped_down(problem: Problem, choice: Choice, enough: Callable[[Choice], bool]) -> Choice:
    """Lower those options first that lose least for each byte they free, until it is enough or nothing is left."""
    while choice != problem.none and not enough(choice):
        value, size, start = problem.value(choice), problem.estimate(choice), choice
        moves = []
        for slot, option in enumerate(choice):
            for o in range(option):
                lower = _with(choice, slot, o)
                lost, freed = value - problem.value(lower), size - problem.estimate(lower)
                moves.append((lost / max(freed, 1) if lost > 0 else lost - 1.0, slot, o))
        for _, slot, o in sorted(moves):
            if choice[slot] == start[slot]:
                choice = _with(choice, slot, o)
                if enough(choice):
                    break
    return choice


def _grown(search: _Search, choice: Choice) -> Choice:
    """Take what still is expected to fit."""
    return _grown_to(search.problem, choice, search.problem.ram - search.offset)


def _grown_to(problem: Problem, choice: Choice, size: float) -> Choice:
    """Raise those options first that gain most for each byte, while the estimate stays within ``size``."""
    start: Choice = ()
    while choice != start:
        start, value, now = choice, problem.value(choice), problem.estimate(choice)
        moves = []
        for slot, o in _higher(problem, choice):
            higher = _with(choice, slot, o)
            gain, more = problem.value(higher) - value, problem.estimate(higher) - now
            if gain > 0 and now + more <= size:
                moves.append((gain / max(more, 1), slot, o))
        for _, slot, o in sorted(moves, reverse=True):
            higher = _with(choice, slot, o)
            if o > choice[slot] and problem.value(higher) > problem.value(choice) and problem.estimate(higher) <= size:
                choice = higher
    return choice


def _higher(problem: Problem, choice: Choice) -> Iterator[tuple[int, int]]:
    """(slot, option) of every step up."""
    for slot, option in enumerate(choice):
        for o in range(option + 1, len(problem.values[slot])):
            yield slot, o


def _with(choice: Choice, slot: int, option: int) -> Choice:
    return (*choice[:slot], option, *choice[slot + 1 :])


def _polish(search: _Search) -> None:
    """Move to the best neighbour that fits until none does: one slot up, or one up and another down."""
    problem = search.problem
    while True:
        here = problem.value(search.best)
        search.offset = search.known[search.best].ram - problem.estimate(search.best)
        better = [c for c in _neighbours(problem, search.best) if problem.value(c) > here and search.expected(c) <= NEAR * problem.ram]
        better = [c for c in better if c not in search.known]
        better.sort(key=lambda c: (-problem.value(c), c))
        if not any(problem.fits(search.ask([c])[0]) for c in better[:POLISH]):
            return


def _neighbours(problem: Problem, choice: Choice) -> Iterator[Choice]:
    for up, o in _higher(problem, choice):
        higher = _with(choice, up, o)
        yield higher
        for down, option in enumerate(choice):
            if down != up:
                yield from (_with(higher, down, lower) for lower in range(option))


# ---- branch and bound -------------------------------------------------------------------------------------------------


def _branch(search: _Search) -> None:
    """Decide slot after slot, those first that can be worth most; leave out what cannot beat the best."""
    problem = search.problem
    slots = sorted(range(len(problem.values)), key=lambda s: (-max(problem.values[s]), s))
    hulls = {s: _hull(problem, s) for s in slots}
    _descend(search, slots, hulls, problem.none)


Hull = tuple[tuple[float, int], ...]
"""(value gained, bytes) of the steps of a slot's upper convex hull: the best gain for each byte first."""


def _hull(problem: Problem, slot: int) -> Hull:
    points = [(0, 0.0)]
    for value, size in zip(problem.values[slot][1:], problem.trained_bytes[slot][1:], strict=True):
        if value <= points[-1][1]:
            continue
        while len(points) > 1 and _slope(points[-2], points[-1]) <= _slope(points[-1], (size, value)):
            points.pop()
        points.append((size, value))
    return tuple((b[1] - a[1], b[0] - a[0]) for a, b in itertools.pairwise(points))


def _slope(a: tuple[int, float], b: tuple[int, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0]) if b[0] > a[0] else float("inf")


def _bound(search: _Search, undecided: Sequence[int], hulls: dict[int, Hull], choice: Choice) -> float:
    """No completion of ``choice`` is worth more: the undecided slots at their best, in parts, by the bytes that they need at least."""
    total, room = search.problem.value(choice), search.problem.ram - search.known[choice].ram
    steps = sorted((step for s in undecided for step in hulls[s]), key=lambda step: -step[0] / max(step[1], 1e-9))
    for gain, size in steps:
        if size > room:
            return total + gain * room / size
        total, room = total + gain, room - size
    return total


def _descend(search: _Search, slots: Sequence[int], hulls: dict[int, Hull], choice: Choice) -> None:
    """``choice`` fits and is known; its options of ``slots`` are still to be decided."""
    problem = search.problem
    if not slots or _bound(search, slots, hulls, choice) <= problem.value(search.best):
        return
    slot, rest = slots[0], slots[1:]
    order = sorted(range(len(problem.values[slot])), key=lambda o: (-problem.values[slot][o], o))
    for option in order:
        node = _with(choice, slot, option)
        if _known_too_big(search, node) or not problem.fits(search.ask([node])[0]):
            continue
        _descend(search, rest, hulls, node)


def _known_too_big(search: _Search, choice: Choice) -> bool:
    """Whether a choice that trains no more is known not to fit."""
    problem = search.problem
    return any(not problem.fits(cost) and all(a <= b for a, b in zip(other, choice, strict=True)) for other, cost in search.known.items())
