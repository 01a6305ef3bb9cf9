"""Recomputation (gradient checkpointing): what backward reads is dropped after the forward pass and made again just before it is read.

The steps that make it again are the forward steps themselves, from what is there at that time. Backward goes from the end to the start, so
the layers before the reader have not been updated yet: the values, and all gradients, are the same bit for bit. (Chen et al., arXiv
1604.06174; here every tensor is judged by the bytes it frees at the peak and the work it costs.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mcugrad.lower.program import Draft, Program, Value, macs
from mcugrad.memory.liveness import liveness
from mcugrad.memory.planner import step_bytes
from mcugrad.plan import Region

LONGEST = 12
"""Steps that make one value again, at most."""

TRIED = 16
"""Values tried at a peak: the largest."""


def recompute(program: Program, goal: int) -> Program:
    """Drop and make again what the backward pass reads, until ARENA needs no more than ``goal`` bytes or nothing helps any more."""
    needed: Sequence[int] = _needed(program)
    while max(needed) > goal:
        peak = max(range(len(needed)), key=lambda k: needed[k])
        best = min(_candidates(program, needed, peak), key=lambda c: c.price, default=None)
        if best is None:
            return program
        program, needed = best.program, best.needed
    return program


@dataclass(frozen=True, slots=True)
class _Candidate:
    program: Program
    needed: Sequence[int]
    price: float


def _needed(program: Program) -> list[int]:
    return step_bytes(liveness(program.steps, [program.sample]), len(program.steps))


def _candidates(program: Program, needed: Sequence[int], peak: int) -> Iterator[_Candidate]:
    """Programs with one more value made again, whose peak is lower or is reached at fewer steps. ``price``: work per byte."""
    height, wide = needed[peak], _width(needed, needed[peak])
    work = sum(program.step_macs)
    for value in sorted(_saved_across(program, peak), key=lambda v: -v.nbytes)[:TRIED]:
        changed = made_again(program, value)
        if changed is None:
            continue
        now = _needed(changed)
        if (max(now), _width(now, height)) < (height, wide):
            gain = height - max(now) + (wide - _width(now, height)) / len(needed)
            yield _Candidate(changed, now, (sum(changed.step_macs) - work + 1) / gain)


def _width(needed: Sequence[int], height: int) -> int:
    return sum(n >= height for n in needed)


def _saved_across(program: Program, peak: int) -> list[Value]:
    """Values that one forward step makes, that later steps read, and that hold at ``peak`` without being used there; in order of steps."""
    steps = program.steps
    ahead, behind = steps[:peak], steps[peak + 1 :]
    made = [v for step in ahead for v in _written(step)]
    used = {v.root for v in _arena(steps[peak])}
    read = {v.root for s in behind for v in _arena(s)}
    return [v for v in made if made.count(v) == 1 and v.base is None and v not in used and v in read]


def _arena(step: Draft) -> list[Value]:
    return [v for v in step.refs.values() if v is not None and v.region is Region.ARENA]


def _written(step: Draft) -> list[Value]:
    found = [step.refs[ref.name] for ref in step.kind.refs if ref.writes]
    return [v for v in found if v is not None and v.region is Region.ARENA]


def _read(step: Draft) -> list[Value]:
    found = [step.refs[ref.name] for ref in step.kind.refs if ref.access != "OUT"]
    return [v for v in found if v is not None]


def made_again(program: Program, value: Value) -> Program | None:
    """The program in which backward makes ``value`` again before it reads it; None where that cannot be."""
    forward, evaluation, loss, backward, commit = program.segments
    readers = [k for k, step in enumerate(backward) if value in _read(step)]
    if not readers or any(value in _written(step) for step in backward):
        return None
    at = readers[0]
    there = {v.root for step in backward[at:] for v in _read(step)} - {v for step in backward[at:] for v in _written(step)}
    chain = _chain(value, _makers(forward), there - {value})
    if chain is None or _changed_before(chain, backward[:at]):
        return None
    fresh: dict[Value, Value] = {v: replace(v) for step in chain for v in _written(step)}
    again = [_renamed(step, fresh, f"{step.label} again") for step in chain]
    swapped = [_renamed(step, {value: fresh[value]}, step.label) for step in backward[at:]]
    return replace(program, segments=(forward, evaluation, loss, (*backward[:at], *again, *swapped), commit))


def _makers(forward: Sequence[Draft]) -> dict[Value, Draft | None]:
    """Value -> the only forward step that writes it; None where there are several, or it writes a part."""
    makers: dict[Value, Draft | None] = {}
    for step in forward:
        for v in _written(step):
            makers[v.root] = None if v.root in makers or v.base is not None else step
    return makers


def _chain(value: Value, makers: Mapping[Value, Draft | None], there: set[Value]) -> list[Draft] | None:
    """Forward steps, in order, that make ``value`` from what is there."""
    chain: list[Draft] = []
    wanted, have = [value], set(there)
    while wanted:
        step = makers.get(wanted[-1].root)
        if step is None or len(chain) + len(wanted) > LONGEST:
            return None
        missing = [v for v in _read(step) if v.region is Region.ARENA and v.root not in have]
        if missing:
            wanted.append(missing[0])
        else:
            chain.append(step)
            have |= {v.root for v in _written(step)}
            wanted.pop()
    return chain


def _changed_before(chain: Sequence[Draft], steps: Sequence[Draft]) -> bool:
    """Whether a step has changed something in STATE that the chain reads."""
    written = {v for step in steps for ref in step.kind.refs if ref.writes for v in [step.refs[ref.name]] if v is not None}
    return any(v in written for step in chain for v in _read(step) if v.region is Region.STATE)


def _renamed(step: Draft, names: Mapping[Value, Value], label: str) -> Draft:
    """The step with other values in place of some. A view of a replaced value is the same view of the new one."""
    refs: dict[str, Value | None] = {}
    for name, v in step.refs.items():
        new = names.get(v.root) if v is not None else None
        refs[name] = v if v is None or new is None else new.view(v.at, v.nbytes)
    return replace(step, label=label, refs=refs)


def work_done_twice(program: Program, whole: Program) -> int:
    """Multiply-accumulates of a step more than in the program as it was lowered."""
    return sum(map(macs, program.steps)) - sum(map(macs, whole.steps))
