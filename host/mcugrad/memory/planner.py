"""Addresses for every value of a program, region by region."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mcugrad.lower.program import Program, Value
from mcugrad.memory.liveness import Liveness, Over, Piece, liveness
from mcugrad.memory.offsets import align_up, place_arena
from mcugrad.plan import Region


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is. ``offsets``: bytes into the region, of every value that is no view.

    ``live``: which bytes of the arena hold when. ``lower_bound``: no arena can be smaller. ``peak_step``: the index in Program.steps of
    the step that needs so much.
    """

    offsets: Mapping[Value, int]
    sizes: Mapping[Region, int]
    live: Liveness
    lower_bound: int
    peak_step: int

    def offset(self, value: Value) -> int:
        """Bytes into the region, of a value or a view."""
        return self.offsets[value.root] + value.at


REGION_ALIGN = 16


def place(program: Program) -> Layout:
    """Give every value of the program an offset in its region."""
    live = liveness(program.steps, [program.sample])
    needed = step_bytes(live, len(program.steps))
    offsets, arena = place_arena(live, align_up(max(needed, default=0), REGION_ALIGN))
    sizes = {Region.ARENA: align_up(arena, REGION_ALIGN)}
    for region in (Region.CONST, Region.STATE, Region.IO):
        placed, size = _place_in_line([v for v in program.fixed if v.region is region])
        offsets |= placed
        sizes[region] = align_up(size, REGION_ALIGN)
    peak = max(range(len(needed)), key=lambda k: needed[k], default=0)
    return Layout(offsets, sizes, live, max(needed, default=0), peak)


def step_bytes(live: Liveness, steps: int) -> list[int]:
    """Bytes that each step needs at least: all that holds, less what its outputs may share with the inputs that die."""
    change = [0] * (steps + 1)
    for found in live.pieces.values():
        for p in found:
            change[p.first] += p.hi - p.lo
            change[p.last + 1] -= p.hi - p.lo
    needed, now = [], 0
    for k in range(steps):
        now += change[k]
        needed.append(now)
    for (step, out), overs in _by_output(live.overs).items():
        shared = sum(_shared(live, over) for over in overs)
        needed[step] -= min(shared, out.nbytes)
    return needed


def _by_output(overs: Iterable[Over]) -> dict[tuple[int, Value], list[Over]]:
    """By step and output: a buffer of stripes is the output of many steps."""
    found: dict[tuple[int, Value], list[Over]] = {}
    for over in overs:
        found.setdefault((over.step, over.out), []).append(over)
    return found


def _shared(live: Liveness, over: Over) -> int:
    """The most bytes that output and input can share."""
    dying = sum(p.hi - p.lo for p in live.pieces[over.into.root] if p.last == over.step and _in(p, over.into))
    born = sum(p.hi - p.lo for p in live.pieces[over.out.root] if p.first == over.step and _in(p, over.out))
    both = over.into.nbytes + over.out.nbytes - max(over.into.nbytes + over.lag, over.out.nbytes)
    return max(0, min(dying, born, both))


def _in(piece: Piece, view: Value) -> bool:
    return view.at <= piece.lo and piece.hi <= view.at + view.nbytes


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
