"""The solver against brute force on small random instances, whose costs rise with everything that is trained as those of plans do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcugrad.search import solver
from mcugrad.search.candidates import Choice
from mcugrad.search.costs import Cost
from mcugrad.search.solver import Problem, Solution, solve

LIMIT = 100_000


class Instance:
    """Options with values; state adds up, the arena is the largest of several sums of what is alive. ``asked``: all choices compiled."""

    def __init__(self, seed: int, slots: int = 4, options: int = 3, *, negative: bool = False) -> None:
        rng = np.random.default_rng(seed)
        self.counts = [int(rng.integers(1, options + 2)) for _ in range(slots)]
        self.values = tuple((0.0, *np.sort(rng.random(n - 1)).tolist()) for n in self.counts)
        if negative:
            self.values = tuple((0.0, *(rng.random(n - 1) - 0.4).tolist()) for n in self.counts)
        self.state = tuple((0, *np.sort(rng.integers(1, 60, n - 1)).tolist()) for n in self.counts)
        self.live = rng.integers(0, 3, (5, slots)) * rng.integers(0, 40, (5, slots))
        self.asked: list[Choice] = []

    def cost(self, choice: Choice) -> Cost:
        state = sum(n[o] for n, o in zip(self.state, choice, strict=True))
        arena = 20 + int((self.live @ np.array(choice)).max())
        return Cost(arena + state, 100 + 2 * state)

    def costs(self, choices: Sequence[Choice]) -> list[Cost]:
        self.asked += choices
        return [self.cost(c) for c in choices]

    def problem(self, ram: int, flash: int = 10**9) -> Problem:
        def estimate(choice: Choice) -> int:
            return 20 + sum(n[o] + 10 * o for n, o in zip(self.state, choice, strict=True))

        return Problem(self.values, self.state, estimate, self.costs, ram, flash)

    def best(self, problem: Problem) -> float:
        return max(problem.value(c) for c in self.all() if problem.fits(self.cost(c)))

    def all(self) -> Iterator[Choice]:
        return itertools.product(*(range(n) for n in self.counts))


def solved(instance: Instance, problem: Problem, *, exact: bool, limit: int = LIMIT) -> Solution:
    found = solve(problem, 1, limit, exact=exact)
    assert problem.fits(instance.cost(found.choice)) and found.cost == instance.cost(found.choice)
    assert found.value == problem.value(found.choice)
    assert found.compiled == len(instance.asked) == len(set(instance.asked)) <= limit, "each choice is compiled once"
    return found


@given(st.integers(0, 10**6), st.integers(20, 400), st.booleans())
@settings(max_examples=20, deadline=None)
def test_branch_and_bound_finds_what_brute_force_finds(seed: int, ram: int, negative: bool) -> None:
    instance = Instance(seed, negative=negative)
    problem = instance.problem(ram)
    found = solved(instance, problem, exact=True)
    assert found.proven and found.solver in ("branch and bound", "everything")
    assert found.value == pytest.approx(instance.best(problem))


def test_branch_and_bound_improves_on_a_bad_start() -> None:
    """With nothing but the head to start from, the search itself must find the best."""
    for seed in range(20):
        instance = Instance(seed, slots=5)
        problem = instance.problem(120)
        search = solver._Search(problem, LIMIT)
        search.ask([problem.none])
        solver._branch(search)
        assert problem.value(search.best) == pytest.approx(instance.best(problem)), seed


def test_evolution_finds_nearly_all() -> None:
    shares = []
    for seed in range(12):
        instance = Instance(seed, slots=6, options=4)
        problem = instance.problem(150)
        found = solved(instance, problem, exact=False)
        assert not found.proven and found.solver == "evolution"
        shares.append(found.value / instance.best(problem) if instance.best(problem) else 1.0)
    assert min(shares) > 0.9 and np.mean(shares) > 0.99, shares


@pytest.mark.parametrize("exact", [True, False])
def test_a_seed_gives_one_solution(exact: bool) -> None:
    found = []
    for _ in range(2):
        instance = Instance(3, slots=7, options=4)
        found.append((solve(instance.problem(160), 5, LIMIT, exact=exact), instance.asked))
    assert found[0] == found[1]


@pytest.mark.parametrize("limit", [1, 2, 5, 20])
def test_few_plans_give_a_solution_that_fits(limit: int) -> None:
    for seed in range(5):
        instance = Instance(seed, slots=6, options=4)
        problem = instance.problem(100)
        found = solved(instance, problem, exact=True, limit=limit)
        assert not found.proven or found.value == pytest.approx(instance.best(problem))


@given(st.integers(0, 10**6), st.integers(100, 500))
@settings(max_examples=20, deadline=None)
def test_flash_is_a_budget_too(seed: int, flash: int) -> None:
    instance = Instance(seed)
    problem = instance.problem(10**9, flash)
    assert solved(instance, problem, exact=True).value == pytest.approx(instance.best(problem))


def test_a_large_net_needs_few_plans() -> None:
    """43 layers of 4 ratios: 200 plans give nearly what 1,000 give."""
    few, many = (solved(i, i.problem(900), exact=False, limit=n) for n in (200, 1000) for i in [Instance(1, slots=44, options=4)])
    assert few.value > 0.9 * many.value > 0
