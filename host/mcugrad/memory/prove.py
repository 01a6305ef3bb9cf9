"""Proves the addresses of a plan over again, from the plan's bytes and without the planner: every read finds the bytes it was meant to.

Each byte of ARENA, STATE and IO has an owner, the value that was written there last. Steps run in every order in which a device may run
them; what a step reads must belong to the value it means, and what it writes may lie over an input only where SPEC.md section 3 has the
step read ahead of its writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mcugrad.errors import VerifyError
from mcugrad.lower.program import Draft, Program, Value
from mcugrad.memory.overlap import lags
from mcugrad.plan import Region, decode, offset_of, region_of
from mcugrad.plan.codec import DecodedPlan, DecodedStep
from mcugrad.plan.opsdef import TYPES, Ref

RUNS = ((0, 1), (0, 2), (0, 2, 3), (0, 2, 3, 4), (0, 2, 4))
"""Segments that follow each other: predict; a sample that is skipped; one that is learned; the end of a micro-batch after either."""

NOBODY = -1
HINT = "please report it: the plan is wrong"


@dataclass(frozen=True, slots=True)
class Proof:
    """What was looked at. ``references``: those of all steps; ``over``: outputs that lie over an input that dies."""

    steps: int
    references: int
    over: int


@dataclass(slots=True)
class _Memory:
    """``owner``: number of the value that each byte belongs to. ``places``: value -> its reference, the same in every record."""

    owner: dict[Region, npt.NDArray[np.int32]]
    numbers: dict[Value, int] = field(default_factory=dict)
    places: dict[Value, int] = field(default_factory=dict)

    def bytes_of(self, reference: int, nbytes: int, where: str) -> npt.NDArray[np.int32]:
        region, at = region_of(reference), offset_of(reference)
        if at + nbytes > len(self.owner[region]):
            raise VerifyError(f"{where} ends at {at + nbytes:,} of {region.name}, which has {len(self.owner[region]):,} bytes", HINT)
        return self.owner[region][at : at + nbytes]

    def own(self, value: Value, reference: int, where: str) -> None:
        self.bytes_of(reference, value.nbytes, where)[:] = self.numbers.setdefault(value.root, len(self.numbers))

    def read(self, value: Value, reference: int, where: str) -> None:
        seen = self.bytes_of(reference, value.nbytes, where)
        wrong = np.flatnonzero(seen != self.numbers.get(value.root, len(self.numbers)))
        if wrong.size:
            others = {number: v.name for v, number in self.numbers.items()}
            other = others.get(int(seen[wrong[0]]), "nobody")
            raise VerifyError(f"{where} finds {wrong.size:,} of {value.nbytes:,} bytes of {value.name} written by {other}", HINT)

    def place(self, value: Value, reference: int, where: str) -> None:
        """Every record must mean the same place by a value."""
        base = reference - value.at
        if self.places.setdefault(value.root, base) != base:
            raise VerifyError(f"{where} has {value.name} at {base:#x}, another step at {self.places[value.root]:#x}", HINT)


def prove(program: Program, plan_bytes: bytes) -> Proof:
    """Prove the addresses in ``plan_bytes``, which was made from ``program``. Raises VerifyError that names the step and the bytes."""
    plan = decode(plan_bytes)
    head = plan.header
    sizes = {Region.ARENA: head.arena_bytes, Region.CONST: head.const_bytes, Region.STATE: head.state_bytes, Region.IO: head.io_bytes}
    memory = _Memory({region: np.full(n, NOBODY, np.int32) for region, n in sizes.items()})
    records = list(zip(program.steps, plan.steps, strict=True))
    over = sum(_check_record(memory, step, record, plan) for step, record in records)
    _start_state(memory, program, plan)
    starts = [sum(plan.segments[:k]) for k in range(len(plan.segments) + 1)]
    for run in RUNS:
        memory.owner[Region.ARENA][:] = NOBODY
        for value, reference in _from_outside(program, plan):
            memory.own(value, reference, "the host")
        for segment in run:
            for step, record in records[starts[segment] : starts[segment + 1]]:
                _run(memory, step, record)
        for value, reference in _to_outside(program, plan, run):
            memory.read(value, reference, "the host")
    return Proof(len(records), sum(v is not None for step in program.steps for v in step.refs.values()), over)


def _from_outside(program: Program, plan: DecodedPlan) -> Iterator[tuple[Value, int]]:
    """What is written before a run."""
    yield program.sample, plan.header.sample
    yield program.args, plan.header.args
    if program.target is not None:
        yield program.target, plan.header.target


def _to_outside(program: Program, plan: DecodedPlan, run: tuple[int, ...]) -> Iterator[tuple[Value, int]]:
    """What is read after a run."""
    yield program.rng, plan.header.rng
    if 2 in run:
        yield program.result, plan.header.result
    if 1 in run:
        at = plan.header.output
        for value in program.outputs:
            at += -at % value.align
            yield value, at
            at += value.nbytes


def _start_state(memory: _Memory, program: Program, plan: DecodedPlan) -> None:
    """STATE holds its values before the first step, each in bytes of its own."""
    memory.place(program.rng, plan.header.rng, "the header")
    for value, reference in memory.places.items():
        if region_of(reference) is Region.STATE:
            if (memory.bytes_of(reference, value.nbytes, value.name) != NOBODY).any():
                raise VerifyError(f"{value.name} shares bytes of STATE with another value", HINT)
            memory.own(value, reference, value.name)


def _pairs(step: Draft, record: DecodedStep) -> Iterator[tuple[Ref, Value, int]]:
    """(reference of the kind, value, where the record has it)."""
    for ref in step.kind.refs:
        value, reference = step.refs[ref.name], int(record.values[ref.name])
        if value is not None:
            yield ref, value, reference
        elif reference:
            raise VerifyError(f"{step.name}: {ref.name} is unused and not 0", HINT)


def _check_record(memory: _Memory, step: Draft, record: DecodedStep, plan: DecodedPlan) -> int:
    """One record by itself: places, alignment, content of CONST, outputs over inputs. Returns how many of these there are."""
    pairs = list(_pairs(step, record))
    for ref, value, reference in pairs:
        where = f"{step.name}: {ref.name}"
        memory.place(value, reference, where)
        memory.bytes_of(reference, value.nbytes, where)
        if offset_of(reference) % TYPES[ref.type][1]:
            raise VerifyError(f"{where} at {offset_of(reference):,} is not aligned to {TYPES[ref.type][1]}", HINT)
        if region_of(reference) is not value.region or (ref.writes and value.region is Region.CONST):
            raise VerifyError(f"{where} is in {region_of(reference).name}, {value.name} is meant for {value.region.name}", HINT)
        if value.region is Region.CONST and value.data is not None:
            at = offset_of(reference)
            if plan.const[at : at + value.nbytes] != value.data:
                raise VerifyError(f"{where} finds other bytes in CONST than those of {value.name}", HINT)
    return _check_overlaps(step, pairs)


def _check_overlaps(step: Draft, pairs: list[tuple[Ref, Value, int]]) -> int:
    allowed = lags(step.kind, step.scalars)
    found = 0
    for k, (out, y, to) in enumerate(pairs):
        for j, (other, x, at) in enumerate(pairs):
            if not out.writes or j == k or (other.writes and j > k) or to + y.nbytes <= at or at + x.nbytes <= to:
                continue
            lag = allowed.get((other.name, out.name))
            if lag is None or to > at - lag:
                raise VerifyError(f"{step.name} writes {out.name} at {to:#x} over {other.name} at {at:#x} before it is read", HINT)
            found += 1
    return found


def _run(memory: _Memory, step: Draft, record: DecodedStep) -> None:
    pairs = list(_pairs(step, record))
    for ref, value, reference in pairs:
        reads = ref.access == "IN" or (ref.access == "UPD" and step.kind.name != "copy_s8")
        if reads and value.region is not Region.CONST:
            memory.read(value, reference, step.name)
    for ref, value, reference in pairs:
        if ref.writes:
            written = _written(step)
            if written is None:
                memory.own(value, reference, step.name)
            else:
                memory.bytes_of(reference, value.nbytes, step.name)[written] = memory.numbers.setdefault(value.root, len(memory.numbers))


def _written(step: Draft) -> npt.NDArray[np.int64] | None:
    """The bytes of its output that a copy without fill writes; None: a step writes all."""
    s = {k: int(v) for k, v in step.scalars.items()}
    if step.kind.name != "copy_s8" or s["has_fill"]:
        return None
    at = np.array([s["yo"]], np.int64)
    for k in range(4):
        at = np.add.outer(at, np.arange(s[f"d{k}"], dtype=np.int64) * s[f"y{k}"])
    return at.ravel()
