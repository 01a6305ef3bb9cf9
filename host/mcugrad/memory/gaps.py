"""Which differences of offsets the values of the arena forbid each other.

Two values that hold at the same step must not share a byte, unless one is the output of a step that may lie over the other, its input.
For two values this rules out open intervals of the difference of their offsets, which are found once, before anything is placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mcugrad.lower.program import Value
from mcugrad.memory.liveness import Liveness, Over, Piece

_Ints = npt.NDArray[np.int64]


class Gap(NamedTuple):
    """Offset - offset of value ``other`` must not be strictly between ``lo`` and ``hi``."""

    other: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Gaps:
    """``gaps[k]``: what ``values[k]`` must avoid; the gaps with one other value are sorted and do not overlap."""

    values: tuple[Value, ...]
    gaps: tuple[tuple[Gap, ...], ...]

    def apart(self, goal: int) -> tuple[list[int], list[int]]:
        """(values that contend for ``goal`` bytes, the others in the order in which they are to be placed behind them).

        One of the others finds a place however those before it lie: they forbid fewer offsets than there are. Few are left to think about.
        """
        free = [(goal - v.nbytes) // v.align + 1 for v in self.values]
        for k, value in enumerate(self.values):
            free[k] -= sum(_offsets_in(gap, value.align) for gap in self.gaps[k])
        contend = dict.fromkeys(range(len(self.values)))
        easy: list[int] = []
        found = [k for k in contend if free[k] > 0]
        while found:
            k = found.pop()
            if k not in contend:
                continue
            del contend[k]
            easy.append(k)
            for gap in self.gaps[k]:
                free[gap.other] += _offsets_in(gap, self.values[gap.other].align)
                if free[gap.other] > 0:
                    found.append(gap.other)
        return list(contend), easy[::-1]


def _offsets_in(gap: Gap, align: int) -> int:
    """At most so many multiples of ``align`` are in the gap, wherever the other value lies."""
    return -(-(gap.hi - gap.lo - 1) // align)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The pieces of a value that have bytes, a column each (pieces,)."""

    lo: _Ints
    hi: _Ints
    first: _Ints
    last: _Ints


def gaps_of(live: Liveness) -> Gaps:
    """All gaps."""
    values = tuple(live.pieces)
    overs: dict[tuple[Value, Value], list[Over]] = {}
    for over in live.overs:
        overs.setdefault((over.into.root, over.out.root), []).append(over)
    columns = [_columns(live.pieces[v]) for v in values]
    spans = [(int(c.first.min(initial=1 << 30)), int(c.last.max(initial=-1))) for c in columns]
    found: list[list[Gap]] = [[] for _ in values]
    for k, a in enumerate(values):
        for j, b in enumerate(values[:k]):
            if spans[k][0] <= spans[j][1] and spans[j][0] <= spans[k][1]:
                for lo, hi in _between(columns[j], columns[k], overs.get((b, a), ()), overs.get((a, b), ())):
                    found[k].append(Gap(j, lo, hi))
                    found[j].append(Gap(k, -hi, -lo))
    return Gaps(values, tuple(tuple(sorted(gaps)) for gaps in found))


def _columns(pieces: Sequence[Piece]) -> _Pieces:
    return _Pieces(*np.array([p for p in pieces if p.lo < p.hi] or np.empty((0, 4)), np.int64).T)


def _between(a: _Pieces, b: _Pieces, over_a: Sequence[Over], over_b: Sequence[Over]) -> list[tuple[int, int]]:
    """Forbidden offset(b) - offset(a). ``over_a``: steps at which b may lie over a; ``over_b``: a over b."""
    p, q = np.nonzero((a.first[:, None] <= b.last) & (b.first <= a.last[:, None]))
    lo, hi = a.lo[p] - b.hi[q], a.hi[p] - b.lo[q]
    for over in over_a:
        both = _dying(a, over)[p] & _born(b, over)[q]
        lo[both] = np.maximum(lo[both], over.into.at - over.out.at - over.lag)
    for over in over_b:
        both = _dying(b, over)[q] & _born(a, over)[p]
        hi[both] = np.minimum(hi[both], over.out.at - over.into.at + over.lag)
    return _joined([(int(x), int(y)) for x, y in zip(lo, hi, strict=True) if x < y])


def _dying(pieces: _Pieces, over: Over) -> npt.NDArray[np.bool_]:
    """Pieces (of the input's value) that are given up at the step and are inside the input."""
    at, end = over.into.at, over.into.at + over.into.nbytes
    inside: npt.NDArray[np.bool_] = (pieces.last == over.step) & (at <= pieces.lo) & (pieces.hi <= end)
    return inside


def _born(pieces: _Pieces, over: Over) -> npt.NDArray[np.bool_]:
    """Pieces (of the output's value) that the step makes."""
    at, end = over.out.at, over.out.at + over.out.nbytes
    inside: npt.NDArray[np.bool_] = (pieces.first == over.step) & (at <= pieces.lo) & (pieces.hi <= end)
    return inside


def _joined(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same open intervals, joined where they overlap: two that only touch leave the difference between them free."""
    joined: list[tuple[int, int]] = []
    for lo, hi in sorted(gaps):
        if joined and lo < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
        else:
            joined.append((lo, hi))
    return joined
