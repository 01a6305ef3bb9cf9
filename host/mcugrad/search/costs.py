"""What a choice costs on a board: the compiler's own figures, and an estimate that ranks choices before they are compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mcugrad.autodiff import Loss
from mcugrad.graph import Graph
from mcugrad.graph.permute import Channels
from mcugrad.lower import Options
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.plan import Region
from mcugrad.report import PlanReport
from mcugrad.search.candidates import Candidates, Choice
from mcugrad.search.engine import Engine
from mcugrad.search.store import Store


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes on the board, all included, as `mcugrad plan` counts them."""

    ram: int
    flash: int


@dataclass(frozen=True, slots=True, eq=False)
class CostJob:
    """What every plan is made from. ``ram`` and ``flash``: what the board needs beside a plan's regions; ``room``: RAM left for those."""

    model: Graph
    options: Options
    loss: Loss | None
    channels: Channels
    ram: int
    flash: int
    room: int

    def compile(self, words: str) -> Compiled:
        """The plan of a scheme."""
        return compile_graph(self.model, words, self.options, self.loss, channels=self.channels, ram=self.room)


def plan_cost(job: CostJob, words: str) -> Cost:
    """Compile a scheme for its cost: the regions that lie in RAM and the whole plan in flash, with what comes on top of them."""
    compiled = job.compile(words)
    regions = sum(compiled.layout.sizes[region] for region in (Region.ARENA, Region.STATE, Region.IO))
    return Cost(regions + job.ram, len(compiled.plan) + job.flash)


def board_share(r: PlanReport) -> tuple[int, int]:
    """(RAM, flash) that a board needs beside a plan's regions."""
    return r.ram.stack + r.ram.runtime, r.flash.firmware


@dataclass(slots=True)
class Costs:
    """Asks the compiler, each choice once; what it said is kept in ``store``."""

    job: CostJob
    candidates: Candidates
    engine: Engine
    store: Store
    on_plan: Callable[[], None]

    def __call__(self, choices: Sequence[Choice]) -> list[Cost]:
        words = [self.candidates.words(c) for c in choices]
        new = [w for w in dict.fromkeys(words) if w not in self.store.known]
        for k, cost in self.engine.run(plan_cost, self.job, new):
            self.store.add(new[k], [cost.ram, cost.flash])
            self.on_plan()
        return [Cost(*self.store.known[w]) for w in words]


@dataclass(frozen=True, slots=True)
class Estimate:
    """RAM without compiling: what the compiler says of the backward pass to the same depth that trains biases only, and on top of it the
    trained weights and the input slices that their gradients read. Too much where the arena has room for those slices anyway.

    ``of_depth``: without the biases themselves. ``added[slot][option]``: the bytes on top.
    """

    candidates: Candidates
    of_depth: tuple[int, ...]
    added: tuple[tuple[int, ...], ...]

    @classmethod
    def measure(cls, candidates: Candidates, ws: int, costs: Costs) -> Estimate:
        """Compiles one plan for each depth."""
        biases, *weights = candidates.trained_bytes(ws)
        choices = [(k, *candidates.none[1:]) for k in range(candidates.options[0])]
        of_depth = tuple(cost.ram - n for cost, n in zip(costs(choices), biases, strict=True))
        pairs = zip(weights, candidates.layers, strict=True)
        saved = [tuple(n + b for n, b in zip(sizes, (0, *(v.saved_bytes for v in layer.levels)), strict=True)) for sizes, layer in pairs]
        return cls(candidates, of_depth, (biases, *saved))

    def __call__(self, choice: Choice) -> int:
        return self.of_depth[self.candidates.depth(choice) - 1] + sum(sizes[o] for sizes, o in zip(self.added, choice, strict=True))
