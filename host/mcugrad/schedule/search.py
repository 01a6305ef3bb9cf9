"""Chooses which layers run in stripes, and in how many rows, and which are fused: the least peak first, then the least work.

The forward steps are cut into groups and single steps. What a group needs does not depend on how the others run, so the best cut is found
step by step (dynamic programming): once for the smallest peak, once for the cheapest cut that has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mcugrad.lower.program import Draft, Program, Value, macs
from mcugrad.memory.liveness import liveness
from mcugrad.memory.planner import step_bytes
from mcugrad.plan import Region
from mcugrad.schedule.fuse import fusable
from mcugrad.schedule.stripes import Group, group, heights_of, in_stripes

LONGEST = 9
"""Steps that run in stripes together, at most."""

HEIGHTS = (1, 2, 4, 8)
"""Rows of a stripe."""

WIDE = 4
"""Outputs in a row from which on a fused step takes fewer instructions than its two parts; below, it only saves memory."""

Cost = tuple[int, int]
"""Multiply-accumulates made twice, and steps more than in one piece."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """``steps`` in place of the forward steps ``first`` to ``last``. ``needed``: bytes of their peak, with all that lives around them."""

    first: int
    last: int
    steps: tuple[Draft, ...]
    needed: int
    cost: Cost


@dataclass(frozen=True, slots=True)
class Cuts:
    """All ways to cut the forward steps of a program. ``choices``: last step -> what can stand for it and some before it.

    ``needed``: bytes at every step as it stands. ``peak``: the smallest that a cut can have.
    """

    program: Program
    choices: Mapping[int, Sequence[_Choice]]
    needed: Sequence[int]
    peak: int

    def best(self, slack: float = 1.0) -> Program:
        """The cut with the least work whose peak is the smallest.

        With ``slack`` < 1, steps are kept below that share of the peak where they can be, which makes addresses easier to find.
        """
        limit = int(slack * self.peak)
        found: list[tuple[tuple[int, int, int], list[_Choice]]] = [((0, 0, 0), [])]
        for end in range(1, len(self.needed) + 1):
            options = [_added(found[end - 1], None, self.needed[end - 1], limit, self.peak)]
            options += [_added(found[c.first], c, c.needed, limit, self.peak) for c in self.choices.get(end - 1, ())]
            found.append(min(options, key=lambda o: o[0]))
        return _with(self.program, found[-1][1])


_TOO_MUCH = 1 << 60
"""More than all bytes together: what no cut may have."""


def _added(
    before: tuple[tuple[int, int, int], list[_Choice]], choice: _Choice | None, needed: int, limit: int, peak: int
) -> tuple[tuple[int, int, int], list[_Choice]]:
    """A cut and one choice more: (bytes above the limit, work done twice, steps more), choices."""
    (over, again, steps), chosen = before
    over += max(0, needed - limit) + (_TOO_MUCH if needed > peak else 0)
    if choice is None:
        return (over, again, steps), chosen
    return (over, again + choice.cost[0], steps + choice.cost[1]), [*chosen, choice]


def cuts(program: Program, goal: int = 0, *, again: bool = False) -> Cuts:
    """Where layers can run in stripes so that the peak of ARENA falls, but not below ``goal`` bytes, and what can be fused.

    ``again``: rows that two stripes need may also be made twice, where that needs less than keeping them.
    """
    needed = step_bytes(liveness(program.steps, [program.sample]), len(program.steps))
    forward = len(program.segments[0])
    floor = max(goal, program.sample.nbytes, *needed[forward:], 0)
    choices = _all_choices(program, needed, floor, (False, True) if again else (False,))
    for f in fusable(program):
        if f.depthwise == f.expand + 1:
            fused = _Around(program, f.expand, f.depthwise).needed([f.step])
            gain = -1 if f.step.scalars["q"] >= WIDE else 1
            choices.setdefault(f.depthwise, []).append(_Choice(f.expand, f.depthwise, (f.step,), fused, (0, gain)))
    return Cuts(program, choices, needed[:forward], _least_peak(needed[:forward], choices, floor))


def run_in_stripes(program: Program, goal: int = 0, *, again: bool = False) -> Program:
    """The program with the best of its cuts."""
    return cuts(program, goal, again=again).best()


def _least_peak(needed: Sequence[int], choices: Mapping[int, Sequence[_Choice]], floor: int) -> int:
    """The smallest peak that a cut of the forward steps can have."""
    best = [floor] + [0] * len(needed)
    for end in range(1, len(needed) + 1):
        options = [max(best[end - 1], needed[end - 1])]
        options += [max(best[c.first], c.needed) for c in choices.get(end - 1, ())]
        best[end] = min(options)
    return best[-1]


def _with(program: Program, choices: Sequence[_Choice]) -> Program:
    forward: list[Draft] = []
    at = 0
    for c in choices:
        forward += [*program.segments[0][at : c.first], *c.steps]
        at = c.last + 1
    forward += program.segments[0][at:]
    return replace(program, segments=(tuple(forward), *program.segments[1:]))


def _all_choices(program: Program, needed: Sequence[int], floor: int, again: Sequence[bool]) -> dict[int, list[_Choice]]:
    """Last step -> ways to run it and some before it in stripes. Only groups with a step that needs more than ``floor`` count."""
    forward = program.segments[0]
    heights = heights_of(forward)
    found: dict[int, list[_Choice]] = {}
    for first in range(len(forward) - 1):
        for last in range(first + 1, min(len(forward), first + LONGEST)):
            if max(needed[first : last + 1]) <= floor:
                continue
            around = _Around(program, first, last)
            g = group(forward, first, last, heights, around.outside)
            if g is not None:
                found.setdefault(last, []).extend(_in_all_heights(g, first, last, around, again))
    return found


def _in_all_heights(g: Group, first: int, last: int, around: _Around, again: Sequence[bool]) -> list[_Choice]:
    plain = sum(macs(m.step) for m in g.members)
    found = []
    for rows in HEIGHTS:
        for twice in again:
            if rows < g.height:
                steps = tuple(in_stripes(g, rows, again=twice))
                cost = sum(macs(step) for step in steps) - plain, len(steps) - len(g.members)
                found.append(_Choice(first, last, steps, around.needed(steps), cost))
    return found


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
