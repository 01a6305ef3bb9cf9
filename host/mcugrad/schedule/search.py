"""Chooses which layers run in stripes, and in how many rows, and which are fused: the least peak first, then the least work.

The forward steps are cut into groups and single steps. What a group needs does not depend on how the others run, so the best cut is found
step by step (dynamic programming): once for the smallest peak, once for the cheapest cut that has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mcugrad.lower.program import Draft, Program, Value, macs
from mcugrad.memory.liveness import liveness
from mcugrad.memory.offsets import align_up, place_arena
from mcugrad.memory.planner import REGION_ALIGN, step_bytes
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
    """``steps`` in place of the forward steps ``first`` to ``last``.

    ``needed``: bytes of their peak, with all that lives around them: a lower bound until ``placed``, then with addresses.
    """

    first: int
    last: int
    steps: tuple[Draft, ...]
    around: _Around
    needed: int
    cost: Cost
    placed: bool = False

    def with_addresses(self) -> _Choice:
        """The same with the bytes that its addresses need."""
        return replace(self, needed=max(self.needed, self.around.placed(self.steps, self.needed)), placed=True)


class Cuts:
    """All ways to cut the forward steps of a program.

    ``choices``: last step -> what can stand for it and some before it. ``needed``: bytes at every step as it stands. ``floor``: what no
    cut can save.
    """

    def __init__(self, program: Program, choices: Mapping[int, Sequence[_Choice]], needed: Sequence[int], floor: int) -> None:
        self._program, self._needed, self._floor = program, needed, floor
        self._choices = {last: list(found) for last, found in choices.items()}

    def best(self, slack: float = 1.0) -> Program:
        """The cut with the least work whose peak is the smallest.

        With ``slack`` < 1, steps are kept below that share of the peak where they can be, which makes addresses easier to find. Only
        what is chosen gets addresses; where these need more than the lower bound said, the best cut is looked for again.
        """
        while True:
            chosen = self._cheapest(slack)
            rough = [c for c in chosen if not c.placed]
            if not rough:
                return _with(self._program, chosen)
            for c in rough:
                same = self._choices[c.last]
                same[same.index(c)] = c.with_addresses()

    def _cheapest(self, slack: float) -> list[_Choice]:
        """The choices of the best cut, by what is known of their needs."""
        peak = _least_peak(self._needed, self._choices, self._floor)
        limit = int(slack * peak)
        found: list[tuple[tuple[int, int, int], list[_Choice]]] = [((0, 0, 0), [])]
        for end in range(1, len(self._needed) + 1):
            options = [_added(found[end - 1], None, self._needed[end - 1], limit, peak)]
            options += [_added(found[c.first], c, c.needed, limit, peak) for c in self._choices.get(end - 1, ())]
            found.append(min(options, key=lambda o: o[0]))
        return found[-1][1]


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
            around = _Around(program, f.expand, f.depthwise)
            gain = -1 if f.step.scalars["q"] >= WIDE else 1
            choice = _Choice(f.expand, f.depthwise, (f.step,), around, around.needed([f.step]), (0, gain))
            choices.setdefault(f.depthwise, []).append(choice)
    return Cuts(program, choices, needed[:forward], floor)


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
                found.append(_Choice(first, last, steps, around, around.needed(steps), cost))
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
        """Bytes of the peak of ``steps``, a lower bound."""
        live = liveness(steps, self.before, self.after)
        return self.through + max(step_bytes(live, len(steps)))

    def placed(self, steps: Sequence[Draft], needed: int) -> int:
        """Bytes that ``steps`` take with addresses, at least ``needed``."""
        live = liveness(steps, self.before, self.after)
        return self.through + place_arena(live, align_up(needed - self.through, REGION_ALIGN))[1]


def _named(steps: Sequence[Draft]) -> set[Value]:
    """The values of ARENA that steps name."""
    return {v.root for step in steps for v in step.refs.values() if v is not None and v.region is Region.ARENA}
