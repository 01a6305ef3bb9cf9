"""The order of the steps of a segment: among those that could be next, the one that leaves the fewest bytes alive.

A step comes behind the writers of what it reads, and behind the readers and writers of what it writes: values, updates included, are the
same whatever the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcugrad.lower.program import Draft, Program, Value
from mcugrad.memory.liveness import liveness
from mcugrad.memory.planner import step_bytes
from mcugrad.plan import Region


def reorder(program: Program) -> Program:
    """The program with its forward and backward steps in another order, where that lowers the bytes that ARENA needs at least."""
    forward, evaluation, loss, backward, commit = program.segments
    behind = (*evaluation, *loss, *backward)
    ahead = (*forward, *evaluation, *loss)
    orders = [
        (greedy(forward, ahead=(), behind=behind), backward),
        (forward, greedy(backward, ahead=ahead, behind=())),
    ]
    orders.append((orders[0][0], orders[1][1]))
    best = program
    for changed in orders:
        found = replace(program, segments=(changed[0], evaluation, loss, changed[1], commit))
        if _peak(found) < _peak(best):
            best = found
    return best


def _peak(program: Program) -> int:
    return max(step_bytes(liveness(program.steps, [program.sample]), len(program.steps)), default=0)


def greedy(steps: Sequence[Draft], ahead: Sequence[Draft], behind: Sequence[Draft]) -> tuple[Draft, ...]:
    """The steps in an order that keeps few bytes alive. ``ahead`` and ``behind``: steps that run before and after all of them."""
    waits = dependencies(steps)
    kept = {v.root for step in behind for v in _values(step)}
    alive = {v.root for step in ahead for v in _values(step)}
    readers = _users(steps)
    order: list[int] = []
    left = dict(enumerate(steps))
    while left:
        ready = [k for k in left if not any(j in left for j in waits[k])]
        k = min(ready, key=lambda k: (_grown(k, steps[k], readers, left, alive, kept), k))
        del left[k]
        alive |= {v.root for v in _values(steps[k])}
        order.append(k)
    return tuple(steps[k] for k in order)


def _grown(k: int, step: Draft, users: Mapping[Value, set[int]], left: Mapping[int, Draft], alive: set[Value], kept: set[Value]) -> int:
    """Bytes alive after the step, less those before it."""
    grown = 0
    for v in {v.root for v in _values(step)}:
        ends = v not in kept and not any(j != k and j in left for j in users[v])
        grown += (0 if v in alive else v.nbytes) - (v.nbytes if ends else 0)
    return grown


def _values(step: Draft) -> list[Value]:
    return [v for v in step.refs.values() if v is not None and v.region is Region.ARENA]


def _users(steps: Sequence[Draft]) -> dict[Value, set[int]]:
    found: dict[Value, set[int]] = {}
    for k, step in enumerate(steps):
        for v in _values(step):
            found.setdefault(v.root, set()).add(k)
    return found


def dependencies(steps: Sequence[Draft]) -> list[set[int]]:
    """Per step, the indices of the earlier ones that it must come behind."""
    writer: dict[Value, int] = {}
    readers: dict[Value, set[int]] = {}
    found: list[set[int]] = []
    for k, step in enumerate(steps):
        waits: set[int] = set()
        for ref in step.kind.refs:
            value = step.refs[ref.name]
            if value is None or value.region is Region.CONST:
                continue
            root = value.root
            if root in writer:
                waits.add(writer[root])
            if ref.writes:
                waits |= readers.get(root, set())
        for ref in step.kind.refs:
            value = step.refs[ref.name]
            if value is not None and ref.writes:
                writer[value.root] = k
                readers[value.root] = set()
            elif value is not None:
                readers.setdefault(value.root, set()).add(k)
        found.append(waits - {k})
    return found
