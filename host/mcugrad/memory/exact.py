"""The smallest arena there is, by mixed-integer programming: the yardstick for first fit (memory/offsets.py). Needs scipy (extra `search`).

One whole number per value, its offset in units of its alignment; one bit per gap, above it or below; the arena ends behind every value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mcugrad.errors import UsageError
from mcugrad.lower.program import Value
from mcugrad.memory.gaps import Gaps, gaps_of
from mcugrad.memory.liveness import Liveness
from mcugrad.memory.offsets import complete, place_arena


@dataclass(slots=True)
class _Rows:
    """Constraints sum(factor * variable) <= limit."""

    row: list[int] = field(default_factory=list)
    variable: list[int] = field(default_factory=list)
    factor: list[int] = field(default_factory=list)
    limit: list[int] = field(default_factory=list)

    def add(self, limit: int, *terms: tuple[int, int]) -> None:
        """``terms``: (variable, factor)."""
        for variable, factor in terms:
            self.row.append(len(self.limit))
            self.variable.append(variable)
            self.factor.append(factor)
        self.limit.append(limit)


def exact_arena(live: Liveness, least: int, seconds: float) -> tuple[dict[Value, int], int, bool]:
    """(offsets, bytes, whether it is proven that no arena is smaller).

    ``least``: a lower bound. Starts from first fit and looks for anything smaller, for ``seconds`` at most. Raises UsageError where scipy
    is missing.
    """
    offsets, size = place_arena(live, least)
    if size <= least:
        return offsets, size, True
    gaps = gaps_of(live)
    contend, easy = gaps.apart(least)
    found, proven = _solve(gaps, contend, least, size, seconds)
    if found is None:
        return offsets, size, proven
    return *complete(gaps, found, easy), proven


def _solve(gaps: Gaps, contend: Sequence[int], least: int, most: int, seconds: float) -> tuple[dict[int, int] | None, bool]:
    """Offsets of the values that contend in an arena of ``least`` to ``most`` bytes, and whether they are the best."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415  needs the extra
        from scipy.sparse import csr_matrix  # noqa: PLC0415
    except ImportError:
        raise UsageError("the exact arena needs scipy", "pip install 'mcugrad[search]'") from None
    rows, bits = _avoiding(gaps, contend, most)
    arena = len(contend) + bits
    values = [gaps.values[k] for k in contend]
    for at, v in enumerate(values):
        rows.add(-v.nbytes, (at, v.align), (arena, -1))
    result = milp(
        np.eye(1, arena + 1, arena)[0],
        constraints=LinearConstraint(
            csr_matrix((rows.factor, (rows.row, rows.variable)), (len(rows.limit), arena + 1)), -np.inf, rows.limit
        ),
        bounds=Bounds([0] * arena + [least], [*((most - v.nbytes) // v.align for v in values), *([1] * bits), most]),
        integrality=[1] * arena + [0],
        options={"time_limit": seconds},
    )
    if result.x is None:
        return None, False
    return {k: round(result.x[at]) * v.align for at, (k, v) in enumerate(zip(contend, values, strict=True))}, result.status == 0


def _avoiding(gaps: Gaps, contend: Sequence[int], most: int) -> tuple[_Rows, int]:
    """The constraints that keep out of every gap, and the number of bits that say on which side; the bits follow the offsets.

    The gaps of two values are sorted: what is above one is above those before it.
    """
    rows = _Rows()
    number = {k: at for at, k in enumerate(contend)}
    bit = len(contend)
    for k in contend:
        before = -1
        for gap in gaps.gaps[k]:
            if gap.other >= k or gap.other not in number:
                continue
            a, b = gaps.values[k], gaps.values[gap.other]
            x, y = (number[k], a.align), (number[gap.other], -b.align)
            lowest, highest = b.nbytes - most, most - a.nbytes
            rows.add(-lowest, _minus(x), _minus(y), (bit, gap.hi - lowest))
            rows.add(gap.lo, x, y, (bit, gap.lo - highest))
            if gap.other == before:
                rows.add(0, (bit, 1), (bit - 1, -1))
            before = gap.other
            bit += 1
    return rows, bit - len(contend)


def _minus(term: tuple[int, int]) -> tuple[int, int]:
    return term[0], -term[1]
