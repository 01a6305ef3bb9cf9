"""Runs a few layers in a row some rows at a time, so that the maps between them never exist as a whole.

Each layer makes only the rows that the next needs. The rows between are in a buffer of their own; what the next stripe needs again (the
halo of a window) is moved to the front of the buffer, or made again. Every row is computed by the same kernel from the same rows: the
result is the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mcugrad.lower.program import Draft, Value
from mcugrad.plan import Region, opsdef
from mcugrad.schedule.rows import Rows, Span, part, rows_of

MAX_DIM = 65535


@dataclass(frozen=True, slots=True)
class Stripes:
    """Steps ``first`` to ``last`` (inclusive) of the forward segment in stripes of ``rows`` output rows.

    ``again``: rows that two stripes need are made twice; else they are kept.
    """

    first: int
    last: int
    rows: int
    again: bool


@dataclass(frozen=True, slots=True)
class _Member:
    """One step of a group. ``height``: rows of its output. ``readers``: members that read it. ``inner``: nobody else does."""

    step: Draft
    rows: Rows
    out: Value
    row_bytes: int
    height: int
    readers: tuple[int, ...]
    inner: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Steps that can be run in stripes. ``main``: the index of the member whose rows set the pace."""

    members: tuple[_Member, ...]
    main: int

    @property
    def height(self) -> int:
        return self.members[self.main].height


def heights_of(steps: Sequence[Draft]) -> dict[Value, int]:
    """Rows of every tensor that a window reads or makes, and of those that elementwise steps make of them."""
    heights: dict[Value, int] = {}
    for step in steps:
        if "h" in step.scalars and "p" in step.scalars:
            for name, rows in (("x", "h"), ("y", "p")):
                value = step.refs.get(name)
                if value is not None:
                    heights[value] = int(step.scalars[rows])
        else:
            rows_found = rows_of(step, heights)
            for name, row_bytes in rows_found.outputs.items() if rows_found else ():
                out = step.refs[name]
                if out is not None:
                    heights[out] = out.nbytes // row_bytes
    return heights


def group(steps: Sequence[Draft], first: int, last: int, heights: Mapping[Value, int], outside: Collection[Value]) -> Group | None:
    """Steps first … last as a group, or None where they cannot be run in stripes.

    ``outside``: values that steps before or behind them name.
    """
    chosen = steps[first : last + 1]
    kept = set(outside)
    maker: dict[Value, int] = {}
    found: list[tuple[Rows, Value, int]] = []
    for k, step in enumerate(chosen):
        rows = rows_of(step, heights)
        if rows is None or any(v is not None and v.base is not None for v in step.refs.values()):
            return None
        (name,) = rows.outputs
        out = step.refs[name]
        if out is None or out.region is not Region.ARENA or rows.outputs[name] > MAX_DIM:
            return None
        maker[out] = k
        found.append((rows, out, rows.outputs[name]))
    if not _same_rows(chosen, found, maker):
        return None
    readers = _readers(chosen, found, maker)
    main = max((k for k, step in enumerate(chosen) if not _is_copy(step)), default=-1)
    members = tuple(
        _Member(step, rows, out, row, out.nbytes // row, tuple(readers[k]), out not in kept)
        for k, (step, (rows, out, row)) in enumerate(zip(chosen, found, strict=True))
    )
    joined = all(m.readers or k == main or (_is_copy(m.step) and _input_maker(m, maker) is not None) for k, m in enumerate(members))
    paced = all(k == main or _is_copy(m.step) or any(not _is_copy(chosen[j]) for j in m.readers) for k, m in enumerate(members))
    return Group(members, main) if main >= 0 and joined and paced else None


def _is_copy(step: Draft) -> bool:
    """A mask or the copy of some channels: it goes along with what it reads."""
    return step.kind.name in ("mask_s8", "copy_s8")


def _input_maker(member: _Member, maker: Mapping[Value, int]) -> int | None:
    value = member.step.refs[next(iter(member.rows.inputs))]
    return None if value is None else maker.get(value)


def _same_rows(chosen: Sequence[Draft], found: Sequence[tuple[Rows, Value, int]], maker: Mapping[Value, int]) -> bool:
    """Whether every reader sees the rows that were written: not where it reads the map in another shape."""
    reads = ((chosen[k].refs[name], row_bytes) for k, (rows, _, _) in enumerate(found) for name, row_bytes in rows.inputs.items())
    return all(value is None or value not in maker or found[maker[value]][2] == row_bytes for value, row_bytes in reads)


def _readers(chosen: Sequence[Draft], found: Sequence[tuple[Rows, Value, int]], maker: Mapping[Value, int]) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in chosen]
    for k, (rows, _, _) in enumerate(found):
        for name in rows.inputs:
            value = chosen[k].refs[name]
            if value is not None and value in maker and maker[value] != k:
                readers[maker[value]].append(k)
    return readers


def in_stripes(g: Group, rows: int, *, again: bool) -> list[Draft]:
    """The steps of the group, ``rows`` output rows of its main member at a time."""
    pace = _paces(g, rows, again=again)
    buffers = {m.out: _buffer(m, [p[k] for p in pace]) for k, m in enumerate(g.members) if m.inner}
    steps: list[Draft] = []
    for at, stripe in enumerate(pace):
        for k, member in enumerate(g.members):
            made = stripe[k]
            if at and member.inner:
                steps += _move(member, buffers[member.out], pace[at - 1][k], made)
            if made.stop > made.start:
                steps.append(_part(g, k, stripe, buffers))
    return steps


@dataclass(frozen=True, slots=True)
class _Pace:
    """What a member does in one stripe: it makes rows [start, stop); its buffer then holds [low, stop)."""

    start: int
    stop: int
    low: int


def _paces(g: Group, rows: int, *, again: bool) -> list[list[_Pace]]:
    """Per stripe, per member."""
    done = [0] * len(g.members)
    found: list[list[_Pace]] = []
    while done[g.main] < g.height:
        stop = min(g.height, done[g.main] + rows)
        stripe = _pace(g, done, stop, again=again)
        done = [p.stop for p in stripe]
        found.append(stripe)
    return found


def _pace(g: Group, done: Sequence[int], stop: int, *, again: bool) -> list[_Pace]:
    """One stripe, up to row ``stop`` of the main member; the last one finishes every member."""
    ends = _ends(g, done, stop)
    pace: list[_Pace | None] = [None] * len(g.members)
    for k in range(len(g.members) - 1, -1, -1):
        member = g.members[k]
        lows = [_low(g, k, j, pace, ends[k]) for j in member.readers]
        low = max(0, min([*lows, ends[k]]))
        start = low if again else max(done[k], low)
        pace[k] = _Pace(start if member.inner else done[k], ends[k], low)
    return [p for p in pace if p is not None]


def _ends(g: Group, done: Sequence[int], stop: int) -> list[int]:
    """The row each member has made after this stripe."""
    if stop == g.height:
        return [m.height for m in g.members]
    ends = [-1] * len(g.members)
    ends[g.main] = stop
    for k in range(len(g.members) - 1, -1, -1):
        member = g.members[k]
        if k != g.main and not _is_copy(member.step):
            needed = [
                g.members[j].rows.window.needs(Span(done[j], ends[j]), member.height).stop
                for j in member.readers
                if not _is_copy(g.members[j].step)
            ]
            ends[k] = max(done[k], *needed)
    for k, member in enumerate(g.members):
        if _is_copy(member.step):
            source = next(j for j, m in enumerate(g.members) if k in m.readers)
            ends[k] = ends[source]
    return ends


def _low(g: Group, k: int, reader: int, pace: Sequence[_Pace | None], end: int) -> int:
    """The first row of member ``k`` that a reader reads from now on."""
    member, p = g.members[reader], pace[reader]
    assert p is not None
    if p.start >= member.height:
        return end
    return member.rows.window.needs(Span(p.start, max(p.stop, p.start + 1)), g.members[k].height).start


def _buffer(member: _Member, pace: Sequence[_Pace]) -> Value:
    rows = max(p.stop - p.low for p in pace)
    return replace(member.out, name=f"rows of {member.out.name}", nbytes=rows * member.row_bytes)


def _move(member: _Member, buffer: Value, before: _Pace, now: _Pace) -> list[Draft]:
    """Rows [now.low, now.start) go to the front of the buffer."""
    rows = now.start - now.low
    shift = now.low - before.low
    if rows <= 0 or shift <= 0:
        return []
    n = rows * member.row_bytes
    copy = opsdef.kinds()["copy_s8"]
    scalars = {s.name: 0 for s in copy.scalars}
    scalars |= {"xn": n, "yn": n, "d0": 1, "d1": 1, "d2": rows, "d3": member.row_bytes}
    scalars |= {"x2": member.row_bytes, "y2": member.row_bytes, "x3": 1, "y3": 1}
    refs = {"x": buffer.view(shift * member.row_bytes, n), "y": buffer.view(0, n)}
    return [Draft(copy, f"{member.step.label} keeps {rows} rows", scalars, refs)]


def _part(g: Group, k: int, stripe: Sequence[_Pace], buffers: Mapping[Value, Value]) -> Draft:
    """Member ``k`` for the rows of this stripe."""
    member = g.members[k]
    made = Span(stripe[k].start, stripe[k].stop)
    refs = dict(member.step.refs)
    spans: dict[str, Span] = {}
    lows = {m.out: p.low for m, p in zip(g.members, stripe, strict=True)}
    for name, row_bytes in member.rows.inputs.items():
        value = refs[name]
        assert value is not None
        spans[name] = member.rows.window.needs(made, value.nbytes // row_bytes)
        refs[name] = _cut(value, spans[name], row_bytes, buffers, lows)
    for name, row_bytes in member.rows.outputs.items():
        refs[name] = _cut(member.out, made, row_bytes, buffers, lows)
    step = replace(member.step, label=f"{member.step.label}[{made.start}:{made.stop}]")
    return part(step, member.rows, made, refs, spans)


def _cut(value: Value, span: Span, row_bytes: int, buffers: Mapping[Value, Value], lows: Mapping[Value, int]) -> Value:
    """Rows ``span`` of a value, where they are in its buffer if it has one."""
    buffer = buffers.get(value)
    first = span.start - (lows[value] if buffer is not None else 0)
    return (buffer or value).view(first * row_bytes, (span.stop - span.start) * row_bytes)
