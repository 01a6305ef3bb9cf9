"""The picture of the arena is true: a box for each piece, in its place, and none over another but where a step works in place."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import pytest

from helpers.graphs import GRAPHS
from mcugrad.lower import Options
from mcugrad.memory.picture import ROWS, Box, Picture, cells, page, picture, svg, text_lines
from mcugrad.pipeline import Compiled, compile_graph

SVG = "{http://www.w3.org/2000/svg}"


def drawn(name: str) -> tuple[Compiled, Picture]:
    compiled = compile_graph(GRAPHS[name](1), "all", Options())
    return compiled, picture(compiled.program, compiled.layout, compiled.lowered)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_box_for_each_piece(name: str) -> None:
    compiled, p = drawn(name)
    layout = compiled.layout
    pieces = {
        (v.name, layout.offset(v) + piece.lo, layout.offset(v) + piece.hi, piece.first, piece.last)
        for v, found in layout.live.pieces.items()
        for piece in found
    }
    assert {(b.value.name, b.lo, b.hi, b.first, b.last) for b in p.boxes} == pieces
    assert len(p.boxes) == sum(len(found) for found in layout.live.pieces.values())
    assert all(0 <= b.lo < b.hi <= p.arena and 0 <= b.first <= b.last < p.steps for b in p.boxes)


def share(a: Box, b: Box) -> bool:
    return a.lo < b.hi and b.lo < a.hi and a.first <= b.last and b.first <= a.last


@pytest.mark.parametrize("name", GRAPHS)
def test_no_two_boxes_share_area_but_an_output_over_its_input(name: str) -> None:
    compiled, p = drawn(name)
    layout = compiled.layout
    allowed = {
        (over.step, over.into.root, over.out.root)
        for over in layout.live.overs
        if layout.offset(over.out) <= layout.offset(over.into) - over.lag
    }
    for a, b in itertools.combinations(p.boxes, 2):
        if a.value is not b.value and share(a, b):
            into, out = (a, b) if a.last == b.first else (b, a)
            assert into.last == out.first and (out.first, into.value, out.value) in allowed


def test_there_are_outputs_over_their_inputs() -> None:
    """So that the test above has something to allow."""
    assert any(a.value is not b.value and share(a, b) for name in GRAPHS for a, b in itertools.combinations(drawn(name)[1].boxes, 2))


@pytest.mark.parametrize("name", GRAPHS)
def test_the_svg_has_the_boxes_with_the_numbers_of_the_plan(name: str) -> None:
    _, p = drawn(name)
    root = ET.fromstring(svg(p))
    plot = root.find(f"{SVG}g[@id='arena']")
    assert plot is not None
    found = [tuple(int(rect.attrib[key]) for key in ("x", "y", "width", "height")) for rect in plot.iter(f"{SVG}rect")]
    assert found == [(b.first, p.arena - b.hi, b.last + 1 - b.first, b.hi - b.lo) for b in p.boxes]
    titles = [title.text or "" for title in plot.iter(f"{SVG}title")]
    for title, b in zip(titles, p.boxes, strict=True):
        assert title.startswith(f"{b.value.name}, {b.role.value}: {b.hi - b.lo:,}") and f"steps {b.first} (" in title
    assert len(root.findall(f".//{SVG}rect[@class='segment']")) == sum(len(s) > 0 for s in p.program.segments)
    assert all(len(root.findall(f".//{SVG}*[@class='{what}']")) == 1 for what in ("bound", "peak", "needed"))
    assert "<script" not in page(p) and svg(p) in page(p)


def test_names_from_a_model_do_not_break_the_file() -> None:
    compiled, p = drawn(next(iter(GRAPHS)))
    for value in compiled.layout.live.pieces:
        object.__setattr__(value, "name", f'<{value.name}&">\x00 é')
    titles = [t.text or "" for t in ET.fromstring(svg(p)).iter(f"{SVG}title")]
    assert any('&">? é' in title for title in titles)
    assert "<td><" not in page(p)
    assert all(line.isascii() and line.isprintable() for line in text_lines(p, 80))


@pytest.mark.parametrize("name", GRAPHS)
def test_a_cell_is_empty_exactly_where_nothing_holds(name: str) -> None:
    _, p = drawn(name)
    grid = cells(p, 60)
    for row, column in itertools.product(range(ROWS), range(60)):
        low, high = p.arena * (ROWS - 1 - row) / ROWS, p.arena * (ROWS - row) / ROWS
        start, stop = grid.columns[column], grid.columns[column + 1]
        inside = {b.value for b in p.boxes if b.lo < high and low < b.hi and b.first < stop and start < b.last + 1}
        number = grid.numbers[row, column]
        assert (number < 0) == (not inside)
        assert number < 0 or grid.values[number] in inside


@pytest.mark.parametrize("width", [50, 80, 100])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_drawing_is_ascii_and_as_wide_as_asked(name: str, width: int) -> None:
    _, p = drawn(name)
    headline, *lines = text_lines(p, width)
    assert all(line.isascii() for line in lines)
    assert max(len(line) for line in lines) <= width
    assert f"{p.arena:,} bytes" in headline and f"{p.layout.lower_bound:,}" in headline
    (mark,) = (line for line in lines if line.rstrip().endswith(("^ peak", "peak ^")))
    grid = cells(p, width - 14)
    assert mark.index("^") - 13 == grid.column(p.layout.peak_step + 0.5)
    assert [word for word in ("forward", "backward") if f"|{word[:1]}" in lines[ROWS]] == ["forward", "backward"]
