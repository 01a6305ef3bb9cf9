"""Offsets in the arena: first fit, again and again; what did not fit comes earlier the next time.

Values go to the lowest offset that is left, or to the highest below a goal. A sample that is read from its start while the output grows
has to lie at the top with the output chasing it from below, so both directions are tried, each from several orders. A value that ends up
beyond the goal moves forward in the order. All is repeatable: the moves come from a generator with a fixed seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

from mcugrad.lower.program import Value
from mcugrad.memory.gaps import Gaps, gaps_of
from mcugrad.memory.liveness import Liveness, Piece

ROUNDS = 40
"""First fits from one order in one direction."""

Offsets = dict[int, int]
"""Index of a value -> its offset."""


def align_up(n: int, align: int) -> int:
    return -(-n // align) * align


def place_arena(live: Liveness, goal: int) -> tuple[dict[Value, int], int]:
    """(offsets, bytes) of the smallest placement found. ``goal``: a lower bound; what reaches it is taken at once."""
    gaps = gaps_of(live)
    contend, easy = gaps.apart(goal)
    return complete(gaps, _best(gaps, contend, _orders(live, gaps, contend), goal), easy)


def complete(gaps: Gaps, offsets: Mapping[int, int], rest: Sequence[int]) -> tuple[dict[Value, int], int]:
    """(offsets of all values, bytes): those of ``rest`` go to the lowest offset that is left, one after the other."""
    placed = dict(offsets)
    for k in rest:
        placed[k] = _lowest(gaps, k, placed)
    return {v: placed[k] for k, v in enumerate(gaps.values)}, _size(gaps, placed)


def _size(gaps: Gaps, offsets: Mapping[int, int]) -> int:
    return max((at + gaps.values[k].nbytes for k, at in offsets.items()), default=0)


def _orders(live: Liveness, gaps: Gaps, contend: Sequence[int]) -> list[list[int]]:
    """Large ones first, large and long first, long first, in the order of steps, and backwards."""

    def order(key: Callable[[int, int, int], tuple[int, ...]]) -> list[int]:
        return sorted(contend, key=lambda k: key(gaps.values[k].nbytes, *_span(live.pieces[gaps.values[k]])))

    return [
        order(lambda n, first, last: (-n, first)),
        order(lambda n, first, last: (-n * (last - first + 1), first)),
        order(lambda n, first, last: (first - last, -n)),
        order(lambda n, first, last: (first, -n)),
        order(lambda n, first, last: (-last, -n)),
    ]


def _span(pieces: Sequence[Piece]) -> tuple[int, int]:
    return min(p.first for p in pieces), max(p.last for p in pieces)


def _best(gaps: Gaps, contend: Sequence[int], orders: Sequence[list[int]], goal: int) -> Offsets:
    """The smallest placement of the values that contend."""
    best: Offsets = {}
    size = 1 << 62
    moves = random.Random(0)
    for order in orders:
        for place in (_highest, _lowest):
            tried = order
            for _ in range(ROUNDS):
                offsets = _placed(gaps, tried, place, goal)
                beyond = {k for k, at in offsets.items() if at < 0 or at + gaps.values[k].nbytes > goal}
                offsets = _from_0(gaps, offsets)
                if _size(gaps, offsets) < size:
                    best, size = offsets, _size(gaps, offsets)
                if size <= goal:
                    return best
                places = {k: at * moves.random() - 1 if k in beyond else at for at, k in enumerate(tried)}
                tried = sorted(tried, key=lambda k: places[k])
    return best


_Place = Callable[[Gaps, int, Mapping[int, int], int], int]


def _placed(gaps: Gaps, order: Sequence[int], place: _Place, end: int) -> Offsets:
    """One after the other."""
    offsets: Offsets = {}
    for k in order:
        offsets[k] = place(gaps, k, offsets, end)
    return offsets


def _from_0(gaps: Gaps, offsets: Offsets) -> Offsets:
    """Moved together so that the lowest value starts at 0, or as near as the alignments allow."""
    base = min(offsets.values(), default=0)
    base -= base % math.lcm(*(v.align for v in gaps.values))
    return {k: at - base for k, at in offsets.items()}


def _taken(gaps: Gaps, k: int, offsets: Mapping[int, int]) -> list[tuple[int, int]]:
    """The open intervals of offsets that those placed leave value k no place in."""
    return [(offsets[j] + lo, offsets[j] + hi) for j, lo, hi in gaps.gaps[k] if j in offsets]


def _lowest(gaps: Gaps, k: int, offsets: Mapping[int, int], _: int = 0) -> int:
    """The lowest offset >= 0 that is left."""
    at, align = 0, gaps.values[k].align
    for lo, hi in sorted(_taken(gaps, k, offsets)):
        if lo < at < hi:
            at = align_up(hi, align)
    return at


def _highest(gaps: Gaps, k: int, offsets: Mapping[int, int], end: int) -> int:
    """The highest offset that is left with which the value ends at or below ``end``: below 0 where nothing is."""
    value = gaps.values[k]
    at = (end - value.nbytes) // value.align * value.align
    for lo, hi in sorted(_taken(gaps, k, offsets), key=lambda t: -t[1]):
        if lo < at < hi:
            at = lo // value.align * value.align
    return at
