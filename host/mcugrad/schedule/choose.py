"""How a program is run in the least memory, and what is traded when that is not enough."""

from __future__ import annotations

from mcugrad.lower.program import Program
from mcugrad.memory import Layout, place
from mcugrad.plan import Region
from mcugrad.schedule.recompute import recompute
from mcugrad.schedule.reorder import reorder
from mcugrad.schedule.search import cuts

TRIES = 4
"""How often the goal is lowered where the addresses need more than the sum of what lives."""


SLACKS = (1.0, 0.9)
"""How far below the peak the other steps are kept, tried in this order."""

NEAR = 1.005
"""An arena that is this near to its lower bound is not improved any more."""


def _in_stripes(program: Program, *, again: bool) -> tuple[Program, Layout]:
    """The cut of the forward steps with the smallest arena."""
    found = cuts(program, again=again)
    tried: list[tuple[Program, Layout]] = []
    for slack in SLACKS:
        shaped = found.best(slack)
        tried.append((shaped, place(shaped)))
        if tried[-1][1].sizes[Region.ARENA] <= NEAR * tried[-1][1].lower_bound:
            break
    return min(tried, key=lambda t: t[1].sizes[Region.ARENA])


def schedule(whole: Program, ram: int | None = None) -> tuple[Program, Layout]:
    """A program of the same results with less ARENA, and its addresses.

    Another order and stripes are free. With ``ram``, the bytes that ARENA, STATE and IO may have together, what backward reads is
    computed again as far as that demands; with 0 as far as it goes, and rows of stripes too.
    """
    program, layout = _in_stripes(reorder(whole), again=ram == 0)
    if ram is None:
        return program, layout
    limit = ram - layout.sizes[Region.STATE] - layout.sizes[Region.IO]
    best, goal = (program, layout), limit
    for _ in range(TRIES):
        if best[1].sizes[Region.ARENA] <= limit:
            break
        changed = recompute(program, goal)
        found = changed, place(changed)
        best = min(best, found, key=lambda f: f[1].sizes[Region.ARENA])
        goal -= max(0, found[1].sizes[Region.ARENA] - limit)
        if goal <= 0:
            break
    return best
