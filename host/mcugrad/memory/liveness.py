"""Which bytes of a value must hold when, and where the output of a step may lie over an input that dies there."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mcugrad.lower.program import Draft, Value
from mcugrad.memory.overlap import lags
from mcugrad.plan import Region


class Piece(NamedTuple):
    """Bytes [lo, hi) of a value hold from step ``first`` to step ``last``, both inclusive."""

    lo: int
    hi: int
    first: int
    last: int


class Access(NamedTuple):
    """What one step does with bytes [lo, hi) of a value."""

    step: int
    lo: int
    hi: int
    reads: bool
    writes: bool


class Over(NamedTuple):
    """At ``step``, ``out`` (a view) may lie over ``into`` where its address is at least ``lag`` bytes lower."""

    step: int
    into: Value
    out: Value
    lag: int


@dataclass(frozen=True, slots=True)
class Liveness:
    """Of every ARENA value that is no view: its pieces; and what may overlap."""

    pieces: Mapping[Value, tuple[Piece, ...]]
    overs: tuple[Over, ...]


def liveness(steps: Sequence[Draft], before: Iterable[Value] = (), after: Iterable[Value] = ()) -> Liveness:
    """Liveness over a straight list of steps.

    Values of ``before`` are written before the first, those of ``after`` read behind the last.
    """
    accesses: dict[Value, list[Access]] = {v: [Access(0, 0, v.nbytes, False, True)] for v in before}
    overs: list[Over] = []
    for k, step in enumerate(steps):
        for ref in step.kind.refs:
            value = step.refs[ref.name]
            if value is not None and value.region is Region.ARENA:
                reads = ref.access == "IN" or (ref.access == "UPD" and not _fills(step))
                accesses.setdefault(value.root, []).append(Access(k, value.at, value.at + value.nbytes, reads, ref.writes))
        overs += _overs(k, step)
    for v in after:
        accesses.setdefault(v, []).append(Access(len(steps) - 1, 0, v.nbytes, True, False))
    return Liveness({value: pieces(found) for value, found in accesses.items()}, tuple(overs))


def _fills(step: Draft) -> bool:
    """Whether a copy writes all of its output."""
    s = step.scalars
    return step.kind.name == "copy_s8" and bool(s["has_fill"] or s["d0"] * s["d1"] * s["d2"] * s["d3"] == s["yn"])


def _overs(k: int, step: Draft) -> Iterator[Over]:
    """Where the same bytes are read through several references, all of them must allow it: the largest lag counts."""
    allowed = lags(step.kind, step.scalars)
    inputs = {ref.name: v for ref in step.kind.refs if not ref.writes and (v := step.refs[ref.name]) is not None}
    for name, out_name in allowed:
        into, out = inputs.get(name), step.refs[out_name]
        if into is None or out is None or into.region is not Region.ARENA or out.region is not Region.ARENA or into.root is out.root:
            continue
        same = [(n, v.at - into.at) for n, v in inputs.items() if v.root is into.root and _meet(v, into)]
        if all((n, out_name) in allowed for n, _ in same):
            yield Over(k, into, out, max(allowed[n, out_name] - ahead for n, ahead in same))


def _meet(a: Value, b: Value) -> bool:
    """Whether two views of one value have bytes in common."""
    return a.at < b.at + b.nbytes and b.at < a.at + a.nbytes


def pieces(accesses: Sequence[Access]) -> tuple[Piece, ...]:
    """A byte holds from the step that writes it to the last that reads it before the next write."""
    if len({(a.lo, a.hi) for a in accesses}) == 1:
        lo, hi = accesses[0].lo, accesses[0].hi
        return tuple(Piece(lo, hi, first, last) for first, last in _intervals(accesses))
    cuts = sorted({edge for a in accesses for edge in (a.lo, a.hi)})
    joined: list[Piece] = []
    open_pieces: dict[tuple[int, int], int] = {}
    for lo, hi in itertools.pairwise(cuts):
        spans = _intervals([a for a in accesses if a.lo <= lo and hi <= a.hi])
        for span in spans:
            at = open_pieces.get(span)
            if at is not None and joined[at].hi == lo:
                joined[at] = joined[at]._replace(hi=hi)
            else:
                open_pieces[span] = len(joined)
                joined.append(Piece(lo, hi, *span))
    return tuple(joined)


def _intervals(accesses: Sequence[Access]) -> list[tuple[int, int]]:
    """(first, last) of every content that the same bytes hold; accesses in the order of steps."""
    found: list[tuple[int, int]] = []
    for a in accesses:
        if (a.writes and not a.reads) or not found:
            found.append((a.step, a.step))
        else:
            found[-1] = (found[-1][0], a.step)
    return found
