"""The arena over time, drawn: steps from left to right, addresses from bottom to top. In letters for a terminal, as SVG for a browser.

Both draw ``boxes``: one for each piece of a value, exactly as long as its bytes hold. Two boxes share area only where the output of a step
lies over an input that dies there.
"""

from __future__ import annotations

import html
import string
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from mcugrad.lower.program import Program, Value
from mcugrad.memory.account import SEGMENTS, behind_forward, peak_of
from mcugrad.memory.liveness import Piece
from mcugrad.memory.planner import Layout, step_bytes
from mcugrad.plan import Region


class Role(Enum):
    """What a piece is there for."""

    SAMPLE = "sample"
    ACTIVATION = "activation"
    SAVED = "kept for backward"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Box:
    """Addresses [lo, hi) hold a value, or bytes of it, from step ``first`` to step ``last``, both inclusive."""

    value: Value
    lo: int
    hi: int
    first: int
    last: int
    role: Role


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn. ``needed``: bytes that each step needs at least. ``starts``: first step of each segment.

    ``whole``: of each step, whether it is one of the model's and not a part of one, in stripes.
    """

    program: Program
    layout: Layout
    boxes: tuple[Box, ...]
    needed: tuple[int, ...]
    starts: tuple[int, ...]
    whole: tuple[bool, ...]

    @property
    def arena(self) -> int:
        return self.layout.sizes[Region.ARENA]

    @property
    def steps(self) -> int:
        return len(self.needed)

    @property
    def headline(self) -> str:
        bound, peak = self.layout.lower_bound, self.program.steps[self.layout.peak_step].name
        return f"arena {self.arena:,} bytes, lower bound {bound:,}, peak at step {self.layout.peak_step:,} of {self.steps:,}: {peak}"


def picture(program: Program, layout: Layout, lowered: Program) -> Picture:
    """All that both drawings need. ``lowered``: the program with every step whole."""
    plain = set(lowered.steps)
    boxes = tuple(
        Box(value, layout.offsets[value] + p.lo, layout.offsets[value] + p.hi, p.first, p.last, _role(program, value, p))
        for value, pieces in layout.live.pieces.items()
        for p in pieces
    )
    starts = tuple(sum(len(s) for s in program.segments[:k]) for k in range(len(program.segments)))
    needed = tuple(step_bytes(layout.live, len(program.steps)))
    return Picture(program, layout, boxes, needed, starts, tuple(step in plain for step in program.steps))


def _role(program: Program, value: Value, piece: Piece) -> Role:
    if value is program.sample:
        return Role.SAMPLE
    if behind_forward(program, piece):
        return Role.SAVED
    return Role.ACTIVATION if piece.first < len(program.segments[0]) + len(program.segments[1]) else Role.ERROR


# ---- for a terminal ---------------------------------------------------------------------------------------------------

ROWS = 20
MARGIN = 13
"""Columns left of the drawing: an address and a mark."""

LETTERS = string.ascii_uppercase + string.ascii_lowercase
OTHERS = "#"
"""All values that have no letter of their own."""

HELD_SHOWN = 8
"""Lines of the legend."""


PART = 0.125
"""A step that is a part of one is drawn so wide, a whole one 1: many stripes would leave no room for the rest."""


@dataclass(frozen=True, slots=True)
class Cells:
    """``numbers[row, column]``: of the value with most bytes and steps in a cell, -1 where nothing holds; row 0 is the top.

    ``columns[c]`` to ``columns[c + 1]``: the steps of a column, as fractions. ``values``: by number, the largest first.
    """

    numbers: npt.NDArray[np.int64]
    columns: npt.NDArray[np.float64]
    values: tuple[Value, ...]

    def letter(self, number: int) -> str:
        return LETTERS[number] if number < len(LETTERS) else OTHERS

    def column(self, step: float) -> int:
        return int(np.searchsorted(self.columns, step, "right")) - 1


def cells(p: Picture, columns: int, rows: int = ROWS) -> Cells:
    """The drawing as a grid."""
    found: dict[Value, list[Box]] = {}
    for box in p.boxes:
        found.setdefault(box.value, []).append(box)
    values = tuple(sorted(found, key=lambda v: -sum((b.hi - b.lo) * (b.last + 1 - b.first) for b in found[v])))
    steps, addresses = _columns(p, columns), np.linspace(0, max(p.arena, 1), rows + 1)
    numbers, most = np.full((rows, columns), -1, np.int64), np.zeros((rows, columns))
    for number, value in enumerate(values):
        covered = sum(np.outer(_shares(b.lo, b.hi, addresses)[::-1], _shares(b.first, b.last + 1, steps)) for b in found[value])
        numbers[covered > most] = number
        most = np.maximum(most, covered)
    return Cells(numbers, steps, values)


def _columns(p: Picture, columns: int) -> npt.NDArray[np.float64]:
    """Edges of the columns, in steps."""
    ends = np.concatenate([[0.0], np.cumsum(np.where(p.whole, 1.0, PART))])
    edges: npt.NDArray[np.float64] = np.interp(np.linspace(0, ends[-1], columns + 1), ends, np.arange(len(ends)))
    return edges


def _shares(lo: int, hi: int, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How much of [lo, hi) lies between each two edges."""
    inside: npt.NDArray[np.float64] = np.minimum(hi, edges[1:]) - np.maximum(lo, edges[:-1])
    return np.maximum(inside, 0)


def text_lines(p: Picture, width: int) -> list[str]:
    """The drawing in ASCII, ``width`` columns wide: a headline, the grid, the segments, the peak, and what holds there by its letter."""
    grid = cells(p, max(16, width - MARGIN - 1))
    bound = ROWS - 1 - max(0, p.layout.lower_bound - 1) * ROWS // max(p.arena, 1)
    addresses = {bound: f"{p.layout.lower_bound:,}", ROWS - 1: "0", 0: f"{p.arena:,}"}
    lines = [_ascii(p.headline)]
    for row, numbers in enumerate(grid.numbers):
        empty = "-" if row == bound else " "
        line = "".join(empty if n < 0 else grid.letter(int(n)) for n in numbers)
        lines.append(f"{addresses.get(row, ''):>{MARGIN - 2}} |{line}|")
    peak = grid.column(p.layout.peak_step + 0.5)
    mark = " " * peak + "^ peak" if peak + 6 < len(grid.columns) else " " * (peak - 5) + "peak ^"
    return [*lines, " " * MARGIN + _segments_line(p, grid), " " * MARGIN + mark, *_legend(p, grid, width)]


def _segments_line(p: Picture, grid: Cells) -> str:
    line = ["="] * (len(grid.columns) - 1)
    ends = (*p.starts[1:], p.steps)
    for name, first, end in zip(SEGMENTS, p.starts, ends, strict=True):
        if end > first:
            at = grid.column(first)
            text = "|" + name
            line[at : at + len(text)] = text[: max(1, grid.column(end - 0.001) - at)].ljust(len(text), "=")[: len(line) - at]
    return "".join(line)


def _legend(p: Picture, grid: Cells, width: int) -> list[str]:
    """What holds at the peak step, the largest first."""
    letters = {v: grid.letter(k) for k, v in enumerate(grid.values)}
    held = peak_of(p.program, p.layout).held
    lines = [f"{sum(h.bytes for h in held):,} bytes hold at the peak:"]
    lines += [f"  {letters[h.value]} {h.bytes:>9,}  {_ascii(h.value.name)}"[:width] for h in held[:HELD_SHOWN]]
    rest = held[HELD_SHOWN:]
    return lines + ([f"    {sum(h.bytes for h in rest):>9,}  {len(rest)} more"] if rest else [])


def _ascii(name: str) -> str:
    """A name of the model as a terminal of any kind can show it."""
    return ascii(name)[1:-1]


# ---- for a browser ----------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 1240, 640
LEFT, TOP = 90, 70
PLOT_WIDTH, PLOT_HEIGHT = 1120, 470
COLORS = {Role.SAMPLE: "#8d99ae", Role.ACTIVATION: "#4c9be8", Role.SAVED: "#e9a23b", Role.ERROR: "#d1495b"}
LABEL_PX = 7
"""A letter of a label is about so wide."""


def svg(p: Picture) -> str:
    """The drawing as one SVG file: nothing outside it is needed. Hovering over a box says what it is."""
    root = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", width=str(WIDTH), height=str(HEIGHT))
    root.set("font-family", "system-ui, sans-serif")
    root.set("font-size", "12")
    _add(root, "title", p.headline)
    _add(root, "rect", width=WIDTH, height=HEIGHT, fill="#ffffff")
    _add(root, "text", p.headline, x=LEFT, y=24, font_size=15, fill="#222222")
    _draw_segments(root, p)
    _draw_boxes(root, p)
    _draw_labels(root, p)
    _draw_lines(root, p)
    _draw_axes(root, p)
    _draw_key(root)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def page(p: Picture) -> str:
    """The drawing in an HTML page, with a table of what holds at the peak."""
    peak = peak_of(p.program, p.layout)
    rows = "\n".join(f"<tr><td>{html.escape(h.value.name)}</td><td align='right'>{h.bytes:,}</td></tr>" for h in peak.held)
    return (
        f"<!DOCTYPE html>\n<html lang='en'>\n<head><meta charset='utf-8'><title>{html.escape(p.headline)}</title></head>\n<body>\n{svg(p)}"
        f"<table>\n<caption>at the peak, step {peak.step}: {html.escape(peak.name)}</caption>\n<tr><th>value</th><th>bytes</th></tr>\n"
        f"{rows}\n</table>\n</body>\n</html>\n"
    )


def _add(parent: ET.Element, tag: str, text: str = "", **attributes: float | str) -> ET.Element:
    words = {key.replace("_", "-"): f"{value:g}" if isinstance(value, float) else str(value) for key, value in attributes.items()}
    child = ET.SubElement(parent, tag, words)
    child.text = "".join(c if c.isprintable() else "?" for c in text) or None
    return child


def _x(p: Picture, step: float) -> float:
    return LEFT + PLOT_WIDTH * step / p.steps


def _y(p: Picture, address: float) -> float:
    return TOP + PLOT_HEIGHT * (1 - address / max(p.arena, 1))


def _draw_segments(root: ET.Element, p: Picture) -> None:
    ends = (*p.starts[1:], p.steps)
    for k, (name, first, end) in enumerate(zip(SEGMENTS, p.starts, ends, strict=True)):
        if end > first:
            at, width = _x(p, first), _x(p, end) - _x(p, first)
            band = _add(root, "rect", x=at, y=TOP - 18, width=width, height=PLOT_HEIGHT + 18, fill=("#f4f4f6", "#e8e8ee")[k % 2])
            band.set("class", "segment")
            _add(band, "title", f"{name}: steps {first} to {end - 1}")
            if width >= LABEL_PX * len(name):
                _add(root, "text", name, x=at + 4, y=TOP - 5, fill="#555555")


def _draw_boxes(root: ET.Element, p: Picture) -> None:
    """In units of steps and bytes, so that the numbers in the file are those of the plan."""
    scale = f"translate({LEFT} {TOP}) scale({PLOT_WIDTH / p.steps:.9g} {PLOT_HEIGHT / max(p.arena, 1):.9g})"
    plot = _add(root, "g", id="arena", transform=scale, stroke="#ffffff", stroke_width=0.6)
    for b in p.boxes:
        box = _add(plot, "rect", x=b.first, y=p.arena - b.hi, width=b.last + 1 - b.first, height=b.hi - b.lo, fill=COLORS[b.role])
        box.set("fill-opacity", "0.85")
        box.set("vector-effect", "non-scaling-stroke")
        _add(box, "title", _words(p, b))


def _words(p: Picture, b: Box) -> str:
    steps, size = p.program.steps, b.hi - b.lo
    of = f" of {b.value.nbytes:,}" if size < b.value.nbytes else ""
    span = f"steps {b.first} ({steps[b.first].name}) to {b.last} ({steps[b.last].name})"
    return f"{b.value.name}, {b.role.value}: {size:,}{of} bytes at {b.lo:,} to {b.hi:,}, {span}"


def _draw_labels(root: ET.Element, p: Picture) -> None:
    for b in p.boxes:
        width, height = _x(p, b.last + 1) - _x(p, b.first), _y(p, b.lo) - _y(p, b.hi)
        if height >= 13 and width >= LABEL_PX * len(b.value.name) + 6:
            label = _add(root, "text", b.value.name, x=_x(p, b.first) + 4, y=_y(p, b.hi) + 12, fill="#ffffff")
            label.set("pointer-events", "none")


def _draw_lines(root: ET.Element, p: Picture) -> None:
    points = " ".join(f"{_x(p, k):.1f},{_y(p, n):.1f} {_x(p, k + 1):.1f},{_y(p, n):.1f}" for k, n in enumerate(p.needed))
    needed = _add(root, "polyline", points=points, fill="none", stroke="#222222", stroke_width=1.2)
    needed.set("class", "needed")
    needed.set("pointer-events", "none")
    bound, peak = _y(p, p.layout.lower_bound), _x(p, p.layout.peak_step + 0.5)
    line = _add(root, "line", x1=LEFT, x2=LEFT + PLOT_WIDTH, y1=bound, y2=bound, stroke="#222222", stroke_dasharray="6 4")
    line.set("class", "bound")
    mark = _add(root, "line", x1=peak, x2=peak, y1=TOP, y2=TOP + PLOT_HEIGHT + 6, stroke="#222222", stroke_dasharray="2 3")
    mark.set("class", "peak")
    right = peak > LEFT + PLOT_WIDTH / 2
    name = f"peak: step {p.layout.peak_step}, {p.program.steps[p.layout.peak_step].name}"
    _add(root, "text", name, x=peak, y=TOP + PLOT_HEIGHT + 34, text_anchor="end" if right else "start", fill="#222222")


def _draw_axes(root: ET.Element, p: Picture) -> None:
    for address in _ticks(p.arena):
        _add(root, "text", f"{address:,}", x=LEFT - 8, y=_y(p, address) + 4, text_anchor="end", fill="#555555")
    for step in _ticks(p.steps):
        _add(root, "text", f"{step:,}", x=_x(p, step), y=TOP + PLOT_HEIGHT + 17, text_anchor="middle", fill="#555555")


def _ticks(whole: int) -> Iterator[int]:
    """Round numbers from 0 up, about eight of them."""
    sizes = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    unit = next(n for n in sizes if whole <= 8 * n)
    yield from range(0, whole + 1, unit)


def _draw_key(root: ET.Element) -> None:
    at, y = LEFT, TOP + PLOT_HEIGHT + 62
    for role in Role:
        _add(root, "rect", x=at, y=y - 10, width=12, height=12, fill=COLORS[role])
        _add(root, "text", role.value, x=at + 18, y=y, fill="#222222")
        at += 40 + LABEL_PX * len(role.value)
    for dash, words in (("none", "needed by each step"), ("6 4", "lower bound"), ("2 3", "step that sets the peak")):
        _add(root, "line", x1=at, x2=at + 24, y1=y - 4, y2=y - 4, stroke="#222222", stroke_dasharray=dash)
        _add(root, "text", words, x=at + 30, y=y, fill="#222222")
        at += 50 + LABEL_PX * len(words)
