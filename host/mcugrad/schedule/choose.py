"""How a program is run in the least memory, and what is traded when that is not enough."""

from __future__ import annotations

from mcugrad.lower.program import Program
from mcugrad.memory import Layout, place
from mcugrad.plan import Region
from mcugrad.schedule.recompute import recompute
from mcugrad.schedule.reorder import reorder
from mcugrad.schedule.search import run_in_stripes

TRIES = 4
"""How often the goal is lowered where the addresses need more than the sum of what lives."""


def schedule(whole: Program, ram: int | None = None, *, spend: bool = False) -> tuple[Program, Layout]:
    """A program of the same results with less ARENA, and its addresses.

    Another order and stripes are free. With ``ram``, the bytes that ARENA, STATE and IO may have together, what backward reads is
    computed again as far as that demands. With ``spend``, work is given for memory even without need, down to ``ram`` or as far as it
    goes.
    """
    program = run_in_stripes(reorder(whole), again=spend)
    layout = place(program)
    if ram is None and not spend:
        return program, layout
    limit = 0 if ram is None else ram - layout.sizes[Region.STATE] - layout.sizes[Region.IO]
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
