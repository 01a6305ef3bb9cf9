"""Offsets in the arena: first fit in several orders, from below and from above, the smallest kept.

Two values that hold at the same step must not share a byte, unless one is the output of a step that may lie over the other, its input.
For every pair the differences of offsets that this forbids are open intervals, found once; placing a value is then looking for the
lowest or highest offset outside the intervals of all that is placed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mcugrad.lower.program import Value
from mcugrad.memory.liveness import Liveness, Over, Piece

Interval = tuple[int, int]
"""Both ends excluded."""

Forbidden = Mapping[Value, Sequence[tuple[Value, Sequence[Interval]]]]
"""Value -> (other value, differences offset - offset of the other that are forbidden)."""


def align_up(n: int, align: int) -> int:
    return -(-n // align) * align


def forbidden(live: Liveness) -> Forbidden:
    """For every value, what the offset of each other one forbids."""
    values = list(live.pieces)
    overs: dict[tuple[Value, Value], list[Over]] = {}
    for over in live.overs:
        overs.setdefault((over.into.root, over.out.root), []).append(over)
    spans = {v: (min(p.first for p in live.pieces[v]), max(p.last for p in live.pieces[v])) for v in values}
    found: dict[Value, list[tuple[Value, Sequence[Interval]]]] = {v: [] for v in values}
    for k, a in enumerate(values):
        for b in values[:k]:
            if spans[a][0] > spans[b][1] or spans[b][0] > spans[a][1]:
                continue
            gaps = _between(live.pieces[a], live.pieces[b], overs.get((a, b), []), overs.get((b, a), []))
            if gaps:
                found[b].append((a, gaps))
                found[a].append((b, [(-hi, -lo) for lo, hi in gaps]))
    return found


def _between(a: Sequence[Piece], b: Sequence[Piece], over_a: Sequence[Over], over_b: Sequence[Over]) -> list[Interval]:
    """Forbidden offset(b) - offset(a). ``over_a``: steps at which b may lie over a; ``over_b``: a over b."""
    gaps: list[Interval] = []
    for p in a:
        for q in b:
            if p.first > q.last or q.first > p.last:
                continue
            lo, hi = p.lo - q.hi, p.hi - q.lo
            for over in over_a:
                if p.last == over.step == q.first and _inside(p, over.into) and _inside(q, over.out):
                    lo = max(lo, over.into.at - over.out.at - over.lag)
            for over in over_b:
                if q.last == over.step == p.first and _inside(q, over.into) and _inside(p, over.out):
                    hi = min(hi, over.lag - over.into.at + over.out.at)
            if lo < hi:
                gaps.append((lo, hi))
    return _merged(gaps)


def _inside(piece: Piece, view: Value) -> bool:
    return view.at <= piece.lo and piece.hi <= view.at + view.nbytes


def _merged(gaps: list[Interval]) -> list[Interval]:
    """The same open intervals, joined where they overlap: two that only touch leave the offset between them free."""
    joined: list[Interval] = []
    for lo, hi in sorted(gaps):
        if joined and lo < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
        else:
            joined.append((lo, hi))
    return joined


Order = Callable[[Value, tuple[Piece, ...]], tuple[int, ...]]


def _first(pieces: tuple[Piece, ...]) -> int:
    return min(p.first for p in pieces)


def _last(pieces: tuple[Piece, ...]) -> int:
    return max(p.last for p in pieces)


_ORDERS: tuple[Order, ...] = (
    lambda v, p: (-v.nbytes, _first(p)),
    lambda v, p: (-v.nbytes * (_last(p) - _first(p) + 1), _first(p)),
    lambda v, p: (_first(p) - _last(p), -v.nbytes),
    lambda v, p: (_first(p), -v.nbytes),
    lambda v, p: (-_last(p), -v.nbytes),
)


def place_arena(live: Liveness) -> tuple[dict[Value, int], int]:
    """(offsets, bytes) of the smallest placement found."""
    gaps = forbidden(live)
    best: tuple[dict[Value, int], int] | None = None
    for order in _ORDERS:
        values = sorted(live.pieces, key=lambda v: order(v, live.pieces[v]))
        for place in (_lowest, _highest):
            offsets = _placed(values, gaps, place)
            size = max((offset + v.nbytes for v, offset in offsets.items()), default=0)
            if best is None or size < best[1]:
                best = offsets, size
    assert best is not None
    return best


Place = Callable[[Value, Sequence[Interval]], int]


def _placed(values: Sequence[Value], gaps: Forbidden, place: Place) -> dict[Value, int]:
    """Place one after the other; shifted so that the lowest is at 0."""
    offsets: dict[Value, int] = {}
    for value in values:
        taken = [(offsets[v] + lo, offsets[v] + hi) for v, spans in gaps[value] if v in offsets for lo, hi in spans]
        offsets[value] = place(value, sorted(taken))
    base = min(offsets.values(), default=0)
    return {v: at - base for v, at in offsets.items()}


def _lowest(value: Value, taken: Sequence[Interval]) -> int:
    """The lowest aligned offset >= 0 outside the intervals."""
    at = 0
    for lo, hi in taken:
        if lo < at < hi:
            at = align_up(hi, value.align)
    return at


MIRROR = 1 << 26
"""Where placing from above starts: a multiple of every alignment."""


def _highest(value: Value, taken: Sequence[Interval]) -> int:
    """The highest aligned offset outside the intervals with which the value ends at or below MIRROR."""
    at = (MIRROR - value.nbytes) // value.align * value.align
    for lo, hi in sorted(taken, key=lambda t: -t[1]):
        if lo < at < hi:
            at = lo // value.align * value.align
    return at
