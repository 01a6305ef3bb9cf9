"""Addresses for every value: lifetimes over the straight list of steps, then first fit in several orders, the best kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mcugrad.lower.program import Program, Value
from mcugrad.plan import Region


@dataclass(frozen=True, slots=True)
class Lifetime:
    """First and last step (inclusive) at which a value must hold."""

    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is. ``offsets``: bytes into the value's region. ``lower_bound``: the largest sum of live bytes at one step.

    ``peak_step`` is the index of that step in Program.steps.
    """

    offsets: Mapping[Value, int]
    sizes: Mapping[Region, int]
    lifetimes: Mapping[Value, Lifetime]
    lower_bound: int
    peak_step: int


REGION_ALIGN = 16


def align_up(n: int, align: int) -> int:
    return -(-n // align) * align


def place(program: Program) -> Layout:
    """Give every value of the program an offset in its region."""
    lifetimes = arena_lifetimes(program)
    live = live_bytes(lifetimes, len(program.steps))
    offsets, arena = place_arena(lifetimes)
    sizes = {Region.ARENA: align_up(arena, REGION_ALIGN)}
    for region in (Region.CONST, Region.STATE, Region.IO):
        placed, size = _place_in_line(_values(program, region))
        offsets |= placed
        sizes[region] = align_up(size, REGION_ALIGN)
    peak = max(range(len(live)), key=lambda k: live[k], default=0)
    return Layout(offsets, sizes, lifetimes, max(live, default=0), peak)


def _values(program: Program, region: Region) -> list[Value]:
    """All values of a region: rng, samples and outputs first, each in a row, then in the order of first use."""
    named = [v for step in program.steps for v in step.refs.values()]
    first = [program.rng, *program.samples, program.target, program.args, program.result, *program.outputs]
    return [v for v in dict.fromkeys([*first, *named]) if v is not None and v.region is region]


def arena_lifetimes(program: Program) -> dict[Value, Lifetime]:
    """Lifetime of every ARENA value: from the first step that names it to the last."""
    found: dict[Value, Lifetime] = {}
    for k, step in enumerate(program.steps):
        for value in step.refs.values():
            if value is not None and value.region is Region.ARENA:
                found[value] = Lifetime(found[value].first if value in found else k, k)
    return found


def live_bytes(lifetimes: Mapping[Value, Lifetime], steps: int) -> list[int]:
    """Bytes that must exist at each step, alignment included."""
    live = [0] * steps
    for value, life in lifetimes.items():
        for k in range(life.first, life.last + 1):
            live[k] += align_up(value.nbytes, value.align)
    return live


_ORDERS: tuple[Callable[[Value, Lifetime], tuple[int, ...]], ...] = (
    lambda v, t: (-v.nbytes, t.first),
    lambda v, t: (-v.nbytes * (t.last - t.first + 1), t.first),
    lambda v, t: (t.first - t.last, -v.nbytes),
    lambda v, t: (t.first, -v.nbytes),
    lambda v, t: (-t.last, -v.nbytes),
)


def place_arena(lifetimes: Mapping[Value, Lifetime]) -> tuple[dict[Value, int], int]:
    """(offsets, bytes) of the best of several first-fit orders. Values that live at the same step never share bytes."""
    best: tuple[dict[Value, int], int] | None = None
    for order in _ORDERS:
        values = sorted(lifetimes, key=lambda v: order(v, lifetimes[v]))
        placed = _first_fit(values, lifetimes)
        size = max((offset + v.nbytes for v, offset in placed.items()), default=0)
        if best is None or size < best[1]:
            best = placed, size
    assert best is not None
    return best


def _first_fit(values: Sequence[Value], lifetimes: Mapping[Value, Lifetime]) -> dict[Value, int]:
    placed: dict[Value, int] = {}
    for value in values:
        taken = sorted((placed[v], v.nbytes) for v in placed if lifetimes[v].overlaps(lifetimes[value]))
        offset = 0
        for start, nbytes in taken:
            if offset + value.nbytes <= start:
                break
            offset = max(offset, align_up(start + nbytes, value.align))
        placed[value] = offset
    return placed


def _place_in_line(values: Sequence[Value]) -> tuple[dict[Value, int], int]:
    """One behind the other; values in CONST with the same bytes share one place."""
    offsets: dict[Value, int] = {}
    shared: dict[tuple[bytes, int], int] = {}
    end = 0
    for value in values:
        key = (value.data, value.align) if value.region is Region.CONST and value.data is not None else None
        if key in shared and key is not None:
            offsets[value] = shared[key]
            continue
        offsets[value] = align_up(end, value.align)
        end = offsets[value] + value.nbytes
        if key is not None:
            shared[key] = offsets[value]
    return offsets, end
