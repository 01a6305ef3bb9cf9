"""Chooses which layers run in stripes: the step that sets the peak is looked for, and the cheapest stripes that lower it are taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mcugrad.lower.program import Draft, Program, Value, macs
from mcugrad.memory.liveness import liveness
from mcugrad.memory.planner import step_bytes
from mcugrad.plan import Region
from mcugrad.schedule.stripes import Group, Stripes, group, heights_of, in_stripes

LONGEST = 9
"""Steps that run in stripes together, at most."""

AGAIN = (False,)
HEIGHTS = (1, 2, 4, 8)
"""Rows of a stripe."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """``needed``: bytes of the whole program's peak with it. ``cost``: multiply-accumulates made twice, then steps."""

    stripes: Stripes
    steps: tuple[Draft, ...]
    needed: int
    cost: tuple[int, int]


class _Around:
    """What lives around some steps of a program, so that other steps in their place can be judged alone."""

    def __init__(self, program: Program, first: int, last: int) -> None:
        steps = program.steps
        inside, behind = _named(steps[first : last + 1]), _named(steps[last + 1 :])
        ahead = _named(steps[:first]) | {program.sample}
        self.outside = ahead | behind
        self.before = [v for v in inside if v in ahead]
        self.after = [v for v in inside if v in behind]
        self.through = sum(v.nbytes for v in (ahead & behind) - inside)

    def needed(self, steps: Sequence[Draft]) -> int:
        """Bytes of the peak of ``steps``."""
        live = liveness(steps, self.before, self.after)
        return self.through + max(step_bytes(live, len(steps)))


def _named(steps: Sequence[Draft]) -> set[Value]:
    """The values of ARENA that steps name."""
    return {v.root for step in steps for v in step.refs.values() if v is not None and v.region is Region.ARENA}


def stripe_peaks(program: Program, goal: int = 0) -> Program:
    """Run layers in stripes as long as that lowers the bytes that the program needs at least, but not below ``goal``."""
    while True:
        needed = step_bytes(liveness(program.steps, [program.sample]), len(program.steps))
        peak = max(range(len(needed)), key=lambda k: needed[k])
        if needed[peak] <= goal or peak >= len(program.segments[0]):
            return program
        best = min(_choices(program, needed, peak), key=lambda c: (max(c.needed, goal), c.cost), default=None)
        if best is None or best.needed >= needed[peak]:
            return program
        program = _with(program, best)


def _with(program: Program, choice: _Choice) -> Program:
    forward = program.segments[0]
    s = choice.stripes
    return replace(program, segments=((*forward[: s.first], *choice.steps, *forward[s.last + 1 :]), *program.segments[1:]))


def _choices(program: Program, needed: Sequence[int], peak: int) -> Iterator[_Choice]:
    """All stripes over the peak step."""
    forward = program.segments[0]
    heights = heights_of(forward)
    for first in range(max(0, peak - LONGEST + 1), peak + 1):
        for last in range(max(peak, first + 1), min(len(forward), first + LONGEST)):
            around = _Around(program, first, last)
            g = group(forward, first, last, heights, around.outside)
            if g is not None:
                rest = max((*needed[:first], *needed[last + 1 :]), default=0)
                yield from _stripes(g, first, last, rest, around)


def _stripes(g: Group, first: int, last: int, rest: int, around: _Around) -> Iterator[_Choice]:
    plain = sum(macs(m.step) for m in g.members)
    for rows in HEIGHTS:
        for again in AGAIN:
            if rows < g.height:
                steps = tuple(in_stripes(g, rows, again=again))
                cost = sum(macs(step) for step in steps) - plain, len(steps)
                yield _Choice(Stripes(first, last, rows, again), steps, max(rest, around.needed(steps)), cost)
